//! Nodes with the shipping machines at the ends of their connections.

use super::oracle::{AuthOracle, AuthViolation};
use super::setup::{AuthBackend, AuthSetup};
use super::term::{Certificate, Content, Fresh, Proof, Run, Secret, Session, Term};
use super::withdrawn::{Remembered, Shown};
use handfast_core::auth::{
    AUTH_VERSION, AnswerSeen, AuthHello, AuthMethod, AuthPolicy, Inbound, KeyRule,
    LANE_NONCE_BYTES, LaneEnd, LaneProofs, NamePattern, Outbound, PROOF_TEXT_BYTES,
    Proof as Proven,
};
use handfast_core::policy::{Grant, Grants, Requester};
use handfast_core::{Lifecycle, NodeName, Pair};
use handfast_transport_sim::Encoder;
use std::collections::{BTreeSet, VecDeque};
use std::hash::Hash;
use std::sync::Arc;

/// The number that the attacker contributes.
pub(super) const OWN: Fresh = 0;
/// The number of a run whose name has text behind its host.
pub(super) const CHOSEN: u8 = u8::MAX;
/// The number of a run with another node's incarnation.
pub(super) const BORROWED: u8 = CHOSEN - 1;
/// Slices that a lane in the world agrees to.
const DEPTH: u32 = 1;

/// A node and its present run.
#[derive(Clone, Debug, Hash)]
pub(super) struct Node {
    pub(super) run: Run,
    pub(super) keys: Vec<(u8, Secret)>,
    /// Keys that its operator wants accepted.
    pub(super) allowed: Vec<Secret>,
    /// Its certificate, and the authorities that it trusts.
    pub(super) certificate: Option<(Certificate, Vec<u8>)>,
    pub(super) policy: AuthPolicy,
    pub(super) remembered: Remembered,
    pub(super) has_restarted: bool,
    pub(super) has_reloaded: bool,
}

/// Content of a connection.
#[derive(Clone, Debug, Hash)]
pub(super) enum Carries {
    Calls { outbound: Outbound, inbound: Inbound, sent: Option<Fresh> },
    Lane { lane: usize, secret: Fresh, number: Fresh, challenge: Option<Challenged> },
}

/// The listening side of a lane's connection after its challenge.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct Challenged {
    lane: usize,
    awaited: Proof,
    /// The proof was made before the challenge.
    was_known: bool,
    seals: bool,
}

/// One connection; an end without a node is the attacker's.
#[derive(Clone, Debug, Hash)]
pub(super) struct Wire {
    pub(super) ends: [Option<usize>; 2],
    runs: [Option<Run>; 2],
    pub(super) inboxes: [VecDeque<Term>; 2],
    pub(super) carries: Carries,
    pub(super) sessions: [Option<Session>; 2],
    /// The peer's certificate, as each end has verified it.
    pub(super) certificates: [Option<Certificate>; 2],
    sent: [u8; 2],
    pub(super) received: [u8; 2],
    pub(super) is_over: bool,
}

/// A lane: who offers it to whom, under which secret.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct Lane {
    pub(super) owner: Run,
    pub(super) peer: Run,
    secret: Fresh,
    /// The proof of the peer in the session that asked for it.
    pub(super) shown: Option<Shown>,
    pub(super) is_claimed: bool,
    /// The dialling side has found its peer.
    pub(super) is_up: bool,
    /// The owner has ended it, with what the peer proved.
    pub(super) is_ended: bool,
}

/// Nodes, connections, and everything that the attacker has seen.
#[derive(Clone)]
pub struct AuthWorld {
    pub(super) setup: Arc<AuthSetup>,
    pub(super) nodes: Vec<Node>,
    /// Node and number of every run.
    pub(super) runs: Vec<(usize, u8)>,
    pub(super) wires: Vec<Wire>,
    pub(super) lanes: Vec<Lane>,
    pub(super) tries_left: Vec<u8>,
    pub(super) expired: BTreeSet<Certificate>,
    pub(super) known: BTreeSet<Term>,
    /// Records and proofs of honest nodes, with their sender.
    made: BTreeSet<(Term, Run)>,
    /// Records that were served.
    served: BTreeSet<Term>,
    /// Connections whose dialling node knows that one side encrypts and the other does not.
    pub(super) told: BTreeSet<usize>,
    pub(super) fresh: Fresh,
    pub(super) faults_left: u32,
    pub(super) violation: Option<AuthViolation>,
}

