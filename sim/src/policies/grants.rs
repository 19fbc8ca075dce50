//! An owner that changes the grants of a region, and two peers that read, write and ask for keys.
//!
//! The machines are driven as the engine does: each lane has a memo of its peer's permissions and asks it
//! for every piece of a slice; a peer that asks for a descriptor waits for the registration of its group,
//! which may end after another change. The model has the permissions of each pattern of names, and knows
//! which peers a pattern covers from a table, and their trust groups. A device lets a lane use each key of its
//! protection domain, also one that its peer was not given.

use super::oracle::{PolicyOracle, violation};
use crate::machine_world::{MachineWorld, Violation};
use handfast_core::policy::{
    Access, AccessMemo, Grant, Grants, KEY_RETRY_INTERVAL, KeyGroup, KeyGroupId, KeyGroups,
    Requester, TrustGroup, TrustGroups,
};
use handfast_core::transfer::Direction;
use handfast_core::{Instant, NodeName};
use handfast_transport_sim::Encoder;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hash;

const PEERS: [&str; 2] = ["decode-1", "trainer-1"];
/// The trust group of each peer, where there are several.
const TRUST: [u8; PEERS.len()] = [0, 1];
/// Patterns, and whether they cover each peer.
const PATTERNS: [(&str, [bool; PEERS.len()]); 3] =
    [("*", [true, true]), ("decode-*", [true, false]), ("trainer-1", [false, true])];
const ACCESSES: [Access; 2] = [Access::READ, Access::WRITE];
/// Keys of the region with grants that change, and of one that every peer may read.
const KEYS: [u64; 2] = [7, 8];
/// Changes of grants in a schedule, pieces of slices, and requests for a descriptor.
const CHANGES_MAX: u64 = 2;
const PIECES_MAX: u32 = 2;
const ASKS_MAX: u32 = 2;

/// Something that may happen.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// The peers are in two trust groups, before all else.
    Apart,
    /// A grant for a pattern is revoked, or added.
    Revoke(usize, Access),
    Grant(usize, Access),
    /// A peer moves a piece of a slice, in a region.
    Piece(usize, usize, Direction),
    /// A peer asks for a descriptor.
    Ask(usize),
    /// A registration is made, or fails.
    Registered(usize),
    Failed(usize),
    /// The pause after a failure is over.
    Later,
}

/// The patterns that cover a peer, and what they grant.
type Covering = Vec<(usize, Access)>;
/// A registration under way: for a peer, and a group with these permissions, grants and domain.
type Registering = (usize, KeyGroupId, Access, Covering, TrustGroup);

/// The machines, and what the owner's table and device hold.
#[derive(Clone)]
pub(super) struct GrantsWorld {
    grants: [Grants; KEYS.len()],
    groups: KeyGroups,
    trust: TrustGroups,
    /// The machines of two trust groups, until they are in use.
    apart: Option<(KeyGroups, TrustGroups)>,
    memos: [AccessMemo; PEERS.len()],
    /// Changes of the table.
    version: u64,
    /// The model: the access of each pattern.
    held: [Access; PATTERNS.len()],
    registering: Vec<Registering>,
    /// Registrations of the device, with their domain and the trust group that they are for.
    live: BTreeMap<KeyGroupId, (Access, TrustGroup, u8)>,
    /// Keys that peers have.
    told: BTreeSet<(usize, KeyGroupId)>,
    /// Registrations that failed, and when.
    failed: BTreeMap<(u8, Covering), Instant>,
    now: Instant,
    pieces: u32,
    asks: u32,
    faults_left: u32,
    violation: Option<Violation<PolicyOracle>>,
}

impl GrantsWorld {
    pub(super) fn new((grants, memo, groups, apart): Machines, faults_max: u32) -> Self {
        let grant = |grants: &mut Grants, (access, pattern): (Access, usize)| {
            let grant = Grant::new(access, PATTERNS[pattern].0).expect("it is a pattern");
            grants.add(grant).expect("it has room");
        };
        let (mut changing, mut fixed) = (grants.clone(), grants);
        grant(&mut fixed, (Access::READ, 0));
        grant(&mut changing, (Access::READ, 0));
        grant(&mut changing, (Access::WRITE, 2));
        Self {
            grants: [changing, fixed],
            groups,
            trust: TrustGroups::default(),
            apart: Some(apart),
            memos: [memo.clone(), memo],
            version: 0,
            held: [Access::READ, Access::default(), Access::WRITE],
            registering: Vec::new(),
            live: BTreeMap::new(),
            told: BTreeSet::new(),
            failed: BTreeMap::new(),
            now: Instant(0),
            pieces: 0,
            asks: 0,
            faults_left: faults_max,
            violation: None,
        }
    }

    /// The access that the model allows a peer in a region.
    fn allowed(&self, peer: usize, region: usize) -> Access {
        if region == 1 {
            return Access::READ;
        }
        let covering = PATTERNS.iter().zip(self.held).filter(|((_, covers), _)| covers[peer]);
        covering.fold(Access::default(), |all, (_, access)| all.and(access))
    }

