//! A legacy Mooncake node, limited to its handshake: its records of peers, its pairing, and its
//! assumptions. Queue-pair operations happen within the call, as in released nodes.

use crate::fabric::{Psns, Target};
use crate::letter::Letter;
use crate::oracle::{Oracle, Violation};
use crate::setup::OldPeer;
use crate::world::{Demand, HeldCall, Step, World};
use handfast_core::node::CallToken;
use handfast_core::wire::{Body, Message, Op, PlainMessage, Refusal, RefusalReason};
use handfast_core::{Lifecycle, NicPath, Pair};
use std::sync::Arc;

/// State of an endpoint of a legacy node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum OldState {
    /// Its request is outstanding, or was only announced in a reply.
    Connecting,
    /// It has connected and waits for the confirmation that the other side has.
    WaitReady,
    /// It posts work.
    Connected,
}

/// A legacy node's record of one peer. The lifecycle names its queue pair in the fabric and is
/// never sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OldEndpoint {
    pub(crate) peer: NicPath,
    pub(crate) own: Lifecycle,
    pub(crate) number: u32,
    pub(crate) state: OldState,
    pub(crate) listed: Vec<u32>,
}

/// A legacy Mooncake node.
#[derive(Clone, Debug)]
pub(crate) struct OldNode {
    pub(crate) endpoints: Vec<OldEndpoint>,
    pub(crate) next: u64,
    pub(crate) release: OldPeer,
    /// The accepted call that its listener cannot answer yet. It serves one at a time.
    pub(crate) serving: Option<Arc<Letter>>,
    /// Whether a silent client blocks its listener.
    pub(crate) stranger: bool,
}

impl OldNode {
    pub(crate) fn new(release: OldPeer) -> Self {
        Self { endpoints: Vec::new(), next: 1, release, serving: None, stranger: false }
    }

    pub(crate) fn endpoint(&self, peer: &NicPath) -> Option<&OldEndpoint> {
        self.endpoints.iter().find(|endpoint| endpoint.peer == *peer)
    }

    pub(crate) fn of(&self, own: Lifecycle) -> Option<&OldEndpoint> {
        self.endpoints.iter().find(|endpoint| endpoint.own == own)
    }
}

impl World {
    /// Whether the site is a legacy Mooncake node.
    pub fn is_old(&self, site: usize) -> bool {
        self.sites[site].old.is_some()
    }

    /// Whether the queue pair has an owner.
    pub fn is_owned(&self, site: usize, own: Lifecycle) -> bool {
        match &self.sites[site].old {
            Some(old) => old.of(own).is_some(),
            None => self.sites[self.host(site)].node.state_of(own).is_some(),
        }
    }

    pub(crate) fn old_site(&self, path: &NicPath) -> Option<usize> {
        self.sites.iter().position(|site| site.path == *path && site.old.is_some())
    }

    fn old_mut(&mut self, site: usize) -> &mut OldNode {
        self.site_mut(site).old.as_mut().expect("an old site")
    }

    fn old_endpoint(&self, site: usize, peer: &NicPath) -> Option<OldEndpoint> {
        self.sites[site].old.as_ref()?.endpoint(peer).cloned()
    }

    fn old_create(&mut self, site: usize, peer: &NicPath) -> OldEndpoint {
        let own = Lifecycle(self.old_mut(site).next);
        // A full device yields a number that no queue pair has.
        let number = self.fabric.create(site, own).unwrap_or(0);
        let endpoint = OldEndpoint {
            peer: peer.clone(),
            own,
            number,
            state: OldState::Connecting,
            listed: Vec::new(),
        };
        let old = self.old_mut(site);
        old.next += 1;
        old.endpoints.push(endpoint.clone());
        endpoint
    }

    fn old_destroy(&mut self, site: usize, own: Lifecycle) {
        self.old_mut(site).endpoints.retain(|endpoint| endpoint.own != own);
        // Its own posted work is lost with it.
        let _ = self.fabric.destroy(site, own, &mut Vec::new());
    }

    /// Opens on behalf of its application, unless an endpoint exists.
    pub(crate) fn old_open(&mut self, site: usize, peer: &NicPath) {
        if self.old_endpoint(site, peer).is_none() {
            let endpoint = self.old_create(site, peer);
            let request = self.old_message(site, &endpoint, Op::Request, None);
            self.calls.push(Arc::new(Letter::new(request)));
        }
    }

