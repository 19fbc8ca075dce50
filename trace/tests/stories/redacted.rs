//! Names and addresses are taken out, and the trace still replays.

use crate::run::{Folder, PEERS, Run, replayed};
use handfast_core::NicPath;
use handfast_trace::{Redacted, Step, TraceReader, redact, replay};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

fn redacted(bytes: &[u8]) -> (Redacted, Vec<u8>) {
    let mut out = Vec::new();
    let told = redact(|| TraceReader::new(bytes, false), &mut out).unwrap();
    (told, out)
}

fn life(seed: u64, peers: &[&str], steps: usize) -> Vec<u8> {
    let folder = Folder::new();
    let mut run = Run::new(&folder.file(), seed, peers);
    run.live(steps);
    run.end();
    fs::read(folder.file()).unwrap()
}

/// Every peer that a lifecycle is towards, entry by entry.
fn peers(bytes: &[u8]) -> Vec<Vec<NicPath>> {
    let mut peers = Vec::new();
    let read = replay(TraceReader::new(bytes, false).unwrap(), &mut |step| {
        if let Step::Entry { node, .. } = step {
            peers.push(node.lifecycles().map(|(_, _, peer, _)| peer.clone()).collect());
        }
    });
    read.unwrap();
    peers
}

#[test]
fn nothing_of_what_names_somebody_is_left_and_all_of_it_replays() {
    let plain = life(7, &PEERS, 400);
    let (told, out) = redacted(&plain);
    let text = str::from_utf8(&out).unwrap();
    for secret in ["example", "mlx5_0", "10.1.2", "c0ffee", "c0de", "fe80", "hung", "=tcp"] {
        assert!(str::from_utf8(&plain).unwrap().contains(secret), "the run has no '{secret}'");
        assert!(!text.contains(secret), "'{secret}' is left");
    }
    assert!(told.names >= 6 && told.addresses > 1 && told.tokens > 1, "{told:?}");
    assert_eq!((told.gids, told.details), (1, 1), "{told:?}");
    let (before, after) = (replayed(&plain).unwrap(), replayed(&out).unwrap());
    assert_eq!(before, after);
    assert_eq!(told.replayed, before);
}

#[test]
fn a_value_has_one_placeholder_everywhere_and_placeholders_are_in_the_order_of_names() {
    let plain = life(9, &PEERS, 400);
    let (_, out) = redacted(&plain);
    let mut names = BTreeMap::new();
    for (before, after) in peers(&plain).into_iter().zip(peers(&out)) {
        assert_eq!(before.len(), after.len());
        for (before, after) in before.into_iter().zip(after) {
            assert_eq!(*names.entry(before).or_insert(after.clone()), after);
        }
    }
    assert!(names.len() > 3);
    let placeholders: Vec<_> = names.values().collect();
    assert!(placeholders.is_sorted(), "{names:?}");
    assert_eq!(placeholders.iter().collect::<BTreeSet<_>>().len(), names.len());
}

#[test]
fn what_was_redacted_twice_is_the_same() {
    let (_, once) = redacted(&life(4, &PEERS, 200));
    let (_, twice) = redacted(&once);
    assert_eq!(once, twice);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..Default::default() })]

    /// Tables of three peers with five in sight: which makes way is a matter of their order.
    #[test]
    fn peers_of_any_names_make_way_in_the_same_order(
        seed in any::<u64>(),
        names in proptest::collection::btree_set("[!-?A-~äß]{1,12}", 5),
        nic in "[a-z0-9_]{1,9}",
    ) {
        let names: Vec<String> = names.iter().map(|name| format!("{name}@{nic}")).collect();
        let plain = life(seed, &names.iter().map(String::as_str).collect::<Vec<_>>(), 120);
        let (_, out) = redacted(&plain);
        prop_assert_eq!(replayed(&plain).unwrap(), replayed(&out).unwrap());
    }
}
