//! Redacted traces have no names and addresses, and still replay.

use crate::run::{Folder, PEERS, Run, error, path, replayed};
use handfast_core::node::{CallFailure, CallToken};
use handfast_core::transport::{OperationId, OperationKind, Outcome};
use handfast_core::wire::{Body, PlainMessage};
use handfast_core::{Incarnation, Input, Instant, Lifecycle, NicPath};
use handfast_trace::{Edge, Ending, Redacted, Step, TraceReader, redact, replay};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

fn redacted(bytes: &[u8]) -> (Redacted, Vec<u8>) {
    let mut out = Vec::new();
    let summary = redact(|| TraceReader::new(bytes, false), &mut out).unwrap();
    (summary, out)
}

fn life(seed: u64, peers: &[&str], steps: usize) -> Vec<u8> {
    let folder = Folder::new();
    let mut run = Run::new(&folder.file(), seed, peers);
    run.live(steps);
    run.end();
    fs::read(folder.file()).unwrap()
}

/// The peers of all lifecycles, entry by entry.
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
fn redacted_trace_has_no_names_and_replays() {
    let plain = life(7, &PEERS, 400);
    let (summary, out) = redacted(&plain);
    let text = str::from_utf8(&out).unwrap();
    for secret in ["example", "mlx5_0", "10.1.2", "c0ffee", "c0de", "fe80", "hung", "\"tcp\""] {
        assert!(str::from_utf8(&plain).unwrap().contains(secret), "the run has no '{secret}'");
        assert!(!text.contains(secret), "'{secret}' is left");
    }
    assert!(summary.names >= 6 && summary.addresses > 1 && summary.tokens > 1, "{summary:?}");
    assert_eq!((summary.gids, summary.details), (1, 1), "{summary:?}");
    let (before, after) = (replayed(&plain).unwrap(), replayed(&out).unwrap());
    assert_eq!(before, after);
    assert_eq!(summary.replayed, before);
}

/// A value has one placeholder everywhere, and placeholders sort as the names do.
#[test]
fn placeholders_keep_identity_and_order() {
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
fn redaction_is_idempotent() {
    let (_, once) = redacted(&life(4, &PEERS, 200));
    let (_, twice) = redacted(&once);
    assert_eq!(once, twice);
}

/// A text under a key that redaction does not know makes a redacted line unreadable. Inputs and edges
/// with every variant show that no key is missing.
#[test]
fn inputs_and_edges_of_every_kind_are_redacted() {
    let folder = Folder::new();
    let mut run = Run::new(&folder.file(), 5, &PEERS);
    let (from, to) = (Some(path(PEERS[0])), None);
    let (lifecycle, token) = (Lifecycle(1), CallToken(1));
    run.tell(Input::Open(path(PEERS[1])));
    let rejected = Some("10.1.2.3 says no".to_owned());
    let body = Body { queue_pairs: vec![1], ..Body::default() };
    let plain = PlainMessage { from, to, body, ready: Some(true), rejected };
    run.tell(Input::PlainCallReceived { token, message: plain.clone() });
    run.tell(Input::PlainCallAnswered { lifecycle, message: plain });
    use CallFailure::{Broken, Refused, TimedOut, Unreachable};
    for failure in [Refused, Unreachable, TimedOut, Broken] {
        run.tell(Input::CallFailed { lifecycle, failure });
    }
    use OperationKind::{Connect, Create, Drain, Probe, Retire};
    for kind in [Create, Connect, Probe, Drain, Retire] {
        for outcome in [Outcome::Connected, Outcome::Probed, Outcome::Drained, Outcome::Retired] {
            run.tell(Input::OperationDone { id: OperationId { lifecycle, kind }, outcome });
        }
        let outcome = Outcome::Failed(error());
        run.tell(Input::OperationDone { id: OperationId { lifecycle, kind }, outcome });
    }
    use Ending::{Cancelled, Exhausted, PeerLost, PeerRestarted, Success, TimedOut as Late};
    let endings = [Success, Ending::Refused(error()), Exhausted(error()), PeerLost(error())];
    let ended = endings.into_iter().chain([PeerRestarted, Late, Cancelled]);
    let ended = ended.map(|ending| Edge::Ended { batch: 1, ending });
    let submitted = Edge::Submitted { batch: 1, requests: 1, bytes: 1 };
    let lost = [Edge::PeerLost(error()), Edge::PeerRestarted, Edge::Missed(1), submitted];
    let down = Edge::LaneDown { lane: lifecycle, cause: error() };
    let lanes = [Edge::LaneUp(lifecycle), Edge::LaneRevoked(lifecycle), down];
    let edges = ended.chain(lost).chain(lanes).map(|edge| (Instant(1), edge));
    assert!(!run.trace.edges(&path(PEERS[0]), Incarnation(7), edges));
    run.end();
    let plain = fs::read(folder.file()).unwrap();
    let (summary, out) = redacted(&plain);
    assert_eq!(summary.replayed.edges, 14);
    assert!(!str::from_utf8(&out).unwrap().contains("10.1.2"));
    assert_eq!(replayed(&plain).unwrap(), replayed(&out).unwrap());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..Default::default() })]

    /// Five peers share a table of three, so the order of names decides the evicted one.
    #[test]
    fn peers_are_evicted_in_the_same_order(
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