pub(super) fn name(node: usize) -> NodeName {
    NodeName::new(&format!("node-{node}")).expect("it is a name")
}

impl AuthWorld {
    /// Creates the initial world.
    pub fn new(setup: AuthSetup) -> Self {
        let mut world = Self {
            nodes: Vec::new(),
            runs: Vec::new(),
            wires: Vec::new(),
            lanes: Vec::new(),
            tries_left: vec![setup.tries_max; setup.dials.len()],
            expired: BTreeSet::new(),
            known: BTreeSet::new(),
            made: BTreeSet::new(),
            served: BTreeSet::new(),
            told: BTreeSet::new(),
            fresh: 0,
            faults_left: setup.faults_max,
            violation: None,
            setup: Arc::new(setup),
        };
        for node in 0..world.setup.nodes.len() {
            world.runs.push((node, 0));
            let keys = world.setup.nodes[node].keys.clone();
            let started = world.started(node, keys, Vec::new());
            let certificate = world.setup.nodes[node].certificate.clone();
            world.nodes.push(world.certified(node, started, certificate));
        }
        world.runs.extend(world.setup.chosen.map(|(holder, _)| (holder, CHOSEN)));
        world.runs.extend(world.setup.borrowed.map(|(holder, _)| (holder, BORROWED)));
        world
    }

    pub(super) fn started(
        &self,
        node: usize,
        keys: Vec<(u8, Secret)>,
        kept: Vec<(u8, Secret)>,
    ) -> Node {
        let allowed = keys.iter().map(|(_, secret)| *secret).collect();
        let run = self.runs.iter().rposition(|(of, _)| *of == node).expect("it has a run");
        let mut all = keys;
        all.extend(kept);
        let rule = |(id, secret): &(u8, Secret)| {
            let bound = self.setup.stolen.iter().find(|stolen| stolen.1 == *secret);
            let holder = bound.and_then(|(.., holder)| *holder);
            let names = holder.map(|holder| NamePattern::new(name(holder).as_str()));
            let names = names.into_iter().flatten().collect();
            KeyRule::new(&format!("key-{id}"), names).expect("it is an id")
        };
        let rules = all.iter().map(rule).collect();
        let policy = AuthPolicy::new(self.identity(run), rules).expect("its keys are few");
        Node {
            run,
            keys: all,
            allowed,
            certificate: None,
            policy,
            remembered: Remembered::default(),
            has_restarted: false,
            has_reloaded: false,
        }
    }

    /// A node with a certificate in addition to its keys, if it has any.
    pub(super) fn certified(
        &self,
        node: usize,
        started: Node,
        certificate: Option<(Certificate, Vec<u8>)>,
    ) -> Node {
        let first = match self.setup.nodes[node].certificate_first {
            true => AuthMethod::Certificate,
            false => AuthMethod::Key,
        };
        let policy = match certificate {
            Some(_) => started.policy.clone().with_certificates(first),
            None => started.policy.clone(),
        };
        Node { certificate, policy, ..started }
    }

    pub(super) fn digest(&self) -> u128 {
        let mut encoder = Encoder::default();
        let hasher = &mut encoder;
        (&self.nodes, &self.runs, &self.wires, &self.lanes, &self.tries_left).hash(hasher);
        (&self.expired, &self.told).hash(hasher);
        (&self.known, &self.made, &self.served, self.fresh, self.faults_left).hash(hasher);
        encoder.digest()
    }

    pub(super) fn violate(&mut self, oracle: AuthOracle, detail: String) {
        self.violation.get_or_insert(AuthViolation { oracle, detail });
    }

    pub(super) fn draw(&mut self) -> Fresh {
        self.fresh += 1;
        self.fresh
    }

    pub(super) fn is(&self, backend: AuthBackend) -> bool {
        self.setup.backend == backend
    }

