//! Copies of accelerators that do not end, in one thread with both ends: whatever waits for one stops the
//! test.

use crate::device_memory::{Devices, all_buffers, owner};
use crate::helpers::{PATIENCE, content, pattern, tcp_user, until};
use handfast::accelerators::STAGING_BYTES;
use handfast::{Access, Cause, Engine, EngineTiming, Memory, Remote, TransportChoice};
use std::future::IntoFuture;
use std::time::Duration;
use tokio::time::timeout;

const BYTES: usize = 5 * STAGING_BYTES + 4_099;
/// Timeout of a transfer whose copy is held.
const SHORT: Duration = Duration::from_secs(2);

/// A transfer ends at its deadline while a copy of its bytes is held at either side, and says what the
/// peer's memory has. Transfers of another lane go on meanwhile, and its own lane after the copy.
#[tokio::test]
async fn held_copy_ends_the_transfer_at_its_deadline() {
    let devices = Devices::find().await;
    let (there, here) = (devices.memory(0, BYTES), devices.memory(1, BYTES));
    let (host, plain) = (pattern(BYTES, 4), Memory::zeroed(BYTES).unwrap());
    let (device_owner, _device, device_segment) = owner(&there).await;
    let (plain_owner, _plain, plain_segment) = owner(&plain).await;
    let user = tcp_user().await;
    let device_segment = user.open(&device_segment).await.unwrap();
    let plain_segment = user.open(&plain_segment).await.unwrap();
    for (segment, local, is_write, remote) in [
        // Copied from the user's device, before anything is sent.
        (&plain_segment, &here, true, Some(Remote::Untouched)),
        // Copied to the owner's device.
        (&device_segment, &host, true, Some(Remote::Indeterminate)),
        // Copied from the owner's device.
        (&device_segment, &host, false, None),
    ] {
        let other_memory = pattern(4_099, 9);
        let (other, _other, beside) = owner(&other_memory).await;
        let beside = user.open(&beside).await.unwrap();
        for warm in [segment, &beside] {
            warm.write(&pattern(64, 1).whole(), 0).await.unwrap();
        }
        devices.control.hold(true);
        let batch = segment.batch().timeout(SHORT);
        let batch = match is_write {
            true => batch.write(&local.whole(), 0),
            false => batch.read(&local.whole(), 0),
        };
        let transfer = batch.submit().await.unwrap();
        devices.until_copying(1).await;
        beside.write(&pattern(4_099, 5).whole(), 0).await.unwrap();
        let error = timeout(PATIENCE, transfer).await.unwrap().unwrap_err();
        assert!(matches!(error.cause(), Cause::DeadlinePassed), "{error}");
        assert_eq!(error.diagnosis_id().as_str(), "XFER-DEADLINE");
        assert_eq!(error.remote(), remote, "{error}");
        assert!(devices.control.live().copying > 0, "the copy is held");
        beside.write(&pattern(4_099, 6).whole(), 0).await.unwrap();
        assert_eq!(content(&other_memory, 0, 4_099), content(&pattern(4_099, 6), 0, 4_099));
        devices.control.hold(false);
        segment.write(&host.whole(), 0).await.unwrap();
        other.close().await;
    }
    for memory in [&there, &here] {
        all_buffers(memory).await;
    }
    user.close().await;
    device_owner.close().await;
    plain_owner.close().await;
}

/// A read whose copy is held ends after its deadline, with the copy: its memory is written until then.
#[tokio::test]
async fn read_keeps_its_memory_until_the_copy_ends() {
    let devices = Devices::find().await;
    let here = devices.memory(1, BYTES);
    let served = pattern(BYTES, 7);
    let (owner, _served, segment) = owner(&served).await;
    let user = tcp_user().await;
    let segment = user.open(&segment).await.unwrap();
    devices.control.hold(true);
    let batch = segment.batch().timeout(SHORT).read(&here.whole(), 0);
    let mut transfer = std::pin::pin!(batch.submit().await.unwrap().into_future());
    devices.until_copying(1).await;
    let early = timeout(2 * SHORT, &mut transfer).await;
    assert!(early.is_err(), "a copy writes the memory: {early:?}");
    assert!(here.holders() > 1);
    devices.control.hold(false);
    let error = timeout(PATIENCE, transfer).await.unwrap().unwrap_err();
    assert!(matches!(error.cause(), Cause::DeadlinePassed), "{error}");
    segment.read(&here.whole(), 0).await.unwrap();
    assert_eq!(content(&here, 0, BYTES), content(&served, 0, BYTES));
    all_buffers(&here).await;
    user.close().await;
    owner.close().await;
}