    fn old_message(&self, site: usize, of: &OldEndpoint, op: Op, echo: Option<Pair>) -> Message {
        Message {
            op,
            from: self.sites[site].path.clone(),
            to: of.peer.clone(),
            sender: self.pair(site, of.own),
            echo,
            body: Body { queue_pairs: vec![of.number], ..Body::default() },
            refusal: None,
        }
    }

    /// Whether the site accepts calls now.
    pub(crate) fn listens(&self, site: usize) -> bool {
        let old = self.sites[site].old.as_ref();
        old.is_none_or(|old| old.serving.is_none() && !old.stranger)
    }

    /// Whether the call waits for the listener of a legacy node.
    pub(crate) fn waits_outside(&self, call: &Message) -> bool {
        self.setup
            .old
            .is_some_and(|old| self.sites[old.site].bears(&call.to) && !self.listens(old.site))
    }

    /// Whether a silent client blocks the listener, so that the call is not accepted.
    pub(crate) fn is_kept_out(&self, call: &Message) -> bool {
        self.old_site(&call.to).is_some_and(|site| self.has_stranger(site))
    }

    pub(crate) fn has_stranger(&self, site: usize) -> bool {
        self.sites[site].old.as_ref().is_some_and(|old| old.stranger)
    }

    pub(crate) fn set_stranger(&mut self, site: usize, comes: bool) {
        self.old_mut(site).stranger = comes;
    }

    /// Returns the accepted calls that listeners cannot answer yet.
    pub(crate) fn being_served(&self) -> impl Iterator<Item = &Arc<Letter>> {
        self.sites.iter().filter_map(|site| site.old.as_ref()?.serving.as_ref())
    }

    /// Accepts a call with its listener, which accepts no other before it has answered.
    pub(crate) fn old_receives(&mut self, site: usize, call: Arc<Letter>) {
        self.old_mut(site).serving = Some(call);
        self.old_serve(site);
    }

    /// Answers the accepted call, unless it waits for the lock of its endpoint, which early
    /// releases hold while a request to that peer is outstanding.
    fn old_serve(&mut self, site: usize) {
        let old = self.old_mut(site);
        let Some(call) = old.serving.clone() else { return };
        let asks = old.endpoint(&call.from).is_some_and(|of| of.state == OldState::Connecting);
        if old.release.replaces && asks {
            return;
        }
        old.serving = None;
        let answer = self.old_call(site, &call);
        let caller = self.site_at(call.sender.incarnation, &call.from);
        if self.sites[caller].incarnation == call.sender.incarnation {
            self.answers.push((call.sender.incarnation, Arc::new(Letter::new(answer))));
        }
    }

    /// Answers a call at once, after connecting.
    fn old_call(&mut self, site: usize, call: &Message) -> Message {
        let listed = &call.body.queue_pairs;
        let known = self.old_endpoint(site, &call.from);
        let keeps = !self.old_mut(site).release.replaces;
        let is_paired = |known: &OldEndpoint| {
            keeps && (known.state == OldState::Connecting || known.listed == *listed)
        };
        let paired = known.filter(is_paired);
        let paired_list = paired.as_ref().is_some_and(|known| known.listed == *listed);
        if !matches!(call.op, Op::Request | Op::Ready) {
            return self.old_refusal(site, call, "unexpected");
        }
        if call.op == Op::Ready {
            return match paired.filter(|_| paired_list) {
                Some(known) => {
                    self.old_move(site, &known, OldState::Connected);
                    let mut ack = self.old_message(site, &known, Op::Ack, Some(call.sender));
                    ack.body = Body::default();
                    ack
                }
                None => self.old_refusal(site, call, "stale ready ACK"),
            };
        }
        let endpoint = match paired {
            Some(known) => known,
            None => self.old_renew(site, &call.from),
        };
        if !paired_list {
            self.old_wire(site, &endpoint, call, true);
        }
        self.old_message(site, &endpoint, Op::Reply, Some(call.sender))
    }

