//! Encodings of unchanged sites, kept for the fingerprints of the worlds that share them.

use crate::fingerprint::{Encoder, Key, Plain, Towards, key_of};
use crate::spare::Spare;
use crate::world::{Site, World};
use handfast_core::Pair;
use handfast_core::node::Ranks;
use std::cell::RefCell;
use std::hash::{Hash, Hasher};
use std::sync::OnceLock;

/// The encoding of a site; a clone has none, since it is made to be changed.
#[derive(Default)]
pub(crate) struct Encoded {
    template: OnceLock<Template>,
    plain: OnceLock<u128>,
    whole: OnceLock<u128>,
}

impl Encoded {
    /// Forgets what a change of the site makes wrong.
    pub(crate) fn forget(&mut self) {
        let Self { template, plain, whole } = self;
        if template.get().is_some() {
            *template = OnceLock::new();
        }
        for digest in [plain, whole] {
            if digest.get().is_some() {
                *digest = OnceLock::new();
            }
        }
    }
}

impl Clone for Encoded {
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// The encoding of a site, with blanks for the ranks of lifecycles.
pub(crate) struct Template {
    /// The pairs that the node of the site knows, each once, in order.
    pub(crate) known: Vec<(Key, Towards)>,
    bytes: Box<[u8]>,
    /// The digest of `bytes`, in which every blank is its number.
    digest: u128,
    /// Offset of each blank in `bytes`, and its pair.
    blanks: Vec<(u32, Pair)>,
}

impl Template {
    /// Appends the digest of the encoding, and the ranks.
    pub(crate) fn sum(&self, ranks: &dyn Ranks, encoder: &mut Encoder) {
        encoder.write_u128(self.digest);
        for (_, pair) in &self.blanks {
            encoder.write_u64(ranks.rank(*pair));
        }
    }

    /// Appends the encoding with these ranks.
    pub(crate) fn fill(&self, ranks: &dyn Ranks, encoder: &mut Encoder) {
        let start = encoder.len();
        encoder.write(&self.bytes);
        for (offset, pair) in &self.blanks {
            encoder.set_u64(start + *offset as usize, ranks.rank(*pair));
        }
    }
}

/// Room for the pairs of most sites.
const PAIRS: usize = 16;

thread_local! {
    static PAIR_LISTS: Spare<Pair> = const { Spare::new() };
    static FOUND_LISTS: Spare<(u32, usize)> = const { Spare::new() };
}

/// The upper half of a number that stands for a rank while a template is made.
const BLANK: u64 = 0x51ab_e0f7 << 32;

/// Names pairs by their order instead of ranks.
struct Blanks(RefCell<Vec<Pair>>);

impl Ranks for Blanks {
    fn rank(&self, pair: Pair) -> u64 {
        let mut pairs = self.0.borrow_mut();
        pairs.push(pair);
        BLANK | (pairs.len() - 1) as u64
    }
}

/// Notes where the numbers of [`Blanks`] are written.
struct Outline {
    encoder: Encoder,
    /// Offsets of blanks, and their numbers.
    found: Vec<(u32, usize)>,
}

impl Hasher for Outline {
    fn finish(&self) -> u64 {
        self.encoder.finish()
    }
    fn write(&mut self, bytes: &[u8]) {
        self.encoder.write(bytes);
    }
    fn write_u8(&mut self, value: u8) {
        self.encoder.write_u8(value);
    }
    fn write_u16(&mut self, value: u16) {
        self.encoder.write_u16(value);
    }
    fn write_u32(&mut self, value: u32) {
        self.encoder.write_u32(value);
    }
    fn write_u64(&mut self, value: u64) {
        if value & 0xffff_ffff_0000_0000 == BLANK {
            self.found.push((self.encoder.len() as u32, (value & 0xffff_ffff) as usize));
        }
        self.encoder.write_u64(value);
    }
    fn write_u128(&mut self, value: u128) {
        self.encoder.write_u128(value);
    }
    fn write_usize(&mut self, value: usize) {
        self.encoder.write_usize(value);
    }
    fn write_isize(&mut self, value: isize) {
        self.encoder.write_isize(value);
    }
}

impl Site {
    /// Returns the digest of its node, with lifecycles by number.
    pub(crate) fn plain_fingerprint(&self) -> u128 {
        *self.encoded.plain.get_or_init(|| {
            let mut encoder = Encoder::default();
            self.node.fingerprint(&Plain, &mut encoder);
            encoder.digest()
        })
    }

    /// Returns the digest of all of it, between two turns. Its number stands for what never changes.
    pub(crate) fn digest(&self, number: usize) -> u128 {
        // Without a rest, so that a new field is not left out. No effect on a legacy node is kept.
        let Self { path: _, process: _, node, old: _, incarnation, demands, encoded, waits } = self;
        *encoded.whole.get_or_init(|| {
            let mut encoder = Encoder::default();
            (number, incarnation.0, demands).hash(&mut encoder);
            node.hash_all(&mut encoder);
            waits.hash(&mut encoder);
            encoder.digest()
        })
    }
}

impl World {
    /// Returns the encoding of a site.
    pub(crate) fn template(&self, at: usize) -> &Template {
        self.sites[at].encoded.template.get_or_init(|| self.encode_site(at))
    }

    fn encode_site(&self, at: usize) -> Template {
        let site: &Site = &self.sites[at];
        let blanks = Blanks(RefCell::new(PAIR_LISTS.with(Spare::take)));
        let found = FOUND_LISTS.with(Spare::take);
        let mut outline = Outline { encoder: Encoder::default(), found };
        site.demands.iter().for_each(|demand| demand.hash(&mut outline));
        site.node.fingerprint(&blanks, &mut outline);
        if self.knows_by_number() {
            // Together with the live lifecycles it determines the next number.
            site.node.counters().ended.hash(&mut outline);
        }
        for endpoint in site.old.iter().flat_map(|old| &old.endpoints) {
            let own = Pair { incarnation: site.incarnation, lifecycle: endpoint.own };
            (endpoint.peer.as_parts(), blanks.rank(own)).hash(&mut outline);
            (endpoint.number, endpoint.state, &endpoint.listed).hash(&mut outline);
        }
        let (pairs, found) = (blanks.0.into_inner(), outline.found);
        let blank = |(offset, number): &(u32, usize)| Some((*offset, *pairs.get(*number)?));
        let mut blanks = Vec::with_capacity(found.len());
        blanks.extend(found.iter().filter_map(blank));
        PAIR_LISTS.with(|spare| spare.keep(pairs));
        FOUND_LISTS.with(|spare| spare.keep(found));
        let (bytes, digest) = (outline.encoder.bytes().into(), outline.encoder.digest());
        Template { known: self.known_to(at), bytes, digest, blanks }
    }

    /// Returns the pairs that the node of a site knows, for the ranks of a world.
    fn known_to(&self, at: usize) -> Vec<(Key, Towards)> {
        let mut known = Vec::with_capacity(PAIRS);
        if self.knows_by_number() {
            return known;
        }
        let site: &Site = &self.sites[at];
        let mut visit = |pair: Pair, towards: Towards| known.extend(key_of(pair, towards));
        let here = self.towards(&site.path);
        for (own, _, peer, _) in site.node.lifecycles().filter(|_| self.sites.len() > 2) {
            visit(self.pair(at, own), self.towards(peer));
        }
        site.node.visit_pairs(&mut |pair| match pair.incarnation == site.incarnation {
            true => visit(pair, self.towards_unknown()),
            false => visit(pair, here),
        });
        known.sort_unstable();
        known.dedup_by_key(|(key, _)| *key);
        known
    }
}
