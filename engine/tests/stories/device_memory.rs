//! Memory of accelerators at both ends of a transfer, over a scripted driver whose addresses fault when
//! a processor touches them: any access past the driver ends the whole test program.
#![allow(unsafe_code)]

use crate::helpers::{PATIENCE, content, pattern, tcp_user, until, user};
use handfast::accelerators::{Driver, PINNED_BUFFERS_MAX, STAGING_BYTES, STAGING_DEPTH, Staging};
use handfast::{Access, Engine, Memory, Registration};
use handfast_fabric_cuda::Control;
use std::future::IntoFuture;
use std::sync::Arc;
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::Instant;
use tokio::time::timeout;

const BYTES: usize = 5 * STAGING_BYTES + 4_099;

/// The devices are one table for the whole process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

pub(crate) struct Devices {
    pub(crate) control: Control,
    driver: Arc<Driver>,
    _alone: MutexGuard<'static, ()>,
}

impl Devices {
    pub(crate) async fn find() -> Self {
        let alone = ONE_AT_A_TIME.lock().await;
        let control = Control::load().unwrap();
        let driver = Driver::open(Some(control.path().as_os_str())).unwrap();
        Self { control, driver, _alone: alone }
    }

    /// Memory that holds the first context of a device: the process uses it.
    pub(crate) fn use_device(&self, device: u32) -> Memory {
        self.driver.allocate(device, 64).unwrap()
    }

    pub(crate) fn memory(&self, device: i32, bytes: usize) -> Memory {
        let address = self.control.allocate(device, bytes);
        // SAFETY: a test that frees the bytes expects the driver to refuse copies to them.
        let memory = unsafe { self.driver.device_memory(address, bytes, Arc::new(())) };
        memory.unwrap().unwrap()
    }

    /// Waits until copies of as many streams have begun and are held.
    pub(crate) async fn until_copying(&self, streams: usize) {
        let started = Instant::now();
        while self.control.live().copying < streams as u64 {
            assert!(started.elapsed() < PATIENCE, "{:?}", self.control.live());
            tokio::task::yield_now().await;
        }
    }
}

/// Takes every pinned buffer of the context of some memory.
/// Every pinned buffer of the device of `memory`. A lane gives its buffers back after the transfer that
/// used them has ended.
pub(crate) async fn all_buffers(memory: &Memory) -> Vec<Staging> {
    let mut buffers = Vec::new();
    until("all buffers", || {
        buffers.clear();
        buffers.extend((0..=PINNED_BUFFERS_MAX).map_while(|_| Staging::take(&memory.whole())));
        buffers.len() == PINNED_BUFFERS_MAX
    })
    .await;
    buffers
}

pub(crate) async fn owner(memory: &Memory) -> (Engine, Registration, String) {
    let engine = Engine::builder().listen("127.0.0.1:0").start().await.unwrap();
    let register = engine.register("cache").access(Access::READ_WRITE);
    let served = register.serve(memory.whole()).unwrap();
    let segment = format!("{}/cache", engine.address());
    (engine, served, segment)
}

/// Bytes go from device to device and back, whole and at odd places, and sums are of the device's
/// bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_go_from_device_to_device() {
    let devices = Devices::find().await;
    let there = devices.memory(1, BYTES + 100);
    let (owner, _served, segment) = owner(&there).await;
    let user = user().await;
    let segment = user.open(&segment).await.unwrap();
    let expected = pattern(BYTES, 3);
    let expected = content(&expected, 0, BYTES);
    let here = devices.memory(0, BYTES);
    here.copy_in(0, &expected).unwrap();
    segment.write(&here.whole(), 97).await.unwrap();
    assert_eq!(content(&there, 97, BYTES), expected);
    let sum = segment.checksum(97, BYTES as u64).await.unwrap();
    assert_eq!(sum, here.crc32c(0, BYTES).unwrap());

    let back = devices.memory(0, BYTES);
    segment.read(&back.whole(), 97).await.unwrap();
    assert_eq!(content(&back, 0, BYTES), expected);
    let host = Memory::zeroed(1_001).unwrap();
    segment.read(&host.whole(), 97 + 13).await.unwrap();
    assert_eq!(content(&host, 0, 1_001), expected[13..1_014]);
    user.close().await;
    owner.close().await;
}