    /// A node dials another, and reaches a node.
    pub(super) fn dial(&mut self, dial: usize, reached: usize) {
        let (from, to) = self.setup.dials[dial];
        self.tries_left[dial] -= 1;
        let expected = (!self.setup.by_address).then(|| name(to));
        let wire = self.connect(Some(from), reached, expected);
        let Carries::Calls { outbound, .. } = &self.wires[wire].carries else { return };
        let Some((key, _)) = outbound.hello(&self.nodes[from].policy) else {
            return self.send(wire, 0, Term::Plain);
        };
        self.greet(wire, (from, to), key);
    }

    /// A node sends its hello, with one of its keys or with its certificate.
    fn greet(&mut self, wire: usize, (from, to): (usize, usize), key: Option<usize>) {
        let number = self.draw();
        if let Carries::Calls { sent, .. } = &mut self.wires[wire].carries {
            *sent = Some(number);
        }
        let Some(key) = key else { return self.send(wire, 0, Term::TlsHello { number }) };
        if self.nodes[from].policy.dials_by() == Some(AuthMethod::Certificate) {
            let detail = format!("node {from} dials by certificates and sends a key");
            self.violate(AuthOracle::Downgrade, detail);
        }
        let (secret, run) = (self.nodes[from].keys[key].1, self.nodes[from].run);
        let to = (!self.setup.by_address).then_some(to);
        self.send(wire, 0, Term::Hello { key: secret, number, from: run, to });
    }

    /// A connection to a node, of a node or of the attacker.
    pub(super) fn connect(
        &mut self,
        from: Option<usize>,
        to: usize,
        expected: Option<NodeName>,
    ) -> usize {
        // No node dials itself.
        let outbound = Outbound::new(expected).at_own_address(self.is(AuthBackend::AnyAddressOwn));
        self.wire(from, to, Carries::Calls { outbound, inbound: Inbound::default(), sent: None })
    }

    pub(super) fn wire(&mut self, from: Option<usize>, to: usize, carries: Carries) -> usize {
        let ends = [from, Some(to)];
        self.wires.push(Wire {
            ends,
            runs: ends.map(|end| end.map(|node| self.nodes[node].run)),
            inboxes: Default::default(),
            carries,
            sessions: [None; 2],
            certificates: [None; 2],
            sent: [0; 2],
            received: [0; 2],
            is_over: false,
        });
        self.wires.len() - 1
    }

    /// A connection of the attacker for a lane of a node, with one of the hellos that it can send.
    pub(super) fn connect_lane(&mut self, to: usize, hello: usize) {
        let Some(hello) = self.lane_hellos(to).get(hello).copied() else { return };
        let carries = Carries::Lane { lane: 0, secret: 0, number: 0, challenge: None };
        let wire = self.wire(None, to, carries);
        self.wires[wire].inboxes[1].push_back(hello);
    }

    /// Hellos for lanes of a node that the attacker has seen, and one of its own for each lane.
    pub(super) fn lane_hellos(&self, to: usize) -> Vec<Term> {
        let run = self.nodes[to].run;
        let is_open = |lane: usize| self.lanes[lane].is_offered_by(run);
        let seen = self.known.iter().copied();
        let seen =
            seen.filter(|term| matches!(term, Term::LaneHello { lane, .. } if is_open(*lane)));
        let own = (0..self.lanes.len()).filter(|lane| is_open(*lane));
        let own = own.flat_map(|lane| {
            let forms = self.forms().into_iter();
            forms.map(move |seals| Term::LaneHello { lane, number: 0, seals })
        });
        seen.chain(own).collect()
    }

    pub(super) fn send(&mut self, wire: usize, side: usize, term: Term) {
        self.known.insert(term);
        if let Term::Challenge { proof, .. } = term {
            self.known.insert(Term::Proof(proof));
        }
        if let Some(run) = self.wires[wire].runs[side] {
            self.made.insert((term, run));
            if self.wires[wire].ends[1 - side].is_some() {
                self.wires[wire].inboxes[1 - side].push_back(term);
            }
        }
    }

