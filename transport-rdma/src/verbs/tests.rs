//! Lanes over a scripted device: what it keeps, loses and reports late.

use super::completions::Shard;
use super::scripted::{Device, allocations};
use super::sweeper::COMPLETIONS_PER_HOLD;
use super::{DeviceEvent, Nic, NicConfig, NicSink, Registration};
use crate::Polling;
use crate::status::FLUSHED;
use handfast_core::Lifecycle;
use handfast_core::transport::{Side, TransportError};
use handfast_transport::{
    Access, Completion, CompletionStatus, Direction, LaneSink, Memory, NicLimit, Posting, SliceId,
};
use parking_lot::{Condvar, Mutex};
use std::net::Ipv6Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak, mpsc};
use std::thread;
use std::time::{Duration, Instant};

const LANE: Lifecycle = Lifecycle(7);
const NEXT: Lifecycle = Lifecycle(8);
const PATIENCE: Duration = Duration::from_secs(20);
/// Of a retirement whose slices do not end.
const DRAIN: Duration = Duration::from_millis(20);

const COMPLETION_QUEUE_ERROR: u32 = 0;
const QUEUE_PAIR_FATAL: u32 = 1;
const DEVICE_FATAL: u32 = 8;
const PORT_ERROR: u32 = 10;
const LID_CHANGE: u32 = 11;
const RETRY_EXCEEDED: u32 = 12;

/// A queue pair that the device keeps holds its lane, the lane's slices and their memory, through any
/// number of retirements, until one of them destroys it.
#[test]
fn undestroyed_queue_pair_keeps_lane_and_slices() {
    let site = Site::new(|_| {});
    site.device.holds.store(true, Ordering::Relaxed);
    site.connect(LANE, 2);
    let held = site.memory.holders();
    site.post(LANE, 4);
    let holders = site.memory.holders();
    assert!(holders > held);
    site.device.answer("ibv_destroy_qp", &[0, libc::EBUSY, libc::EBUSY]);
    for _ in 0..2 {
        let error = site.nic.retire(LANE).unwrap_err();
        assert_eq!(
            (error.side, error.call, error.code),
            (Side::Local, "ibv_destroy_qp", libc::EBUSY)
        );
        assert!(error.detail.contains("1 of 2 queue pairs are left"), "{error}");
        assert_eq!((site.nic.lanes(), site.nic.load().queue_pairs), (1, 2));
        assert_eq!(site.nic.load().completion_entries, 256, "they may complete still");
        assert!(site.nic.holds(LANE, SliceId::from_bits(0)));
        assert_eq!((site.told().ends.len(), site.memory.holders()), (0, holders));
        assert_eq!(site.device.queue_pairs().len(), 1);
        assert!(site.nic.create(LANE, &[1]).is_err(), "the lifecycle exists");
    }
    site.nic.retire(LANE).unwrap();
    assert_eq!(site.told().ends, [const { CompletionStatus::Flushed }; 4].map(|end| (LANE, end)));
    assert_eq!((site.nic.lanes(), site.memory.holders()), (0, held));
    assert_eq!(site.nic.counters().slices_abandoned, 4);
    site.nic.retire(LANE).unwrap();
}

/// Without ERR a queue pair accepts the peer's requests until it is destroyed, and that alone ends its
/// lane.
#[test]
fn lane_without_err_ends_with_its_destruction() {
    let site = Site::new(|_| {});
    site.connect(LANE, 1);
    site.device.answer("ibv_modify_qp", &[libc::EIO; 2]);
    site.device.answer("ibv_destroy_qp", &[libc::EBUSY]);
    assert_eq!(site.nic.retire(LANE).unwrap_err().call, "ibv_destroy_qp");
    assert_eq!((site.nic.lanes(), site.device.queue_pairs().len()), (1, 1));
    site.nic.retire(LANE).unwrap();
    assert_eq!((site.nic.lanes(), site.device.queue_pairs().len()), (0, 0));
}

