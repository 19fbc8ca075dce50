//! Channels between nodes of one process, and between processes.
#![allow(unsafe_code, reason = "signals to child processes, and memory that is owned elsewhere")]

mod at_once;
mod devices;
mod ends;
mod processes;
mod support;

use handfast_core::transfer::CompletionStatus;
use handfast_core::transport::Side;
use handfast_core::wire::Body;
use handfast_core::{Duration, NicPath};
use handfast_transport::{
    Access, AtOnce, DataPath, Direction, Endpoints, Memory, Refused, RegionError, RegionWatch,
    RemoteSpan, Sent, Span, TransportKind,
};
use handfast_transport_shm::{
    DIAL_AFTER, INLINE_BYTES_MAX, NoChannel, PIECE_BYTES_MAX, SLICES_MAX,
};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use support::{Node, Setup, eventually, nodes, wait_until};

const DONE: CompletionStatus = CompletionStatus::Done;

fn pattern(memory: &Memory, seed: usize) {
    let bytes: Vec<u8> = (0..memory.len()).map(|at| ((at * 31 + seed) % 251) as u8).collect();
    memory.copy_in(0, &bytes).unwrap();
}

fn bytes(memory: &Memory) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    memory.copy_out(0, &mut bytes).unwrap();
    bytes
}

/// Bytes arrive in both directions and from both sides, through a map as by calls, at lengths around
/// a piece; nothing goes below.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn bytes_move_in_both_directions() {
    let (first, second) = nodes(&Setup::default()).await;
    wait_until(|| second.transport.is_shared(second.pair.lifecycle));
    for (node, owner) in [(&first, &second), (&second, &first)] {
        for (key, length) in (1..).zip([1, 4096, PIECE_BYTES_MAX, 3 * PIECE_BYTES_MAX + 5]) {
            for (kind, there) in [Memory::shared(length).unwrap(), Memory::zeroed(length).unwrap()]
                .iter()
                .enumerate()
            {
                let key = key * 10 + kind as u64;
                let region = owner.serve(there, Access::READ_WRITE, key);
                let here = Memory::zeroed(length).unwrap();
                pattern(&here, length + kind);
                assert_eq!(node.write(here.whole(), &region), DONE);
                assert_eq!(bytes(there), bytes(&here));
                let back = Memory::zeroed(length).unwrap();
                let (key, address) = (region.key(), region.address());
                assert_eq!(node.transfer(Direction::Read, back.whole(), key, address), DONE);
                assert_eq!(bytes(&back), bytes(&here));
                owner.regions.unregister(key);
            }
        }
        assert_eq!(node.transport.transport_kind(node.pair.lifecycle), TransportKind::Shm);
        assert_eq!(node.posted_below(), 0);
    }
}

/// A lane that has retired before its channel was dialled dials nobody: its peer may be in the middle of
/// other transfers. The task that dials has the thread of the test, so that it does not run before the retire.
#[tokio::test]
async fn retired_lane_dials_nobody() {
    for retires in [false, true] {
        let (first, second) =
            (Node::start(1, &Setup::default()), Node::start(2, &Setup::default()));
        first.create().await;
        let (pair, theirs) = (second.pair, second.create().await);
        // A dial fails, and is counted.
        drop(second);
        first.connect(pair, theirs).await.unwrap();
        if retires {
            first.transport.retire(first.pair.lifecycle).await.unwrap();
            tokio::time::sleep(DIAL_AFTER * 20).await;
            assert_eq!(first.transport.counters().dials_failed, 0);
        } else {
            eventually(|| first.transport.counters().dials_failed == 1).await;
        }
    }
}

