//! The exchange between two identifiers, and its events.

use super::protocol::{EVENTS, ManagerEvent, PRIVATE_DATA_MAX, Parameters};
use super::{Identifier, Stage};
use crate::state::{EVENTS_MAX, State};
use handfast_transport_sim::verbs::{Attributes, ManagedSettings, QpState, Step};

/// Status of a rejection by the peer's program, `IB_CM_REJ_CONSUMER_DEFINED`.
const BY_PROGRAM: i32 = 28;

/// Private data of an acceptance and of a rejection on InfiniBand, in bytes.
const ACCEPT_BYTES: usize = 196;
const REJECT_BYTES: usize = 148;

/// The cause of a queue pair's move to error: a call of the program, or the device.
#[derive(Clone, Copy)]
pub(super) enum StoppedBy {
    Program,
    Device,
}

/// The number of an event.
pub(super) fn kind(name: &str) -> Option<usize> {
    EVENTS.iter().position(|event| *event == name)
}

/// Fills the private data of a message up to the room of InfiniBand's, as the kernel hands it out. An
/// iWARP device hands out what was sent.
fn pad(name: &str, data: &mut Vec<u8>) {
    let room = match name {
        _ if data.is_empty() => return,
        "CONNECT_REQUEST" => PRIVATE_DATA_MAX,
        "ESTABLISHED" => ACCEPT_BYTES,
        _ => REJECT_BYTES,
    };
    data.resize(room.max(data.len()), 0);
}

impl State {
    /// Raises an event of an identifier, or holds it.
    pub(super) fn tell(&mut self, id: u64, name: &str, status: i32, parameters: Parameters) {
        let Some(identifier) = self.manager.identifiers.get(&id) else { return };
        let is_held = |event: &ManagerEvent| event.id == id;
        if identifier.object == 0 && self.manager.waiting.iter().any(is_held) {
            // A request that ends while it is held never reaches its program.
            return self.end_identifier(id);
        }
        let kind = kind(name).unwrap_or_default();
        let peer = identifier.peer.and_then(|peer| self.manager.identifiers.get(&peer));
        let (counted, listener) = match identifier.stage {
            Stage::Requested { listener } if name == "CONNECT_REQUEST" => {
                (listener, self.manager.identifiers.get(&listener).map_or(0, |it| it.object))
            }
            _ => (id, 0),
        };
        let mut parameters = parameters;
        if identifier.place.nic.is_some_and(|nic| !self.connects_managed_only(nic)) {
            pad(name, &mut parameters.data);
        }
        let event = ManagerEvent {
            kind,
            status,
            id,
            object: identifier.object,
            listener,
            counted,
            parameters,
            number: peer.and_then(|peer| peer.pair).map_or(0, |(_, _, number)| number),
            place: identifier.place,
        };
        if identifier.place.nic.is_some_and(|nic| self.manager.held.contains(&(nic, kind))) {
            if self.manager.waiting.len() < EVENTS_MAX {
                self.manager.waiting.push_back(event);
            }
            return;
        }
        self.happen(event);
    }

    /// An event takes effect, and reaches the program.
    pub(super) fn happen(&mut self, event: ManagerEvent) {
        let is_established = EVENTS[event.kind] == "ESTABLISHED";
        let id = event.id;
        let dials = |it: &Identifier| it.stage == Stage::Dialling;
        if is_established && self.manager.identifiers.get(&id).is_some_and(dials) {
            return self.answered(event);
        }
        if is_established {
            // The attempt may have ended while its event was held.
            let is_over = |it: &Identifier| it.stage == Stage::Over;
            if self.manager.identifiers.get(&id).is_none_or(is_over) {
                return;
            }
            self.set_stage(id, Stage::Connected);
        }
        self.push(event);
    }

    /// The answer to a dial arrives: both sides are connected. The accepting side of a stream was before.
    fn answered(&mut self, event: ManagerEvent) {
        let id = event.id;
        let planned = event.place.nic.and_then(|nic| {
            // A step of the library's own fails, such as the move of the queue pair to RTS.
            self.manager.planned_failure(nic, "CONNECT_ERROR")
        });
        if let Some(status) = planned {
            return self.over(id, "CONNECT_ERROR", status);
        }
        self.join(id);
        self.set_stage(id, Stage::Connected);
        self.push(event);
        let peer = self.manager.identifiers.get(&id).and_then(|it| it.peer);
        match peer.filter(|peer| self.manager.identifiers.contains_key(peer)) {
            Some(_) if self.is_stream(id) => {}
            Some(peer) => self.tell(peer, "ESTABLISHED", 0, Parameters::default()),
            None => self.disconnected(id),
        }
    }

