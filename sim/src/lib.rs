//! Explorer, replay, shrinking and timelines of handfast nodes over the simulated fabric. `docs/testing.md` says what
//! each oracle means, `docs/simulation.md` how a failure is replayed and read.

pub mod auth;
pub mod batches;
pub mod case;
pub mod connection;
mod coverage;
mod cycles;
pub mod devices;
pub mod early;
mod expectation;
mod explorer;
pub mod fleet;
mod healings;
mod layer;
pub mod line;
mod liveness;
pub mod look_ups;
pub mod machine_world;
mod minimize;
pub mod mooncake;
#[cfg(feature = "variants")]
pub mod mutant_search;
mod path_tree;
mod play;
pub mod policies;
mod record;
mod recorded;
mod saved;
pub mod scenario;
mod scheduler;
pub mod script;
mod seen;
pub mod sharing;
pub mod sweep;
mod timed;
pub mod timeline;
mod transcript;
mod transfers;
pub mod variants;
pub mod visibility;

pub use case::Case;
pub use coverage::Coverage;
pub use devices::Ground;
pub use explorer::{Counterexample, Ending, Exploration, Explorer, Progress, Report};
pub use line::{Line, LineError, ReplayError, Schedule};
pub use liveness::{HEAL_EVENTS_MAX, Healer, Healing, next as next_fair_event};
pub use minimize::{MinimizeError, Minimized, minimize};
pub use play::{Rules, Run, play, play_schedule};
pub use record::{Fate, Passage, Picture, Record, Row, SiteState};
pub use recorded::{ENTRIES_SHOWN_MAX, Window, picture as picture_of_trace};
pub use saved::{Saved, SavedError};
pub use scenario::Scenario;
pub use scheduler::Scheduler;
pub use timed::{TimedRun, play_timed};
pub use transcript::transcript;
pub use transfers::Traffic;