/// A posting thread copies up to its bound, also of one slice: a thread of the transport copies the rest,
/// and reports it.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn posting_thread_copies_up_to_its_bound() {
    let (first, second) = nodes(&Setup::default()).await;
    let memory = Memory::shared(16 * INLINE_BYTES_MAX).unwrap();
    let region = second.serve(&memory, Access::READ_WRITE, 1);
    let here = Memory::zeroed(memory.len()).unwrap();
    pattern(&here, 7);
    // The first slice of a region waits for its grant.
    assert_eq!(first.write(here.span(0, 1).unwrap(), &region), DONE);
    assert_eq!(first.write(here.whole(), &region), DONE);
    assert_eq!(bytes(&memory), bytes(&here));
    let reporter = *first.sink.reporter.lock().unwrap();
    assert_ne!(reporter, Some(std::thread::current().id()));
}

/// Requests are copied within the call once their regions are mapped, all of them or none: one beyond
/// the rights, in private memory behind another one or revoked leaves the others untouched.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn requests_are_copied_at_once_or_not_at_all() {
    let (first, second) = nodes(&Setup::default()).await;
    let handle = first.transport.handle(first.pair.lifecycle).unwrap();
    let there = Memory::shared(8_192).unwrap();
    let region = second.serve(&there, Access::READ_WRITE, 5);
    let read_only = second.serve(&Memory::shared(8_192).unwrap(), Access::READ, 6);
    let private = second.serve(&Memory::zeroed(8_192).unwrap(), Access::READ_WRITE, 7);
    let here = Memory::zeroed(8_192).unwrap();
    pattern(&here, 1);
    let span = here.whole();
    let at_once = |direction, regions: &[&handfast_transport::Region]| {
        let copied = handle.copy_at_once(regions.len(), &|number| {
            let (key, address) = (regions[number].key(), regions[number].address());
            (direction, &span, RemoteSpan { key, address })
        });
        assert!(matches!(copied, AtOnce::Copied | AtOnce::NotBegun), "{copied:?}");
        copied == AtOnce::Copied
    };
    assert!(!at_once(Direction::Write, &[&region]), "the owner is only asked now");
    for region in [&region, &private] {
        assert_eq!(first.write(here.whole(), region), DONE);
    }
    assert_eq!(first.transfer(Direction::Read, here.whole(), 6, read_only.address()), DONE);
    pattern(&here, 2);
    let before = bytes(&there);
    for other in [&read_only, &private] {
        assert!(!at_once(Direction::Write, &[&region, other]));
        assert_eq!(bytes(&there), before);
    }
    assert!(at_once(Direction::Write, &[&region, &region]));
    assert_eq!(bytes(&there), bytes(&here));
    pattern(&there, 3);
    assert!(at_once(Direction::Read, &[&region]));
    assert_eq!(bytes(&here), bytes(&there));
    for regions in [&[&private][..], &[&private, &private]] {
        pattern(&here, regions.len());
        assert!(at_once(Direction::Write, regions));
        assert_eq!(bytes(private.span().memory()), bytes(&here));
        pattern(private.span().memory(), 7);
        assert!(at_once(Direction::Read, regions));
        assert_eq!(bytes(&here), bytes(private.span().memory()));
    }
    drop(second.regions.unregister(5));
    // It is taken back within 20 ms, or once the thread of the first has run.
    wait_until(|| !at_once(Direction::Write, &[&region]));
    drop(region);
    wait_until(|| there.holders() == 1);
    first.transport.retire(first.pair.lifecycle).await.unwrap();
    assert!(!at_once(Direction::Read, &[&read_only]), "the lane is retired");
}