    /// A message arrives at one side.
    pub(super) fn deliver(&mut self, wire: usize, side: usize) {
        let Some(term) = self.wires[wire].inboxes[side].pop_front() else { return };
        let Some(node) = self.wires[wire].ends[side] else { return };
        match (&self.wires[wire].carries, side) {
            (Carries::Calls { .. }, 0) => self.at_dialler(wire, node, term),
            (Carries::Calls { .. }, _) => self.at_listener(wire, node, term),
            (Carries::Lane { .. }, 0) => self.lane_at_dialler(wire, node, term),
            (Carries::Lane { .. }, _) => self.lane_at_listener(wire, node, term),
        }
    }

    pub(super) fn end_wire(&mut self, wire: usize) {
        self.wires[wire].is_over = true;
        self.wires[wire].inboxes = Default::default();
    }

    fn at_listener(&mut self, wire: usize, node: usize, term: Term) {
        let policy = self.nodes[node].policy.clone();
        let Carries::Calls { mut inbound, outbound, sent } = self.wires[wire].carries.clone()
        else {
            return;
        };
        let refused = match term {
            Term::Plain => {
                let answered = inbound.handle_plain(&policy);
                if answered.is_ok() || self.is(AuthBackend::PlainServed) {
                    if !policy.is_open() {
                        let detail = format!("node {node} has keys and serves a plain call");
                        self.violate(AuthOracle::Intruder, detail);
                    }
                    self.send(wire, 1, Term::PlainAnswer);
                    return self.end_wire(wire);
                }
                true
            }
            Term::Hello { key, number, from, to } => {
                let opened = self.open_hello(node, &mut inbound, &policy, (key, from, to));
                if opened {
                    let listening = self.draw();
                    let session = Session { key, dialling: number, listening };
                    self.wires[wire].sessions[1] = Some(session);
                    let own = self.nodes[node].run;
                    self.send(wire, 1, Term::Answer { session, from: own });
                    if self.is(AuthBackend::ServedUnproven) {
                        self.serve(wire, node, term, from);
                    }
                }
                !opened
            }
            Term::TlsHello { number } => !self.open_tls(wire, node, &mut inbound, number),
            Term::TlsFinish { .. } => !self.finish_tls(wire, node, &mut inbound, term),
            Term::Record { session, end, number, content } => {
                inbound.handle_change(&policy, self.still_proven(wire, node));
                let is_next = number == self.wires[wire].received[1];
                let opens = self.wires[wire].sessions[1] == Some(session)
                    && end == LaneEnd::Dialling
                    && (is_next || self.is(AuthBackend::OrderIgnored));
                let serves = inbound.handle_record(&policy, opens);
                self.wires[wire].received[1] += u8::from(opens);
                self.remember(wire, node, &inbound);
                let identity = |run: Run| self.identity(run);
                match content {
                    Content::Open { from, seals } if serves => {
                        let claimed = identity(from);
                        let admitted = inbound.admits(&claimed.name, claimed.incarnation);
                        if admitted || self.is(AuthBackend::NameUnchecked) {
                            self.check_agreement(wire, node, &inbound);
                            self.check_rights(node, &inbound, from);
                            match self.agrees(node, seals) {
                                true => self.serve(wire, node, term, from),
                                false => self.tell(wire, 1),
                            }
                        }
                        !admitted
                    }
                    _ => true,
                }
            }
            _ => true,
        };
        self.wires[wire].carries = Carries::Calls { outbound, inbound, sent };
        if refused {
            self.send(wire, 1, Term::Refusal);
            self.wires[wire].inboxes[1].clear();
        }
    }

    /// The proof of the peer of a session, if the node accepts it still.
    fn still_proven(&self, wire: usize, node: usize) -> Option<Proven> {
        let has_changed = self.nodes[node].policy.epoch() > 0;
        if has_changed && self.is(AuthBackend::SessionsDropped) {
            return None;
        }
        if let Some(certificate) = self.wires[wire].certificates[1] {
            let is_valid = self.verified(node, certificate).is_ok();
            let is_kept = is_valid || self.is(AuthBackend::ChangeForgotten);
            return is_kept.then_some(Proven::Certificate { names_peer: true });
        }
        let key = self.wires[wire].sessions[1]?.key;
        let place = self.nodes[node].keys.iter().position(|(_, secret)| *secret == key);
        match place {
            None if self.is(AuthBackend::ChangeForgotten) => Some(Proven::Key(0)),
            place => place.map(Proven::Key),
        }
    }

