//! Completion queues, event queues and their descriptors.

use crate::descriptor::Signal;
use crate::protocol::Completed;
use std::collections::VecDeque;

/// An open device.
pub(crate) struct Context {
    pub(crate) nic: usize,
    /// The program that opened it.
    pub(crate) program: u64,
    pub(crate) signal: Signal,
    pub(crate) events: VecDeque<Event>,
    /// The device died while it was open.
    pub(crate) is_dead: bool,
}

/// A completion event channel.
pub(crate) struct Channel {
    pub(crate) context: u64,
    pub(crate) signal: Signal,
    /// Queues with an event, oldest first.
    pub(crate) events: VecDeque<u64>,
}

/// A completion queue.
pub(crate) struct Queue {
    pub(crate) nic: usize,
    pub(crate) context: u64,
    /// Address of the program's object, for events.
    pub(crate) object: u64,
    pub(crate) channel: Option<u64>,
    /// The completion vector, which signals its events.
    pub(crate) vector: i32,
    pub(crate) entries: VecDeque<Completed>,
    pub(crate) entries_max: usize,
    pub(crate) is_armed: bool,
    pub(crate) has_overrun: bool,
    /// Queue pairs that use it; with any it cannot be destroyed.
    pub(crate) users: u32,
    /// Events taken and not acknowledged.
    pub(crate) unacknowledged: u32,
    /// Calls in progress, for the law that polls and destroys exclude each other.
    pub(crate) polls: u32,
    pub(crate) destroys: u32,
}

/// A queue pair that a program has.
pub(crate) struct Pair {
    pub(crate) nic: usize,
    pub(crate) number: u32,
    pub(crate) context: u64,
    /// Address of the program's object, for events.
    pub(crate) object: u64,
    pub(crate) send_queue: u64,
    pub(crate) receive_queue: u64,
    pub(crate) signals_all: bool,
    /// Sends posted and not completed: name, operation, bytes.
    pub(crate) posted: VecDeque<(u64, u32, u32)>,
    /// Bytes of the messages that the peer has not received: a completion of a receive has their length.
    pub(crate) sent: VecDeque<u32>,
    /// Events taken and not acknowledged.
    pub(crate) unacknowledged: u32,
}

/// An asynchronous event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    /// Kind in the numbers of `ibv_event_type`.
    pub(crate) kind: u32,
    pub(crate) subject: Subject,
}

/// The subject of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// A completion queue, by its name.
    Queue(u64),
    /// A queue pair, by its name.
    Pair(u64),
    /// A port.
    Port(u32),
}
