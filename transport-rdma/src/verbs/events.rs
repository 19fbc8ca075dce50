//! Asynchronous events of the device.
#![allow(unsafe_code)]

use super::binding::{RawEvent, ibv_cq, ibv_qp};
use super::context::{Context, errno};
use super::nic::Shared;
use super::sink::DeviceEvent;
use crate::error::VerbsError;
use handfast_core::transport::Side;
use std::mem::MaybeUninit;
use std::time::Instant;

// Kinds of events, as `enum ibv_event_type` of rdma-core counts them.
const COMPLETION_QUEUE_ERROR: u32 = 0;
const QUEUE_PAIR_FATAL: u32 = 1;
const QUEUE_PAIR_REQUEST_ERROR: u32 = 2;
const QUEUE_PAIR_ACCESS_ERROR: u32 = 3;
const COMMUNICATION_ESTABLISHED: u32 = 4;
const SEND_QUEUE_DRAINED: u32 = 5;
const PATH_MIGRATED: u32 = 6;
const PATH_MIGRATION_ERROR: u32 = 7;
const DEVICE_FATAL: u32 = 8;
const PORT_ACTIVE: u32 = 9;
const PORT_ERROR: u32 = 10;
const LID_CHANGE: u32 = 11;
const LAST_REQUEST_REACHED: u32 = 16;
const GID_CHANGE: u32 = 18;

/// An acknowledged event. Its object is read before the acknowledgement, after which it may be gone.
pub(super) enum Heard {
    CompletionQueue { shard: usize },
    QueuePair { kind: u32, number: u32 },
    Port { kind: u32, port: u32 },
    Device,
    Other { kind: u32 },
}

/// Takes the oldest event, or returns errno: `EAGAIN` without one. Acknowledge it afterwards.
pub(super) fn next_event(context: &Context) -> Result<RawEvent, i32> {
    let mut event = MaybeUninit::<RawEvent>::zeroed();
    // SAFETY: the context is open; on success the call fills the event in.
    let returned =
        unsafe { (context.verbs.ibv_get_async_event)(context.raw(), event.as_mut_ptr()) };
    if returned != 0 {
        return Err(errno());
    }
    // SAFETY: zeroes and whatever the call wrote are both values of the structure: a pointer-sized
    // field and a number.
    Ok(unsafe { event.assume_init() })
}

/// Acknowledges an event of [`next_event`]; the destruction of its object waits for this.
pub(super) fn acknowledge(context: &Context, mut event: RawEvent) {
    // SAFETY: the event came from the matching call and is acknowledged once.
    unsafe { (context.verbs.ibv_ack_async_event)(&raw mut event) };
}

pub(super) fn take_event(shared: &Shared) -> Result<Heard, i32> {
    let context = &shared.context;
    let event = next_event(context)?;
    let heard = match event.kind {
        COMPLETION_QUEUE_ERROR => {
            // SAFETY: of this kind the element is a completion queue, whose destruction waits for
            // the acknowledgement below.
            let name = unsafe { (*event.element.cast::<ibv_cq>()).cq_context };
            Heard::CompletionQueue { shard: name.addr() }
        }
        QUEUE_PAIR_FATAL..=PATH_MIGRATION_ERROR | LAST_REQUEST_REACHED => {
            // SAFETY: of these kinds the element is a queue pair, whose destruction waits for the
            // acknowledgement below.
            let number = unsafe { (*event.element.cast::<ibv_qp>()).qp_num };
            Heard::QueuePair { kind: event.kind, number }
        }
        DEVICE_FATAL => Heard::Device,
        PORT_ACTIVE | PORT_ERROR | LID_CHANGE | GID_CHANGE => {
            // The number is an int at the start of the union, not the whole of it.
            // SAFETY: the union is at least as large and fully initialised.
            let port = unsafe { (&raw const event.element).cast::<u32>().read() };
            Heard::Port { kind: event.kind, port }
        }
        kind => Heard::Other { kind },
    };
    // Before any lock: the destroyer of the object holds one and waits for this.
    acknowledge(context, event);
    shared.counts.lock().events += 1;
    Ok(heard)
}

pub(super) fn on_event(shared: &Shared, heard: Heard) {
    let error = |side, kind, words: &str| {
        let code = i32::try_from(kind).unwrap_or(i32::MAX);
        shared.context.error(side, "asynchronous event", code, words)
    };
    match heard {
        Heard::CompletionQueue { shard } => {
            let words = "the completion queue ran over";
            let error = error(Side::Local, COMPLETION_QUEUE_ERROR, words);
            let lanes = shared.all_lanes();
            let of_queue = lanes.iter().filter(|lane| lane.shard == shard);
            of_queue.for_each(|lane| lane.fail(error.clone()));
        }
        Heard::QueuePair { kind, number } => {
            let (side, words) = match kind {
                QUEUE_PAIR_FATAL => (shared.profile.fatal_event, "the queue pair failed"),
                QUEUE_PAIR_REQUEST_ERROR => (Side::Peer, "the peer sent an invalid request"),
                QUEUE_PAIR_ACCESS_ERROR => (Side::Peer, "the peer asked for what it may not"),
                COMMUNICATION_ESTABLISHED | SEND_QUEUE_DRAINED | PATH_MIGRATED => return,
                _ => return shared.sink.on_device_event(DeviceEvent::Other(kind)),
            };
            let lanes = shared.all_lanes();
            if let Some(lane) = lanes.iter().find(|lane| lane.numbers.contains(&number)) {
                lane.fail(error(side, kind, words));
            }
        }
        Heard::Port { kind, port } => shared.sink.on_device_event(match kind {
            PORT_ACTIVE => DeviceEvent::PortActive { port },
            PORT_ERROR => DeviceEvent::PortDown { port },
            _ => DeviceEvent::AddressesChanged { port },
        }),
        Heard::Device => {
            let _ = shared.lost_since.set(Instant::now());
            fail_all(shared, &error(Side::Local, DEVICE_FATAL, "the device is lost"));
            shared.sink.on_device_event(DeviceEvent::DeviceLost);
        }
        Heard::Other { kind } => shared.sink.on_device_event(DeviceEvent::Other(kind)),
    }
}

pub(super) fn fail_all(shared: &Shared, error: &VerbsError) {
    shared.all_lanes().iter().for_each(|lane| lane.fail(error.clone()));
}
