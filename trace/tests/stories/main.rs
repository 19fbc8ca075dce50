//! Recorded runs: written, bounded, replayed, redacted; and what is no trace, or not all of one.

mod damaged;
mod recorded;
mod redacted;
mod run;