/// Many small requests for host and device memory share a lane and keep their bytes apart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_requests_of_both_kinds_share_a_lane() {
    let devices = Devices::find().await;
    let there = devices.memory(0, 64 << 10);
    let (owner, _served, segment) = owner(&there).await;
    let user = user().await;
    let segment = user.open(&segment).await.unwrap();
    let (host, device) = (pattern(32 << 10, 1), devices.memory(1, 32 << 10));
    device.copy_in(0, &content(&host, 0, 32 << 10)).unwrap();
    let mut batch = segment.batch();
    for number in 0..256_usize {
        let from = if number % 2 == 0 { &host } else { &device };
        let span = from.span(number * 100, 100).unwrap();
        batch = batch.write(&span, number as u64 * 128);
    }
    batch.submit().await.unwrap().await.unwrap();
    for number in 0..256_usize {
        assert_eq!(content(&there, number * 128, 100), content(&host, number * 100, 100));
    }
    user.close().await;
    owner.close().await;
}

/// A node copies between its own blocks of either kind.
#[tokio::test]
async fn node_copies_its_own_device_memory() {
    let devices = Devices::find().await;
    let there = devices.memory(0, BYTES);
    let (owner, _served, segment) = owner(&there).await;
    let segment = owner.open(&segment).await.unwrap();
    let host = pattern(BYTES, 8);
    segment.write(&host.whole(), 0).await.unwrap();
    assert_eq!(content(&there, 0, BYTES), content(&host, 0, BYTES));
    let back = devices.memory(1, BYTES);
    segment.read(&back.whole(), 0).await.unwrap();
    assert_eq!(content(&back, 0, BYTES), content(&host, 0, BYTES));
    owner.close().await;
}

/// The end of a registration leaves the memory to the copy in flight, and to nothing after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn held_copy_keeps_memory_of_an_ended_registration() {
    let devices = Devices::find().await;
    let there = devices.memory(0, BYTES);
    let (owner, served, segment) = owner(&there).await;
    let user = user().await;
    let segment = user.open(&segment).await.unwrap();
    let host = pattern(BYTES, 2);
    devices.control.hold(true);
    let transfer = segment.write(&host.whole(), 0).submit().await.unwrap();
    let started = Instant::now();
    devices.until_copying(1).await;
    drop(served);
    assert!(there.holders() > 1, "the copy in flight has the memory");
    devices.control.hold(false);
    timeout(PATIENCE, transfer).await.unwrap().unwrap_err();
    while there.holders() > 1 {
        assert!(started.elapsed() < PATIENCE, "{} holders", there.holders());
        tokio::task::yield_now().await;
    }
    user.close().await;
    owner.close().await;
}

/// While a copy waits for its device, the next one has begun: of bytes to be sent, and of bytes received.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn copies_run_beside_the_socket() {
    let devices = Devices::find().await;
    let (there, here) = (devices.memory(0, BYTES), devices.memory(1, BYTES));
    let host = pattern(BYTES, 4);
    for (served, local) in [(&Memory::zeroed(BYTES).unwrap(), &here), (&there, &host)] {
        let (owner, _served, segment) = owner(served).await;
        let user = tcp_user().await;
        let segment = user.open(&segment).await.unwrap();
        here.copy_in(0, &content(&host, 0, BYTES)).unwrap();
        devices.control.hold(true);
        let transfer = segment.write(&local.whole(), 0).submit().await.unwrap();
        devices.until_copying(STAGING_DEPTH).await;
        devices.control.hold(false);
        timeout(PATIENCE, transfer).await.unwrap().unwrap();
        assert_eq!(content(served, 0, BYTES), content(&host, 0, BYTES));
        user.close().await;
        owner.close().await;
    }
    for memory in [there, here] {
        all_buffers(&memory).await;
    }
}

