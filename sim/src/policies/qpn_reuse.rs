//! Two peers that announce queue pairs and restart, and the machine that notices repeated numbers.
//!
//! Announcements reach it as the driver passes them on: all of them, in the order of their arrival, those
//! that are repeated or late included. The window is the last announcement of a NIC.

use super::oracle::{PolicyOracle, path, violation};
use crate::machine_world::{MachineWorld, Violation};
use handfast_core::policy::QpnReuseDetector;
use handfast_core::wire::{Body, Message, Op};
use handfast_core::{Incarnation, Lifecycle, Pair};
use handfast_transport_sim::Encoder;
use std::hash::Hash;

/// Peers, all of which are remembered.
pub(super) const PEERS: usize = 2;
/// The number of the first queue pair of a device that was reset.
const FIRST_NUMBER: u32 = 17;
/// Announcements in a schedule.
const ANNOUNCEMENTS_MAX: u32 = 5;

/// The numbers of a restarted process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Numbers {
    /// They go on.
    Fresh,
    /// They begin at the first again.
    Reset,
    /// They begin at the first again, and another process has every second one.
    Shared,
}

/// An announcement: the incarnation and its queue pairs.
type Announced = (u128, Vec<u32>);

/// A peer as it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Peer {
    incarnation: u128,
    /// The next queue pair's number, and the distance to the one after it.
    next: u32,
    stride: u32,
    /// The last announcement of this incarnation, and of the one before.
    last: Option<Announced>,
    earlier: Option<Announced>,
    /// The last announcement that arrived and named queue pairs.
    heard: Option<Announced>,
}

/// Something that may happen.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// A peer announces new queue pairs.
    Announce(usize),
    /// A peer announces a lane without queue pairs.
    AnnounceNone(usize),
    /// The last announcement arrives again.
    Repeat(usize),
    /// A peer restarts.
    Restart(usize, Numbers),
    /// The last announcement of the incarnation before arrives late.
    Late(usize),
}

/// The machine and the peers as they are.
#[derive(Clone)]
pub(super) struct QpnReuseWorld {
    machine: QpnReuseDetector,
    peers: Vec<Peer>,
    announcements: u32,
    faults_left: u32,
    violation: Option<Violation<PolicyOracle>>,
}

impl QpnReuseWorld {
    pub(super) fn new(machine: QpnReuseDetector, faults_max: u32) -> Self {
        let peer = Peer {
            incarnation: 1,
            next: FIRST_NUMBER,
            stride: 1,
            last: None,
            earlier: None,
            heard: None,
        };
        let peers = vec![peer; PEERS];
        Self { machine, peers, announcements: 0, faults_left: faults_max, violation: None }
    }

    fn deliver(&mut self, peer: usize, (incarnation, numbers): Announced) {
        self.announcements += 1;
        let message = Message {
            op: Op::Request,
            from: path(peer, 0),
            to: path(PEERS, 0),
            sender: Pair { incarnation: Incarnation(incarnation), lifecycle: Lifecycle(1) },
            echo: None,
            body: Body { queue_pairs: numbers.clone(), ..Body::default() },
            refusal: None,
        };
        let reported = self.machine.handle_message(&message);
        let known = &mut self.peers[peer].heard;
        let is_repeated = |(before, same): &Announced| *before != incarnation && *same == numbers;
        let repeats = !numbers.is_empty() && known.as_ref().is_some_and(is_repeated);
        let detail = format!(
            "incarnation {incarnation} of peer {peer} announces {numbers:?}, after {known:?}"
        );
        if !numbers.is_empty() {
            *known = Some((incarnation, numbers));
        }
        let oracle = match (reported, repeats) {
            (false, true) => PolicyOracle::Missed,
            (true, false) => PolicyOracle::Imagined,
            _ => return,
        };
        self.violation.get_or_insert(violation(oracle, detail));
    }

    fn restart(&mut self, peer: usize, numbers: Numbers) {
        let peer = &mut self.peers[peer];
        peer.incarnation += 1;
        peer.earlier = peer.last.take();
        (peer.next, peer.stride) = match numbers {
            Numbers::Fresh => (peer.next, 1),
            Numbers::Reset => (FIRST_NUMBER, 1),
            Numbers::Shared => (FIRST_NUMBER, 2),
        };
    }
}

impl MachineWorld for QpnReuseWorld {
    type Event = Event;
    type Oracle = PolicyOracle;

    const NO_END: PolicyOracle = PolicyOracle::Liveness;

    fn events(&self) -> Vec<(Event, u32)> {
        if self.announcements >= ANNOUNCEMENTS_MAX {
            return Vec::new();
        }
        let mut events = Vec::new();
        for (index, peer) in self.peers.iter().enumerate() {
            events.extend([(Event::Announce(index), 0), (Event::AnnounceNone(index), 0)]);
            if peer.last.is_some() {
                events.push((Event::Repeat(index), 0));
                for numbers in [Numbers::Fresh, Numbers::Reset, Numbers::Shared] {
                    events.push((Event::Restart(index, numbers), 1));
                }
            }
            if peer.earlier.is_some() {
                events.push((Event::Late(index), 1));
            }
        }
        events.retain(|(_, price)| *price <= self.faults_left);
        events
    }

    fn happen(&mut self, (event, price): (Event, u32)) {
        self.faults_left -= price;
        match event {
            Event::Announce(index) => {
                let peer = &mut self.peers[index];
                let numbers = vec![peer.next, peer.next + peer.stride];
                peer.next += 2 * peer.stride;
                let announced = (peer.incarnation, numbers);
                peer.last = Some(announced.clone());
                self.deliver(index, announced);
            }
            Event::AnnounceNone(index) => {
                self.deliver(index, (self.peers[index].incarnation, Vec::new()));
            }
            Event::Repeat(index) => {
                let last = self.peers[index].last.clone();
                last.into_iter().for_each(|last| self.deliver(index, last));
            }
            Event::Restart(index, numbers) => self.restart(index, numbers),
            Event::Late(index) => {
                let earlier = self.peers[index].earlier.take();
                earlier.into_iter().for_each(|earlier| self.deliver(index, earlier));
            }
        }
    }

    fn violation(&self) -> Option<&Violation<PolicyOracle>> {
        self.violation.as_ref()
    }

    fn unsettled(&self) -> Option<Violation<PolicyOracle>> {
        None
    }

    fn fingerprint(&self) -> u128 {
        let mut encoder = Encoder::default();
        let hasher = &mut encoder;
        (&self.machine, &self.peers, self.announcements, self.faults_left).hash(hasher);
        encoder.digest()
    }

    fn describe(&self, event: Event) -> String {
        match event {
            Event::Announce(peer) => format!("peer {peer} announces queue pairs"),
            Event::AnnounceNone(peer) => format!("peer {peer} announces a lane without any"),
            Event::Repeat(peer) => format!("peer {peer} repeats its announcement"),
            Event::Restart(peer, numbers) => format!("peer {peer} restarts, numbers {numbers:?}"),
            Event::Late(peer) => format!("peer {peer}'s announcement before its restart arrives"),
        }
    }
}
