//! Asynchronous events of the device.
#![allow(unsafe_code)]

use super::binding::{RawEvent, ibv_cq, ibv_qp};
use super::context::{Context, errno};
use super::nic::{Shared, is_iwarp};
use super::objects::Owner;
use super::sink::DeviceEvent;
use crate::profile::DeviceProfile;
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

/// Maximum events handled before completions are polled again.
pub(super) const EVENTS_PER_LOOK: usize = 64;

/// An acknowledged event. Its object is read before the acknowledgement, after which it may be gone.
pub(super) enum Heard {
    CompletionQueue { shard: usize },
    QueuePair { kind: u32, owner: Owner, number: u32 },
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

/// Takes events until none is left, or [`EVENTS_PER_LOOK`] are taken.
///
/// # Errors
/// The value of errno; what was taken before is in the list.
pub(super) fn take_some(
    taken: &mut Vec<Heard>,
    mut take: impl FnMut() -> Result<Heard, i32>,
) -> Result<(), i32> {
    while taken.len() < EVENTS_PER_LOOK {
        match take() {
            Ok(heard) => taken.push(heard),
            Err(libc::EINTR) => {}
            Err(libc::EAGAIN) => break,
            Err(code) => return Err(code),
        }
    }
    Ok(())
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
            let (context, number) = unsafe {
                let pair = event.element.cast::<ibv_qp>();
                ((*pair).qp_context, (*pair).qp_num)
            };
            Heard::QueuePair { kind: event.kind, owner: Owner::of_context(context), number }
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

/// The side at fault for an event that ends a queue pair, and its description; `None` for other kinds.
/// Drivers of iWARP report a connection that broke as the failure of the queue pair, or, while it answers a
/// read of the peer, as a request of the peer's.
fn end_of_pair(profile: &DeviceProfile, kind: u32) -> Option<(Side, &'static str)> {
    Some(match kind {
        QUEUE_PAIR_FATAL if is_iwarp(profile) => {
            (profile.fatal_event, "the queue pair failed, or its connection broke")
        }
        QUEUE_PAIR_FATAL => (profile.fatal_event, "the queue pair failed"),
        QUEUE_PAIR_REQUEST_ERROR if is_iwarp(profile) => {
            (Side::Peer, "the connection broke before an answer, or the peer's request was invalid")
        }
        QUEUE_PAIR_REQUEST_ERROR => (Side::Peer, "the peer sent an invalid request"),
        QUEUE_PAIR_ACCESS_ERROR => (Side::Peer, "the peer asked for what it may not"),
        _ => return None,
    })
}

pub(super) fn on_event(shared: &Shared, heard: Heard) {
    let error = |side, kind, words: &str| {
        let code = i32::try_from(kind).unwrap_or(i32::MAX);
        shared.context.error(side, "asynchronous event", code, words)
    };
    let tell = |event| shared.sink.on_device_event(&shared.context.device, event);
    match heard {
        Heard::CompletionQueue { shard } => {
            if let Some(shard) = shared.queues.shard(shard) {
                let words = "the completion queue ran over";
                shared.fail_queue(&shard, &error(Side::Local, COMPLETION_QUEUE_ERROR, words));
            }
        }
        Heard::QueuePair { kind, owner, number } => {
            if [COMMUNICATION_ESTABLISHED, SEND_QUEUE_DRAINED, PATH_MIGRATED].contains(&kind) {
                return;
            }
            let Some((side, words)) = end_of_pair(shared.profile, kind) else {
                return tell(DeviceEvent::Other(kind));
            };
            // A lane that is gone has ended its slices, and its queue pair's number may be another's.
            let lane = match owner {
                Owner::Lane(serial) => shared.lane_of(serial).or_else(|| {
                    shared.lanes.lock().spoil(|fresh| fresh.serial == serial);
                    None
                }),
                Owner::Nobody => None,
            };
            if let Some(lane) = lane {
                let error = error(side, kind, words);
                match lane.numbers.iter().position(|it| *it == number) {
                    Some(pair) => lane.fail_by(pair, error),
                    None => lane.fail(error),
                }
            }
        }
        // A NIC is one port of its device.
        Heard::Port { port, .. } if port != u32::from(shared.port) => {}
        Heard::Port { kind, port } => tell(match kind {
            PORT_ACTIVE => DeviceEvent::PortActive { port },
            PORT_ERROR => {
                // siw moves queue pairs to ERROR with its port, without an event of their own before RTS.
                if is_iwarp(shared.profile) {
                    shared.lanes.lock().spoil(|_| true);
                }
                shared.counts.lock().ports_down += 1;
                DeviceEvent::PortDown { port }
            }
            _ => DeviceEvent::AddressesChanged { port },
        }),
        Heard::Device => {
            let _ = shared.lost_since.set(Instant::now());
            shared.context.on_lost();
            shared.lose(error(Side::Local, DEVICE_FATAL, "the device is lost"));
        }
        Heard::Other { kind } => tell(DeviceEvent::Other(kind)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A peer that dies breaks the connection of an iWARP queue pair, which the driver reports as its failure:
    /// this side is not charged, and the peer is not said to have sent anything.
    #[test]
    fn broken_connections_of_iwarp_are_not_this_sides() {
        use crate::profile::{ERDMA_STANDARD, IWARP, RXE, SIW};
        for profile in [&SIW, &IWARP, &ERDMA_STANDARD] {
            for kind in [QUEUE_PAIR_FATAL, QUEUE_PAIR_REQUEST_ERROR] {
                let (side, words) = end_of_pair(profile, kind).unwrap();
                assert_eq!(side, Side::Peer, "{}", profile.name);
                assert!(words.contains("connection broke"), "{}: {words}", profile.name);
            }
        }
        assert_eq!(
            end_of_pair(&RXE, QUEUE_PAIR_FATAL),
            Some((Side::Local, "the queue pair failed"))
        );
        assert_eq!(end_of_pair(&RXE, COMMUNICATION_ESTABLISHED), None);
    }

    /// As many events are taken at a time as the limit says, and those before a failure are kept.
    #[test]
    fn events_are_taken_up_to_the_limit() {
        let take = |events: usize, last: i32| {
            let (mut left, mut taken) = (events, Vec::new());
            let ended = take_some(&mut taken, || {
                left = left.checked_sub(1).ok_or(last)?;
                Ok(Heard::Device)
            });
            (taken.len(), ended)
        };
        assert_eq!(take(0, libc::EAGAIN), (0, Ok(())));
        assert_eq!(take(EVENTS_PER_LOOK - 1, libc::EIO), (EVENTS_PER_LOOK - 1, Err(libc::EIO)));
        assert_eq!(take(EVENTS_PER_LOOK, libc::EIO), (EVENTS_PER_LOOK, Ok(())));
        assert_eq!(take(EVENTS_PER_LOOK + 1, libc::EAGAIN), (EVENTS_PER_LOOK, Ok(())));
    }
}