/// A NIC that is dropped before the device lets a queue pair go gives no memory of its slices back.
#[test]
fn dropped_nic_keeps_memory_of_undestroyed_queue_pair() {
    let Site { device, nic, memory, told, registration } = Site::new(|_| {});
    let site = Site { device, nic: nic.clone(), memory: memory.clone(), told, registration };
    site.device.holds.store(true, Ordering::Relaxed);
    site.connect(LANE, 1);
    site.post(LANE, 1);
    site.device.answer("ibv_destroy_qp", &[libc::EBUSY; 3]);
    drop(site);
    drop(nic);
    assert_eq!(device.queue_pairs().len(), 1);
    assert!(memory.holders() > 1, "the device may still touch it");
}

/// A queue pair of the pool that the device keeps counts in the limit until a later attempt
/// destroys it.
#[test]
fn undestroyed_queue_pair_of_the_pool_counts_in_the_limit() {
    let site = Site::new(|config| (config.pooled_lanes, config.queue_pairs_max) = (2, 4));
    site.nic.pool_to_refill().unwrap().refill();
    assert_eq!(site.nic.load().queue_pairs_pooled, 4);
    site.device.answer("ibv_destroy_qp", &[libc::EBUSY; 4]);
    let error = site.nic.create(LANE, &[1; 3]).unwrap_err();
    assert_eq!(error.limit.map(|reached| (reached.in_use, reached.max)), Some((4, 4)), "{error}");
    assert_eq!((site.device.queue_pairs().len(), site.nic.load().queue_pairs_pooled), (4, 4));
    site.nic.create(LANE, &[1; 3]).unwrap();
    assert_eq!((site.device.queue_pairs().len(), site.nic.load().queue_pairs_pooled), (3, 0));
}

/// So does one of a lane whose creation failed.
#[test]
fn undestroyed_queue_pair_of_no_lane_counts_in_the_limit() {
    let site = Site::new(|config| config.queue_pairs_max = 2);
    site.device.answer("ibv_modify_qp", &[0, libc::ENOMEM]);
    site.device.answer("ibv_destroy_qp", &[libc::EBUSY; 4]);
    site.nic.create(LANE, &[1; 2]).unwrap_err();
    assert_eq!((site.device.queue_pairs().len(), site.nic.load().queue_pairs_pooled), (2, 2));
    let error = site.nic.create(LANE, &[1; 2]).unwrap_err();
    assert_eq!(error.limit.map(|reached| reached.limit), Some(NicLimit::QueuePairs), "{error}");
    site.nic.create(LANE, &[1; 2]).unwrap();
    assert_eq!((site.device.queue_pairs().len(), site.nic.load().queue_pairs_pooled), (2, 0));
}

/// Queue pairs that the device kept are destroyed when their NIC is dropped, by the thread that drops
/// it and with no poll at the same time: other holders of the NIC's state have nothing to destroy.
#[test]
fn dropped_nic_destroys_kept_queue_pairs_itself() {
    let site = Site::new(|config| {
        (config.pooled_lanes, config.queue_pairs_per_lane) = (1, 2);
        config.polling = Polling::Busy;
    });
    site.connect(LANE, 2);
    site.nic.pool_to_refill().unwrap().refill();
    assert_eq!(site.device.queue_pairs().len(), 4);
    let (shared, shard) = (site.nic.shared.clone(), site.shard(LANE));
    site.nic.retire(LANE).unwrap();
    // The pool is emptied, and what is left tried once more, before the last attempt.
    site.device.answer("ibv_destroy_qp", &[libc::EBUSY; 4]);
    *site.device.destruction.lock() = Duration::from_millis(5);
    let Site { device, nic, .. } = site;
    let is_over = AtomicBool::new(false);
    let (begins, has_begun) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            shard.busy_poll(&shared, PATIENCE, &mut || {
                let _ = begins.send(());
                is_over.load(Ordering::Relaxed)
            });
        });
        has_begun.recv_timeout(PATIENCE).unwrap();
        drop(nic);
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(device.queue_pairs().len(), 0, "another still holds the state");
    // Once each pair of the lane, three times each of the pool's.
    assert_eq!(device.destroyed_by(), [thread::current().id(); 8]);
    assert_eq!(device.inside_max(), 1, "no poll at the same time");
}

