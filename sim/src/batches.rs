//! Exploration of the shipping [`Transfers`](handfast_core::transfer::Transfers): one machine, and
//! everything that the lanes, the peer, the clock and the application may do to it.

mod events;
mod oracle;
mod setup;
#[cfg(feature = "variants")]
mod variants;
mod world;

pub use events::TransferEvent;
pub use oracle::{TransferOracle, TransferViolation};
pub use setup::{BatchPlan, TransferBuild, TransferScenario, TransferSetup};
#[cfg(feature = "variants")]
pub use variants::{TransferEntry, VARIANTS};
pub use world::TransferWorld;
