//! Exhaustive exploration of handfast nodes over the simulated fabric. `docs/testing.md` says what
//! each oracle means and how a failure is replayed.

mod circles;
mod coverage;
mod explorer;
mod heal;
pub mod scenario;
mod seen;
mod snapshot;
pub mod sweep;
mod transcript;
mod transfers;
mod ways;

pub use coverage::Coverage;
pub use explorer::{Counterexample, Ending, Explorer, Report};
pub use heal::{HEAL_EVENTS_MAX, Healer, Healing};
pub use scenario::Scenario;
pub use snapshot::{assert_document, assert_snapshot};
pub use transcript::transcript;
pub use transfers::Traffic;