/// The objects of a device that was removed are gone, and their destruction is answered by EIO. It is
/// an error like others on a device that was not.
#[test]
fn removed_device_lets_its_lanes_go() {
    let site = Site::new(|_| {});
    site.device.holds.store(true, Ordering::Relaxed);
    site.connect(LANE, 1);
    site.post(LANE, 1);
    site.device.answer("ibv_destroy_qp", &[libc::EIO; 2]);
    assert_eq!(site.nic.retire(LANE).unwrap_err().code, libc::EIO);
    site.device.raise(DEVICE_FATAL, std::ptr::null_mut());
    site.wait("the loss", |told| told.events == [DeviceEvent::DeviceLost]);
    site.nic.retire(LANE).unwrap();
    assert_eq!(site.told().ends, [(LANE, CompletionStatus::Flushed)]);
}

/// A poll of a completion queue looks queue pairs up, so none of the queue is destroyed meanwhile.
#[test]
fn poll_and_destruction_exclude_each_other() {
    let site = Site::new(|config| config.polling = Polling::Busy);
    site.connect(LANE, 4);
    site.connect(NEXT, 1);
    site.post(NEXT, 1);
    site.wait("a poll", |told| told.ends.len() == 1);
    // Long enough for a poll, of which there are millions in a second.
    *site.device.destruction.lock() = Duration::from_millis(20);
    site.nic.retire(LANE).unwrap();
    assert_eq!(site.device.inside_max(), 1);
}

/// A thread that waits takes the completions of its lane where the NIC's thread waits for events.
#[test]
fn first_look_takes_completions_of_a_sleeping_nic() {
    let site = Site::new(|config| config.idle_probe = None);
    site.device.holds.store(true, Ordering::Relaxed);
    site.connect(LANE, 1);
    let (pair, handle) = (site.device.queue_pairs()[0], site.nic.handle(LANE).unwrap());
    let deadline = Instant::now() + PATIENCE;
    // The NIC's thread looks a few times after a creation, and then sleeps: nothing is signalled.
    for round in 1..=64 {
        site.post(LANE, 1);
        site.device.complete(pair, 0);
        while site.told().ends.len() < round && Instant::now() < deadline {
            assert!(!handle.is_polled(), "it waits for events");
            handle.take_completions();
        }
        assert_eq!(site.told().ends.len(), round);
    }
}

/// The number of a queue pair may be another's when an event comes to be handled: the event is of its
/// lane, and of none if that is gone.
#[test]
fn event_of_a_gone_lane_fails_no_other() {
    let site = Site::new(|_| {});
    site.connect(LANE, 1);
    let gone = site.device.queue_pairs()[0];
    site.nic.retire(LANE).unwrap();
    site.connect(NEXT, 1);
    let other = site.device.queue_pairs()[0];
    assert_eq!(Device::number(gone), Device::number(other), "the device uses the number again");
    site.device.raise(QUEUE_PAIR_FATAL, gone.cast());
    site.device.raise(LID_CHANGE, std::ptr::without_provenance_mut(1));
    site.wait("the second event", |told| told.events.len() == 1);
    assert_eq!(site.told().failures, []);
    site.device.raise(QUEUE_PAIR_FATAL, other.cast());
    site.wait("the failure", |told| told.failures.len() == 1);
    let (lane, error) = site.told().failures[0].clone();
    assert_eq!((lane, &*error.call), (NEXT, "asynchronous event"), "{error}");
}

