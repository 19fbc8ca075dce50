//! Threads that wait and look for completions themselves.

use crate::support::*;
use handfast_transport::{Access, Completion, DataPath, Memory, Sent, SliceId};
use handfast_transport_tcp::TokioNet;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::runtime::{Builder, Runtime};
use tokio::time::Instant;

/// Far more than anything takes that does not hang.
const PATIENCE: Duration = Duration::from_secs(10);

/// A runtime whose tasks run only while it is asked to.
fn still() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn running() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// Attends until `count` slices have ended.
fn attend(node: &Node<TokioNet>, count: usize) -> Vec<Completion> {
    let (mut ended, began) = (Vec::new(), Instant::now());
    while ended.len() < count {
        assert!(began.elapsed() < PATIENCE, "{ended:?} in the end");
        node.transport.busy_poll(LANE, &mut || {
            ended.extend(node.sink.ended_now());
            ended.len() >= count
        });
        ended.extend(node.sink.ended_now());
    }
    ended
}

#[test]
fn who_waits_sends_and_receives_while_no_task_of_ours_runs() {
    let (ours, theirs) = (still(), running());
    let b = theirs.block_on(node(2, Setup::default()));
    let a = ours.block_on(async {
        let a = node(1, Setup::default()).await;
        wire(&a, &b).await;
        a
    });
    let (target, region) = b.region(1 << 20, Access::READ_WRITE);
    for seed in 1..=100 {
        let source = patterned(4096, seed);
        let slice = a.write(source.whole(), &region, 0);
        assert_eq!(attend(&a, 1), [Completion::done(slice)]);
        assert_eq!(bytes_of(&target)[..4096], bytes_of(&source));
    }
    let back = Memory::zeroed(1 << 20).unwrap();
    let slice = a.read(back.whole(), &region, 0);
    assert_eq!(attend(&a, 1), [Completion::done(slice)]);
    assert_eq!(bytes_of(&back), bytes_of(&target));
    ours.block_on(a.retire());
}

/// Binds this thread, and those that it starts, to one processor.
fn bind_to_one_processor() {
    let usable = sched_getaffinity(None).unwrap();
    let first = (0..CpuSet::MAX_CPU).find(|it| usable.is_set(*it)).unwrap();
    let mut one = CpuSet::new();
    one.set(first);
    sched_setaffinity(None, &one).unwrap();
}

/// Writes that a thread on the processor of its peer polls for; returns the polls for each, sorted.
fn polls_on_one_processor(writes: u8) -> Vec<usize> {
    bind_to_one_processor();
    let (ours, theirs) = (still(), running());
    let b = theirs.block_on(node(2, Setup::default()));
    let a = ours.block_on(async {
        let a = node(1, Setup::default()).await;
        wire(&a, &b).await;
        a
    });
    let (target, region) = b.region(4096, Access::READ_WRITE);
    let polled = (0..writes).map(|seed| {
        let source = patterned(4096, seed);
        let slice = a.write(source.whole(), &region, 0);
        let (mut ended, mut polls, began) = (Vec::new(), 0, Instant::now());
        while ended.is_empty() {
            assert!(began.elapsed() < PATIENCE, "after {polls} polls");
            a.transport.busy_poll(LANE, &mut || {
                polls += 1;
                ended.extend(a.sink.ended_now());
                !ended.is_empty()
            });
            std::thread::yield_now();
            ended.extend(a.sink.ended_now());
        }
        assert_eq!(ended, [Completion::done(slice)]);
        assert_eq!(bytes_of(&target), bytes_of(&source));
        polls
    });
    let mut polled: Vec<usize> = polled.collect();
    ours.block_on(a.retire());
    polled.sort_unstable();
    polled
}

/// With both ends on one processor a polling thread gives it to the peer, and has its answer before it
/// would have stopped to poll.
#[test]
fn poller_lets_its_peer_run_on_their_processor() {
    // A thread of its own, which alone is bound.
    let polled =
        std::thread::scope(|scope| scope.spawn(|| polls_on_one_processor(101)).join().unwrap());
    assert!(polled[50] < 200, "{polled:?}");
}

/// Longer than a lane looks after bytes.
const PAUSE: Duration = Duration::from_millis(5);

