//! Completion queues, event queues and their descriptors.

use crate::descriptor::Descriptor;
use handfast_transport_sim::verbs::Status;
use std::collections::VecDeque;

/// A completion as the program polls it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) wr_id: u64,
    pub(crate) status: Status,
    /// Operation in the numbers of `ibv_wc_opcode`.
    pub(crate) opcode: u32,
    pub(crate) bytes: u32,
    pub(crate) vendor_error: u32,
    pub(crate) number: u32,
}

/// A completion queue.
pub(crate) struct Queue {
    pub(crate) nic: usize,
    /// Address of the program's object, for events.
    pub(crate) object: usize,
    pub(crate) channel: Option<u64>,
    pub(crate) entries: VecDeque<Entry>,
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

/// A completion event channel.
pub(crate) struct Channel {
    pub(crate) descriptor: Descriptor,
    /// Queues with an event, oldest first.
    pub(crate) events: VecDeque<u64>,
}

/// An asynchronous event, with the program's object that it names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    /// Kind in the numbers of `ibv_event_type`.
    pub(crate) kind: u32,
    pub(crate) element: Element,
}

/// The object that an event names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    /// A completion queue, by its name.
    Queue(u64),
    /// A queue pair, by its name.
    Pair(u64),
    /// A port.
    Port(u32),
}

/// An open device.
pub(crate) struct Context {
    pub(crate) nic: usize,
    pub(crate) descriptor: Descriptor,
    pub(crate) events: VecDeque<Event>,
    /// The device died while it was open.
    pub(crate) is_dead: bool,
}

/// A queue pair that the program has.
pub(crate) struct Pair {
    pub(crate) nic: usize,
    pub(crate) number: u32,
    pub(crate) context: u64,
    /// Address of the program's object, for events.
    pub(crate) object: usize,
    pub(crate) send_queue: u64,
    pub(crate) receive_queue: u64,
    pub(crate) signals_all: bool,
    /// Sends posted and not completed: name, operation, bytes.
    pub(crate) posted: VecDeque<(u64, u32, u32)>,
    /// Receives posted and not completed: name.
    pub(crate) unacknowledged: u32,
}