/// Of a completion and an event for one end, the completion names the cause.
#[test]
fn completion_names_the_cause_before_the_event() {
    let site = Site::new(|_| {});
    site.device.holds.store(true, Ordering::Relaxed);
    site.connect(LANE, 1);
    site.post(LANE, 1);
    let pair = site.device.queue_pairs()[0];
    site.device.complete(pair, RETRY_EXCEEDED);
    site.device.raise(QUEUE_PAIR_FATAL, pair.cast());
    site.wait("the failure", |told| told.failures.len() == 1);
    let (_, error) = site.told().failures[0].clone();
    assert_eq!((error.side, &*error.call), (Side::Peer, "completion"), "{error}");
}

/// A completion queue that ran over takes its own lanes with it, no others, and no new ones.
#[test]
fn failed_completion_queue_takes_no_lanes() {
    let site = Site::new(|config| (config.depth, config.completion_entries) = (8, 16));
    site.connect(LANE, 1);
    let first = Device::queue(site.device.queue_pairs()[0]);
    site.connect(Lifecycle(9), 2);
    site.device.raise(COMPLETION_QUEUE_ERROR, first.cast());
    site.wait("the failure", |told| !told.failures.is_empty());
    site.connect(NEXT, 1);
    let queues: Vec<_> = site.device.queue_pairs().into_iter().map(Device::queue).collect();
    assert!(
        queues[1] != first && queues[1] == queues[2],
        "the second lane had no room in the first"
    );
    assert!(queues[3] != first, "it has room for this one, and has failed");
    let failures = site.told().failures.clone();
    let [(LANE, error)] = &failures[..] else { panic!("{failures:?}") };
    assert_eq!((error.side, &*error.call), (Side::Local, "asynchronous event"), "{error}");
}

/// The lanes of a failed completion queue wait for their flush until the same time: that of one
/// drain.
#[test]
fn lanes_of_a_failed_queue_share_a_deadline() {
    const LANES: u64 = 16;
    const DRAIN: Duration = Duration::from_secs(1);
    let site = Site::new(|config| config.drain = DRAIN);
    site.device.holds.store(true, Ordering::Relaxed);
    for lane in 0..LANES {
        site.connect(Lifecycle(lane), 1);
        site.post(Lifecycle(lane), 1);
    }
    let queue = Device::queue(site.device.queue_pairs()[0]);
    let began = Instant::now();
    site.device.raise(COMPLETION_QUEUE_ERROR, queue.cast());
    site.wait("the failures", |told| told.failures.len() == LANES as usize);
    (0..LANES).for_each(|lane| site.nic.retire(Lifecycle(lane)).unwrap());
    let took = began.elapsed();
    assert!(took >= DRAIN && took < 8 * DRAIN, "{took:?} for {LANES} lanes");
    assert_eq!(site.told().ends.len(), LANES as usize);
}

/// A device whose calls all fail as those of one that is gone is lost without an event; one that
/// still answers is not.
#[test]
fn device_whose_calls_fail_is_lost_without_an_event() {
    let site = Site::new(|_| {});
    site.connect(LANE, 1);
    site.device.answer("ibv_query_port", &[libc::ENODEV]);
    assert_eq!(site.nic.create(NEXT, &[1]).unwrap_err().code, libc::ENODEV);
    assert_eq!(site.nic.lost(), None, "it answers another call");
    site.device.answer("ibv_query_port", &[libc::ENODEV]);
    site.device.answer("ibv_query_device", &[libc::EIO]);
    assert_eq!(site.nic.create(NEXT, &[1]).unwrap_err().code, libc::ENODEV);
    site.wait("the loss", |told| told.events.contains(&DeviceEvent::DeviceLost));
    assert_eq!(site.told().failures.len(), 1);
    assert_eq!(site.nic.lost().map(|lost| lost.code), Some(libc::ENODEV));
    assert_eq!(site.nic.counters().devices_lost, 1);
}

