//! Ends of lanes.

use crate::links::Link;
use crate::support::{BYTES, LANE, Site, config, connected, pattern, unanswered};
use crate::wires::{connects_by_manager, driver};
use handfast_core::Lifecycle;
use handfast_core::connection::Announcement;
use handfast_core::transport::Side;
use handfast_core::wire::Body;
use handfast_transport::{CompletionStatus, Direction, Sent};
use handfast_transport_rdma::NicConfig;
use std::collections::BTreeSet;
use std::process::Command;

/// Of `ibv_wc_status`.
const REMOTE_ACCESS_ERROR: i32 = 10;
const RETRY_EXCEEDED: i32 = 12;
const GENERAL_ERROR: i32 = 21;

/// Side and status of an access that the peer's device refuses.
fn refusal(site: &Site) -> (Side, i32) {
    let hidden = site.nic.recognised().profile.hidden_refusals;
    if hidden.is_empty() {
        (Side::Protection, REMOTE_ACCESS_ERROR)
    } else {
        (Side::Peer, GENERAL_ERROR)
    }
}

/// Destroyed queue pairs of a peer are the first error, and the rest is flushed.
#[test]
fn destroyed_peer_is_the_first_error() {
    let impatient = NicConfig { retries: 1, ..config("rxe0") };
    let (one, other) = connected(impatient, config("rxe1"), 1);
    other.nic.retire(LANE).unwrap();
    one.memory.copy_in(0, &pattern(1)).unwrap();
    if one.nic.uses_connection_manager() {
        return disconnect_is_the_first_error(&one, &other);
    }
    one.post_all(&other, Direction::Write, 8);
    let ends = one.told.ends(8);
    let CompletionStatus::Failed(first) = &ends[0] else { panic!("{ends:?}") };
    assert_eq!((first.side, first.code), (Side::Peer, RETRY_EXCEEDED), "{first}");
    assert_eq!(first.call, "completion");
    assert!(first.detail.starts_with("rxe0: "), "{first}");
    assert!(ends[1..].iter().all(|end| *end == CompletionStatus::Flushed), "{ends:?}");
    one.told.wait("the lane's failure", |told| !told.failures.is_empty());
    let failures = one.told.failures();
    assert_eq!(failures.len(), 1, "{failures:?}");
    assert_eq!((failures[0].0, failures[0].1.code), (LANE, RETRY_EXCEEDED));
    assert!(other.bytes() == vec![0; BYTES], "nothing reached memory without a queue pair");
    assert_eq!(one.nic.counters().slices_flushed, 7);

    one.told.forget();
    one.post_all(&other, Direction::Write, 4);
    assert!(one.told.ends(4).iter().all(|end| *end == CompletionStatus::Released(Sent::None)));
    one.nic.retire(LANE).unwrap();
    assert_eq!((one.nic.lanes(), one.nic.counters().slices_abandoned), (0, 0));
}

/// The connection manager reports the peer's end before a slice is posted: none is sent.
fn disconnect_is_the_first_error(one: &Site, other: &Site) {
    one.told.wait("the lane's failure", |told| !told.failures.is_empty());
    one.post_all(other, Direction::Write, 8);
    assert!(one.told.ends(8).iter().all(|end| *end == CompletionStatus::Released(Sent::None)));
    let failures = one.told.failures();
    assert_eq!(failures.len(), 1, "{failures:?}");
    let (lane, error) = &failures[0];
    assert_eq!((*lane, error.side, &*error.call), (LANE, Side::Peer, "connection"), "{error}");
    assert!(other.bytes() == vec![0; BYTES], "nothing reached memory without a queue pair");
    one.nic.retire(LANE).unwrap();
    assert_eq!((one.nic.lanes(), one.nic.counters().slices_abandoned), (0, 0));
}