    fn open_hello(
        &self,
        node: usize,
        inbound: &mut Inbound,
        policy: &AuthPolicy,
        (key, from, to): (Secret, Run, Option<usize>),
    ) -> bool {
        let keys = &self.nodes[node].keys;
        let ids = self.setup.stolen.iter().map(|(id, secret, _)| (*id, *secret));
        let everyone = self.setup.nodes.iter().flat_map(|node| node.keys.iter().copied());
        let Some((id, _)) = ids.chain(everyone).find(|(_, secret)| *secret == key) else {
            return false;
        };
        let Ok(place) = inbound.handle_head(policy, AUTH_VERSION, &format!("key-{id}")) else {
            return false;
        };
        let opened = (keys[place].1 == key)
            .then(|| AuthHello { from: self.identity(from), to: to.map(name) });
        inbound.handle_hello(policy, opened).is_ok()
    }

    /// Serves a request for a lane.
    fn serve(&mut self, wire: usize, node: usize, term: Term, from: Run) {
        let certificate = self.wires[wire].certificates[1];
        let key = self.wires[wire].sessions[1].map(|session| session.key);
        let shown = self.shown(wire);
        let is_stale = shown.is_some_and(|shown| self.is_stale(node, shown));
        let is_member = match certificate {
            Some(certificate) => {
                let stolen = &self.setup.stolen_certificates;
                stolen.contains(&certificate) && certificate.holder == self.runs[from].0
            }
            None => key.is_some_and(|key| self.is_member(key, from)),
        };
        let sender = self.made.iter().find(|(made, _)| *made == term).map(|(_, run)| *run);
        let is_fresh = matches!(term, Term::Record { .. }) && self.served.insert(term);
        if is_stale {
            let detail =
                format!("node {node} serves a peer whose key or certificate it does not accept");
            self.violate(AuthOracle::StaleKey, detail);
        } else if is_member {
            // The attacker has this key, and the operator has not removed it.
        } else if sender.is_none() || !is_fresh {
            let detail = format!("node {node} serves {term:?}, which nobody sent to it now");
            self.violate(AuthOracle::Intruder, detail);
        } else if sender != Some(from) {
            let detail = format!("node {node} serves run {from}, and {sender:?} asked");
            self.violate(AuthOracle::Impersonated, detail);
        }
        let (secret, owner) = (self.draw(), self.nodes[node].run);
        self.lanes.push(Lane {
            owner,
            peer: from,
            secret,
            shown,
            is_claimed: false,
            is_up: false,
            is_ended: false,
        });
        let seals = self.setup.nodes[node].seals;
        let content = Content::Opened { lane: self.lanes.len() - 1, secret, seals };
        self.seal(wire, 1, content);
    }

    /// Whether the attacker holds a key under a name that the key allows.
    fn is_member(&self, key: Secret, from: Run) -> bool {
        let named = self.runs[from].0;
        let holds = |(_, secret, holder): &(u8, Secret, Option<usize>)| {
            *secret == key && holder.is_none_or(|holder| holder == named)
        };
        self.setup.stolen.iter().any(holds)
    }

    pub(super) fn seal(&mut self, wire: usize, side: usize, content: Content) {
        let Some(session) = self.wires[wire].sessions[side] else { return };
        let number = self.wires[wire].sent[side];
        self.wires[wire].sent[side] += 1;
        let end = if side == 0 { LaneEnd::Dialling } else { LaneEnd::Listening };
        self.send(wire, side, Term::Record { session, end, number, content });
    }

    /// Checks that the caller lets a peer do what the grants give to the peer's name.
    fn check_rights(&mut self, node: usize, inbound: &Inbound, from: Run) {
        let Some(pattern) = self.setup.grant else { return };
        let mut grants = Grants::default();
        let grant = Grant::read(pattern).expect("it is a pattern");
        grants.add(grant).expect("it has room");
        let (own, peer) = (self.identity(self.nodes[node].run), inbound.peer());
        let requester = match peer {
            Some(peer) if self.is(AuthBackend::OwnerClaimed) && *peer == own => Requester::Own,
            _ => inbound.requester(),
        };
        let ending = pattern.trim_start_matches('*');
        let is_cut = self.is(AuthBackend::TextGranted)
            && peer.is_some_and(|peer| peer.name.as_str().ends_with(ending));
        let is_found = is_cut || !grants.access_of(requester).is_none();
        let (holder, number) = self.runs[from];
        let is_granted = holder == 0 && number != CHOSEN;
        if is_found != is_granted {
            let name = self.identity(from).name;
            let detail = format!("{name} may read: {is_found}, and the grant is for node 0 alone");
            self.violate(AuthOracle::Ungranted, detail);
        }
    }