/// A write into a file of the peer that lost its last page says how far it came; a read, and a write that
/// reaches no byte, are left to slices.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn copy_at_once_says_how_far_it_came() {
    const PAGE: usize = 4_096;
    const LEFT: usize = 7 * PAGE;
    let (first, second) = nodes(&Setup::default()).await;
    let handle = first.transport.handle(first.pair.lifecycle).unwrap();
    let file = tempfile::tempfile().unwrap();
    file.set_len((LEFT + PAGE) as u64).unwrap();
    let mapped = Memory::map_file(&file, true, LEFT + PAGE).unwrap();
    let region = second.serve(&mapped, Access::READ_WRITE, 7);
    let here = Memory::zeroed(LEFT + PAGE).unwrap();
    pattern(&here, 1);
    assert_eq!(first.write(here.span(0, 1).unwrap(), &region), DONE);
    file.set_len(LEFT as u64).unwrap();
    let (whole, page) = (here.whole(), here.span(0, PAGE).unwrap());
    let at_once = |direction, parts: &[(&Span, usize)]| {
        handle.copy_at_once(parts.len(), &|number| {
            let (span, offset) = parts[number];
            let address = region.address() + offset as u64;
            (direction, span, RemoteSpan { key: 7, address })
        })
    };
    let written = at_once(Direction::Write, &[(&whole, 0)]);
    assert!(matches!(written, AtOnce::Partly { bytes: 28_672, .. }), "{written:?}");
    let mut found = vec![0; LEFT];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut found, 0).unwrap();
    assert_eq!(found, bytes(&here)[..LEFT]);
    let pieces = at_once(Direction::Write, &[(&page, 0), (&page, LEFT)]);
    assert!(matches!(pieces, AtOnce::Partly { bytes: 4_096, .. }), "{pieces:?}");
    assert_eq!(at_once(Direction::Read, &[(&whole, 0)]), AtOnce::NotBegun);
    assert_eq!(at_once(Direction::Write, &[(&page, LEFT), (&page, LEFT)]), AtOnce::NotBegun);
}

/// Memory comes back once the peer has let it go, and later slices go below.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn unregistered_memory_comes_back() {
    let (first, second) = nodes(&Setup::default()).await;
    for there in [Memory::shared(8_192).unwrap(), Memory::zeroed(8_192).unwrap()] {
        let region = second.serve(&there, Access::READ_WRITE, 5);
        let here = Memory::zeroed(8_192).unwrap();
        assert_eq!(first.write(here.whole(), &region), DONE);
        assert_eq!(there.holders(), 4, "the channel holds what it granted");
        let memory = second.regions.unregister(5);
        drop(memory);
        let (key, address) = (region.key(), region.address());
        drop(region);
        wait_until(|| there.holders() == 1);
        let below = first.posted_below();
        let ended = first.transfer(Direction::Write, here.whole(), key, address);
        assert!(matches!(ended, CompletionStatus::Released(_)));
        assert_eq!(first.posted_below(), below + 1);
    }
}

/// A region that peers may read is mapped for reading; writes, ranges outside of it and unknown keys
/// go below, where they are refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn access_beyond_the_rights_goes_below() {
    let (first, second) = nodes(&Setup::default()).await;
    let there = Memory::shared(4_096).unwrap();
    pattern(&there, 1);
    let region = second.serve(&there, Access::READ, 5);
    let here = Memory::zeroed(4_096).unwrap();
    assert_eq!(first.transfer(Direction::Read, here.whole(), 5, region.address()), DONE);
    assert_eq!(bytes(&here), bytes(&there));
    let refused = [
        (Direction::Write, 5, region.address()),
        (Direction::Read, 5, region.address() + 1),
        (Direction::Read, 5, region.address() - 1),
        (Direction::Read, 6, region.address()),
    ];
    for (count, (direction, key, address)) in (1..).zip(refused) {
        let ended = first.transfer(direction, here.whole(), key, address);
        assert!(matches!(ended, CompletionStatus::Released(_)), "{ended:?}");
        assert_eq!(first.posted_below(), count);
    }
}

/// The refusals of which an owner learns.
#[derive(Default)]
struct Refusals(Mutex<Vec<(u64, RegionError)>>);

impl RegionWatch for Refusals {
    fn on_refused(&self, refused: &Refused<'_>) {
        self.0.lock().unwrap().push((refused.key, refused.error));
    }
}