/// A lane retired with work in flight ends every slice once and abandons none.
#[test]
fn retire_ends_every_slice_once() {
    // Nobody answers, so that everything stays in flight.
    let patient = |config| NicConfig { timeout_exponent: 20, ..config };
    let (one, other) = unanswered(&Link::new(12), patient, 2);
    one.memory.copy_in(0, &pattern(2)).unwrap();
    one.post_all(&other, Direction::Write, 128);
    one.nic.retire(LANE).unwrap();
    let ends = one.told.ends(128);
    assert!(ends.iter().all(|end| *end == CompletionStatus::Flushed), "{ends:?}");
    assert_eq!(one.told.failures(), [], "a retired lane tells no failure");
    let counters = one.nic.counters();
    assert_eq!((counters.slices_abandoned, counters.lanes_retired), (0, 1));
    one.nic.retire(LANE).unwrap();
    assert!(other.bytes() == vec![0; BYTES]);
}

#[test]
fn an_access_the_peer_does_not_allow_is_nobodys_to_retry() {
    let (one, other) = connected(config("rxe0"), config("rxe1"), 1);
    let mut posting = one.posting(&other, 1, Direction::Write, 0, 4096);
    posting.remote.address += BYTES as u64;
    let behind = one.posting(&other, 2, Direction::Write, 0, 4096);
    one.nic.post(LANE, &mut vec![posting, behind]);
    let ends = one.told.ends(2);
    let CompletionStatus::Refused(error) = &ends[0] else { panic!("{ends:?}") };
    assert_eq!((error.side, error.code), refusal(&one), "{error}");
    assert_eq!(ends[1], CompletionStatus::Flushed);
}

#[test]
fn a_second_life_over_the_same_nics_starts_clean() {
    let (one, other) = connected(config("rxe0"), config("rxe1"), 1);
    one.post_all(&other, Direction::Write, 64);
    one.nic.retire(LANE).unwrap();
    other.nic.retire(LANE).unwrap();
    one.told.ends(64);
    one.told.forget();
    let next = Lifecycle(8);
    let mine = one.nic.create(next, &[0x0012_3456]).unwrap();
    let theirs = other.nic.create(next, &[0x0065_4321]).unwrap();
    other.nic.note_request(None, &mine);
    one.nic.note_request(None, &theirs);
    one.nic.connect(next, &theirs).unwrap();
    other.nic.connect(next, &mine).unwrap();
    one.memory.copy_in(0, &pattern(3)).unwrap();
    one.nic.post(next, &mut vec![one.posting(&other, 1, Direction::Write, 0, BYTES)]);
    assert_eq!(one.told.ends(1), [CompletionStatus::Done]);
    assert!(other.bytes() == pattern(3));
}

/// Five hundred queue pairs come and go, and the kernel keeps nothing: none of the queue pairs, and no identifier
/// where the connection manager connects them.
#[test]
fn queue_pair_churn_leaks_nothing() {
    const LANES: u64 = 250;
    let is_managed = connects_by_manager();
    // A domain of librdmacm's own is shared by the whole program.
    let kinds: &[&str] = if is_managed { &["qp", "cq", "mr"] } else { &["qp", "cq", "mr", "pd"] };
    let mine = || resources_of_this_thread(kinds);
    assert_eq!(mine(), 0);
    let (one, other) = (Site::new(config("rxe0")), Site::new(config("rxe1")));
    let mut ports = BTreeSet::new();
    for lane in (0..LANES).map(Lifecycle) {
        let a = one.nic.create(lane, &[1, 2]).unwrap();
        let b = other.nic.create(lane, &[3, 4]).unwrap();
        ports.extend([&a, &b].into_iter().filter_map(manager_port));
        other.nic.note_request(None, &a);
        one.nic.note_request(None, &b);
        one.nic.connect(lane, &b).unwrap();
        other.nic.connect(lane, &a).unwrap();
    }
    // A listener of each side, and an identifier of each queue pair.
    let listeners = if is_managed { 2 } else { 0 };
    assert_eq!(ports.len(), listeners);
    let ids = || identifiers_at(&ports);
    assert_eq!(ids(), if is_managed { listeners + LANES as usize * 2 * 2 } else { 0 });
    // Of each side: completion queues as lanes need room, a domain, a region and one for probes.
    let load = one.nic.load();
    assert_eq!((load.queue_pairs, load.completion_entries), (2 * LANES, 2 * LANES * 128));
    // Those of libsiw are longer.
    assert!(driver() == "siw" || load.completion_entries_made == 4 * 16_384, "{load:?}");
    let of_nics = 2 * (4 + kinds.len() - 1);
    assert_eq!(mine(), LANES as usize * 2 * 2 + of_nics);
    for lane in (0..LANES).map(Lifecycle) {
        one.nic.post(lane, &mut vec![one.posting(&other, lane.0, Direction::Write, 0, 64)]);
    }
    assert!(one.told.ends(LANES as usize).iter().all(|end| *end == CompletionStatus::Done));
    for lane in (0..LANES).map(Lifecycle) {
        one.nic.retire(lane).unwrap();
        other.nic.retire(lane).unwrap();
    }
    assert_eq!((mine(), ids()), (of_nics, listeners));
    one.wait_for_room();
    assert_eq!((one.nic.lanes(), other.nic.counters().lanes_retired), (0, LANES));
    drop((one, other));
    assert_eq!((mine(), ids()), (0, 0));
}

