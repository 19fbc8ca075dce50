//! Writes into memory whose owner sees them late, explored with the shipping rule and with broken ones.

use handfast_core::visibility::{ShowingRead, Unseen};
use handfast_sim::machine_world::explore;
use handfast_sim::visibility::{ShowingRule, VisibilityOracle, VisibilityWorld};

const STATES_MAX: usize = 1_000_000;
/// Writes of two queue pairs to two devices, by queue pair and region.
const WRITES: [(usize, u64); 5] = [(0, 7), (1, 7), (0, 8), (0, 7), (1, 8)];

/// The shipping rule, with its completions and reads under false names.
#[derive(Clone, Hash)]
struct Broken {
    rule: Unseen<(usize, u64, usize)>,
    /// A write ends when it has completed.
    ends_at_once: bool,
    /// One read is for all queue pairs.
    joins_pairs: bool,
    /// One read is for all regions.
    joins_regions: bool,
}

impl ShowingRule for Broken {
    fn on_written(&mut self, pair: usize, region: u64, write: usize) -> Vec<usize> {
        if self.ends_at_once {
            return vec![write];
        }
        let named =
            (if self.joins_pairs { 0 } else { pair }, if self.joins_regions { 0 } else { region });
        self.rule.on_written(named.0, named.1, (pair, region, write));
        Vec::new()
    }

    fn poll_read(&mut self) -> Option<ShowingRead<usize>> {
        let read = self.rule.poll_read()?;
        let (pair, region, _) = read.writes[0];
        let writes = read.writes.iter().map(|(.., write)| *write).collect();
        Some(ShowingRead { pair, region, writes })
    }
}

/// A write that has succeeded is on its device, in every order of completions, reads and wake-ups.
#[test]
fn successful_write_is_seen_by_its_owner() {
    let searched = explore(&VisibilityWorld::new(Unseen::<usize>::default(), &WRITES), STATES_MAX);
    if let Some(found) = searched.finding {
        panic!("{}", found.transcript);
    }
    assert!(!searched.cut_short, "the bound on states was reached");
    println!("{} worlds, {} events tried", searched.states, searched.transitions);
}

/// Without the read, or with one for another queue pair or region, a success is a lie: each is found, and
/// as few events show it.
#[test]
fn writes_that_end_without_their_read_are_found() {
    let sound = Broken {
        rule: Unseen::default(),
        ends_at_once: false,
        joins_pairs: false,
        joins_regions: false,
    };
    let names = explore(&VisibilityWorld::new(sound.clone(), &WRITES), STATES_MAX);
    assert!(names.finding.is_none(), "the names alone break nothing");
    for (broken, events) in [
        (Broken { ends_at_once: true, ..sound.clone() }, 3),
        (Broken { joins_pairs: true, ..sound.clone() }, 7),
        (Broken { joins_regions: true, ..sound }, 8),
    ] {
        let searched = explore(&VisibilityWorld::new(broken, &WRITES), STATES_MAX);
        let found = searched.finding.expect("the rule is broken");
        assert_eq!(found.violation.oracle, VisibilityOracle::Seen, "{}", found.transcript);
        assert_eq!(found.events, events, "{}", found.transcript);
    }
}
