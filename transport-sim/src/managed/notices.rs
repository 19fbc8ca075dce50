//! Messages and events of connection managers: dials, answers, disconnects.

use super::link::{Bytes, DIALLER, LISTENER, Link, Notice, Place, Request};
use super::{PLACE, node_pair};
use crate::oracle::{Oracle, Violation};
use crate::world::{Step, World};
use handfast_core::connection::{Cause, ConnectionId, PrivateData, RequestId};
use handfast_core::{Incarnation, Lifecycle};

impl World {
    pub(super) fn link(&self, id: u64) -> Option<usize> {
        self.managed.links.iter().position(|link| link.id == id)
    }

    pub(super) fn free_link(&self) -> u64 {
        (1..).find(|id| self.link(*id).is_none()).unwrap_or_default()
    }

    /// The link of a queue pair, and its side.
    fn link_of(&self, place: Place) -> Option<(usize, usize)> {
        let side = |link: &Link| link.ends.iter().position(|end| *end == Some(place));
        self.managed.links.iter().enumerate().find_map(|(at, link)| Some((at, side(link)?)))
    }

    /// Notes the first frame of a dialler, whose connect ends once it is answered.
    pub(super) fn note_first_frame(&mut self, nic: usize, lifecycle: Lifecycle) {
        let link = self.place(nic, lifecycle).and_then(|place| self.link_of(place));
        if let Some((at, DIALLER)) = link {
            self.managed.links[at].has_sent = true;
        }
    }

    /// Checks that a listener of iWARP may send: the dialler sends the first frame.
    pub(crate) fn check_first_frame(&self, nic: usize, lifecycle: Lifecycle, step: &mut Step) {
        if !self.is_managed() || !self.ends_by_accept() {
            return;
        }
        let link = self.place(nic, lifecycle).and_then(|place| self.link_of(place));
        if link.is_some_and(|(at, side)| side == LISTENER && !self.managed.links[at].has_sent) {
            let own = self.describe_own(self.host(nic), lifecycle);
            let detail = format!("{own} is in use before the first frame of the dialler");
            step.violations.push(Violation::new(Oracle::FabricLaw, detail));
        }
    }

    /// Whether the listener's exchange ends as it accepts, as on iWARP; otherwise by a last message.
    fn ends_by_accept(&self) -> bool {
        self.setup.devices.profile.connects_managed_only()
    }

    pub(super) fn dial(&mut self, nic: usize, lifecycle: Lifecycle, data: &PrivateData) {
        let Some(place) = self.place(nic, lifecycle) else { return };
        let host = self.host(nic);
        let bound = self.connections(nic).bound_to(lifecycle).map(|lane| lane.announcement);
        let Some(peer) = bound else { return };
        let id = self.free_link();
        let listener = usize::from(peer.address.port()) - 1;
        debug_assert!(listener < self.sites.len() && self.fabric.of(host, lifecycle).is_some());
        self.managed.links.push(Link {
            id,
            ends: [Some(place), None],
            places: [Some(place), None],
            nics: [nic, listener],
            meant: Some(node_pair(peer.pair)),
            has_sent: false,
            request: Request::OnItsWay,
            inboxes: [Vec::new(), vec![Notice::Request(data.encode())]],
        });
        self.managed.links.sort_by_key(|link| link.id);
    }

    pub(super) fn accept(
        &mut self,
        nic: usize,
        (lifecycle, request): (Lifecycle, u64),
        data: &PrivateData,
        step: &mut Step,
    ) {
        let (Some(at), Some(place)) = (self.link(request), self.place(nic, lifecycle)) else {
            let detail = format!("{lifecycle:?} of site {nic} accepts, and has no queue pair");
            return step.violations.push(Violation::new(Oracle::FabricLaw, detail));
        };
        let own = self.pair_at(place);
        let link = &mut self.managed.links[at];
        link.request = Request::Answered(place.run);
        let (meant, dialler) = (link.meant, link.ends[DIALLER]);
        if meant != Some(own) {
            let meant = meant.map_or("a stranger's".to_owned(), |meant| {
                format!("meant for {}", self.describe_pair(meant))
            });
            let own = self.describe_pair(own);
            let detail = format!("{own} accepts a connection that is {meant}");
            step.violations.push(Violation::new(Oracle::Agreement, detail));
        }
        let Some(other) = dialler.filter(|other| self.exists(*other)) else {
            // The stream has ended: the device hears of it as it accepts.
            self.managed.links[at].ends[LISTENER] = Some(place);
            return self.managed.links[at].inboxes[LISTENER].push(Notice::Disconnect);
        };
        let is_joined = self.join(nic, lifecycle, other, step);
        let ends_by_accept = self.ends_by_accept();
        let link = &mut self.managed.links[at];
        (link.ends[LISTENER], link.places[LISTENER]) = (Some(place), Some(place));
        if !is_joined {
            // The device refuses the queue pair.
            link.ends[LISTENER] = None;
            link.inboxes[DIALLER].push(Notice::Reject(None));
            let id = ConnectionId { lifecycle, place: PLACE };
            return self.connections_mut(nic).handle_failed(id, Cause::Local);
        }
        link.inboxes[DIALLER].push(Notice::Accept(data.encode()));
        if ends_by_accept {
            link.inboxes[LISTENER].push(Notice::Established);
        }
    }

