//! Exploration of the shipping policies of `handfast_core::policy`: eviction, quota, fallback from RDMA,
//! the detection of reused queue-pair numbers, grants and their administrators, rails, fences and the
//! watchdog of lanes. Each has a world of its own, which drives the machine as the engine does and holds it
//! against properties that it states itself.

mod administration;
mod eviction;
mod fallback;
mod fences;
mod grants;
mod oracle;
mod qpn_reuse;
mod quota;
mod rails;
mod scenario;
mod silence;
#[cfg(feature = "variants")]
mod variants;

pub use oracle::PolicyOracle;
pub use scenario::{PolicyMachines, PolicyScenario};
#[cfg(feature = "variants")]
pub use variants::{Broken, POLICY_VARIANTS, PolicyEntry};
