//! The canonical digest of a whole world: 128 bits, the same on every platform.

use crate::data::{Data, Target};
use crate::encoded::Template;
use crate::letter::Letter;
use crate::spare::Spare;
use crate::world::{NUMBERS_PER_NIC, World};
use handfast_core::node::Ranks;
use handfast_core::transport::{Operation, OperationKind};
use handfast_core::wire::Message;
use handfast_core::{Incarnation, Lifecycle, NicPath, Pair};
use std::hash::{Hash, Hasher};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

/// Encodes hashed values as little-endian bytes, so that the digest does not depend on the platform
/// or on the width of lengths and numbers.
pub struct Encoder {
    bytes: Vec<u8>,
}

thread_local! {
    static BYTES: Spare<u8> = const { Spare::new() };
    static RANKS: Spare<(Key, u64)> = const { Spare::new() };
}

impl Default for Encoder {
    fn default() -> Self {
        Self { bytes: BYTES.with(Spare::take) }
    }
}

impl Drop for Encoder {
    fn drop(&mut self) {
        BYTES.with(|spare| spare.keep(std::mem::take(&mut self.bytes)));
    }
}

impl Encoder {
    /// Returns the digest of the encoded bytes.
    pub fn digest(&self) -> u128 {
        xxh3_128(&self.bytes)
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Overwrites a number that was encoded at an offset.
    pub(crate) fn set_u64(&mut self, offset: usize, value: u64) {
        self.bytes[offset..offset + size_of::<u64>()].copy_from_slice(&value.to_le_bytes());
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

/// A pair in one word, in the order of pairs: the run of its process, its NIC, and its number there.
pub(crate) type Key = u64;

/// Peer node of a lifecycle: the first site of that name.
pub(crate) type Towards = u32;

/// Rank class of a lifecycle without a known peer.
const UNKNOWN: Towards = Towards::MAX;

/// Bits of a key for the NIC and for the number there.
const NIC_BITS: u32 = 8;
const NUMBER_BITS: u32 = 40;

/// Returns the entry of a pair that has a rank.
pub(crate) fn key_of(pair: Pair, towards: Towards) -> Option<(Key, Towards)> {
    let ranked = pair.lifecycle.0 != 0 && !pair.is_legacy();
    ranked.then(|| (packed(pair), towards))
}

fn packed(pair: Pair) -> Key {
    let Pair { incarnation: Incarnation(run), lifecycle: Lifecycle(lifecycle) } = pair;
    let (nic, number) = (lifecycle / NUMBERS_PER_NIC, lifecycle % NUMBERS_PER_NIC);
    debug_assert!(run >> (64 - NIC_BITS - NUMBER_BITS) == 0 && nic >> NIC_BITS == 0);
    (run as u64) << (NIC_BITS + NUMBER_BITS) | nic << NUMBER_BITS | number
}

/// Ranks of lifecycles among the known ones of their incarnation and peer node. Sorted by pair.
///
/// With exchanged sequence numbers a lifecycle is identified by its number, since the sequence
/// numbers are a function of it and appear in packets. The same holds with transfers, since a
/// transfer machine prints numbers.
struct WorldRanks(Vec<(Key, u64)>);

impl Drop for WorldRanks {
    fn drop(&mut self) {
        RANKS.with(|spare| spare.keep(std::mem::take(&mut self.0)));
    }
}

/// Bits of the rank of a lifecycle below its class.
const RANK_BITS: u32 = 32;

impl WorldRanks {
    fn new(world: &World) -> Self {
        if world.knows_by_number() {
            return Self(Vec::new());
        }
        let mut known = RANKS.with(Spare::take);
        for at in 0..world.sites.len() {
            world.template(at).known.iter().for_each(|entry| merge(&mut known, *entry));
        }
        let mut visit = |pair: Pair, towards: Towards| {
            key_of(pair, towards).into_iter().for_each(|entry| merge(&mut known, entry));
        };
        let unknown = world.towards_unknown();
        for message in world.calls.iter().chain(world.answers.iter().map(|(_, answer)| answer)) {
            visit(message.sender, world.towards(&message.to));
            message.echo.into_iter().for_each(|echo| visit(echo, world.towards(&message.from)));
        }
        for pending in &world.operations {
            let own = world.pair(pending.site, pending.operation.id().lifecycle);
            visit(own, unknown);
            if let Operation::Connect { remote, .. } = &pending.operation {
                visit(*remote, world.towards(&world.sites[pending.site].path));
            }
        }
        for held in world.held.iter().filter(|held| world.is_old(held.from)) {
            visit(held.sender, world.towards(&world.sites[held.site].path));
        }
        world.being_served().for_each(|call| visit(call.sender, world.towards(&call.to)));
        for qp in &world.fabric.table {
            visit(world.pair(qp.site, qp.lifecycle), unknown);
            let here = world.towards(&world.sites[qp.site].path);
            qp.target.into_iter().for_each(|target| visit(target.believed, here));
        }
        Self::ranked(known)
    }

    /// Ranks entries that have no rank yet.
    fn ranked(mut known: Vec<(Key, u64)>) -> Self {
        let run = |key: Key| key >> (NIC_BITS + NUMBER_BITS);
        for at in 0..known.len() {
            let (before, rest) = known.split_at_mut(at);
            let Some((key, class)) = rest.first_mut() else { continue };
            let of_run = before.iter().rev().take_while(|(other, _)| run(*other) == run(*key));
            let alike = of_run.filter(|(_, other)| *other >> RANK_BITS == *class >> RANK_BITS);
            *class |= alike.count() as u64 + 1;
        }
        Self(known)
    }
}

/// Adds an entry to a list by pair. Of several places for the same pair, the lowest class counts.
fn merge(known: &mut Vec<(Key, u64)>, (key, towards): (Key, Towards)) {
    let class = u64::from(towards) << RANK_BITS;
    // From the end: the lists of the nodes come by rising run.
    let place = known.iter().rposition(|(other, _)| *other <= key).map_or(0, |at| at + 1);
    match known[..place].last_mut().filter(|(other, _)| *other == key) {
        Some((_, lowest)) => *lowest = class.min(*lowest),
        None => known.insert(place, (key, class)),
    }
}

impl Ranks for WorldRanks {
    fn rank(&self, pair: Pair) -> u64 {
        if self.0.is_empty() || pair.lifecycle.0 == 0 || pair.is_legacy() {
            return pair.lifecycle.0;
        }
        let key = packed(pair);
        let at = self.0.partition_point(|(known, _)| *known < key);
        self.0.get(at).map_or(0, |(_, rank)| *rank)
    }
}

/// Lifecycles by number, to compare a node with itself.
pub(crate) struct Plain;

impl Ranks for Plain {
    fn rank(&self, pair: Pair) -> u64 {
        pair.lifecycle.0
    }
}

/// Feeds a message to an encoder.
type HashLetter = fn(&Letter, &WorldRanks, &mut Encoder);

/// The form of an encoding.
struct Form {
    site: fn(&Template, &WorldRanks, &mut Encoder),
    letter: HashLetter,
    transfers: fn(&Data, &mut Encoder),
}

/// Digests in place of what worlds share.
const DIGESTS: Form = Form {
    site: |template, ranks, encoder| template.sum(ranks, encoder),
    letter: |letter, ranks, encoder| {
        letter.outline().hash(encoder);
        let pairs = [Some(letter.sender), letter.echo];
        pairs.into_iter().flatten().for_each(|pair| ranks.rank(pair).hash(encoder));
    },
    transfers: hash_data,
};

/// The form in traces, which lines and seeds have.
const TRACE: Form = Form {
    site: |template, ranks, encoder| template.fill(ranks, encoder),
    letter: |letter, ranks, encoder| hash_message(letter, ranks, encoder),
    transfers: trace_data,
};

impl World {
    /// Returns the rank class of a lifecycle whose peer is not known; of two nodes there is one.
    pub(crate) fn towards_unknown(&self) -> Towards {
        if self.sites.len() > 2 { UNKNOWN } else { 0 }
    }

    /// Returns the rank class of a lifecycle towards the node of a NIC path: the first site of that
    /// name. Of two nodes there is one.
    pub(crate) fn towards(&self, path: &NicPath) -> Towards {
        if self.sites.len() <= 2 {
            return 0;
        }
        let site = self.sites.iter().position(|site| site.path.node == path.node);
        site.and_then(|site| Towards::try_from(site).ok()).unwrap_or(UNKNOWN)
    }

    /// Whether lifecycles are identified by number instead of rank.
    pub(crate) fn knows_by_number(&self) -> bool {
        self.setup.devices.random_psns
            || self.data.is_some()
            || self.is_shared()
            || self.is_managed()
    }

    /// Returns the digest of everything that can affect the future.
    pub fn fingerprint(&self) -> u128 {
        self.encode(self.faults_spent, &DIGESTS).digest()
    }

    /// Returns a digest of what happens to the world, for the trace of a run: with transfers it costs
    /// far less than the fingerprint, and leaves out their counters.
    pub fn trace_fingerprint(&self) -> u128 {
        self.encode(self.faults_spent, &TRACE).digest()
    }

    /// Returns the fingerprint without the faults spent: equal for worlds with the same fault-free
    /// future.
    pub fn fingerprint_without_budget(&self) -> u128 {
        self.encode(0, &DIGESTS).digest()
    }

    /// Returns both fingerprints, for little more than the cost of one.
    pub fn fingerprints(&self) -> (u128, u128) {
        let mut encoder = self.encode(self.faults_spent, &DIGESTS);
        let whole = encoder.digest();
        encoder.bytes[..size_of::<u32>()].fill(0);
        (whole, encoder.digest())
    }

    /// Encodes everything that can affect the future, beginning with the faults spent.
    fn encode(&self, faults: u32, form: &Form) -> Encoder {
        let ranks = WorldRanks::new(self);
        let mut encoder = Encoder::default();
        faults.hash(&mut encoder);
        for at in 0..self.sites.len() {
            (form.site)(self.template(at), &ranks, &mut encoder);
        }
        self.hash_fabric(&ranks, &mut encoder);
        if self.fabric.devices_differ {
            self.fabric.verbs.hash(&mut encoder);
        }
        if let Some(data) = &self.data {
            (form.transfers)(data, &mut encoder);
        }
        if self.is_shared() {
            self.channels.encode(&mut encoder);
        }
        if self.is_managed() {
            self.managed.encode(&mut encoder);
        }
        self.mute.iter().for_each(|site| site.hash(&mut encoder));
        self.hash_bags(&ranks, form.letter).hash(&mut encoder);
        encoder
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
    fn hash_bags(&self, ranks: &WorldRanks, hash_letter: HashLetter) -> u128 {
        let mut sum = 0u128;
        let mut encoder = Encoder::default();
        let mut add = |fill: &dyn Fn(&mut Encoder)| {
            encoder.bytes.clear();
            fill(&mut encoder);
            sum = sum.wrapping_add(encoder.digest());
        };
        for call in &self.calls {
            add(&|encoder| {
                1u8.hash(encoder);
                hash_letter(call, ranks, encoder);
            });
        }
        for (run, answer) in &self.answers {
            add(&|encoder| {
                (2u8, run.0).hash(encoder);
                hash_letter(answer, ranks, encoder);
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
                hash_letter(call, ranks, encoder);
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

pub(crate) fn hash_message(message: &Message, ranks: &dyn Ranks, encoder: &mut Encoder) {
    message.op.hash(encoder);
    (message.from.as_parts(), message.to.as_parts()).hash(encoder);
    for pair in [Some(message.sender), message.echo].into_iter().flatten() {
        (pair.incarnation.0, ranks.rank(pair)).hash(encoder);
    }
    message.body.queue_pairs.iter().for_each(|number| number.hash(encoder));
    message.body.gid.hash(encoder);
    message.body.connection_manager.iter().for_each(|text| text.hash(encoder));
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
        body.connection_manager.iter().for_each(|text| text.hash(encoder));
    }
    // Only zero or non-zero matters here.
    if matches!(operation, Operation::Create { skip, .. } if *skip > 0) {
        1u8.hash(encoder);
    }
}

/// Hashes the fingerprint of each target, and the keys that work requests on their way have.
fn hash_data(data: &Data, encoder: &mut Encoder) {
    hash_transfers(data, encoder, |target, encoder| {
        (target.peer, target.run.0).hash(encoder);
        target.machine.fingerprint_with_keys(encoder);
    });
}

/// Hashes the fingerprint of each target.
fn trace_data(data: &Data, encoder: &mut Encoder) {
    hash_transfers(data, encoder, |target, encoder| {
        (target.peer, target.run.0).hash(encoder);
        target.machine.fingerprint(encoder);
    });
}

fn hash_transfers(data: &Data, encoder: &mut Encoder, hash: fn(&Target, &mut Encoder)) {
    data.progress.iter().for_each(|progress| progress.hash(encoder));
    data.fences.iter().for_each(|fence| fence.hash(encoder));
    if data.has_dropped {
        data.sites.iter().for_each(|site| site.state.hash(encoder));
    }
    for site in &data.sites {
        site.probing.iter().for_each(|lane| (1u8, lane).hash(encoder));
        site.drained.iter().for_each(|lane| (2u8, lane).hash(encoder));
        if !site.early.is_empty() {
            (3u8, &site.early).hash(encoder);
        }
        for target in &site.targets {
            hash(target, encoder);
        }
    }
}