    /// The dialling end of the session, if it is an honest node's, names this node.
    fn check_agreement(&mut self, wire: usize, node: usize, inbound: &Inbound) {
        let session = self.wires[wire].sessions[1];
        let own = self.identity(self.nodes[node].run);
        let other = self.wires.iter().find(|other| {
            other.ends[0].is_some() && session.is_some() && other.sessions[0] == session
        });
        let Some(other) = other else { return };
        let Carries::Calls { outbound, .. } = &other.carries else { return };
        let dialler = other.runs[0].map(|run| self.identity(run));
        if outbound.peer() != Some(&own) || inbound.peer() != dialler.as_ref() {
            let detail = format!("{own:?} has {:?}, which has another peer", inbound.peer());
            self.violate(AuthOracle::Agreement, detail);
        }
    }

    fn at_dialler(&mut self, wire: usize, node: usize, term: Term) {
        let policy = self.nodes[node].policy.clone();
        let Carries::Calls { inbound, mut outbound, sent } = self.wires[wire].carries.clone()
        else {
            return;
        };
        let own_key = self.nodes[node].keys.first().map(|(_, secret)| *secret);
        if let (Some(_), Term::Record { session, end, number, content }) = (outbound.peer(), term) {
            let opens = self.wires[wire].sessions[0] == Some(session)
                && end == LaneEnd::Listening
                && number == self.wires[wire].received[0];
            self.wires[wire].received[0] += u8::from(opens);
            match content {
                Content::Opened { lane, secret, seals } if opens => {
                    match self.agrees(node, seals) {
                        true => return self.dial_lane(node, lane, secret),
                        false => self.hear(wire),
                    }
                }
                Content::Differs if opens => self.hear(wire),
                _ => {}
            }
            return self.end_wire(wire);
        }
        let seen = match term {
            Term::TlsAnswer { session, certificate } if Some(session.dialling) == sent => {
                match self.answer_tls(wire, node, session, certificate) {
                    Ok(()) => return,
                    Err(fault) => AnswerSeen::Faulty(fault),
                }
            }
            Term::TlsWelcome { session, from } => self.welcomed(wire, session, from),
            Term::Answer { session, from } => {
                let opens = Some(session.key) == own_key && Some(session.dialling) == sent;
                self.wires[wire].sessions[0] = opens.then_some(session);
                match opens {
                    true => AnswerSeen::Opened(self.identity(from)),
                    false => AnswerSeen::Unopened,
                }
            }
            _ => AnswerSeen::Nothing,
        };
        self.check_itself(node, &outbound, &seen);
        let answered = outbound.handle_answer(&policy, seen);
        self.wires[wire].carries = Carries::Calls { inbound, outbound, sent };
        if answered.is_err() {
            self.wires[wire].sessions[0] = None;
            if self.is(AuthBackend::FallsBack) {
                let detail = format!("node {node} has keys and calls plain");
                self.violate(AuthOracle::Downgrade, detail);
            }
            self.end_wire(wire);
            if let (true, Some(to)) =
                (self.is(AuthBackend::MethodFallsBack), self.wires[wire].ends[1])
            {
                let wire = self.connect(Some(node), to, Some(name(to)));
                self.greet(wire, (node, to), Some(0));
            }
            return;
        }
        let run = self.nodes[node].run;
        let seals = self.setup.nodes[node].seals;
        self.seal(wire, 0, Content::Open { from: run, seals });
    }

    /// A member asks for a lane in the name of another.
    pub(super) fn lie(&mut self, wire: usize) {
        self.seal(wire, 0, Content::Open { from: 0, seals: false });
    }

