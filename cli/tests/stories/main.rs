//! The program `handfast` as its users see it: real processes, files and sockets of this machine.
//!
//! A test that cannot run here prints a line that starts with `skipped:` on standard error.

mod auth;
mod bench;
#[cfg(feature = "tls")]
#[path = "../../../engine/tests/stories/certificates.rs"]
#[allow(dead_code, reason = "the engine's stories use the rest")]
mod certificates;
mod containers;
mod crossing;
mod doctor;
mod explain;
#[cfg(feature = "verbs")]
mod exposed;
#[cfg(feature = "verbs")]
mod failures;
#[path = "../../../engine/tests/stories/far.rs"]
mod far;
mod files;
#[cfg(feature = "verbs")]
mod held;
mod helpers;
#[cfg(feature = "verbs")]
mod hosts;
mod idle;
#[cfg(feature = "verbs")]
#[path = "../../../transport-rdma/tests/rdma/links.rs"]
#[allow(dead_code, reason = "those of the backend use it too")]
mod links;
mod loss;
#[cfg(feature = "verbs")]
#[path = "../../../transport-rdma/tests/rdma/meeting.rs"]
mod meeting;
mod metrics;
mod mooncake;
#[cfg(feature = "verbs")]
mod mooncake_rdma;
#[cfg(feature = "verbs")]
mod native;
mod nodes;
mod output;
#[cfg(feature = "verbs")]
mod planted;
#[cfg(feature = "verbs")]
mod programs;
#[cfg(feature = "verbs")]
mod prove;
#[cfg(feature = "verbs")]
mod proven;
#[cfg(feature = "verbs")]
mod rdma;
#[cfg(feature = "verbs")]
mod rdma_engine;
#[cfg(feature = "verbs")]
mod rdma_limits;
#[cfg(feature = "verbs")]
mod rdma_loss;
#[cfg(feature = "verbs")]
mod rdma_rails;
#[cfg(feature = "verbs")]
mod reborn;
#[cfg(feature = "verbs")]
mod reregistered;
mod serving;
mod sim;
#[cfg(feature = "verbs")]
mod siw;
#[cfg(not(feature = "verbs"))]
mod smoke;
mod stopped;
mod topology;
mod traces;
#[cfg(feature = "verbs")]
#[path = "../../../transport-rdma/tests/rdma/wires.rs"]
#[allow(dead_code, reason = "those of the backend use it too")]
mod wires;