    /// Replaces its endpoint. Releases that replace at every request reclaim queue pairs later, so
    /// that the new ones have other numbers. Here the old one is destroyed first and the numbers
    /// recur, which is the harder choice.
    fn old_renew(&mut self, site: usize, peer: &NicPath) -> OldEndpoint {
        let earlier = self.old_endpoint(site, peer).map(|known| known.own);
        if self.old_mut(site).release.replaces {
            let endpoint = self.old_create(site, peer);
            earlier.into_iter().for_each(|own| self.old_destroy(site, own));
            return endpoint;
        }
        earlier.into_iter().for_each(|own| self.old_destroy(site, own));
        self.old_create(site, peer)
    }

    fn old_refusal(&self, site: usize, call: &Message, detail: &str) -> Message {
        let reason = RefusalReason::Gone;
        Message {
            op: Op::Refuse,
            from: self.sites[site].path.clone(),
            to: call.from.clone(),
            sender: self.pair(site, Lifecycle(0)),
            echo: Some(call.sender),
            body: Body::default(),
            refusal: Some(Refusal { reason, detail: detail.into() }),
        }
    }

    fn old_wire(&mut self, site: usize, of: &OldEndpoint, message: &Message, waits: bool) {
        let target = Target {
            site: self.site_at(message.sender.incarnation, &message.from),
            number: message.body.queue_pairs.first().copied().unwrap_or(0),
            believed: message.sender,
        };
        // It ignores the failure of a Connect; its later postings fail.
        let _ = self.fabric.connect(site, of.own, target, Psns { ours: 0, theirs: 0 });
        let listed = message.body.queue_pairs.clone();
        let endpoints = &mut self.old_mut(site).endpoints;
        if let Some(endpoint) = endpoints.iter_mut().find(|endpoint| endpoint.own == of.own) {
            endpoint.listed = listed;
        }
        let knows_ready = self.old_mut(site).release.knows_ready;
        let next = if waits && knows_ready { OldState::WaitReady } else { OldState::Connected };
        self.old_move(site, of, next);
    }

    fn old_move(&mut self, site: usize, of: &OldEndpoint, next: OldState) {
        let endpoints = &mut self.old_mut(site).endpoints;
        if let Some(endpoint) = endpoints.iter_mut().find(|endpoint| endpoint.own == of.own) {
            endpoint.state = next;
        }
        if let Some(qp) = self.fabric.of_mut(site, of.own) {
            qp.published |= next == OldState::Connected;
        }
    }

    /// Handles the answer to its own request or ready.
    pub(crate) fn old_answered(&mut self, site: usize, answer: &Message) {
        let own = answer.echo.map(|echo| echo.lifecycle);
        let known = own.and_then(|own| self.sites[site].old.as_ref()?.of(own).cloned());
        let Some(known) = known else { return };
        match (answer.op, known.state) {
            (Op::Refuse, OldState::Connected) => {}
            (Op::Refuse, _) => self.old_failed(site, known.own),
            (Op::Reply, state) => {
                let theirs = answer.body.queue_pairs == known.listed;
                if state == OldState::Connecting {
                    self.old_wire(site, &known, answer, true);
                } else if !theirs {
                    return;
                }
                let known = self.old_endpoint(site, &known.peer).unwrap_or(known);
                if known.state == OldState::WaitReady {
                    let ready = self.old_message(site, &known, Op::Ready, None);
                    self.calls.push(Arc::new(Letter::new(ready)));
                }
            }
            (Op::Ack, OldState::WaitReady) => self.old_move(site, &known, OldState::Connected),
            _ => {}
        }
        self.old_serve(site);
    }

    /// A call of the legacy node failed. Releases with the ready phase keep a pairing made
    /// meanwhile by a crossing request; earlier ones drop it.
    pub(crate) fn old_call_failed(&mut self, site: usize, own: Lifecycle, request: bool) {
        let old = self.sites[site].old.as_ref();
        let paired = old.and_then(|old| old.of(own)).map(|known| known.state);
        let paired = paired.is_some_and(|state| state != OldState::Connecting);
        if !(request && paired && old.is_some_and(|old| old.release.knows_ready)) {
            self.old_failed(site, own);
        }
    }