    fn covering(&self, peer: usize) -> Covering {
        let all = PATTERNS.iter().zip(self.held).enumerate();
        let covers = all.filter(|(_, ((_, covers), access))| covers[peer] && !access.is_none());
        covers.map(|(pattern, (_, access))| (pattern, access)).collect()
    }

    /// The trust group of a peer, by the model.
    fn trust_of(&self, peer: usize) -> u8 {
        if self.apart.is_none() { TRUST[peer] } else { 0 }
    }

    fn has_failed_now(&self, peer: usize) -> bool {
        self.failed.get(&(self.trust_of(peer), self.covering(peer))) == Some(&self.now)
    }

    fn break_off(&mut self, oracle: PolicyOracle, detail: String) {
        self.violation.get_or_insert(violation(oracle, detail));
    }

    fn change(&mut self, pattern: usize, access: Access, is_granted: bool) {
        let grant = Grant::new(access, PATTERNS[pattern].0).expect("it is a pattern");
        let held = &mut self.held[pattern];
        if is_granted {
            *held = held.and(access);
            self.grants[0].add(grant).expect("it has room");
        } else {
            *held = held.without(access);
            self.grants[0].revoke(&grant);
        }
        self.version += 1;
        let held = self.held;
        let is_held =
            |(pattern, access): &(usize, Access)| access.without(held[*pattern]).is_none();
        self.failed.retain(|(_, covering), _| covering.iter().all(is_held));
        for ended in self.groups.on_changed(&self.grants[0]) {
            self.live.remove(&ended);
        }
    }

    fn piece(&mut self, peer: usize, region: usize, direction: Direction) {
        self.pieces += 1;
        let name = name(peer);
        let requester = Requester::Peer(&name);
        let at = (self.version, KEYS[region]);
        let found = self.memos[peer].access(at, &self.grants[region], requester);
        let allowed = self.allowed(peer, region);
        let (found, may) = (found.allows(direction), allowed.allows(direction));
        if found != may {
            let oracle = if found { PolicyOracle::Ungranted } else { PolicyOracle::Withheld };
            let detail = format!("a {direction:?} of peer {peer}, which may {allowed}");
            self.break_off(oracle, detail);
        }
    }

    fn ask(&mut self, peer: usize) {
        self.asks += 1;
        let name = name(peer);
        let allowed = self.allowed(peer, 0);
        match self.groups.group_of(&self.grants[0], Requester::Peer(&name), self.now) {
            KeyGroup::None => {
                if !allowed.is_none() {
                    let detail = format!("peer {peer} may {allowed} and has no key");
                    self.break_off(PolicyOracle::Withheld, detail);
                }
            }
            KeyGroup::Known(group) => self.tell(peer, group),
            KeyGroup::Full => {
                let detail = format!("peer {peer} has no key, and few others have one");
                self.break_off(PolicyOracle::Withheld, detail);
            }
            KeyGroup::Failed(_) => {
                if !self.has_failed_now(peer) {
                    let detail = format!("peer {peer} has no key, and no registration failed");
                    self.break_off(PolicyOracle::Withheld, detail);
                }
            }
            KeyGroup::New { group, access, trust, evicted } => {
                if self.has_failed_now(peer) {
                    let detail = format!("the registration for peer {peer} failed just now");
                    self.break_off(PolicyOracle::Unpaused, detail);
                }
                if let Some(evicted) = evicted {
                    self.live.remove(&evicted);
                }
                let covering = self.covering(peer);
                self.registering.push((peer, group, access, covering, trust));
            }
        }
    }

    /// Gives a peer a key, if its registration is there.
    fn tell(&mut self, peer: usize, group: KeyGroupId) {
        let Some((access, domain, _)) = self.live.get(&group).copied() else { return };
        if domain != self.trust.of(&name(peer)) {
            let detail = format!("the key of peer {peer} is of another domain than its lane");
            self.break_off(PolicyOracle::Withheld, detail);
        }
        let allowed = self.allowed(peer, 0);
        if allowed.without(access) != Access::default() {
            let detail = format!("peer {peer} may {allowed}, and its key {access}");
            self.break_off(PolicyOracle::Withheld, detail);
        }
        self.told.insert((peer, group));
    }

    fn registered(&mut self, index: usize) {
        let (peer, group, access, _, domain) = self.registering.remove(index);
        if !self.groups.has(group) {
            return;
        }
        self.live.insert(group, (access, domain, self.trust_of(peer)));
        let name = name(peer);
        // The descriptor is that of now.
        if self.groups.find(&self.grants[0], Requester::Peer(&name)) == Some(group) {
            self.tell(peer, group);
        }
    }

    /// No key that a peer has, or will get, allows what the peer may not do.
    fn check_keys(&mut self) {
        for (peer, group) in self.told.clone() {
            let (access, allowed) = (self.live.get(&group), self.allowed(peer, 0));
            let access = access.map(|(access, ..)| *access);
            let Some(access) = access.filter(|access| !access.without(allowed).is_none()) else {
                continue;
            };
            let detail = format!("peer {peer} may do {allowed}, and its key allows {access}");
            self.break_off(PolicyOracle::KeyOutlives, detail);
        }
        let all = self.held.iter().fold(Access::default(), |all, access| all.and(*access));
        let mut live = self.live.values().map(|(access, ..)| *access);
        if let Some(access) = live.find(|access| !access.without(all).is_none()) {
            let detail = format!("a registration allows {access}, and no grant more than {all}");
            self.break_off(PolicyOracle::KeyOutlives, detail);
        }
        self.check_domains();
    }

