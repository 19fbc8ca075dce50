//! The connection manager of the kernel: identifiers, listening ports, connections and events.
//!
//! Every device has the IPv4 and IPv6 address of its number in the list, whichever GIDs its profile
//! has, until a script lets one leave. The loopback address stands for the first device whose port is up, as in the kernel, and a
//! target without a source is reached from the device that has it.

mod calls;
mod commands;
mod events;
pub mod protocol;

pub(crate) use calls::handle;
pub(crate) use commands::run;

use crate::descriptor::Signal;
use crate::state::State;
use protocol::{IdPlace, ManagerEvent, Parameters};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Maximum identifiers of all programs.
pub(crate) const IDENTIFIERS_MAX: usize = 8_192;
/// Maximum connect requests that wait at a listening identifier.
pub(crate) const BACKLOG_MAX: usize = 1_024;
/// The first port that is given to an identifier without one.
const PORTS_FROM: u16 = 32_768;

/// The part of an identifier in a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Idle,
    Resolved,
    Routed,
    Listening {
        backlog: usize,
    },
    /// It has dialled.
    Dialling,
    /// It came with a connect request.
    Requested {
        listener: u64,
    },
    /// It has accepted.
    Accepted,
    Connected,
    Over,
}

impl Stage {
    fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Resolved => "resolved",
            Self::Routed => "routed",
            Self::Listening { .. } => "listening",
            Self::Dialling => "dialling",
            Self::Requested { .. } => "requested",
            Self::Accepted => "accepted",
            Self::Connected => "connected",
            Self::Over => "over",
        }
    }
}

/// Options that a program has set.
#[derive(Clone, Copy, Debug, Default)]
struct IdOptions {
    traffic_class: Option<u8>,
    timeout: Option<u8>,
}

/// An identifier.
#[derive(Clone, Debug)]
pub(crate) struct Identifier {
    program: u64,
    channel: u64,
    object: u64,
    place: IdPlace,
    stage: Stage,
    /// The program's name of the queue pair, its device and number.
    pair: Option<(u64, usize, u32)>,
    peer: Option<u64>,
    reads: (u8, u8),
    retries: u8,
    options: IdOptions,
    /// Events taken and not acknowledged.
    unacknowledged: u32,
}

/// An event channel.
pub(crate) struct EventChannel {
    program: u64,
    signal: Signal,
    events: VecDeque<ManagerEvent>,
}

/// The end that a script has planned for the next dial of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Planned {
    Rejected(i32),
    Unreachable,
    /// The step of the dial that this event belongs to fails, with this status.
    Failed {
        event: &'static str,
        status: i32,
    },
}

/// Events of a failed step of a dial.
const FAILED_STEPS: [&str; 3] = ["ADDR_ERROR", "ROUTE_ERROR", "CONNECT_ERROR"];

/// Identifiers, channels, and what a script holds.
#[derive(Default)]
pub(crate) struct Manager {
    channels: BTreeMap<u64, EventChannel>,
    identifiers: BTreeMap<u64, Identifier>,
    next_port: u16,
    /// Ports that identifiers are given, if a script bounds them.
    ports: Option<(u16, u16)>,
    /// Kinds of events that wait, by device.
    held: BTreeSet<(usize, usize)>,
    waiting: VecDeque<ManagerEvent>,
    planned: BTreeMap<usize, Planned>,
    /// Queue pairs whose number peers still take for that of an earlier connection, by device and number.
    stale: BTreeSet<(usize, u32)>,
    /// Queue pairs that have accepted and not received yet, by those that have dialled: each by its device and
    /// number. Kept for devices on which the order is a law.
    unheard: BTreeMap<(usize, u32), (usize, u32)>,
    /// Addresses that have left their device: its number, and whether the address is of IPv6.
    left: BTreeSet<(usize, bool)>,
}

impl Manager {
    /// An address leaves its device, or returns.
    pub(crate) fn set_address(&mut self, nic: usize, is_ipv6: bool, is_there: bool) {
        if is_there {
            self.left.remove(&(nic, is_ipv6));
        } else {
            self.left.insert((nic, is_ipv6));
        }
    }

    /// Takes the status of a planned failure of a device's dial at the step of this event.
    fn planned_failure(&mut self, nic: usize, step: &str) -> Option<i32> {
        match self.planned.get(&nic) {
            Some(Planned::Failed { event, status }) if *event == step => {
                let status = *status;
                self.planned.remove(&nic);
                Some(status)
            }
            _ => None,
        }
    }

