//! The kernel of a guest, asked again.

use crate::recorded::kernels;
use conformance::{Recording, deviations, differences, findings, record_kernel};

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
    // One kernel may show either side of an allowed difference from run to run.
    let allowed = differences();
    let mut steady = observed.clone();
    for (name, lines) in &mut steady.played {
        let kept = recorded.lines(name).unwrap_or_default();
        for deviation in deviations(name, kept, lines, &allowed) {
            let place = lines.iter().position(|line| *line == deviation.kernel);
            if let (Some(id), Some(place)) = (deviation.allowed, place) {
                println!("{name}: {} instead of {} ({id})", deviation.kernel, deviation.simulated);
                lines[place] = deviation.simulated;
            }
        }
    }
    let changed = findings(recorded, std::slice::from_ref(&steady), &[]);
    assert!(changed.is_empty(), "{}", changed.join("\n"));
}