    fn push(&mut self, mut event: ManagerEvent) {
        let Some(identifier) = self.manager.identifiers.get(&event.id) else { return };
        event.object = identifier.object;
        let Some(channel) = self.manager.channels.get_mut(&identifier.channel) else { return };
        if channel.events.len() >= EVENTS_MAX {
            return self
                .break_law(format!("{} of the connection manager is lost", EVENTS[event.kind]));
        }
        channel.events.push_back(event);
        channel.signal.raise(channel.events.len());
    }

    pub(super) fn set_stage(&mut self, id: u64, stage: Stage) {
        if let Some(identifier) = self.manager.identifiers.get_mut(&id) {
            identifier.stage = stage;
        }
    }

    /// Connects the queue pair of an identifier to that of its peer.
    pub(super) fn join(&mut self, id: u64) {
        let pair = |id: u64| {
            let pair = self.manager.identifiers.get(&id).and_then(|it| it.pair);
            // Of a destroyed queue pair the number may be another's.
            pair.filter(|(pair, ..)| self.pairs.contains_key(pair))
        };
        let identifier = self.manager.identifiers.get(&id);
        let known = identifier.and_then(|it| {
            let settings = ManagedSettings {
                reads: it.reads.0,
                peer_reads: it.reads.1,
                timeout: it.options.timeout,
                retries: it.retries,
                psns: (0, 0),
            };
            Some((it.peer?, settings))
        });
        let Some((peer, settings)) = known else { return };
        let (Some((_, nic, number)), Some((_, peer_nic, peer_number))) = (pair(id), pair(peer))
        else {
            return;
        };
        if !self.fabric.connect_managed(nic, number, (peer_nic, peer_number), settings) {
            let name = self.listed[nic].name;
            self.break_law(format!("{name} {number}: connected, and is not fresh"));
        }
    }

    /// A dial is rejected by the peer's program.
    pub(super) fn rejected(&mut self, id: u64, data: Vec<u8>) {
        self.set_stage(id, Stage::Over);
        self.stop(id, StoppedBy::Device);
        self.tell(id, "REJECTED", BY_PROGRAM, Parameters { data, ..Parameters::default() });
    }

    /// An identifier's connection ends with this event.
    pub(super) fn over(&mut self, id: u64, name: &str, status: i32) {
        self.set_stage(id, Stage::Over);
        self.stop(id, StoppedBy::Device);
        self.tell(id, name, status, Parameters::default());
    }

    /// The peer has ended a connection. A RoCE device leaves the queue pair as it is; an iWARP
    /// device, whose connection is a stream, stops it.
    pub(super) fn disconnected(&mut self, id: u64) {
        let nic = self.manager.identifiers.get(&id).and_then(|it| it.place.nic);
        self.set_stage(id, Stage::Over);
        if nic.is_some_and(|nic| self.connects_managed_only(nic)) {
            self.stop(id, StoppedBy::Device);
        }
        self.tell(id, "DISCONNECTED", 0, Parameters::default());
    }

    /// Whether a device refuses queue pairs that are connected out of band.
    pub(super) fn connects_managed_only(&self, nic: usize) -> bool {
        let steps = &self.listed[nic].profile.transitions;
        let to_rts = steps.iter().map(|from| from[QpState::Rts as usize]);
        !to_rts.into_iter().any(|step| matches!(step, Step::Connect | Step::To(QpState::Rts)))
    }

    /// Moves the queue pair of an identifier to error.
    pub(super) fn stop(&mut self, id: u64, by: StoppedBy) {
        let pair = self.manager.identifiers.get(&id).and_then(|it| it.pair);
        let Some((pair, nic, number)) = pair else { return };
        let state = self.fabric.queue_pair(nic, number).map(|qp| qp.state());
        let steps = &self.listed[nic].profile.transitions;
        let may_stop = |from: &QpState| {
            let step = steps[*from as usize][QpState::Err as usize];
            *from != QpState::Err && matches!(step, Step::To(_))
        };
        if self.pairs.contains_key(&pair) && state.as_ref().is_some_and(may_stop) {
            match by {
                StoppedBy::Program => {
                    let _ = self.fabric.modify(nic, number, &Attributes::to(QpState::Err));
                }
                StoppedBy::Device => self.fabric.stop_managed(nic, number),
            }
        }
    }
}