/// An owner learns of each key for which a peer asks without a right, before any slice reaches the lane below.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn keys_asked_for_without_a_right_are_reported() {
    let (first, second) = nodes(&Setup::default()).await;
    let refusals = Arc::new(Refusals::default());
    let watch: Arc<dyn RegionWatch> = refusals.clone();
    assert!(second.regions.watch(Arc::downgrade(&watch)));
    let here = Memory::zeroed(4_096).unwrap();
    let region = second.serve(&Memory::shared(4_096).unwrap(), Access::default(), 5);
    for key in [5, 6] {
        let ended = first.transfer(Direction::Read, here.whole(), key, region.address());
        assert!(matches!(ended, CompletionStatus::Released(_)), "{ended:?}");
    }
    let told = [(5, RegionError::NotGranted), (6, RegionError::UnknownKey)];
    wait_until(|| *refusals.0.lock().unwrap() == told);
}

/// A slice that is withdrawn on its way to the lane below comes back from there, though that lane did not
/// know the slice as it was withdrawn.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn withdrawal_follows_its_slice_below() {
    let (first, second) = nodes(&Setup::default()).await;
    let region = second.serve(&Memory::shared(4_096).unwrap(), Access::READ, 5);
    let here = Memory::zeroed(4_096).unwrap();
    let (transport, lane) = (first.transport.clone(), first.pair.lifecycle);
    let withdraw = move |slice| transport.withdraw(lane, slice, Duration(0));
    *first.below.before_post.lock().unwrap() = Some(Box::new(withdraw));
    let ended = first.write(here.whole(), &region);
    assert_eq!(ended, CompletionStatus::Released(Sent::None));
    assert_eq!(first.posted_below(), 1);
    // The next one goes its way.
    let ended = first.write(here.whole(), &region);
    assert_eq!((ended, first.posted_below()), (CompletionStatus::Released(Sent::None), 2));
}

/// A peer of this host without a channel is reported once with its reason, one of another host is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn reason_is_reported_for_peers_of_the_host() {
    let directory = tempfile::tempdir().unwrap();
    let in_directory = Setup { directory: Some(directory.path().into()), ..Setup::default() };
    let second = Node::start(2, &in_directory);
    let theirs = second.create().await;
    let announced = theirs.shared_memory.as_deref().unwrap();
    let elsewhere = format!("{}{}{}", &announced[..32], "1".repeat(16), &announced[48..]);
    let cases = [
        (announced.to_owned(), 1, vec![NoChannel::NoDirectory]),
        (announced.replace('/', "@"), 1, vec![NoChannel::NoSocket]),
        (elsewhere, 0, vec![]),
        ("unreadable".to_owned(), 1, vec![]),
    ];
    for (text, failed, expected) in cases {
        let first = Node::start(1, &Setup::default());
        let reported = Arc::new(Mutex::new(Vec::new()));
        let reports = Arc::clone(&reported);
        let note = move |_: &NicPath, reason| reports.lock().unwrap().push(reason);
        first.transport.report_to(Box::new(note));
        first.create().await;
        let body = Body { shared_memory: Some(text.into()), ..theirs.clone() };
        first.connect(second.pair, body).await.unwrap();
        eventually(|| first.transport.counters().dials_failed == failed).await;
        eventually(|| reported.lock().unwrap().len() == expected.len()).await;
        assert_eq!(*reported.lock().unwrap(), expected);
    }
}

/// A peer whose socket does not answer delays nothing: slices go below, and the reason is reported once
/// the answer is overdue.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn slices_before_the_channel_go_below() {
    let name = format!("handfast-test-{}", std::process::id());
    let _mute = support::mute(&name);
    let (first, second) = (Node::start(1, &Setup::default()), Node::start(2, &Setup::default()));
    let (_, theirs) = (first.create().await, second.create().await);
    let text = theirs.shared_memory.as_deref().unwrap();
    let text = format!("{}@{name}", &text[..48]);
    let reported = Arc::new(Mutex::new(Vec::new()));
    let reports = Arc::clone(&reported);
    let note = move |_: &NicPath, reason| reports.lock().unwrap().push(reason);
    first.transport.report_to(Box::new(note));
    let there = Memory::shared(4_096).unwrap();
    let region = second.serve(&there, Access::READ_WRITE, 5);
    let here = Memory::zeroed(4_096).unwrap();
    let body = Body { shared_memory: Some(text.into()), ..theirs };
    first.connect(second.pair, body).await.unwrap();
    assert!(reported.lock().unwrap().is_empty(), "the answer is awaited");
    let ended = first.write(here.whole(), &region);
    assert!(matches!(ended, CompletionStatus::Released(_)), "{ended:?}");
    assert_eq!(first.posted_below(), 1);
    eventually(|| *reported.lock().unwrap() == [NoChannel::Late]).await;
}

