//! Memory of accelerators at both ends of a transfer, over a scripted driver whose addresses fault when
//! a processor touches them: any access past the driver ends the whole test program.
#![allow(unsafe_code)]

use crate::helpers::{PATIENCE, content, pattern, tcp_user, user};
use handfast::accelerators::{Driver, STAGING_BYTES};
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

struct Devices {
    control: Control,
    driver: Arc<Driver>,
    _alone: MutexGuard<'static, ()>,
}

impl Devices {
    async fn find() -> Self {
        let alone = ONE_AT_A_TIME.lock().await;
        let control = Control::load().unwrap();
        let driver = Driver::open(Some(control.path().as_os_str())).unwrap();
        Self { control, driver, _alone: alone }
    }

    fn memory(&self, device: i32, bytes: usize) -> Memory {
        let address = self.control.allocate(device, bytes);
        // SAFETY: a test that frees the bytes expects the driver to refuse copies to them.
        let memory = unsafe { self.driver.device_memory(address, bytes, Arc::new(())) };
        memory.unwrap().unwrap()
    }
}

async fn owner(memory: &Memory) -> (Engine, Registration, String) {
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
    while devices.control.live().waiting == 0 {
        assert!(started.elapsed() < PATIENCE, "no copy begins");
        tokio::task::yield_now().await;
    }
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
        ("cuStreamSynchronize", &host, true, far),
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
    user.close().await;
    owner.close().await;
}