/// A lane that ends while a copy is held takes no part in another one until the copy has ended: the read
/// goes on over the next lane after it.
#[tokio::test]
async fn ended_lane_waits_for_its_copy() {
    let devices = Devices::find().await;
    let here = devices.memory(1, BYTES);
    let served = pattern(BYTES, 8);
    let (owner, _served, segment) = owner(&served).await;
    let timing = EngineTiming::default().with(|it| it.lane_timeout = SHORT);
    let user =
        Engine::builder().transport(TransportChoice::Tcp).timing(timing).start().await.unwrap();
    let segment = user.open(&segment).await.unwrap();
    devices.control.hold(true);
    let transfer = segment.read(&here.whole(), 0).submit().await.unwrap();
    let mut transfer = std::pin::pin!(transfer.into_future());
    devices.until_copying(1).await;
    until("the end of the lane", || owner.counters().tcp.lanes_failed > 0).await;
    let early = timeout(SHORT, &mut transfer).await;
    assert!(early.is_err(), "a copy writes the memory: {early:?}");
    assert!(here.holders() > 1);
    devices.control.hold(false);
    timeout(PATIENCE, transfer).await.unwrap().unwrap();
    assert_eq!(content(&here, 0, BYTES), content(&served, 0, BYTES));
    all_buffers(&here).await;
    user.close().await;
    owner.close().await;
}

/// A transfer of a node to itself ends at its deadline while a copy from a device is held, and with the copy
/// while one to a device is. Host memory is copied meanwhile, on the one thread of the node.
#[tokio::test]
async fn held_copy_of_an_own_device_delays_no_other() {
    let devices = Devices::find().await;
    let (there, here) = (devices.memory(0, BYTES), devices.memory(1, BYTES));
    let (engine, _there, segment) = owner(&there).await;
    let plain = Memory::zeroed(BYTES).unwrap();
    let _plain = engine.register("plain").access(Access::READ_WRITE).serve(plain.whole()).unwrap();
    let there_segment = engine.open(&segment).await.unwrap();
    let plain_segment = engine.open(&format!("{}/plain", engine.address())).await.unwrap();
    let host = pattern(BYTES, 3);
    devices.control.hold(true);
    let batch = plain_segment.batch().timeout(SHORT).write(&here.whole(), 0);
    let transfer = batch.submit().await.unwrap();
    devices.until_copying(1).await;
    plain_segment.write(&host.span(0, 4_099).unwrap(), 0).await.unwrap();
    let error = timeout(PATIENCE, transfer).await.unwrap().unwrap_err();
    assert!(matches!(error.cause(), Cause::DeadlinePassed), "{error}");
    assert_eq!(error.remote(), Some(Remote::Untouched), "{error}");
    assert_eq!(content(&plain, 0, 4_099), content(&host, 0, 4_099));

    let batch = there_segment.batch().timeout(SHORT).write(&host.whole(), 0);
    let mut transfer = std::pin::pin!(batch.submit().await.unwrap().into_future());
    let early = timeout(2 * SHORT, &mut transfer).await;
    assert!(early.is_err(), "a copy writes the memory: {early:?}");
    plain_segment.write(&host.span(0, 4_099).unwrap(), 0).await.unwrap();
    devices.control.hold(false);
    let error = timeout(PATIENCE, transfer).await.unwrap().unwrap_err();
    assert!(matches!(error.cause(), Cause::DeadlinePassed), "{error}");
    there_segment.write(&host.whole(), 0).await.unwrap();
    assert_eq!(content(&there, 0, BYTES), content(&host, 0, BYTES));
    for memory in [&there, &here] {
        all_buffers(memory).await;
    }
    engine.close().await;
}
