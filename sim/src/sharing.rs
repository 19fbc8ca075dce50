//! Exploration of the shipping [`Sharing`](handfast_core::sharing::Sharing): two or three processes of
//! one host that map memory of each other, are stopped, continue, and die.
//!
//! The machine decides when memory is given back; the world knows who can still reach it.

mod events;
mod oracle;
mod process;
mod setup;
#[cfg(feature = "variants")]
mod variants;
mod world;

pub use events::SharingEvent;
pub use oracle::{SharingOracle, SharingViolation};
pub use setup::{CopyPlan, RegionPlace, RegionPlan, SharingBackend, SharingScenario, SharingSetup};
#[cfg(feature = "variants")]
pub use variants::{SHARING_VARIANTS, SharingEntry, SharingSource};
pub use world::SharingWorld;
