//! Tests of the engine's users, on local sockets and in a simulated network.

mod addresses;
mod auth;
mod auth_files;
mod certificates;
mod crossing;
mod crowd;
#[cfg(target_os = "linux")]
mod device_memory;
mod directory;
mod encrypted;
mod examples;
mod far;
mod grants;
mod held_copies;
mod helpers;
mod hostile;
mod kept;
mod limits;
mod log;
mod metrics;
mod mooncake;
mod mute;
mod names;
mod numbers;
#[cfg(target_os = "linux")]
mod opened;
mod races;
mod recorded;
mod restart;
mod runtimes;
mod same_host;
mod share;
mod simulated;
mod topology;
mod transfers;
mod transports;