/// The port at which the sender of a message takes connect requests, if it takes any.
fn manager_port(body: &Body) -> Option<u16> {
    let text = body.connection_manager.as_ref()?;
    let announcement: Announcement = text.parse().unwrap();
    Some(announcement.address.port())
}

/// Lists compared before an object counts as gone.
const LISTS: usize = 2;
/// Maximum tries of one list.
const LIST_TRIES: usize = 20;
/// The names of the numbers of objects in the kernel's lists.
const NUMBERS: [&str; 5] = ["cm-idn", "lqpn", "cqn", "mrn", "pdn"];

/// The kernel's count of this thread's objects of these kinds; the test creates its queue pairs, completion
/// queues, regions and domains on its own thread.
fn resources_of_this_thread(kinds: &[&str]) -> usize {
    let thread = std::fs::read_link("/proc/thread-self").unwrap();
    let own = format!("pid {} ", thread.file_name().unwrap().to_str().unwrap());
    kinds.iter().map(|kind| all_listed(kind, |line| line.contains(&own))).sum()
}

/// The kernel's count of identifiers that listen at one of these ports, or are connected to one; each listener
/// has a port of its own, and identifiers of requests are created by the kernel.
fn identifiers_at(ports: &BTreeSet<u16>) -> usize {
    let is_at = |line: &str| {
        let mut words = line.split_whitespace();
        words.any(|word| ports.iter().any(|port| word.ends_with(&format!(":{port}"))))
    };
    if ports.is_empty() { 0 } else { all_listed("cm_id", is_at) }
}

/// The kernel's count of objects of a kind whose line in its list is chosen.
///
/// The kernel lists them in parts and goes on by position, so a list lacks an object if another test
/// destroys an earlier one between two parts. The objects are collected until a list adds none.
fn all_listed(kind: &str, is_chosen: impl Fn(&str) -> bool) -> usize {
    let mut seen = BTreeSet::new();
    loop {
        let before = seen.len();
        for _ in 0..LISTS {
            seen.extend(listed(kind, &is_chosen));
        }
        if seen.len() == before {
            return before;
        }
    }
}

/// Returns the device and the number of each chosen object of a kind in one of the kernel's lists.
fn listed(kind: &str, is_chosen: impl Fn(&str) -> bool) -> Vec<(String, String)> {
    let show = || Command::new("rdma").args(["resource", "show", kind]).output().unwrap();
    // A list ends with an error if another test deletes a device meanwhile.
    let shown = (0..LIST_TRIES).map(|_| show()).find(|shown| shown.status.success());
    let shown = shown.unwrap_or_else(|| panic!("no list of {kind} in {LIST_TRIES} tries"));
    let text = String::from_utf8(shown.stdout).unwrap();
    let chosen = text.lines().filter(|line| is_chosen(line));
    chosen
        .map(|line| {
            let words: Vec<_> = line.split_whitespace().collect();
            let number = words.iter().position(|word| NUMBERS.contains(word));
            let number = number.unwrap_or_else(|| panic!("no number in {line}"));
            (words[1].to_owned(), words[number + 1].to_owned())
        })
        .collect()
}