    /// Handles the death of the process in which calls of legacy nodes waited.
    pub(crate) fn old_calls_broke(&mut self, calls: Vec<HeldCall>) {
        for HeldCall { token, sender, from, .. } in calls {
            if self.is_old(from) && self.sites[from].incarnation == sender.incarnation {
                self.old_call_failed(from, sender.lifecycle, !is_ready(token));
            }
        }
    }

    /// Handles the failure of a call or of a queue pair. The node opens again on demand.
    pub(crate) fn old_failed(&mut self, site: usize, own: Lifecycle) {
        let known = self.sites[site].old.as_ref().and_then(|old| old.of(own)).cloned();
        let Some(known) = known else { return };
        self.old_destroy(site, own);
        let peers = (0..self.sites.len()).filter(|peer| self.sites[*peer].path == known.peer);
        for peer in peers.collect::<Vec<_>>() {
            let demand = &mut self.site_mut(site).demands[peer];
            if *demand == Demand::Wanted {
                *demand = Demand::Reported;
            }
        }
        self.old_serve(site);
    }

    /// Converts a message of a legacy node to its wire form.
    pub(crate) fn plain(&self, site: usize, message: &Message) -> PlainMessage {
        let knows_ready = self.sites[site].old.as_ref().is_some_and(|old| old.release.knows_ready);
        match message.op {
            Op::Ack => PlainMessage::ack(),
            Op::Refuse => {
                let detail = message.refusal.as_ref().map(|refusal| refusal.detail.as_str());
                PlainMessage::rejection(detail.unwrap_or("rejected"))
            }
            op => PlainMessage {
                from: Some(message.from.clone()),
                to: Some(message.to.clone()),
                body: Body {
                    queue_pairs: message.body.queue_pairs.clone(),
                    gid: message.body.gid.clone(),
                    ..Body::default()
                },
                ready: knows_ready.then_some(op == Op::Ready),
                rejected: None,
            },
        }
    }

    /// The answer of a handfast node to a legacy one.
    pub(crate) fn plain_answer(
        &mut self,
        site: usize,
        held: HeldCall,
        plain: PlainMessage,
        step: &mut Step,
    ) {
        let op = match (&plain.rejected, plain.body.queue_pairs.is_empty()) {
            (Some(_), _) => Op::Refuse,
            (None, true) => Op::Ack,
            (None, false) => Op::Reply,
        };
        let node = &self.sites[site].node;
        let is_of = |own: &Lifecycle| {
            let number = self.fabric.of(site, *own).map(|qp| qp.number);
            number.is_some() && plain.body.queue_pairs.first() == number.as_ref()
        };
        let own = node.lifecycles().map(|(own, ..)| own).find(is_of).unwrap_or(Lifecycle(0));
        let stale = self.fabric.of(site, own).filter(|qp| qp.published && op == Op::Reply);
        let other = |target: Target| target.believed != held.sender;
        if stale.is_some_and(|qp| qp.target.is_some_and(other)) {
            let detail = format!(
                "{} is answered with {}, which has posted to an earlier one of its number",
                self.describe_pair(held.sender),
                self.describe_own(site, own)
            );
            step.violations.push(Violation::new(Oracle::Swallowed, detail));
        }
        let message = Message {
            op,
            from: self.sites[site].path.clone(),
            to: self.sites[held.from].path.clone(),
            sender: self.pair(site, own),
            echo: Some(held.sender),
            body: plain.body,
            refusal: plain.rejected.map(|detail| Refusal { reason: RefusalReason::Gone, detail }),
        };
        if step.notes.is_some() {
            let words = format!("answers without our key {}", self.describe_message(&message));
            step.notes.iter_mut().for_each(|notes| notes.push(words.clone()));
        }
        if self.sites[held.from].incarnation == held.sender.incarnation {
            self.answers.push((held.sender.incarnation, Arc::new(Letter::new(message))));
        }
    }
}

/// The bit of a token that marks a call as a ready.
const READY: u64 = 1 << 16;

/// Identifies a call of a legacy node by incarnation, queue pair and kind.
pub(crate) fn plain_token(message: &Message) -> u64 {
    let number = message.body.queue_pairs.first().copied().unwrap_or(0);
    let ready = if message.op == Op::Ready { READY } else { 0 };
    message.sender.incarnation.0 as u64 | u64::from(number) << 17 | ready
}

fn is_ready(token: CallToken) -> bool {
    token.0 & READY != 0
}
