//! Dials and answers of a stranger, who knows everything but the tokens.

use super::link::{DIALLER, LISTENER, Link, Notice, Request};
use super::{PLACE, incarnation, node_pair};
use crate::action::{Action, Choice};
use crate::fabric::QueuePair;
use crate::world::{Step, World};
use handfast_core::connection::{Content, PrivateData, Token};
use handfast_core::{Lifecycle, NicPath, Pair};

impl World {
    /// Adds the dials and answers of a stranger, at a fault each.
    pub(super) fn push_forged(&self, choices: &mut Vec<Choice>) {
        let mut push = |action| choices.push(Choice { action, cost: 1 });
        for qp in &self.fabric.table {
            push(Action::ForgeRequest(qp.site, qp.lifecycle));
        }
        for link in self.managed.links.iter().filter(|link| link.meant.is_some()) {
            if matches!(link.inboxes[LISTENER][..], [Notice::Request(_)]) {
                push(Action::ForgeAnswer(link.id));
            }
        }
    }

    /// A stranger dials a lane in the name of its peer.
    pub(crate) fn forge_request(&mut self, nic: usize, lifecycle: Lifecycle, step: &mut Step) {
        let Some(place) = self.place(nic, lifecycle) else { return };
        let known = self.peer_queue_pair(nic, lifecycle);
        let (sender, number) = known.unwrap_or((self.pair_at(place), place.number));
        let content = Content::Request;
        let (place, receiver) = (PLACE, lifecycle);
        let data = PrivateData { content, place, token: Token(0), sender, receiver, number };
        let id = self.free_link();
        self.managed.links.push(Link {
            id,
            ends: [None; 2],
            places: [None; 2],
            nics: [nic, nic],
            meant: None,
            has_sent: false,
            request: Request::OnItsWay,
            inboxes: [Vec::new(), vec![Notice::Request(data.encode())]],
        });
        self.managed.links.sort_by_key(|link| link.id);
        self.deliver_notice(id, LISTENER, step);
    }

    /// The peer's queue pair that a lane is bound to, or its last one for this site, as announced.
    fn peer_queue_pair(&self, nic: usize, lifecycle: Lifecycle) -> Option<(Pair, u32)> {
        if let Some(bound) = self.connections(nic).bound_to(lifecycle) {
            return Some((bound.announcement.pair, bound.queue_pairs.first().copied()?));
        }
        let peer = self.peer_of(self.host(nic), lifecycle)?;
        let is_back = |path: &NicPath| self.sites[nic].bears(path);
        let is_towards = |qp: &&QueuePair| {
            self.sites[qp.site].bears(peer)
                && self.peer_of(qp.host, qp.lifecycle).is_some_and(is_back)
        };
        let last = self.fabric.table.iter().filter(is_towards).max_by_key(|qp| qp.lifecycle)?;
        let run = incarnation(self.sites[last.site].incarnation);
        Some((Pair { incarnation: run, lifecycle: last.lifecycle }, last.number))
    }

    /// A stranger answers a dial, which does not arrive at the peer.
    pub(crate) fn forge_answer(&mut self, id: u64) {
        let Some(at) = self.link(id) else { return };
        let Notice::Request(data) = self.managed.links[at].inboxes[LISTENER].remove(0) else {
            return;
        };
        let dialler = self.managed.links[at].ends[DIALLER];
        let Some((request, dialler)) = PrivateData::decode(&data).ok().zip(dialler) else { return };
        let bound = self.connections(dialler.nic).bound_to(dialler.lifecycle);
        let Some(peer) = bound else { return };
        let data = PrivateData {
            content: Content::Accept,
            place: PLACE,
            token: Token(0),
            sender: peer.announcement.pair,
            receiver: request.sender.lifecycle,
            number: peer.queue_pairs.first().copied().unwrap_or(0),
        };
        debug_assert!(self.managed.links[at].meant == Some(node_pair(data.sender)));
        self.managed.links[at].inboxes[DIALLER].push(Notice::Accept(data.encode()));
    }
}