    pub(super) fn reject(&mut self, request: u64, data: Option<Bytes>) {
        let Some(at) = self.link(request) else { return };
        let listener = self.managed.links[at].nics[LISTENER];
        self.managed.links[at].request = Request::Answered(self.sites[listener].incarnation);
        self.send(at, LISTENER, Notice::Reject(data));
    }

    /// Ends this side's connection, and with it its queue pair.
    pub(super) fn disconnect(&mut self, nic: usize, lifecycle: Lifecycle) {
        let Some((at, side)) = self.place(nic, lifecycle).and_then(|it| self.link_of(it)) else {
            return;
        };
        self.managed.links[at].ends[side] = None;
        self.managed.links[at].inboxes[side].clear();
        self.send(at, side, Notice::Disconnect);
        self.fabric.break_down(self.host(nic), lifecycle);
    }

    /// Sends from one side of a link, if the other exists.
    fn send(&mut self, at: usize, side: usize, notice: Notice) {
        let to = 1 - side;
        if self.managed.links[at].ends[to].is_some_and(|other| self.exists(other)) {
            self.managed.links[at].inboxes[to].push(notice);
        }
    }

    /// A message or an event reaches a side of a link.
    pub(crate) fn deliver_notice(&mut self, id: u64, side: usize, step: &mut Step) {
        let Some(at) = self.link(id) else { return };
        let notice = self.managed.links[at].inboxes[side].remove(0);
        if let Notice::Request(data) = notice {
            return self.deliver_request(at, data, step);
        }
        let Some(place) = self.managed.links[at].ends[side] else { return };
        if !self.exists(place) {
            return;
        }
        let (nic, lifecycle) = (place.nic, place.lifecycle);
        let lane = ConnectionId { lifecycle, place: PLACE };
        match notice {
            Notice::Accept(data) => self.deliver_accept((at, place), &data, step),
            Notice::Reject(data) => {
                let data = data.as_ref().map_or(&[][..], |data| &data[..]);
                self.connections_mut(nic).handle_rejected(lane, data);
            }
            Notice::Established => self.connections_mut(nic).handle_established(lane, &[]),
            Notice::Disconnect => {
                if self.ends_by_accept() {
                    self.fabric.break_down(self.host(nic), lifecycle);
                }
                self.connections_mut(nic).handle_disconnected(lane);
            }
            Notice::Unreachable => {
                self.connections_mut(nic).handle_failed(lane, Cause::Unreachable);
            }
            Notice::Request(_) => {}
        }
        self.drain_connections(nic, step);
    }

    /// The device of the dialler connects, and its program looks at the answer.
    fn deliver_accept(&mut self, (at, place): (usize, Place), data: &[u8], step: &mut Step) {
        let Place { nic, lifecycle, .. } = place;
        let lane = ConnectionId { lifecycle, place: PLACE };
        // It may have disconnected meanwhile, which the dialler hears next.
        let Some(other) = self.managed.links[at].places[LISTENER] else {
            // A stranger has answered.
            return self.connections_mut(nic).handle_established(lane, data);
        };
        if !self.join(nic, lifecycle, other, step) {
            return self.connections_mut(nic).handle_failed(lane, Cause::Local);
        }
        self.connections_mut(nic).handle_established(lane, data);
        if !self.ends_by_accept() && self.is_joined(nic, lifecycle) {
            self.send(at, DIALLER, Notice::Established);
        }
    }