    fn dial_lane(&mut self, node: usize, lane: usize, secret: Fresh) {
        let number = self.draw();
        let owner = self.lanes[lane].owner;
        let (to, _) = self.runs[owner];
        let carries = Carries::Lane { lane, secret, number, challenge: None };
        let wire = self.wire(Some(node), to, carries);
        let seals = self.seals_lane(node);
        self.check_sealed(node, seals);
        self.send(wire, 0, Term::LaneHello { lane, number, seals });
    }

    fn proof(&self, lane: usize, secret: Fresh, numbers: [Fresh; 2], end: LaneEnd) -> Proof {
        let Lane { owner, peer, .. } = self.lanes[lane];
        let pair = |run: Run| Pair {
            incarnation: self.identity(run).incarnation,
            lifecycle: Lifecycle(lane as u64),
        };
        let [dialling_nonce, listening_nonce] = numbers.map(|number| [number; LANE_NONCE_BYTES]);
        let proofs = LaneProofs {
            dialling: pair(peer),
            listening: pair(owner),
            depth: DEPTH,
            dialling_nonce,
            listening_nonce,
        };
        let end = if self.is(AuthBackend::SidesAlike) { LaneEnd::Dialling } else { end };
        Proof { secret, text: proofs.text(end) }
    }

    fn lane_at_listener(&mut self, wire: usize, node: usize, term: Term) {
        let run = self.nodes[node].run;
        let Carries::Lane { lane, secret, number, challenge } = self.wires[wire].carries.clone()
        else {
            return;
        };
        match (term, challenge) {
            (Term::LaneHello { lane: named, number: theirs, seals }, None) => {
                let offered = self.lanes.get(named).copied();
                let offered = offered.filter(|_| self.agrees(node, seals));
                let Some(lane_offered) = offered.filter(|it| it.is_offered_by(run)) else {
                    return self.end_wire(wire);
                };
                let own = match self.is(AuthBackend::NumberRepeated) {
                    true => 0,
                    false => self.draw(),
                };
                let of = |end| self.proof(named, lane_offered.secret, [theirs, own], end);
                let (proof, awaited) = (of(LaneEnd::Listening), of(LaneEnd::Dialling));
                let was_known = self.known.contains(&Term::Proof(awaited));
                let challenge = Some(Challenged { lane: named, awaited, was_known, seals });
                self.wires[wire].carries = Carries::Lane { lane, secret, number, challenge };
                self.send(wire, 1, Term::Challenge { number: own, proof });
            }
            (Term::Proof(proof), Some(challenged)) => {
                let Challenged { lane, awaited, was_known, seals } = challenged;
                let is_valid = proof == awaited || self.is(AuthBackend::LaneUnbound);
                if is_valid && self.lanes[lane].is_offered_by(run) {
                    self.lanes[lane].is_claimed = true;
                    self.check_sealed(node, seals);
                    let by = (Term::Proof(awaited), self.lanes[lane].peer);
                    if !self.made.contains(&by) || was_known {
                        let detail = format!("lane {lane} begins over another's connection");
                        self.violate(AuthOracle::LaneStolen, detail);
                    }
                }
                self.end_wire(wire);
            }
            _ => self.end_wire(wire),
        }
    }

    fn lane_at_dialler(&mut self, wire: usize, node: usize, term: Term) {
        let Carries::Lane { lane, secret, number, .. } = self.wires[wire].carries else { return };
        let Term::Challenge { number: theirs, proof } = term else { return self.end_wire(wire) };
        let expected = self.proof(lane, secret, [number, theirs], LaneEnd::Listening);
        if proof != expected && !self.is(AuthBackend::LaneUnbound) {
            return self.end_wire(wire);
        }
        let run = self.nodes[node].run;
        let was_made = self.known.contains(&term) && self.lanes[lane].peer == run;
        let owner = self.lanes[lane].owner;
        if !was_made || !self.made.contains(&(term, owner)) {
            let detail = format!("the dialling side of lane {lane} has met somebody else");
            self.violate(AuthOracle::LaneStolen, detail);
        }
        self.lanes[lane].is_up = true;
        let proof = self.proof(lane, secret, [number, theirs], LaneEnd::Dialling);
        self.send(wire, 0, Term::Proof(proof));
    }

