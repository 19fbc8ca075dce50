//! The canonical digest of a whole world: 128 bits, the same on every platform.

use crate::data::Data;
use crate::world::World;
use handfast_core::node::Ranks;
use handfast_core::transport::{Operation, OperationKind};
use handfast_core::wire::Message;
use handfast_core::{NicPath, Node, Pair};
use std::fmt::Write as _;
use std::hash::{Hash, Hasher};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

/// Encodes hashed values as little-endian bytes, so that the digest does not depend on the platform
/// or on the width of lengths and numbers.
#[derive(Default)]
pub struct Encoder {
    bytes: Vec<u8>,
}

impl Encoder {
    /// Returns the digest of the encoded bytes.
    pub fn digest(&self) -> u128 {
        xxh3_128(&self.bytes)
    }
}

impl Hasher for Encoder {
    fn finish(&self) -> u64 {
        xxh3_64(&self.bytes)
    }
    fn write(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }
    fn write_u8(&mut self, value: u8) {
        self.bytes.push(value);
    }
    fn write_u16(&mut self, value: u16) {
        self.write(&value.to_le_bytes());
    }
    fn write_u32(&mut self, value: u32) {
        self.write(&value.to_le_bytes());
    }
    fn write_u64(&mut self, value: u64) {
        self.write(&value.to_le_bytes());
    }
    fn write_u128(&mut self, value: u128) {
        self.write(&value.to_le_bytes());
    }
    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }
    fn write_isize(&mut self, value: isize) {
        self.write_u64(value as u64);
    }
}

/// Ranks of lifecycles among the known ones of their incarnation and peer node. Sorted by pair.
///
/// With exchanged sequence numbers a lifecycle is identified by its number, since the sequence
/// numbers are a function of it and appear in packets. The same holds with transfers, since a
/// transfer machine prints numbers.
struct WorldRanks(Vec<(Pair, u64)>);

/// Peer node of a lifecycle: the first site of that name.
type Towards = u32;

/// Rank class of a lifecycle without a known peer.
const UNKNOWN: Towards = Towards::MAX;

impl WorldRanks {
    fn new(world: &World) -> Self {
        if world.knows_by_number() {
            return Self(Vec::new());
        }
        let mut known = Vec::with_capacity(32);
        let mut visit = |pair: Pair, towards: Towards| {
            if pair.lifecycle.0 != 0 && !pair.is_legacy() {
                known.push((pair, towards));
            }
        };
        let several = world.sites.len() > 2;
        let node = |path: &NicPath| match several {
            true => world.node_of(path),
            false => 0,
        };
        for (at, site) in world.sites.iter().enumerate() {
            let here = node(&site.path);
            for (own, _, peer, _) in site.node.lifecycles().filter(|_| several) {
                visit(world.pair(at, own), node(peer));
            }
            site.node.visit_pairs(&mut |pair| match pair.incarnation == site.incarnation {
                true => visit(pair, if several { UNKNOWN } else { 0 }),
                false => visit(pair, here),
            });
        }
        for message in world.calls.iter().chain(world.answers.iter().map(|(_, answer)| answer)) {
            visit(message.sender, node(&message.to));
            message.echo.into_iter().for_each(|echo| visit(echo, node(&message.from)));
        }
        for pending in &world.operations {
            let own = world.pair(pending.site, pending.operation.id().lifecycle);
            visit(own, if several { UNKNOWN } else { 0 });
            if let Operation::Connect { remote, .. } = &pending.operation {
                visit(*remote, node(&world.sites[pending.site].path));
            }
        }
        for held in world.held.iter().filter(|held| world.is_old(held.from)) {
            visit(held.sender, node(&world.sites[held.site].path));
        }
        world.being_served().for_each(|call| visit(call.sender, node(&call.to)));
        for qp in &world.fabric.table {
            visit(world.pair(qp.site, qp.lifecycle), if several { UNKNOWN } else { 0 });
            let here = node(&world.sites[qp.site].path);
            qp.target.into_iter().for_each(|target| visit(target.believed, here));
        }
        Self::ranked(known)
    }

