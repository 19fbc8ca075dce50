//! Stories about the rules: the shipping ones hold, and each broken variant is found out.

mod application;
mod auth;
mod batches;
mod budgets;
mod connection;
mod deep;
mod early;
mod effects;
mod exploration;
mod explored;
mod fleet;
mod look_ups;
mod managed;
mod mixed;
mod mooncake;
mod policies;
mod rails;
mod reconnect;
mod recorded;
mod refinement;
mod replay;
mod rules;
mod same_host;
mod sharing;
mod shipping;
mod short;
mod sweep;
mod time;
mod transcripts;
mod transfers;
#[cfg(feature = "variants")]
mod variants;
mod visibility;

/// Worlds are made and dropped a hundred thousand times a second; a fifth of the time is saved.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Long runs are allowed, as in `cargo xtask nightly`.
fn nightly() -> bool {
    std::env::var_os("HANDFAST_NIGHTLY").is_some()
}