/// A write that cannot be copied to its end is given back as begun, and fails its lane: the lane below
/// would not know of the bytes that are there.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn partly_written_slice_is_given_back_as_begun() {
    let (first, second) = nodes(&Setup::default()).await;
    let there = support::half_forbidden(64 << 10);
    let region = second.serve(&there, Access::READ_WRITE, 5);
    let here = Memory::zeroed(there.len()).unwrap();
    here.whole().copy_in(0, &vec![7; there.len()]).unwrap();
    let ended = first.write(here.whole(), &region);
    assert!(matches!(ended, CompletionStatus::Released(Sent::Partly)), "{ended:?}");
    assert_eq!(first.posted_below(), 0);
    eventually(|| first.sink.failures.load(Ordering::Relaxed) == 1).await;
    let mut written = vec![0; there.len() / 2];
    there.span(0, written.len()).unwrap().copy_out(0, &mut written).unwrap();
    assert!(written.iter().all(|byte| *byte == 7));
}

/// Slices that one call of the kernel copies together each have their end: those before bytes that it
/// does not reach are done, the one that has some is given back as begun, and the next as it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn slices_of_one_call_have_their_own_ends() {
    let (first, second) = nodes(&Setup::default()).await;
    let there = support::half_forbidden(64 << 10);
    let region = second.serve(&there, Access::READ_WRITE, 5);
    let here = Memory::zeroed(there.len()).unwrap();
    here.whole().copy_in(0, &vec![7; there.len()]).unwrap();
    // The region is known before the slices that share a call.
    assert_eq!(first.write(here.span(0, 8).unwrap(), &region), DONE);
    let lengths = [20 << 10, 28 << 10, 16 << 10];
    let mut offset = 0;
    let mut postings = Vec::new();
    for length in lengths {
        let span = here.span(offset, length).unwrap();
        let mut posting = first.posting(first.next_slice(), Direction::Write, span, &region);
        posting.remote.address += offset as u64;
        postings.push(posting);
        offset += length;
    }
    let slices: Vec<_> = postings.iter().map(|posting| posting.slice).collect();
    first.transport.post(first.pair.lifecycle, &mut postings);
    let ends: Vec<_> = slices.into_iter().map(|slice| first.sink.ended(slice)).collect();
    assert_eq!(ends[0], DONE);
    assert!(matches!(ends[1], CompletionStatus::Released(Sent::Partly)), "{ends:?}");
    assert!(matches!(ends[2], CompletionStatus::Released(Sent::None)), "{ends:?}");
    let mut written = vec![0; there.len() / 2];
    there.span(0, written.len()).unwrap().copy_out(0, &mut written).unwrap();
    assert!(written.iter().all(|byte| *byte == 7));
}

/// If shared memory alone is wanted, a slice that cannot be copied is refused with its reason, and a
/// lane whose peer offers none does not connect.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn required_sharing_is_refused_with_a_reason() {
    let setup = Setup { is_required: true, ..Setup::default() };
    let (first, second) = nodes(&setup).await;
    let there = Memory::shared(4_096).unwrap();
    let region = second.serve(&there, Access::READ, 5);
    let here = Memory::zeroed(4_096).unwrap();
    let CompletionStatus::Refused(error) = first.write(here.whole(), &region) else {
        panic!("a write to memory for reading");
    };
    assert_eq!((error.side, first.posted_below()), (Side::Protection, 0));
    let (third, fourth) = (Node::start(3, &setup), Node::start(4, &setup));
    third.create().await;
    let body = Body { shared_memory: None, ..fourth.create().await };
    let error = third.connect(fourth.pair, body).await.unwrap_err();
    assert_eq!(error.side, Side::Configuration);
    assert!(error.detail.contains("the peer offers none"), "{error}");
}

