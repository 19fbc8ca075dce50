//! Properties of any input, one module per fuzz target.
//!
//! libFuzzer calls these functions with inputs of its own making, and `cargo test` calls them with
//! every file of the checked-in corpus and with some that [`mutate`] makes of them, so an input that once
//! broke something is tried on every run and on machines that cannot fuzz.

pub mod auth;
pub mod explain_and_exchange;
pub mod frame_and_json;
pub mod lanes;
pub mod mooncake;
pub mod mutate;
pub mod private_data;
pub mod same_host;
pub mod schedules;
pub mod sessions;
pub mod stores;
pub mod texts;
pub mod trace;

/// A function that panics if what must hold for its input does not.
pub type Check = fn(&[u8]);

/// Every target by name: its corpus is `fuzz/corpus/NAME`, its binary `fuzz/fuzz_targets/NAME.rs`.
pub const TARGETS: &[(&str, Check)] = &[
    ("auth", auth::check),
    ("frame_and_json", frame_and_json::check),
    ("lanes", lanes::check),
    ("mooncake", mooncake::check),
    ("private_data", private_data::check),
    ("same_host", same_host::check),
    ("schedules", schedules::check),
    ("sessions", sessions::check),
    ("stores", stores::check),
    ("texts", texts::check),
    ("trace", trace::check),
    ("explain_and_exchange", explain_and_exchange::check),
];

/// Longest error text: it goes into logs and refusals, so a peer must not choose its length.
const ERROR_BYTES_MAX: usize = 1024;

fn check_error(text: &str) {
    assert!(text.len() <= ERROR_BYTES_MAX, "an error text of {} bytes", text.len());
}
