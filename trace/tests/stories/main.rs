//! Recorded runs: recorded, bounded, replayed, redacted; and files that are no trace.

mod damaged;
mod recorded;
mod redacted;
mod run;
