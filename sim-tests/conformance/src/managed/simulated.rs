//! A connection manager as a table: what the kernel's does with identifiers, without devices.

use super::{ManagerArm, Told, trimmed};
use crate::arm::{ArmError, Outcome, Side};
use handfast_transport_sim::verbs::QpState;
use std::collections::{BTreeMap, VecDeque};

/// Bytes of private data in a request.
const REQUEST_BYTES_MAX: usize = 56;
const EINVAL: i32 = 22;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    New,
    Resolved,
    Routed,
    Listening { backlog: usize },
    Dialling,
    Requested,
    Connected,
    Over,
}

struct Identifier {
    stage: Stage,
    peer: Option<usize>,
    pair: Option<QpState>,
    told: VecDeque<Told>,
}

impl Identifier {
    fn new(stage: Stage) -> Self {
        Self { stage, peer: None, pair: None, told: VecDeque::new() }
    }
}

/// Two devices and the identifiers of both sides.
#[derive(Default)]
pub struct ManagedSimulated {
    names: BTreeMap<(Side, String), usize>,
    identifiers: Vec<Option<Identifier>>,
    /// Requests that no program has taken, with their data, by side.
    waiting: [VecDeque<(usize, Vec<u8>)>; 2],
    is_cut: bool,
}

impl ManagedSimulated {
    fn add(&mut self, identifier: Identifier) -> usize {
        self.identifiers.push(Some(identifier));
        self.identifiers.len() - 1
    }

    fn number(&self, side: Side, name: &str) -> Outcome<usize> {
        let known = self.names.get(&(side, name.to_owned())).copied();
        known.ok_or_else(|| ArmError(format!("no identifier {name}")))
    }

    fn named(&mut self, side: Side, name: &str) -> usize {
        if let Some(known) = self.names.get(&(side, name.to_owned())) {
            return *known;
        }
        let number = self.add(Identifier::new(Stage::New));
        self.names.insert((side, name.to_owned()), number);
        number
    }

    fn at(&mut self, number: usize) -> Option<&mut Identifier> {
        self.identifiers.get_mut(number)?.as_mut()
    }

    fn stage(&self, number: usize) -> Option<Stage> {
        Some(self.identifiers.get(number)?.as_ref()?.stage)
    }

    fn tell(&mut self, number: usize, kind: &'static str, data: &[u8]) {
        let data = trimmed(data.to_vec());
        let identifier = self.at(number);
        identifier.into_iter().for_each(|it| it.told.push_back(Told { kind, data: data.clone() }));
    }

    /// Moves an identifier on if it is at a stage, with an event.
    fn step(&mut self, number: usize, (from, to): (Stage, Stage), kind: &'static str) -> i32 {
        if self.stage(number) != Some(from) {
            return EINVAL;
        }
        self.at(number).into_iter().for_each(|it| it.stage = to);
        self.tell(number, kind, &[]);
        0
    }

    /// Ends the connection of an identifier with an event.
    fn over(&mut self, number: usize, kind: &'static str, data: &[u8]) {
        if let Some(identifier) = self.at(number) {
            identifier.stage = Stage::Over;
            identifier.pair = identifier.pair.map(|_| QpState::Err);
        }
        self.tell(number, kind, data);
    }

    fn destroy(&mut self, number: usize) {
        let Some(ended) = self.identifiers.get_mut(number).and_then(Option::take) else { return };
        if matches!(ended.stage, Stage::Listening { .. }) {
            // One device of each side has a listener.
            let waiting: Vec<usize> =
                self.waiting.iter_mut().flat_map(|of| of.drain(..)).map(|(it, _)| it).collect();
            waiting.into_iter().for_each(|request| self.destroy(request));
        }
        let Some(peer) = ended.peer else { return };
        match (ended.stage, self.stage(peer)) {
            (Stage::Requested, Some(Stage::Dialling)) => self.over(peer, "REJECTED", &[]),
            (Stage::Dialling, Some(Stage::Requested)) => self.over(peer, "UNREACHABLE", &[]),
            (Stage::Connected, Some(Stage::Connected)) => self.over(peer, "DISCONNECTED", &[]),
            _ => {}
        }
    }
}

impl ManagerArm for ManagedSimulated {
    fn listen(&mut self, side: Side, name: &str, backlog: i32) -> Outcome<i32> {
        let number = self.named(side, name);
        let backlog = usize::try_from(backlog).unwrap_or(usize::MAX);
        self.at(number).into_iter().for_each(|it| it.stage = Stage::Listening { backlog });
        Ok(0)
    }