/// Bytes are moved as before while no pinned buffer is left, and none is made past the limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_go_on_without_pinned_buffers() {
    let devices = Devices::find().await;
    let (there, here) = (devices.memory(0, BYTES), devices.memory(1, BYTES));
    let expected = pattern(BYTES, 6);
    here.copy_in(0, &content(&expected, 0, BYTES)).unwrap();
    let (owner, _served, segment) = owner(&there).await;
    for user in [tcp_user().await, user().await] {
        let segment = user.open(&segment).await.unwrap();
        for taken in [PINNED_BUFFERS_MAX, PINNED_BUFFERS_MAX - 1, 0] {
            let mut buffers = (all_buffers(&there).await, all_buffers(&here).await);
            let pinned = devices.control.live().pinned;
            buffers.0.truncate(taken);
            buffers.1.truncate(taken);
            segment.write(&here.whole(), 0).await.unwrap();
            assert_eq!(content(&there, 0, BYTES), content(&expected, 0, BYTES));
            there.copy_in(0, &vec![0; BYTES]).unwrap();
            segment.write(&here.whole(), 0).await.unwrap();
            let back = devices.memory(1, BYTES);
            segment.read(&back.whole(), 0).await.unwrap();
            assert_eq!(content(&back, 0, BYTES), content(&expected, 0, BYTES), "{taken} taken");
            assert_eq!(devices.control.live().pinned, pinned);
        }
        user.close().await;
    }
    owner.close().await;
}

/// A copy that fails at either side ends the transfer at once with the call that failed there, and the
/// lane goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_copy_ends_the_transfer_at_once() {
    let devices = Devices::find().await;
    let there = devices.memory(0, BYTES);
    let (owner, _served, segment) = owner(&there).await;
    let user = tcp_user().await;
    let segment = user.open(&segment).await.unwrap();
    let (host, here) = (pattern(BYTES, 2), devices.memory(1, BYTES));
    segment.write(&host.whole(), 0).await.unwrap();
    let failed = user.counters().tcp.lanes_failed;
    let far = "the peer's accelerator failed a copy";
    for (call, local, is_write, reason) in [
        ("cuMemcpyHtoDAsync", &host, true, far),
        ("cuMemcpyDtoHAsync", &host, false, far),
        ("cuMemcpyDtoHAsync", &here, true, "cuMemcpyDtoHAsync failed for cuda:1"),
        ("cuStreamQuery", &host, true, far),
    ] {
        devices.control.answer(call, 700);
        let span = local.whole();
        let transfer = match is_write {
            true => segment.write(&span, 0).into_future(),
            false => segment.read(&span, 0).into_future(),
        };
        let error = timeout(PATIENCE, transfer).await.unwrap().unwrap_err();
        assert!(error.to_string().contains(reason), "{call}: {error}");
        assert_eq!(error.diagnosis_id().as_str(), "GPU-COPY", "{error}");
        segment.write(&host.whole(), 0).await.unwrap();
        assert_eq!(content(&there, 0, BYTES), content(&host, 0, BYTES));
    }
    // The owner copies to the host alone.
    devices.control.answer("cuMemcpyHtoDAsync", 700);
    let transfer = segment.read(&here.whole(), 0).into_future();
    let error = timeout(PATIENCE, transfer).await.unwrap().unwrap_err();
    assert!(error.to_string().contains("cuMemcpyHtoDAsync failed for cuda:1"), "{error}");
    assert_eq!(user.counters().tcp.lanes_failed, failed, "no lane has ended");
    for memory in [&there, &here] {
        all_buffers(memory).await;
    }
    user.close().await;
    owner.close().await;
}