    fn deliver_request(&mut self, at: usize, data: Bytes, step: &mut Step) {
        let link = &self.managed.links[at];
        let (id, nic) = (link.id, link.nics[LISTENER]);
        let run = self.sites[nic].incarnation;
        if matches!(link.request, Request::Held(of) | Request::Answered(of) if of == run) {
            // The kernel knows it.
            return;
        }
        self.managed.links[at].request = Request::Held(run);
        let before = self.connections(nic).clone();
        let request = RequestId(id);
        self.connections_mut(nic).handle_request(request, &data);
        let is_rejected = self.drain_connections(nic, step).contains(&request);
        if is_rejected && *self.connections(nic) != before {
            let own = self.describe_site(nic);
            let detail = format!("{own} rejects a connection, and is not as before");
            step.violations.push(Violation::new(Oracle::RefusalChanged, detail));
        }
    }

    /// A message is lost, and the kernels on both sides give up.
    pub(crate) fn lose_notice(&mut self, id: u64, side: usize) {
        let Some(at) = self.link(id) else { return };
        let ends_by_accept = self.ends_by_accept();
        let link = &mut self.managed.links[at];
        match link.inboxes[side].remove(0) {
            Notice::Request(_) => {
                if link.ends[DIALLER].is_some() && link.request == Request::OnItsWay {
                    link.inboxes[DIALLER].push(Notice::Unreachable);
                }
            }
            Notice::Reject(_) => link.inboxes[DIALLER].push(Notice::Unreachable),
            Notice::Accept(_) => {
                link.inboxes[DIALLER].push(Notice::Unreachable);
                let end = if ends_by_accept { Notice::Disconnect } else { Notice::Unreachable };
                link.inboxes[LISTENER].push(end);
            }
            Notice::Established => link.inboxes[LISTENER].push(Notice::Unreachable),
            Notice::Disconnect | Notice::Unreachable => {}
        }
    }

    /// A connect request arrives, and a copy of it stays on its way.
    pub(crate) fn repeat_request(&mut self, id: u64, step: &mut Step) {
        let Some(at) = self.link(id) else { return };
        let [Notice::Request(data), ..] = self.managed.links[at].inboxes[LISTENER][..] else {
            return;
        };
        self.deliver_request(at, data, step);
    }

    /// Ends the sides of a dead process, as its kernel does.
    pub(super) fn end_links(&mut self, nic: usize, run: Incarnation) {
        for at in 0..self.managed.links.len() {
            for side in [DIALLER, LISTENER] {
                let of_it = |end: Place| (end.nic, end.run) == (nic, run);
                if self.managed.links[at].ends[side].is_some_and(of_it) {
                    self.managed.links[at].ends[side] = None;
                    self.managed.links[at].inboxes[side].retain(is_request);
                    self.send(at, side, Notice::Disconnect);
                }
            }
            let link = &mut self.managed.links[at];
            if link.nics[LISTENER] == nic && link.request == Request::Held(run) {
                link.request = Request::Answered(run);
                self.send(at, LISTENER, Notice::Reject(None));
            }
        }
        self.forget_links();
    }

    /// Drops the links on which nothing more happens.
    pub(super) fn forget_links(&mut self) {
        for at in 0..self.managed.links.len() {
            for side in [DIALLER, LISTENER] {
                let end = self.managed.links[at].ends[side];
                if end.is_some_and(|end| !self.exists(end)) {
                    self.managed.links[at].ends[side] = None;
                }
                if self.managed.links[at].ends[side].is_none() {
                    self.managed.links[at].inboxes[side].retain(is_request);
                }
            }
        }
        self.managed.links.retain(|link| !link.is_over());
    }

    /// Checks that a queue pair is connected to the one that its machine takes it for.
    pub(super) fn check_established(&mut self, nic: usize, id: ConnectionId, step: &mut Step) {
        let Some(place) = self.place(nic, id.lifecycle) else { return };
        let known = self.connections(nic).peer(id).map(|peer| node_pair(peer.pair));
        let Some((at, side)) = self.link_of(place) else { return };
        let other = self.managed.links[at].places[1 - side];
        if other.is_none_or(|other| known != Some(self.pair_at(other))) {
            let own = self.describe_pair(self.pair_at(place));
            let other = other.map_or("a stranger".to_owned(), |other| format!("{other:?}"));
            let detail = format!("{own} is connected to {other}, and takes it for {known:?}");
            step.violations.push(Violation::new(Oracle::Agreement, detail));
        }
    }
}

pub(super) fn is_request(notice: &Notice) -> bool {
    matches!(notice, Notice::Request(_))
}
