//! What users of the program `handfast` see: real processes, files and sockets of this machine.
//!
//! A story that cannot be told here prints a line that starts with `skipped:` on standard error.

mod bench;
mod crossing;
mod doctor;
mod explain;
mod files;
mod helpers;
#[cfg(feature = "verbs")]
mod hosts;
mod idle;
mod loss;
mod mooncake;
mod nodes;
mod output;
#[cfg(feature = "verbs")]
mod rdma;
mod serving;
mod sim;
#[cfg(feature = "verbs")]
mod siw;
#[cfg(not(feature = "verbs"))]
mod smoke;
mod stopped;
mod topology;