/// An event of another port of the device is none of this NIC's.
#[test]
fn event_of_another_port_is_ignored() {
    let site = Site::new(|_| {});
    for port in [2, 1] {
        site.device.raise(PORT_ERROR, std::ptr::without_provenance_mut(port));
    }
    site.wait("the event of the port", |told| !told.events.is_empty());
    assert_eq!(site.told().events, [DeviceEvent::PortDown { port: 1 }]);
    assert_eq!(site.nic.counters().ports_down, 1);
}

/// A queue that cannot be polled fails like one that ran over, and the NIC goes on with another.
#[test]
fn unpollable_queue_fails_only_its_lanes() {
    let site = Site::new(|config| config.depth = 8);
    site.connect(LANE, 1);
    site.device.answer("ibv_poll_cq", &[-libc::EIO]);
    site.post(LANE, 1);
    site.wait("the failure", |told| !told.failures.is_empty());
    assert_eq!(&*site.told().failures[0].1.call, "ibv_poll_cq");
    assert_eq!(site.nic.lost(), None);
    site.connect(NEXT, 1);
    site.post(NEXT, 1);
    site.wait("the completion", |told| told.ends.contains(&(NEXT, CompletionStatus::Done)));
}

/// A NIC whose events or completions cannot be read fails its lanes, says so once, and takes no more.
#[test]
fn nic_without_a_descriptor_takes_no_lanes() {
    for call in ["ibv_get_async_event", "ibv_get_cq_event"] {
        let site = Site::new(|_| {});
        site.connect(LANE, 1);
        assert_eq!(site.nic.lost(), None);
        site.device.answer(call, &[libc::EIO]);
        match call {
            "ibv_get_cq_event" => site.device.signal(),
            _ => site.device.raise(LID_CHANGE, std::ptr::without_provenance_mut(1)),
        }
        site.wait("the loss", |told| told.events.contains(&DeviceEvent::DeviceLost));
        assert_eq!(&*site.told().failures[0].1.call, call);
        let lost = site.nic.lost().unwrap();
        assert_eq!((lost.call, lost.code), (call, libc::EIO));
        let refused = site.nic.create(NEXT, &[1]).unwrap_err();
        assert_eq!(
            (refused.side, refused.call, refused.code),
            (Side::Local, "bring_up", libc::EIO)
        );
        assert!(
            refused.detail.contains(call) && refused.detail.contains("opened again"),
            "{refused}"
        );
        site.nic.retire(LANE).unwrap();
        assert_eq!((site.nic.lanes(), site.told().failures.len()), (0, 1));
    }
}

/// A poster that found the lane closed just before its connection opened it enters the lane with its slice. A lane
/// that has ended takes nothing.
#[test]
fn slice_posted_while_a_lane_opens_enters_it() {
    let site = Site::new(|_| {});
    site.nic.create(LANE, &[1]).unwrap();
    let lane = site.nic.shared.lane(LANE).unwrap();
    lane.await_connection(1, Ipv6Addr::UNSPECIFIED, None).unwrap();
    lane.open_connection();
    let mut postings = site.postings(1);
    assert!(lane.enter_or_wait(&mut postings).is_some());
    site.nic.retire(LANE).unwrap();
    assert!(lane.enter_or_wait(&mut postings).is_none());
    assert_eq!(postings.len(), 1);
}

