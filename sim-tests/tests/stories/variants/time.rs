//! Variants that a clock shows.

use handfast_sim::{Case, play_timed, variants};

const EVENTS_MAX: u32 = 200;

/// Seeds within which a variant is found.
const SEEDS_MAX: u64 = 500;

/// Fewest seeds of a control.
const CONTROL_SEEDS_MIN: u64 = 64;

/// Schedules in virtual time find each variant of a moment, and nothing in its world under the shipping rules.
#[test]
fn variants_of_moments_are_found_in_virtual_time() {
    for entry in variants::CLOCK {
        let start = Case::of_variant(entry).start();
        let play = |seed| Some((seed, play_timed(&start, seed, EVENTS_MAX, false).violation?));
        let found = (0..SEEDS_MAX).find_map(play);
        let (seed, found) = found.unwrap_or_else(|| panic!("{} is not found", entry.id));
        println!("{}: {:?} in seed {seed}, {}", entry.id, found.oracle, found.detail);
        assert_eq!(Some(&found.oracle), entry.oracles.first(), "{}: {found:?}", entry.id);
        let control = entry.control();
        for seed in 0..(2 * seed).max(CONTROL_SEEDS_MIN) {
            let run = play_timed(&control, seed, EVENTS_MAX, false);
            assert_eq!(run.violation, None, "the control of {}, seed {seed}", entry.id);
        }
    }
}