    /// A node restarts, with its later keys.
    pub(super) fn restart(&mut self, node: usize) {
        for wire in 0..self.wires.len() {
            if self.wires[wire].ends.contains(&Some(node)) {
                self.end_wire(wire);
            }
        }
        let number = self.runs.iter().filter(|(of, _)| *of == node).count();
        self.runs.push((node, u8::try_from(number).unwrap_or(u8::MAX)));
        let kept = match self.is(AuthBackend::RemovedKeyKept) {
            true => self.nodes[node].keys.clone(),
            false => Vec::new(),
        };
        let keys = self.setup.nodes[node].keys_later.clone().unwrap_or_default();
        let kept = kept.into_iter().filter(|key| !keys.contains(key)).collect();
        self.nodes[node] = self.started(node, keys, kept);
        self.nodes[node].has_restarted = true;
    }

    /// Whether a wire may be used for a lie.
    pub(super) fn may_lie(&self, wire: usize) -> bool {
        let Carries::Calls { outbound, .. } = &self.wires[wire].carries else { return false };
        let is_liar = self.wires[wire].ends[0] == self.setup.liar && self.setup.liar.is_some();
        is_liar && outbound.peer().is_some() && !self.wires[wire].is_over
    }

    /// Messages that the attacker makes with the keys that it has, for one side of a wire.
    pub(super) fn forged(&self, wire: usize, side: usize) -> Vec<Term> {
        if let Carries::Lane { .. } = self.wires[wire].carries {
            let proof = Proof { secret: OWN, text: [0; PROOF_TEXT_BYTES] };
            return vec![match side {
                0 => Term::Challenge { number: OWN, proof },
                _ => Term::Proof(proof),
            }];
        }
        let mut forged = vec![Term::Plain, Term::PlainAnswer, Term::Refusal];
        forged.truncate(if side == 1 { 1 } else { 3 });
        self.push_certified(wire, side, &mut forged);
        for (_, key, _) in &self.setup.stolen {
            let names = self.claimable(wire, side);
            if side == 1 {
                let to = self.wires[wire].ends[1];
                forged.extend(names.map(|from| Term::Hello { key: *key, number: OWN, from, to }));
                let session = self.wires[wire].sessions[1]
                    .filter(|session| session.key == *key && session.dialling == OWN);
                if let Some(session) = session {
                    self.push_requests(wire, session, &mut forged);
                }
            } else if let Carries::Calls { sent: Some(sent), .. } = &self.wires[wire].carries {
                let session = Session { key: *key, dialling: *sent, listening: OWN };
                forged.extend(names.map(|from| Term::Answer { session, from }));
            }
        }
        forged
    }

    /// Requests in a session of the attacker: in the name of node 0, and of each where rights rest on
    /// names.
    pub(super) fn push_requests(&self, wire: usize, session: Session, forged: &mut Vec<Term>) {
        let number = self.wires[wire].received[1];
        let runs = if self.setup.grant.is_some() { 0..self.runs.len() } else { 0..1 };
        forged.extend(runs.map(|run| Term::Record {
            session,
            end: LaneEnd::Dialling,
            number,
            content: Content::Open { from: run, seals: self.setup.nodes[0].seals },
        }));
    }

    /// Whether every lane that was to be opened is up at both ends.
    pub(super) fn at_rest(&self) -> Option<AuthViolation> {
        let is_undisturbed = self.faults_left == self.setup.faults_max;
        let up = self.lanes_up();
        let differs = |(from, to): &&(usize, usize)| {
            self.setup.nodes[*from].seals != self.setup.nodes[*to].seals
        };
        let untold =
            self.setup.dials.iter().filter(differs).count().saturating_sub(self.told.len());
        let wanted = self.setup.dials.len() - untold - self.told.len();
        (is_undisturbed && (up < wanted || untold > 0)).then(|| AuthViolation {
            oracle: AuthOracle::Liveness,
            detail: format!("{up} of {wanted} lanes are up, and {untold} nodes get no reason"),
        })
    }

    /// The peer of a session as its dialling end has it, for people.
    pub(super) fn peer_of(&self, wire: usize) -> Option<Run> {
        let Carries::Calls { outbound, .. } = &self.wires[wire].carries else { return None };
        outbound.peer().and_then(|peer| self.run_of(peer))
    }
}