/// The peer's answer may arrive before the event of its connection: a probe waits for the connection, until its
/// deadline or the end of the lane at most.
#[test]
fn probe_waits_for_the_connection_of_its_lane() {
    let site = Site::new(|_| {});
    site.nic.create(LANE, &[1]).unwrap();
    let lane = site.nic.shared.lane(LANE).unwrap();
    lane.await_connection(1, Ipv6Addr::UNSPECIFIED, None).unwrap();
    assert!(!site.nic.is_open(LANE));
    let probe = |patience| site.nic.probe(LANE, None, patience);
    let error = probe(Duration::from_millis(1)).unwrap_err();
    assert_eq!((error.side, error.call), (Side::Peer, "prove"), "{error}");
    assert!(error.detail.contains("did not connect"), "{error}");
    std::thread::scope(|scope| {
        let probing = scope.spawn(|| probe(PATIENCE));
        lane.open_connection();
        probing.join().unwrap().unwrap();
    });
    assert!(site.nic.is_open(LANE));

    site.nic.create(NEXT, &[1]).unwrap();
    let lane = site.nic.shared.lane(NEXT).unwrap();
    lane.await_connection(1, Ipv6Addr::UNSPECIFIED, None).unwrap();
    std::thread::scope(|scope| {
        let probing = scope.spawn(|| site.nic.probe(NEXT, None, PATIENCE));
        lane.revoke();
        let error = probing.join().unwrap().unwrap_err();
        assert_eq!(error.side, Side::Local, "{error}");
    });
}

/// Completions that are no longer signalled are found all the same, and slices end with them.
#[test]
fn unsignalled_completions_end_their_slices() {
    let site = Site::new(|config| config.drain = PATIENCE);
    site.device.holds.store(true, Ordering::Relaxed);
    site.connect(LANE, 1);
    site.post(LANE, 1);
    site.device.answer("ibv_get_cq_event", &[libc::EIO]);
    site.device.signal();
    site.wait("the loss", |told| told.events.contains(&DeviceEvent::DeviceLost));
    site.device.complete(site.device.queue_pairs()[0], FLUSHED);
    let began = Instant::now();
    site.nic.retire(LANE).unwrap();
    assert!(began.elapsed() < PATIENCE, "it did not wait for the end of the drain");
    assert_eq!(site.told().ends, [(LANE, CompletionStatus::Flushed)]);
    assert_eq!(site.nic.counters().slices_abandoned, 0);
}

/// A waiting thread takes completions itself, though the NIC's own thread does something else, for a
/// bounded time. With a limit of zero, as with events, it takes none.
#[test]
fn waiting_thread_takes_completions() {
    let limit = Duration::from_millis(1);
    let site = Site::new(|config| config.polling = Polling::Busy);
    site.connect(LANE, 1);
    let stalled = site.told.stall.lock();
    site.device.raise(LID_CHANGE, std::ptr::without_provenance_mut(1));
    site.wait("the event", |told| told.events.len() == 1);
    site.post(LANE, 3);
    let is_over = || site.told().ends.len() == 3;
    let (shard, shared) = (site.shard(LANE), &site.nic.shared);
    shard.busy_poll(shared, Duration::ZERO, &mut || unreachable!("no look"));
    assert!(!is_over(), "the NIC's own thread is held");
    shard.busy_poll(shared, PATIENCE, &mut || is_over());
    assert!(is_over());
    let begun = Instant::now();
    shard.busy_poll(shared, limit, &mut || false);
    assert!(begun.elapsed() >= limit && begun.elapsed() < PATIENCE);
    drop(stalled);
    site.post(LANE, 1);
    site.wait("a completion that nobody waits for", |told| told.ends.len() == 4);
}

/// A waiting thread holds the queue for some completions and no more, so that another's lane is not
/// delayed for long.
#[test]
fn queue_is_held_for_few_completions() {
    let site = Site::new(|config| config.polling = Polling::Busy);
    site.device.holds.store(true, Ordering::Relaxed);
    site.connect(LANE, 2);
    let stalled = site.told.stall.lock();
    site.device.raise(LID_CHANGE, std::ptr::without_provenance_mut(1));
    site.wait("the event", |told| told.events.len() == 1);
    let all = 3 * COMPLETIONS_PER_HOLD;
    site.post(LANE, all as u64);
    site.device.queue_pairs().into_iter().for_each(|pair| site.device.complete(pair, 0));
    let handle = site.nic.handle(LANE).unwrap();
    for expected in [1, 2, 3, 3].map(|holds| holds * COMPLETIONS_PER_HOLD) {
        handle.take_completions();
        assert_eq!(site.told().ends.len(), expected);
    }
    drop(stalled);
}