    fn resolve(&mut self, side: Side, name: &str, is_nobody: bool) -> Outcome<i32> {
        let number = self.named(side, name);
        if is_nobody {
            self.tell(number, "ADDR_ERROR", &[]);
            return Ok(0);
        }
        Ok(self.step(number, (Stage::New, Stage::Resolved), "ADDR_RESOLVED"))
    }

    fn route(&mut self, side: Side, name: &str) -> Outcome<i32> {
        let number = self.named(side, name);
        Ok(self.step(number, (Stage::Resolved, Stage::Routed), "ROUTE_RESOLVED"))
    }

    fn connect(&mut self, side: Side, name: &str, data: &[u8]) -> Outcome<i32> {
        let number = self.named(side, name);
        if self.stage(number) != Some(Stage::Routed) || data.len() > REQUEST_BYTES_MAX {
            return Ok(EINVAL);
        }
        if let Some(dialler) = self.at(number) {
            (dialler.stage, dialler.pair) = (Stage::Dialling, Some(QpState::Init));
        }
        if self.is_cut {
            self.over(number, "UNREACHABLE", &[]);
            return Ok(0);
        }
        let listener = self.names.iter().find_map(|((of, _), number)| {
            match (*of == side.peer(), self.stage(*number)) {
                (true, Some(Stage::Listening { backlog })) => Some(backlog),
                _ => None,
            }
        });
        let waiting = self.waiting[side.peer() as usize].len();
        if listener.is_none_or(|backlog| waiting >= backlog) {
            self.over(number, "REJECTED", &[]);
            return Ok(0);
        }
        let mut request = Identifier::new(Stage::Requested);
        request.peer = Some(number);
        let request = self.add(request);
        self.at(number).into_iter().for_each(|dialler| dialler.peer = Some(request));
        self.waiting[side.peer() as usize].push_back((request, trimmed(data.to_vec())));
        Ok(0)
    }

    fn accept(&mut self, side: Side, name: &str, data: &[u8]) -> Outcome<i32> {
        let number = self.number(side, name)?;
        let Some(Stage::Requested) = self.stage(number) else { return Ok(EINVAL) };
        let peer = self.at(number).and_then(|it| it.peer);
        for (of, data) in [(Some(number), &[][..]), (peer, data)] {
            let Some(of) = of else { continue };
            if let Some(identifier) = self.at(of) {
                (identifier.stage, identifier.pair) = (Stage::Connected, Some(QpState::Rts));
            }
            self.tell(of, "ESTABLISHED", data);
        }
        Ok(0)
    }

    fn reject(&mut self, side: Side, name: &str, data: &[u8]) -> Outcome<i32> {
        let number = self.number(side, name)?;
        let Some(Stage::Requested) = self.stage(number) else { return Ok(EINVAL) };
        let peer = self.at(number).and_then(|it| {
            it.stage = Stage::Over;
            it.peer
        });
        peer.into_iter().for_each(|peer| self.over(peer, "REJECTED", data));
        Ok(0)
    }

    fn disconnect(&mut self, side: Side, name: &str) -> Outcome<i32> {
        let number = self.number(side, name)?;
        match self.stage(number) {
            Some(Stage::Connected) => {}
            Some(Stage::Over) => return Ok(0),
            _ => return Ok(EINVAL),
        }
        let peer = self.at(number).and_then(|it| it.peer);
        self.over(number, "DISCONNECTED", &[]);
        peer.into_iter().for_each(|peer| self.over(peer, "DISCONNECTED", &[]));
        Ok(0)
    }

    fn end(&mut self, side: Side, name: &str) -> Outcome<i32> {
        let number = self.number(side, name)?;
        self.names.remove(&(side, name.to_owned()));
        self.destroy(number);
        Ok(0)
    }

    fn request(&mut self, side: Side, name: &str) -> Outcome<Option<Vec<u8>>> {
        let Some((number, data)) = self.waiting[side as usize].pop_front() else { return Ok(None) };
        self.names.insert((side, name.to_owned()), number);
        Ok(Some(data))
    }

    fn event(&mut self, side: Side, name: &str) -> Outcome<Option<Told>> {
        let number = self.number(side, name)?;
        Ok(self.at(number).and_then(|it| it.told.pop_front()))
    }

    fn state(&mut self, side: Side, name: &str) -> Outcome<QpState> {
        let number = self.number(side, name)?;
        let pair = self.at(number).and_then(|it| it.pair);
        pair.ok_or_else(|| ArmError(format!("{name} has no queue pair")))
    }

    fn cut(&mut self, is_cut: bool) -> Outcome<()> {
        self.is_cut = is_cut;
        Ok(())
    }

    fn settle(&mut self) -> Outcome<()> {
        Ok(())
    }
}
