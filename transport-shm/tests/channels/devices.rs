//! Regions on devices, which the initiator opens by a handle.

use crate::DONE;
use crate::support::{Node, Setup, connect, nodes, wait_until};
use handfast_core::Lifecycle;
use handfast_fabric_cuda::Control;
use handfast_memory_cuda::Driver;
use handfast_transport::{
    Access, CompletionStatus, DeviceHandle, Direction, Endpoints, Memory, OpenDevice,
    OpenDeviceError, OpenedMemory, Region,
};
use handfast_transport_shm::NoChannel;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Bytes of a block that a driver maps for a peer.
const BLOCK_BYTES: usize = 2 << 20;

/// The driver opens no allocation of its own process: host memory takes its place.
fn opens(_: &DeviceHandle, length: usize) -> Result<OpenedMemory, OpenDeviceError> {
    let opened = opens_for_ever(length);
    opened.memory.drop_with_block(Closes(Arc::clone(&opened.is_closed)));
    Ok(opened)
}

/// An allocation that the driver does not close.
fn opens_for_ever(length: usize) -> OpenedMemory {
    let memory = Memory::zeroed(length).unwrap();
    OpenedMemory { memory, is_closed: Arc::new(AtomicBool::new(false)) }
}

/// Closes an allocation with its block.
struct Closes(Arc<AtomicBool>);

impl Drop for Closes {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Two nodes, the driver, and a region of the second node on a device with its memory.
async fn served(open_device: OpenDevice) -> (Node, Node, Control, Arc<Driver>, Region, Memory) {
    let setup = Setup { open_device: Some(open_device), ..Setup::default() };
    let (first, second) = nodes(&setup).await;
    let control = Control::load().unwrap();
    let driver = Driver::open(Some(control.path().as_os_str())).unwrap();
    let theirs = driver.allocate(1, BLOCK_BYTES).unwrap();
    let region = second.serve(&theirs, Access::READ_WRITE, 7);
    (first, second, control, driver, region, theirs)
}

/// A local block that was freed refuses its slices: neither the lane nor the peer is at fault.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn freed_block_ends_no_lane_to_an_opened_region() {
    let (first, _second, control, driver, region, _theirs) = served(opens).await;
    let host = Memory::zeroed(4_096).unwrap();
    assert_eq!(first.write(host.whole(), &region), DONE);
    assert_eq!(first.transport.counters().opened, 1);
    let local = driver.allocate(0, 4_096).unwrap();
    assert_eq!(first.write(local.whole(), &region), DONE);
    assert!(control.free(local.address()));
    for direction in [Direction::Write, Direction::Read] {
        let status = first.transfer(direction, local.whole(), region.key(), region.address());
        assert!(matches!(status, CompletionStatus::Refused(_)), "{status:?}");
    }
    assert_eq!(first.sink.failures.load(Ordering::Relaxed), 0);
    assert_eq!(first.write(host.whole(), &region), DONE);
    assert_eq!(first.posted_below(), 0);
}

/// The owner of an allocation that the initiator fails to close keeps its memory, after the end of the
/// registration; that of one which is closed has it back.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn allocation_that_stays_open_keeps_its_memory() {
    let never: OpenDevice = |_, length| Ok(opens_for_ever(length));
    for (open_device, holders) in [(opens as OpenDevice, 1), (never, 2)] {
        let (first, second, _control, _driver, region, theirs) = served(open_device).await;
        let host = Memory::zeroed(64).unwrap();
        assert_eq!(first.write(host.whole(), &region), DONE);
        let key = region.key();
        drop(region);
        second.regions.unregister(key);
        // An answer to the revocation comes before the second question.
        for key in [8, 9] {
            let next = second.serve(&Memory::shared(64).unwrap(), Access::READ_WRITE, key);
            assert_eq!(first.write(host.whole(), &next), DONE);
        }
        // A late answer comes together with the second question, and its memory is dropped after the grant.
        wait_until(|| theirs.holders() == holders);
    }
}