/// Each poller has queues of its own: a thread that holds one delays no lane of another.
#[test]
fn pollers_share_no_lock() {
    let site = Site::new(|config| (config.polling, config.pollers) = (Polling::Busy, 2));
    let lanes = [LANE, NEXT, Lifecycle(9), Lifecycle(10)];
    lanes.iter().for_each(|lane| site.connect(*lane, 1));
    assert_eq!(lanes.map(|lane| site.shard(lane).poller.number), [0, 1, 0, 1]);
    let shard = site.shard(LANE);
    let held = shard.sweep.lock();
    site.post(LANE, 1);
    site.post(NEXT, 1);
    site.wait("the other lane's slice", |told| told.ends.len() == 1);
    assert_eq!(site.told().ends, [(NEXT, CompletionStatus::Done)]);
    drop(held);
    site.wait("the held lane's slice", |told| told.ends.len() == 2);
}

/// Posting and completing allocate nothing but the growth of buffers, on one lane or on many.
#[test]
fn steady_transfers_allocate_nothing() {
    const LANES: u64 = 20;
    const DEPTH: u64 = 32;
    const SLICES: u64 = 100_000;
    // The buffers of a lane and the thread's own grow by doubling.
    let growth = |lanes: u64| 16 + 24 * lanes;
    for lanes in [1, LANES] {
        let site = Site::new(|config| config.polling = Polling::Busy);
        (0..lanes).for_each(|lane| site.connect(Lifecycle(lane), 2));
        let load = Load {
            nic: Arc::downgrade(&site.nic),
            posting: site.postings(1).remove(0),
            left: SLICES,
            spare: Vec::with_capacity(DEPTH as usize),
            allocations: Vec::with_capacity(SLICES as usize),
        };
        *site.told.load.lock() = Some(load);
        (0..lanes).for_each(|lane| site.nic.post(Lifecycle(lane), &mut site.postings(DEPTH)));
        site.wait("the last completion", |told| told.is_over);
        let load = site.told.load.lock().take().unwrap();
        let (reports, at) = (load.allocations.len() as u64, |end: Option<&u64>| *end.unwrap());
        let made = at(load.allocations.last()) - at(load.allocations.first());
        assert!(
            made <= growth(lanes) && made < reports / 4,
            "{made} allocations, {reports} reports"
        );
    }
}

/// Posts a slice for each that ended, on the thread that reports the end.
struct Load {
    nic: Weak<Nic>,
    posting: Posting,
    left: u64,
    spare: Vec<Posting>,
    /// Allocations of the thread at each report.
    allocations: Vec<u64>,
}

#[derive(Clone, Default)]
struct Told {
    ends: Vec<(Lifecycle, CompletionStatus)>,
    failures: Vec<(Lifecycle, TransportError)>,
    events: Vec<DeviceEvent>,
    is_over: bool,
}

#[derive(Default)]
struct Recorder {
    told: Mutex<Told>,
    load: Mutex<Option<Load>>,
    more: Condvar,
    /// Holds the thread that reports an event, after the report.
    stall: Mutex<()>,
}

impl LaneSink for Recorder {
    fn on_completions(&self, lane: Lifecycle, completions: &mut Vec<Completion>) {
        if let Some(load) = &mut *self.load.lock() {
            load.allocations.push(allocations());
            assert!(completions.iter().all(|end| end.status == CompletionStatus::Done));
            load.left = load.left.saturating_sub(completions.len() as u64);
            let more = completions
                .drain(..)
                .map(|end| Posting { slice: end.slice, ..load.posting.clone() });
            load.spare.extend(more);
            match load.nic.upgrade().filter(|_| load.left > 0) {
                Some(nic) => nic.post(lane, &mut load.spare),
                None => self.told.lock().is_over = true,
            }
            if load.left > 0 {
                return;
            }
        }
        let ends = completions.drain(..).map(|completion| (lane, completion.status));
        self.told.lock().ends.extend(ends);
        self.more.notify_all();
    }

