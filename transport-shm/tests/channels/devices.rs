//! Regions on devices, which the initiator opens by a handle.

use crate::DONE;
use crate::support::{Node, Setup, nodes};
use handfast_fabric_cuda::Control;
use handfast_memory_cuda::Driver;
use handfast_transport::{
    Access, CompletionStatus, DeviceHandle, Direction, Memory, OpenDeviceError, Region,
};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes of a block that a driver maps for a peer.
const BLOCK_BYTES: usize = 2 << 20;

/// The driver opens no allocation of its own process: host memory takes its place.
fn opens(_: &DeviceHandle, length: usize) -> Result<Memory, OpenDeviceError> {
    Memory::zeroed(length).map_err(|error| OpenDeviceError::Refused(error.to_string()))
}

/// Two nodes, the driver, and a region of the second node on a device.
async fn opened() -> (Node, Node, Control, Arc<Driver>, Region) {
    let setup = Setup { open_device: Some(opens), ..Setup::default() };
    let (first, second) = nodes(&setup).await;
    let control = Control::load().unwrap();
    let driver = Driver::open(Some(control.path().as_os_str())).unwrap();
    let theirs = driver.allocate(1, BLOCK_BYTES).unwrap();
    let region = second.serve(&theirs, Access::READ_WRITE, 7);
    (first, second, control, driver, region)
}

/// A local block that was freed refuses its slices: neither the lane nor the peer is at fault.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn freed_block_ends_no_lane_to_an_opened_region() {
    let (first, _second, control, driver, region) = opened().await;
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