    /// Merges the entries of several places for the same pair.
    fn ranked(mut known: Vec<(Pair, Towards)>) -> Self {
        known.sort_unstable();
        known.dedup_by_key(|(pair, _)| *pair);
        let mut order: Vec<usize> = (0..known.len()).collect();
        let place = |at: &usize| {
            let (pair, towards) = known[*at];
            (pair.incarnation, towards, pair.lifecycle)
        };
        order.sort_unstable_by_key(place);
        let mut ranks: Vec<(Pair, u64)> = known.iter().map(|(pair, _)| (*pair, 0)).collect();
        let mut last = None;
        let mut rank = 0;
        for at in order {
            let (pair, towards) = known[at];
            let group = Some((pair.incarnation, towards));
            rank = if last == group { rank + 1 } else { 1 };
            last = group;
            ranks[at].1 = u64::from(towards) << 32 | rank;
        }
        Self(ranks)
    }
}

impl Ranks for WorldRanks {
    fn rank(&self, pair: Pair) -> u64 {
        if self.0.is_empty() || pair.lifecycle.0 == 0 || pair.is_legacy() {
            return pair.lifecycle.0;
        }
        let at = self.0.partition_point(|(known, _)| *known < pair);
        self.0.get(at).map_or(0, |(_, rank)| *rank)
    }
}

/// Lifecycles by number, to compare a node with itself.
struct Plain;

impl Ranks for Plain {
    fn rank(&self, pair: Pair) -> u64 {
        pair.lifecycle.0
    }
}

impl World {
    /// Returns the node of a NIC path: the first site of that name.
    fn node_of(&self, path: &NicPath) -> Towards {
        let site = self.sites.iter().position(|site| site.path.node == path.node);
        site.and_then(|site| Towards::try_from(site).ok()).unwrap_or(UNKNOWN)
    }

    /// Whether lifecycles are identified by number instead of rank.
    fn knows_by_number(&self) -> bool {
        self.setup.devices.random_psns || self.data.is_some() || self.is_shared()
    }

    /// Returns the digest of everything that can affect the future.
    pub fn fingerprint(&self) -> u128 {
        self.encode(self.faults_spent).digest()
    }

    /// Returns the fingerprint without the faults spent: equal for worlds with the same fault-free
    /// future.
    pub fn fingerprint_without_budget(&self) -> u128 {
        self.encode(0).digest()
    }

    /// Returns both fingerprints, for little more than the cost of one.
    pub fn fingerprints(&self) -> (u128, u128) {
        let mut encoder = self.encode(self.faults_spent);
        let whole = encoder.digest();
        encoder.bytes[..size_of::<u32>()].fill(0);
        (whole, encoder.digest())
    }

    /// Encodes everything that can affect the future, beginning with the faults spent.
    fn encode(&self, faults: u32) -> Encoder {
        let ranks = WorldRanks::new(self);
        let mut encoder = Encoder { bytes: Vec::with_capacity(1024) };
        faults.hash(&mut encoder);
        for site in &self.sites {
            site.demands.iter().for_each(|demand| demand.hash(&mut encoder));
            site.node.fingerprint(&ranks, &mut encoder);
            if self.knows_by_number() {
                // Together with the live lifecycles it determines the next number.
                site.node.counters().ended.hash(&mut encoder);
            }
            for endpoint in site.old.iter().flat_map(|old| &old.endpoints) {
                let own = Pair { incarnation: site.incarnation, lifecycle: endpoint.own };
                (endpoint.peer.as_parts(), ranks.rank(own)).hash(&mut encoder);
                (endpoint.number, endpoint.state, &endpoint.listed).hash(&mut encoder);
            }
        }
        self.hash_fabric(&ranks, &mut encoder);
        if self.setup.devices_differ() {
            self.fabric.verbs.hash(&mut encoder);
        }
        if let Some(data) = &self.data {
            hash_data(data, &mut encoder);
        }
        if self.is_shared() {
            self.channels.encode(&mut encoder);
        }
        self.mute.iter().for_each(|site| site.hash(&mut encoder));
        self.hash_bags(&ranks).hash(&mut encoder);
        encoder
    }

    pub(crate) fn plain_fingerprint(&self, node: &Node) -> u128 {
        let mut encoder = Encoder::default();
        node.fingerprint(&Plain, &mut encoder);
        encoder.digest()
    }

    fn hash_fabric(&self, ranks: &WorldRanks, encoder: &mut Encoder) {
        for qp in &self.fabric.table {
            (qp.site, qp.number, ranks.rank(self.pair(qp.site, qp.lifecycle))).hash(encoder);
            (qp.broken, qp.published, qp.revoked, qp.drained).hash(encoder);
            if let Some(target) = qp.target {
                (target.site, target.number).hash(encoder);
                (target.believed.incarnation.0, ranks.rank(target.believed)).hash(encoder);
            }
        }
    }