    /// No peer reaches the registration of another trust group, also with a key that it was not given.
    fn check_domains(&mut self) {
        for peer in 0..PEERS.len() {
            let (trust, lane) = (self.trust_of(peer), self.trust.of(&name(peer)));
            let mut live = self.live.values();
            if live.any(|(_, domain, of)| *domain == lane && *of != trust) {
                let detail =
                    format!("the lane of peer {peer} reaches memory of another trust group");
                self.break_off(PolicyOracle::OtherGroup, detail);
            }
        }
    }
}

/// The machines of peers in one trust group, and in two.
pub(super) type Machines = (Grants, AccessMemo, KeyGroups, (KeyGroups, TrustGroups));

/// The machines in their first state.
pub(super) fn machines() -> Machines {
    let mut trust = TrustGroups::default();
    trust.add("train", "trainer-*").expect("it is a group");
    let apart = (KeyGroups::new(trust.clone()), trust);
    (Grants::default(), AccessMemo::default(), KeyGroups::default(), apart)
}

fn name(peer: usize) -> NodeName {
    NodeName::new(PEERS[peer]).expect("it is a name")
}

impl MachineWorld for GrantsWorld {
    type Event = Event;
    type Oracle = PolicyOracle;

    const NO_END: PolicyOracle = PolicyOracle::Liveness;

    fn events(&self) -> Vec<(Event, u32)> {
        let mut events = Vec::new();
        if self.apart.is_some() && (self.version, self.pieces, self.asks) == (0, 0, 0) {
            events.push((Event::Apart, 0));
        }
        if self.version < CHANGES_MAX {
            for (pattern, held) in self.held.iter().enumerate() {
                for access in ACCESSES {
                    let is_held = held.without(access) != *held;
                    let event = if is_held { Event::Revoke } else { Event::Grant };
                    events.push((event(pattern, access), 0));
                }
            }
        }
        for peer in 0..PEERS.len() {
            let regions = if self.pieces < PIECES_MAX { 0..KEYS.len() } else { 0..0 };
            events.extend(regions.flat_map(|region| {
                let piece = move |direction| (Event::Piece(peer, region, direction), 0);
                [Direction::Read, Direction::Write].map(piece)
            }));
            if self.asks < ASKS_MAX {
                events.push((Event::Ask(peer), 0));
            }
        }
        if self.now == Instant(0) && !self.failed.is_empty() {
            events.push((Event::Later, 0));
        }
        for index in 0..self.registering.len() {
            events.extend([(Event::Registered(index), 0), (Event::Failed(index), 1)]);
        }
        events.retain(|(_, price)| *price <= self.faults_left);
        events
    }

    fn happen(&mut self, (event, price): (Event, u32)) {
        self.faults_left -= price;
        match event {
            Event::Apart => {
                if let Some((groups, trust)) = self.apart.take() {
                    (self.groups, self.trust) = (groups, trust);
                }
            }
            Event::Revoke(pattern, access) => self.change(pattern, access, false),
            Event::Grant(pattern, access) => self.change(pattern, access, true),
            Event::Piece(peer, region, direction) => self.piece(peer, region, direction),
            Event::Ask(peer) => self.ask(peer),
            Event::Registered(index) => self.registered(index),
            Event::Failed(index) => {
                let (peer, group, _, covering, _) = self.registering.remove(index);
                if self.groups.has(group) {
                    self.failed.insert((self.trust_of(peer), covering), self.now);
                }
                self.groups.on_failed(group, self.now);
            }
            Event::Later => self.now = self.now + KEY_RETRY_INTERVAL,
        }
        self.check_keys();
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
        (&self.grants, &self.groups, &self.memos, self.version, self.held).hash(hasher);
        (&self.registering, &self.live, &self.told, self.apart.is_none()).hash(hasher);
        (&self.failed, self.now, self.pieces, self.asks, self.faults_left).hash(hasher);
        encoder.digest()
    }

    fn describe(&self, event: Event) -> String {
        match event {
            Event::Apart => "the peers are in two trust groups".into(),
            Event::Revoke(pattern, access) => {
                format!("{access} for {} is revoked", PATTERNS[pattern].0)
            }
            Event::Grant(pattern, access) => {
                format!("{access} for {} is granted", PATTERNS[pattern].0)
            }
            Event::Piece(peer, region, direction) => {
                format!("peer {peer} asks for a piece in region {region}: {direction:?}")
            }
            Event::Ask(peer) => format!("peer {peer} asks for a descriptor"),
            Event::Registered(index) => {
                format!("memory is registered for peer {}", self.registering[index].0)
            }
            Event::Failed(index) => {
                format!("the registration for peer {} fails", self.registering[index].0)
            }
            Event::Later => "the pause after a failed registration ends".into(),
        }
    }
}
