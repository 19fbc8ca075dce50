//! Exploration of the shipping [`Transfers`](handfast_core::transfer::Transfers): one machine, and
//! everything that the lanes, the peer, the clock and the application may do to it.

mod events;
mod oracle;
mod search;
mod setup;
mod variants;
mod world;

pub use events::TransferEvent;
pub use oracle::{TransferOracle, TransferViolation};
pub use search::{Finding, Searched, explore, play};
pub use setup::{BatchPlan, TransferBuild, TransferFaults, TransferScenario, TransferSetup};
pub use variants::TransferEntry;
#[cfg(feature = "variants")]
pub use variants::VARIANTS;
pub use world::TransferWorld;