    /// Whether a program has an identifier.
    pub(crate) fn is_used(&self) -> bool {
        !self.channels.is_empty() || !self.identifiers.is_empty()
    }
}

impl State {
    /// Ends the identifiers of a program, as the kernel does when a process ends.
    pub(crate) fn end_manager(&mut self, program: u64) {
        let of = |(id, it): (&u64, &Identifier)| (it.program == program).then_some(*id);
        let ids: Vec<u64> = self.manager.identifiers.iter().filter_map(of).collect();
        ids.into_iter().for_each(|id| self.end_identifier(id));
        self.manager.channels.retain(|_, channel| channel.program != program);
    }

    /// The identifiers of a device learn of its removal.
    pub(crate) fn remove_from_manager(&mut self, nic: usize) {
        let of = |(id, it): (&u64, &Identifier)| (it.place.nic == Some(nic)).then_some(*id);
        let ids: Vec<u64> = self.manager.identifiers.iter().filter_map(of).collect();
        for id in ids {
            self.tell(id, "DEVICE_REMOVAL", 0, Parameters::default());
        }
    }

    /// Notes the queue pairs of a connection that is accepted, where the dialler has to send first.
    fn await_first_frame(&mut self, accepting: u64, dialling: u64) {
        let pair_of = |id: u64| self.manager.identifiers.get(&id)?.pair;
        let (Some(listener), Some(dialler)) = (pair_of(accepting), pair_of(dialling)) else {
            return;
        };
        if self.is_stream(accepting) && self.listed[listener.1].dialler_sends_first {
            let of = |(_, nic, number): (u64, usize, u32)| (nic, number);
            self.manager.unheard.insert(of(dialler), of(listener));
        }
    }

    /// A packet is sent to a queue pair: not by one that has accepted and waits for the first frame.
    pub(crate) fn on_manager_sent(&mut self, nic: usize, number: u32) {
        if let Some((from, sender)) = self.manager.unheard.remove(&(nic, number)) {
            let name = self.listed[from].name;
            self.break_law(format!("{name} {sender}: sends before the side that has dialled"));
        }
    }

    /// A packet arrives at a queue pair.
    pub(crate) fn on_manager_arrived(&mut self, nic: usize, number: u32) {
        self.manager.unheard.retain(|_, listener| *listener != (nic, number));
    }

    /// Whether an identifier is of a device that connects by a stream.
    fn is_stream(&self, id: u64) -> bool {
        let nic = self.manager.identifiers.get(&id).and_then(|it| it.place.nic);
        nic.is_some_and(|nic| self.connects_managed_only(nic))
    }

    /// The dialler of a request is gone. A request that is held never reaches its program.
    fn forsake(&mut self, id: u64) {
        let is_taken = self.manager.identifiers.get(&id).is_some_and(|it| it.object != 0);
        if !is_taken && self.manager.waiting.iter().any(|event| event.id == id) {
            return self.end_identifier(id);
        }
        self.set_stage(id, Stage::Over);
    }

    /// Ends an identifier. Its peer learns of it.
    fn end_identifier(&mut self, id: u64) {
        let Some(identifier) = self.manager.identifiers.remove(&id) else { return };
        if let Some((_, nic, number)) = identifier.pair {
            let ends = (nic, number);
            self.manager.unheard.retain(|dialler, listener| ends != *dialler && ends != *listener);
        }
        let of = |event: &ManagerEvent| event.id == id;
        self.manager.waiting.retain(|event| !of(event));
        if let Some(channel) = self.manager.channels.get_mut(&identifier.channel) {
            channel.events.retain(|event| !of(event));
        }
        let requests = self.manager.identifiers.iter();
        let requests: Vec<u64> = requests
            .filter(|(_, it)| it.stage == Stage::Requested { listener: id } && it.object == 0)
            .map(|(request, _)| *request)
            .collect();
        // Requests that the program has not taken end with their listener.
        requests.into_iter().for_each(|request| self.end_identifier(request));
        let Some(peer) = identifier.peer else { return };
        match (identifier.stage, self.manager.identifiers.get(&peer).map(|peer| peer.stage)) {
            (Stage::Requested { .. }, Some(Stage::Dialling)) => self.rejected(peer, Vec::new()),
            // As soft-iWARP: the accept says it, and no event before.
            (_, Some(Stage::Requested { .. })) if self.is_stream(peer) => self.forsake(peer),
            (_, Some(Stage::Requested { .. } | Stage::Accepted)) => {
                self.over(peer, "UNREACHABLE", -libc::ETIMEDOUT);
            }
            (_, Some(Stage::Connected)) => self.disconnected(peer),
            _ => {}
        }
    }
}
