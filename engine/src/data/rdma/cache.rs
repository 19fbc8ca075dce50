//! Registrations for local use that stay with their block, under a budget: the decisions alone.

#[cfg(test)]
mod tests;

use handfast_transport::BlockId;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// A registration as the cache sees it.
pub(super) trait Registered {
    /// Whether anybody but the cache holds it.
    fn is_used(&self) -> bool;
}

/// Limits of a cache.
#[derive(Clone, Copy, Debug)]
pub(super) struct CacheLimits {
    /// Maximum bytes of all registrations; with 0 none is kept.
    pub(super) bytes_max: u64,
    /// Maximum registrations.
    pub(super) entries_max: usize,
    /// A block is registered as a whole up to this length, and in multiples of it beyond.
    pub(super) whole_max: u64,
}

/// A block of memory, as the cache knows it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) id: BlockId,
    pub(super) bytes: u64,
}

/// The registrations of blocks. One in use is never evicted; one that is not may be.
pub(super) struct Cache<R> {
    limits: CacheLimits,
    blocks: BTreeMap<BlockId, Vec<Entry<R>>>,
    /// Blocks of which bytes are being registered.
    registering: BTreeSet<BlockId>,
    /// Blocks that no device took as a whole, since the last end of a registration.
    refused: BTreeSet<BlockId>,
    /// Bytes of all entries, of what is being registered, and of what was an entry until its
    /// registration has ended.
    bytes: u64,
    /// Number of them.
    entries: usize,
    /// Counts uses, to find the least recent.
    uses: u64,
    evictions: u64,
}

struct Entry<R> {
    /// The registered bytes of the block.
    range: Range<u64>,
    registered: R,
    /// The use that was its last.
    used: u64,
}

/// The registration to make, or the one that there is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decision<R> {
    /// A registration has the bytes: [`Cache::find`] returns it.
    Found,
    /// Bytes of the block are being registered: decide again after [`Cache::finish`].
    Wait,
    /// Register these bytes of the block once the evicted have ended, and tell [`Cache::finish`].
    Keep { range: Range<u64>, evicted: Vec<R> },
    /// Register the bytes for their user alone: the budget has no room.
    Pass,
}

/// Bytes of a block to be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cover {
    /// The whole block, or whole multiples of [`CacheLimits::whole_max`], if that evicts nothing.
    Whole,
    /// The bytes alone.
    Exact,
}

impl<R: Registered> Cache<R> {
    pub(super) fn new(limits: CacheLimits) -> Self {
        Self {
            limits,
            blocks: BTreeMap::new(),
            registering: BTreeSet::new(),
            refused: BTreeSet::new(),
            bytes: 0,
            entries: 0,
            uses: 0,
            evictions: 0,
        }
    }

    /// Bytes of all registrations, those being made or ended included.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of evictions so far.
    pub(super) fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Returns a registration that has the bytes, and counts a use of it.
    pub(super) fn find(&mut self, block: BlockId, asked: &Range<u64>) -> Option<&R> {
        let entry = self.blocks.get_mut(&block)?.iter_mut().find(|entry| entry.covers(asked))?;
        self.uses += 1;
        entry.used = self.uses;
        Some(&entry.registered)
    }

    /// Decides what to register for bytes of a block.
    pub(super) fn decide(&mut self, block: Block, asked: &Range<u64>, cover: Cover) -> Decision<R> {
        let Block { id, bytes } = block;
        let entries = self.blocks.get(&id).into_iter().flatten();
        if entries.into_iter().any(|entry| entry.covers(asked)) {
            return Decision::Found;
        }
        if self.registering.contains(&id) {
            return Decision::Wait;
        }
        let whole = self.rounded(asked, bytes);
        let as_whole = cover == Cover::Whole && !self.refused.contains(&id);
        let (range, evicted) = if as_whole && self.has_room(length(&whole)) {
            (whole, Vec::new())
        } else {
            let Some(evicted) = self.make_room(length(asked)) else { return Decision::Pass };
            (asked.clone(), evicted)
        };
        self.registering.insert(id);
        self.bytes += length(&range);
        self.entries += 1;
        Decision::Keep { range, evicted }
    }