/// A number that is not the peer's, and a socket that is not there, leave the lane without a channel.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn channel_needs_the_announced_numbers() {
    fn changed(text: &str, at: usize) -> String {
        let digit = if text[at..].starts_with('0') { "1" } else { "0" };
        format!("{}{digit}{}", &text[..at], &text[at + 1..])
    }
    let second = Node::start(2, &Setup::default());
    let changes: [fn(&str) -> String; 4] = [
        |text| changed(text, 3),
        |text| changed(text, 19),
        |text| format!("{text}x"),
        |_| "no announcement".to_owned(),
    ];
    for change in changes {
        let theirs = second.create().await;
        let text = change(theirs.shared_memory.as_deref().unwrap());
        let node = Node::start(1, &Setup::default());
        node.create().await;
        let body = Body { shared_memory: Some(text.into()), ..theirs.clone() };
        node.connect(second.pair, body).await.unwrap();
        eventually(|| node.transport.counters().dials_failed == 1).await;
        assert!(!node.transport.is_shared(node.pair.lifecycle));
        let kind = node.transport.transport_kind(node.pair.lifecycle);
        assert_eq!(kind, TransportKind::Tcp);
        let retired = second.transport.retire(second.pair.lifecycle).await;
        retired.unwrap();
    }
}

/// Both sides find each other in a directory that they share, and no file stays behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn directory_joins_both_sides() {
    let directory = tempfile::tempdir().unwrap();
    let setup = Setup { directory: Some(directory.path().to_owned()), ..Setup::default() };
    let (first, second) = nodes(&setup).await;
    assert!(first.transport.is_shared(first.pair.lifecycle));
    assert_eq!(directory.path().read_dir().unwrap().count(), 2);
    drop((first, second));
    assert_eq!(directory.path().read_dir().unwrap().count(), 0);
}

/// A retired lane holds nothing of either side, whichever retires first, and its slices come back.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn retired_lane_lets_go_on_both_sides() {
    let (first, second) = nodes(&Setup::default()).await;
    let there = Memory::shared(4_096).unwrap();
    let region = second.serve(&there, Access::READ_WRITE, 5);
    let here = Memory::zeroed(4_096).unwrap();
    assert_eq!(first.write(here.whole(), &region), DONE);
    let holders = there.holders();
    first.transport.retire(first.pair.lifecycle).await.unwrap();
    wait_until(|| there.holders() == holders - 1);
    let ended = first.write(here.whole(), &region);
    assert!(matches!(ended, CompletionStatus::Released(_)));
    second.transport.retire(second.pair.lifecycle).await.unwrap();
    second.transport.retire(second.pair.lifecycle).await.unwrap();
    assert!(second.transport.handle(second.pair.lifecycle).is_none());
}

/// A truncated file behind local memory fails the slice with an error, and the process lives.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn truncated_local_file_is_an_error() {
    let (first, second) = nodes(&Setup::default()).await;
    let there = Memory::shared(8_192).unwrap();
    let region = second.serve(&there, Access::READ_WRITE, 5);
    let file = tempfile::tempfile().unwrap();
    file.set_len(8_192).unwrap();
    let here = Memory::map_file(&file, true, 8_192).unwrap();
    assert_eq!(first.write(here.whole(), &region), DONE);
    file.set_len(0).unwrap();
    let CompletionStatus::Refused(error) = first.write(here.whole(), &region) else {
        panic!("the bytes are gone");
    };
    assert_eq!(error.side, Side::Local);
}

/// A truncated file behind the owner's memory goes below, and both processes live.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn truncated_file_of_the_owner_goes_below() {
    let (first, second) = nodes(&Setup::default()).await;
    let file = tempfile::tempfile().unwrap();
    file.set_len(8_192).unwrap();
    let there = Memory::map_file(&file, true, 8_192).unwrap();
    let region = second.serve(&there, Access::READ_WRITE, 5);
    let here = Memory::zeroed(8_192).unwrap();
    assert_eq!(first.write(here.whole(), &region), DONE);
    file.set_len(0).unwrap();
    assert!(matches!(first.write(here.whole(), &region), CompletionStatus::Released(_)));
}