/// Answers are slept for while requests come with pauses. A slow machine makes pauses of its own, so
/// the tests of the pace show that their end is noticed.
#[tokio::test]
async fn answers_are_slept_for_between_pauses() {
    const WRITES: u64 = 20;
    let a = node(2, Setup::default()).await;
    let mut peer = raw_peer(&a, 8).await;
    let (memory, region) = a.region(64, Access::READ_WRITE);
    // On the same thread, so that it answers while the lane looks.
    tokio::spawn(async move {
        loop {
            let asked = RawFrame::receive(&mut peer).await;
            receive_bytes(&mut peer, 64).await;
            peer.write_all(&RawFrame::done(asked.tag, 0).encode()).await.unwrap();
        }
    });
    let write = async || {
        let slice = a.write(memory.whole(), &region, 0);
        a.transport.request_poll(LANE);
        assert_eq!(a.sink.ended(1).await, [Completion::done(slice)]);
    };
    write().await;
    let first = a.counters().looks;
    assert!(first > 0, "the first answer of a lane is polled for");
    for _ in 0..WRITES {
        tokio::time::sleep(PAUSE).await;
        write().await;
    }
    // A look after the first answer may have begun before the first pause.
    let looks = a.counters().looks;
    assert!(looks <= first + 1, "{looks} after {first}");
    a.retire().await;
}

#[tokio::test]
async fn who_expects_answers_that_never_come_is_looked_for_ever_less() {
    let a = node(2, Setup::default()).await;
    let _mute = raw_peer(&a, 8).await;
    // The first request of an accepted lane is looked for.
    until(|| a.counters().looks_in_vain == 1).await;
    assert_eq!(a.counters().looks, 1);
    // Rests of 1 and 3 between the looks.
    for (looks, rests) in [(2, 1), (3, 3), (4, 0)] {
        a.transport.request_poll(LANE);
        until(|| a.counters().looks_in_vain == looks).await;
        for _ in 0..rests {
            a.transport.request_poll(LANE);
            tokio::time::sleep(PAUSE).await;
        }
        assert_eq!(a.counters().looks, looks);
    }
    a.retire().await;
}

/// A lane that breaks during a poll ends each slice and fails once.
#[test]
fn lane_broken_during_poll_fails_once() {
    let ours = still();
    let (a, peer) = ours.block_on(async {
        let a = node(2, Setup::default()).await;
        let peer = raw_peer(&a, 8).await;
        let started = || a.counters().lanes_started == 1;
        until(started).await;
        (a, peer)
    });
    let (memory, region) = a.region(4096, Access::READ_WRITE);
    let slice = a.write(memory.whole(), &region, 0);
    drop(peer);
    assert_eq!(attend(&a, 1), [Completion::released(slice, Sent::All)]);
    assert_eq!(a.sink.failures(), 1);
    ours.block_on(a.retire());
    assert_eq!(a.sink.failures(), 1);
}

#[test]
fn who_waits_for_a_mute_peer_is_let_go() {
    let ours = still();
    let (a, _peer) = ours.block_on(async {
        let a = node(2, Setup::default()).await;
        let peer = raw_peer(&a, 8).await;
        until(|| a.counters().lanes_started == 1).await;
        (a, peer)
    });
    let (memory, region) = a.region(4096, Access::READ_WRITE);
    let slice = a.write(memory.whole(), &region, 0);
    let (began, mut asked) = (Instant::now(), 0);
    for _ in 0..100 {
        a.transport.busy_poll(LANE, &mut || {
            asked += 1;
            false
        });
    }
    assert!(began.elapsed() < PATIENCE);
    // Looked for once, it rests for one time, then for three, for seven, and so on.
    assert!((1..=8 * 400).contains(&asked), "{asked}");
    ours.block_on(a.retire());
    assert_eq!(a.sink.ended_now(), [Completion::released(slice, Sent::All)]);
}

/// A task that polls in place returns to its runtime after few looks.
#[test]
fn poll_in_place_of_a_mute_peer_ends_after_few_looks() {
    let own = still();
    let (a, _peer) = own.block_on(async {
        let a = node(2, Setup::default()).await;
        let peer = raw_peer(&a, 8).await;
        until(|| a.counters().lanes_started == 1).await;
        (a, peer)
    });
    let mut asked = 0;
    a.transport.poll_in_place(LANE, &mut || {
        asked += 1;
        false
    });
    assert_eq!(asked, 256);
    own.block_on(a.retire());
}

/// A retired lane reports nothing more to a polling thread.
#[test]
fn retired_lane_reports_nothing_to_a_poller() {
    let runtime = running();
    for _ in 0..20 {
        let (a, b) = runtime.block_on(two_nodes(Setup::default()));
        let (_target, region) = b.region(4096, Access::READ_WRITE);
        let memory = patterned(4096, 3);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    a.transport.busy_poll(LANE, &mut || over.load(Ordering::Relaxed));
                }
            });
            let posted: Vec<SliceId> =
                (0..32).map(|_| a.write(memory.whole(), &region, 0)).collect();
            runtime.block_on(a.retire());
            let mut ended: Vec<SliceId> =
                a.sink.ended_now().iter().map(|completion| completion.slice).collect();
            ended.sort_unstable();
            assert_eq!(ended, posted, "each has ended, and once");
            over.store(true, Ordering::Relaxed);
        });
        assert_eq!(a.sink.ended_now(), []);
        assert_eq!(a.sink.failures(), 0);
    }
}