    /// Ends the registration of a [`Decision::Keep`], with its result if it has one.
    pub(super) fn finish(&mut self, block: BlockId, range: Range<u64>, result: Option<R>) {
        self.registering.remove(&block);
        let Some(registered) = result else {
            self.bytes -= length(&range);
            self.entries -= 1;
            return;
        };
        self.uses += 1;
        let entry = Entry { range, registered, used: self.uses };
        self.blocks.entry(block).or_default().push(entry);
    }

    /// Registers a block by the bytes that are asked for, since a device refused more. Until the
    /// end of a registration, which may make room.
    pub(super) fn on_whole_refused(&mut self, block: BlockId) {
        if self.refused.len() >= self.limits.entries_max {
            self.refused.pop_first();
        }
        self.refused.insert(block);
    }

    /// Gives back the bytes of an entry that was evicted or forgotten, once no device has them.
    pub(super) fn on_ended(&mut self, bytes: u64) {
        self.bytes -= bytes;
        self.entries -= 1;
        self.refused.clear();
    }

    /// Forgets a block that was freed. Each entry counts until [`Cache::on_ended`].
    pub(super) fn forget(&mut self, block: BlockId) -> Vec<R> {
        self.refused.remove(&block);
        let entries = self.blocks.remove(&block).unwrap_or_default();
        entries.into_iter().map(|entry| entry.registered).collect()
    }

    /// Evicts all that are not in use, for a device that has no room. Each counts until
    /// [`Cache::on_ended`].
    pub(super) fn evict_unused(&mut self) -> Vec<R> {
        self.evict(|_| true)
    }

    /// Returns the bytes from the start of the first multiple to the end of the last.
    fn rounded(&self, asked: &Range<u64>, bytes: u64) -> Range<u64> {
        let whole = self.limits.whole_max.max(1);
        let end = asked.end.div_ceil(whole).saturating_mul(whole).min(bytes);
        asked.start / whole * whole..end.max(asked.end)
    }

    fn has_room(&self, bytes: u64) -> bool {
        let limits = &self.limits;
        let fits = self.bytes.checked_add(bytes).is_some_and(|sum| sum <= limits.bytes_max);
        fits && self.entries < limits.entries_max
    }

    /// Evicts the least recently used until there is room for one of `bytes`. `None`, and nothing is
    /// evicted, if all that are not in use do not make it.
    fn make_room(&mut self, bytes: u64) -> Option<Vec<R>> {
        if self.has_room(bytes) {
            return Some(Vec::new());
        }
        let mut unused: Vec<(u64, u64)> = self
            .blocks
            .values()
            .flatten()
            .filter(|entry| !entry.registered.is_used())
            .map(|entry| (entry.used, length(&entry.range)))
            .collect();
        unused.sort_unstable();
        let (mut sum, mut entries) = (self.bytes, self.entries);
        let mut evicts = unused.into_iter().map(|(used, length)| {
            sum -= length;
            entries -= 1;
            let fits = sum.checked_add(bytes).is_some_and(|sum| sum <= self.limits.bytes_max);
            (used, fits && entries < self.limits.entries_max)
        });
        let (last, _) = evicts.find(|(_, fits)| *fits)?;
        Some(self.evict(|entry| entry.used <= last))
    }

    fn evict(&mut self, is_chosen: impl Fn(&Entry<R>) -> bool) -> Vec<R> {
        let mut evicted = Vec::new();
        self.blocks.retain(|_, entries| {
            evicted.extend(entries.extract_if(.., |it| !it.registered.is_used() && is_chosen(it)));
            !entries.is_empty()
        });
        self.evictions += evicted.len() as u64;
        evicted.into_iter().map(|entry| entry.registered).collect()
    }
}

impl<R> Entry<R> {
    fn covers(&self, asked: &Range<u64>) -> bool {
        self.range.start <= asked.start && asked.end <= self.range.end
    }
}

fn length(range: &Range<u64>) -> u64 {
    range.end - range.start
}