/// Threads that write through one lane at once each find their own bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn threads_share_a_lane() {
    let (first, second) = nodes(&Setup::default()).await;
    let first = Arc::new(first);
    let (length, threads) = (40_000, 4);
    let there: Vec<_> = (0..threads).map(|_| Memory::shared(length).unwrap()).collect();
    let regions: Vec<_> = (1..)
        .zip(&there)
        .map(|(key, memory)| second.serve(memory, Access::READ_WRITE, key))
        .collect();
    std::thread::scope(|scope| {
        for (seed, region) in regions.iter().enumerate() {
            let first = first.clone();
            scope.spawn(move || {
                let here = Memory::zeroed(length).unwrap();
                for round in 0..50 {
                    pattern(&here, seed + round);
                    assert_eq!(first.write(here.whole(), region), DONE);
                }
            });
        }
    });
    for (seed, memory) in there.iter().enumerate() {
        let expected = Memory::zeroed(length).unwrap();
        pattern(&expected, seed + 49);
        assert_eq!(bytes(memory), bytes(&expected));
    }
}

/// A slice that cannot be copied is refused alone: with shared memory required the lane goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn refused_slice_fails_no_lane() {
    let setup = Setup { is_required: true, ..Setup::default() };
    let (first, second) = nodes(&setup).await;
    let there = Memory::shared(4_096).unwrap();
    let region = second.serve(&there, Access::READ_WRITE, 7);
    let here = Memory::zeroed(4_096).unwrap();
    assert_eq!(first.write(here.whole(), &region), DONE);
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let read_only = Memory::map_file(&file, false, 4_096).unwrap();
    let span = read_only.span(0, 64).unwrap();
    let ended = first.transfer(Direction::Read, span, 7, region.address());
    assert!(matches!(ended, CompletionStatus::Refused(_)), "{ended:?}");
    assert_eq!(first.sink.failures.load(std::sync::atomic::Ordering::Relaxed), 0);
    assert_eq!(first.write(here.whole(), &region), DONE);
}

/// Slices past the limit of a lane go below, or are refused if shared memory is required; those within
/// it are copied, and the lane goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn slices_past_the_limit_fail_no_lane() {
    for is_required in [false, true] {
        let setup = Setup { is_required, ..Setup::default() };
        let (first, second) = nodes(&setup).await;
        let there = Memory::shared(4_096).unwrap();
        let region = second.serve(&there, Access::READ_WRITE, 7);
        let here = Memory::zeroed(4_096).unwrap();
        let slices: Vec<_> = (0..=SLICES_MAX).map(|_| first.next_slice()).collect();
        let posting = |slice| first.posting(slice, Direction::Write, here.whole(), &region);
        let mut past: Vec<_> = slices.iter().copied().map(posting).collect();
        first.transport.post(first.pair.lifecycle, &mut past);
        for slice in &slices {
            match (is_required, first.sink.ended(*slice)) {
                (true, CompletionStatus::Refused(error)) => {
                    assert!(error.detail.contains("slices wait on the lane"), "{error}");
                }
                (false, CompletionStatus::Released(_)) => {}
                (_, ended) => panic!("{ended:?}"),
            }
        }
        let mut within: Vec<_> = slices[..SLICES_MAX].iter().copied().map(posting).collect();
        first.transport.post(first.pair.lifecycle, &mut within);
        for slice in &slices[..SLICES_MAX] {
            assert_eq!(first.sink.ended(*slice), DONE);
        }
        assert_eq!(first.sink.failures.load(std::sync::atomic::Ordering::Relaxed), 0);
        assert_eq!(first.posted_below(), if is_required { 0 } else { SLICES_MAX as u64 + 1 });
    }
}