    /// Digests messages in flight, which are unordered: each is digested alone, and the digests are
    /// added.
    fn hash_bags(&self, ranks: &WorldRanks) -> u128 {
        let mut sum = 0u128;
        let mut encoder = Encoder { bytes: Vec::with_capacity(128) };
        let mut add = |fill: &dyn Fn(&mut Encoder)| {
            encoder.bytes.clear();
            fill(&mut encoder);
            sum = sum.wrapping_add(encoder.digest());
        };
        for call in &self.calls {
            add(&|encoder| {
                1u8.hash(encoder);
                hash_message(call, ranks, encoder);
            });
        }
        for (run, answer) in &self.answers {
            add(&|encoder| {
                (2u8, run.0).hash(encoder);
                hash_message(answer, ranks, encoder);
            });
        }
        for (at, pending) in self.operations.iter().enumerate() {
            let id = pending.operation.id();
            let ahead = self.operations[..at].iter().filter(|earlier| {
                earlier.site == pending.site && earlier.operation.id().lifecycle == id.lifecycle
            });
            let ahead = ahead.count();
            add(&|encoder| {
                let lifecycle = ranks.rank(self.pair(pending.site, id.lifecycle));
                (3u8, pending.site, lifecycle, ahead).hash(encoder);
                hash_operation(&pending.operation, id.kind, ranks, encoder);
            });
        }
        for call in self.being_served() {
            add(&|encoder| {
                7u8.hash(encoder);
                hash_message(call, ranks, encoder);
            });
        }
        for site in (0..self.sites.len()).filter(|site| self.has_stranger(*site)) {
            add(&|encoder| (8u8, site).hash(encoder));
        }
        for (site, lifecycle) in &self.stuck {
            let lifecycle = ranks.rank(self.pair(*site, *lifecycle));
            add(&|encoder| (5u8, *site, lifecycle).hash(encoder));
        }
        // A call with the handfast key names its sender in the node that holds it; a legacy call
        // does not.
        for held in self.held.iter().filter(|held| self.is_old(held.from)) {
            let sender = ranks.rank(held.sender);
            let run = held.sender.incarnation.0;
            add(&|encoder| (6u8, held.site, held.token.0, run, sender).hash(encoder));
        }
        for command in &self.commands {
            add(&|encoder| (4u8, command).hash(encoder));
        }
        sum
    }
}

fn hash_message(message: &Message, ranks: &WorldRanks, encoder: &mut Encoder) {
    message.op.hash(encoder);
    (message.from.as_parts(), message.to.as_parts()).hash(encoder);
    for pair in [Some(message.sender), message.echo].into_iter().flatten() {
        (pair.incarnation.0, ranks.rank(pair)).hash(encoder);
    }
    message.body.queue_pairs.iter().for_each(|number| number.hash(encoder));
    message.body.gid.hash(encoder);
    message.refusal.as_ref().map(|refusal| refusal.reason).hash(encoder);
}

fn hash_operation(
    operation: &Operation,
    kind: OperationKind,
    ranks: &WorldRanks,
    encoder: &mut Encoder,
) {
    kind.hash(encoder);
    if let Operation::Connect { remote, body, .. } = operation {
        (remote.incarnation.0, ranks.rank(*remote)).hash(encoder);
        body.queue_pairs.iter().for_each(|number| number.hash(encoder));
    }
    // Only zero or non-zero matters here.
    if matches!(operation, Operation::Create { skip, .. } if *skip > 0) {
        1u8.hash(encoder);
    }
}

/// Hashes the debug form of each target, which contains every field, counters included.
fn hash_data(data: &Data, encoder: &mut Encoder) {
    data.progress.iter().for_each(|progress| progress.hash(encoder));
    if data.has_dropped {
        data.sites.iter().for_each(|site| site.state.hash(encoder));
    }
    for site in &data.sites {
        site.probing.iter().for_each(|lane| (1u8, lane).hash(encoder));
        site.drained.iter().for_each(|lane| (2u8, lane).hash(encoder));
        for target in &site.targets {
            // Writing to memory does not fail.
            let _ = write!(encoder, "{target:?}");
        }
    }
}

impl std::fmt::Write for Encoder {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.bytes.extend_from_slice(text.as_bytes());
        Ok(())
    }
}
