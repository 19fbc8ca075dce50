//! Counters, histograms, and the documents made of them.
//!
//! Any task or thread counts, with atomics alone. One task per connection serves `/metrics` and
//! `/state`; it reads counters and asks the driver for its lifecycles.

pub(crate) mod counters;
pub(crate) mod metrics;
