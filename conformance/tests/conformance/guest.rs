//! The kernel of a guest, asked again.

use crate::recorded::kernels;
use conformance::{Recording, findings, record_kernel};

/// Of a title, the kernel's version without what a distribution counts.
fn series(recording: &Recording) -> String {
    let release = recording.title.split(['-', ',', '+']).next().unwrap_or_default();
    release.split('.').take(2).collect::<Vec<_>>().join(".")
}

#[test]
fn the_kernel_of_the_guest_still_shows_what_was_recorded_of_it() {
    let observed = record_kernel(&[]).unwrap_or_else(|error| {
        panic!("{error}; this test needs the devices that `cargo xtask guest` makes")
    });
    let kernels = kernels();
    let recorded = kernels.iter().find(|recorded| series(recorded) == series(&observed));
    let recorded = recorded.unwrap_or_else(|| {
        panic!("no kernel like {} was recorded; it shows:\n{observed}", observed.title)
    });
    let changed = findings(recorded, std::slice::from_ref(&observed), &[]);
    assert!(changed.is_empty(), "{}", changed.join("\n"));
}