/// A lane ends although its peer never closes an allocation, whose memory is held apart from the lane.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn lane_ends_while_its_peer_keeps_memory() {
    let never: OpenDevice = |_, length| Ok(opens_for_ever(length));
    for is_owner_first in [true, false] {
        let (first, second, _control, _driver, region, theirs) = served(never).await;
        let host = Memory::zeroed(64).unwrap();
        assert_eq!(first.write(host.whole(), &region), DONE);
        let mut lanes = [&second, &first];
        if !is_owner_first {
            lanes.reverse();
        }
        for node in lanes {
            node.transport.retire(node.pair.lifecycle).await.unwrap();
        }
        let (kept, held) = (first.transport.counters().kept, second.transport.counters().held);
        assert_eq!((kept, held), (1, 1));
        let key = region.key();
        drop(region);
        second.regions.unregister(key);
        assert_eq!(theirs.holders(), 2, "its peer's process lives");
    }
}

/// An allocation that a process keeps is not granted to it over a further lane, where it would be kept as well: its
/// slices take the lane below, and the refusal is counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn kept_allocation_is_not_granted_over_a_new_lane() {
    let never: OpenDevice = |_, length| Ok(opens_for_ever(length));
    let (mut first, mut second, _control, _driver, region, _theirs) = served(never).await;
    let host = Memory::zeroed(64).unwrap();
    assert_eq!(first.write(host.whole(), &region), DONE);
    for lane in 1..=2 {
        for node in [&second, &first] {
            node.transport.retire(node.pair.lifecycle).await.unwrap();
        }
        for (node, number) in [(&mut first, 10 * lane), (&mut second, 10 * lane + 1)] {
            node.pair.lifecycle = Lifecycle(100 + number);
        }
        connect(&first, &second).await;
        // The third one asks again.
        for _ in 0..3 {
            assert_ne!(first.write(host.whole(), &region), DONE);
        }
        // The owner counts a refusal after its answer.
        wait_until(|| second.transport.counters().keeps_refused >= lane);
        let counters = second.transport.counters();
        assert_eq!((counters.held, counters.keeps_refused), (1, lane), "once for each lane");
    }
}

/// An allocation that is opened, and can be neither used nor closed, stays with its peer.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn allocation_that_opens_for_ever_is_not_given_back() {
    let kept: OpenDevice = |_, _| Err(OpenDeviceError::Kept("a check failed".to_owned()));
    let (first, second, _control, _driver, region, theirs) = served(kept).await;
    let reasons = Arc::new(Mutex::new(Vec::new()));
    let reported = Arc::clone(&reasons);
    first.transport.report_to(Box::new(move |_, reason| reported.lock().unwrap().push(reason)));
    let host = Memory::zeroed(64).unwrap();
    assert_ne!(first.write(host.whole(), &region), DONE);
    let (kept, key) = (first.transport.counters().kept, region.key());
    wait_until(|| second.transport.counters().held == 1);
    drop(region);
    second.regions.unregister(key);
    second.transport.retire(second.pair.lifecycle).await.unwrap();
    assert_eq!(kept, 1);
    assert!(reasons.lock().unwrap().contains(&NoChannel::Kept), "{reasons:?}");
    assert_eq!(theirs.holders(), 2);
}

/// A region that is staged counts once, however often its map is tried again.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn staged_region_counts_once() {
    fn opens_nothing(_: &DeviceHandle, _: usize) -> Result<OpenedMemory, OpenDeviceError> {
        Err(OpenDeviceError::OtherDevice)
    }
    let (first, _second, _control, _driver, region, _theirs) = served(opens_nothing).await;
    let host = Memory::zeroed(64).unwrap();
    // Each attempt that fails lets twice as many writes go below before the next.
    for _ in 0..8 {
        assert_ne!(first.write(host.whole(), &region), DONE);
    }
    let counters = first.transport.counters();
    assert_eq!((counters.staged, counters.opened), (1, 0));
}