    fn on_lane_failed(&self, lane: Lifecycle, error: TransportError) {
        self.told.lock().failures.push((lane, error));
        self.more.notify_all();
    }
}

impl NicSink for Recorder {
    fn on_device_event(&self, device: &str, event: DeviceEvent) {
        assert_eq!(device, "scripted");
        self.told.lock().events.push(event);
        self.more.notify_all();
        drop(self.stall.lock());
    }
}

/// A registration that the device keeps counts in its limits, as one that is in use does.
#[test]
fn failed_deregistration_stays_in_the_count() {
    let site = Site::new(|_| {});
    let regions = || site.nic.load().regions;
    let register = || site.nic.register(site.memory.whole(), Access::READ).unwrap();
    let (before, holders) = (regions(), site.memory.holders());
    assert!(register().end());
    assert_eq!((regions(), site.memory.holders()), (before, holders));
    site.device.answer("ibv_dereg_mr", &[libc::EBUSY]);
    assert!(register().end(), "it is tried twice");
    assert_eq!((regions(), site.memory.holders()), (before, holders));
    site.device.answer("ibv_dereg_mr", &[libc::EBUSY; 2]);
    assert!(!register().end());
    assert_eq!(regions(), before + 1);
    assert!(site.memory.holders() > holders, "its memory is never freed");
}

/// A NIC over a device, with registered memory.
struct Site {
    device: &'static Device,
    nic: Arc<Nic>,
    memory: Memory,
    registration: Registration,
    told: Arc<Recorder>,
}

impl Site {
    fn new(change: impl FnOnce(&mut NicConfig)) -> Self {
        let (device, told) = (Device::new(), Arc::<Recorder>::default());
        let mut config = NicConfig { drain: DRAIN, idle_probe: None, ..NicConfig::new("scripted") };
        change(&mut config);
        let nic = Arc::new(device.nic(config, told.clone()));
        let memory = Memory::zeroed(4096).unwrap();
        let registration = nic.register(memory.whole(), Access::READ_WRITE).unwrap();
        Self { device, nic, memory, registration, told }
    }

    /// Creates a lane and connects it to its own queue pairs.
    fn connect(&self, lane: Lifecycle, pairs: usize) {
        let body = self.nic.create(lane, &vec![1; pairs]).unwrap();
        self.nic.connect(lane, &body).unwrap();
    }

    fn postings(&self, count: u64) -> Vec<Posting> {
        let posting = |slice| Posting {
            slice: SliceId::from_bits(slice),
            direction: Direction::Write,
            span: self.registration.span().clone(),
            remote: self.registration.remote_span(),
            memory: Some(self.registration.memory().clone()),
            region_key: None,
        };
        (0..count).map(posting).collect()
    }

    fn post(&self, lane: Lifecycle, count: u64) {
        self.nic.post(lane, &mut self.postings(count));
    }

    fn shard(&self, lane: Lifecycle) -> Arc<Shard> {
        self.nic.shared.lane(lane).unwrap().shard.clone()
    }

    fn told(&self) -> Told {
        self.told.told.lock().clone()
    }

    fn wait(&self, what: &str, enough: impl Fn(&Told) -> bool) {
        let mut told = self.told.told.lock();
        let timed_out = self.told.more.wait_while_for(&mut told, |told| !enough(told), PATIENCE);
        assert!(!timed_out.timed_out(), "{what} was not reported; failures: {:?}", told.failures);
    }
}
