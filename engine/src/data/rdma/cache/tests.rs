//! Hit, cover and eviction.

use super::*;
use handfast_transport::Memory;
use proptest::prelude::*;
use std::rc::Rc;

const LIMITS: CacheLimits = CacheLimits { bytes_max: 100, entries_max: 8, whole_max: 40 };

/// Used while somebody has a clone.
type Fake = Rc<&'static str>;

impl<T> Registered for Rc<T> {
    fn is_used(&self) -> bool {
        Rc::strong_count(self) > 1
    }
}

/// The second transfer from a block asks for no registration, whichever of its bytes it moves.
#[test]
fn small_block_is_registered_once_as_a_whole() {
    let (mut cache, block) = (Cache::new(LIMITS), block(40));
    assert_eq!(cache.decide(block, &(5..10), Cover::Whole), keep(0..40));
    cache.finish(block.id, 0..40, Some(Rc::new("all")));
    for asked in [5..10, 0..40, 39..40] {
        assert_eq!(cache.decide(block, &asked, Cover::Whole), Decision::Found);
        assert_eq!(cache.find(block.id, &asked).map(|found| **found), Some("all"));
    }
    assert_eq!((cache.bytes(), cache.evictions()), (40, 0));
    let other = self::block(40);
    assert!(cache.find(other.id, &(5..10)).is_none(), "another block's");
}

/// A huge block would take seconds to pin: it is registered by multiples of the size.
#[test]
fn large_block_is_registered_by_multiples() {
    let mut cache = Cache::<Fake>::new(LIMITS);
    for (asked, whole) in [(5..10, 0..40), (39..41, 0..80), (80..81, 80..90), (89..90, 80..90)] {
        let block = block(90);
        assert_eq!(cache.decide(block, &asked, Cover::Whole), keep(whole.clone()));
        cache.finish(block.id, whole, None);
    }
    let block = block(90);
    assert_eq!(cache.decide(block, &(5..10), Cover::Exact), keep(5..10));
    cache.finish(block.id, 5..10, None);
    assert_eq!(cache.bytes(), 0, "nothing came of any");
}

/// Two first transfers from one block register it once: the second waits for the first.
#[test]
fn second_user_waits_for_the_registration_of_the_first() {
    let (mut cache, block) = (Cache::new(LIMITS), block(40));
    assert_eq!(cache.decide(block, &(0..1), Cover::Whole), keep(0..40));
    assert_eq!(cache.decide(block, &(1..2), Cover::Whole), Decision::Wait);
    assert_eq!(cache.decide(self::block(4), &(1..2), Cover::Whole), keep(0..4));
    cache.finish(block.id, 0..40, Some(Rc::new("all")));
    assert_eq!(cache.decide(block, &(1..2), Cover::Whole), Decision::Found);
}

/// Past the budget the least recently used goes first, and one in use stays.
#[test]
fn least_recently_used_goes_first_and_used_ones_stay() {
    let mut cache = Cache::new(LIMITS);
    let blocks = [(); 3].map(|()| block(30));
    let kept = ["first", "second", "third"].map(Rc::new);
    for (block, kept) in blocks.iter().zip(&kept) {
        let _ = cache.decide(*block, &(0..30), Cover::Whole);
        cache.finish(block.id, 0..30, Some(kept.clone()));
    }
    let fourth = block(30);
    assert_eq!(cache.decide(fourth, &(0..30), Cover::Whole), Decision::Pass, "all are in use");
    drop(kept);
    let held = cache.find(blocks[0].id, &(0..1)).cloned();
    let Decision::Keep { range, evicted } = cache.decide(fourth, &(0..11), Cover::Whole) else {
        panic!("there is room")
    };
    assert_eq!((range, evicted), (0..11, vec![Rc::new("second")]), "the bytes alone, past it");
    assert_eq!(cache.bytes(), 101, "the evicted counts until it has ended");
    cache.on_ended(30);
    cache.finish(fourth.id, 0..11, Some(Rc::new("fourth")));
    assert_eq!((cache.bytes(), cache.evictions()), (71, 1));
    let evicted = cache.evict_unused();
    assert_eq!(evicted.len(), 2, "not the one that is held: {evicted:?}");
    assert!(cache.find(blocks[0].id, &(0..1)).is_some());
    drop(held);
}

/// The budget holds at its last byte and its last entry, and 0 keeps nothing.
#[test]
fn limits_hold_to_the_last_byte_and_entry() {
    let with = |bytes_max, entries_max| {
        Cache::<Fake>::new(CacheLimits { bytes_max, entries_max, whole_max: 100 })
    };
    let fits = |cache: &mut Cache<Fake>, bytes| {
        let block = block(bytes);
        let decided = cache.decide(block, &(0..bytes), Cover::Whole);
        decided != Decision::Pass
    };
    assert!(fits(&mut with(100, 8), 100));
    assert!(!fits(&mut with(100, 8), 101));
    assert!(!fits(&mut with(0, 8), 1));
    let mut two = with(100, 2);
    assert!(fits(&mut two, 1) && fits(&mut two, 1) && !fits(&mut two, 1));
}

/// A freed block gives back its bytes, also while they are in use.
#[test]
fn freed_block_gives_back_its_bytes() {
    let (mut cache, block) = (Cache::new(LIMITS), block(40));
    let all = Rc::new("all");
    let _ = cache.decide(block, &(0..1), Cover::Whole);
    cache.finish(block.id, 0..40, Some(all.clone()));
    assert_eq!(cache.forget(block.id), vec![all]);
    let next = self::block(61);
    assert_eq!(cache.decide(next, &(0..61), Cover::Exact), Decision::Pass, "40 are not ended yet");
    cache.on_ended(40);
    assert_eq!((cache.bytes(), cache.evictions()), (0, 0));
    assert_eq!(cache.decide(next, &(0..61), Cover::Exact), keep(0..61));
    assert!(cache.forget(block.id).is_empty());
}

proptest! {
    /// Whatever is asked, the budget holds, what is in use stays, and what was made is found.
    #[test]
    fn budget_holds_whatever_is_asked(
        asks in prop::collection::vec((0_usize..4, 0_u64..60, 1_u64..60, any::<bool>()), 1..60)
    ) {
        let mut cache = Cache::new(LIMITS);
        let blocks = [20, 40, 60, 120].map(block);
        let mut held: Vec<(BlockId, Range<u64>, Rc<u64>)> = Vec::new();
        for (place, start, length, holds) in asks {
            let block = blocks[place];
            let start = start.min(block.bytes - 1);
            let asked = start..(start + length).min(block.bytes);
            if let Decision::Keep { range, evicted } = cache.decide(block, &asked, Cover::Whole) {
                prop_assert!(range.start <= asked.start && asked.end <= range.end);
                prop_assert!(range.end <= block.bytes);
                prop_assert!(evicted.iter().all(|gone: &Rc<u64>| !gone.is_used()));
                evicted.iter().for_each(|gone| cache.on_ended(**gone));
                let bytes = super::length(&range);
                cache.finish(block.id, range, Some(Rc::new(bytes)));
                prop_assert!(cache.find(block.id, &asked).is_some());
            }
            prop_assert!(cache.bytes() <= LIMITS.bytes_max);
            match cache.find(block.id, &asked).filter(|_| holds) {
                Some(found) => held.push((block.id, asked, Rc::clone(found))),
                None => drop(held.pop()),
            }
            for (block, asked, _) in &held {
                prop_assert!(cache.find(*block, asked).is_some());
            }
        }
        drop(held);
        cache.evict_unused().iter().for_each(|gone| cache.on_ended(**gone));
        prop_assert_eq!((cache.bytes(), cache.entries), (0, 0));
    }
}

/// A block that a device refuses as a whole is registered by its parts, until something ends. The
/// refusals remembered are bounded.
#[test]
fn refused_block_is_registered_by_parts() {
    let mut cache = Cache::<Fake>::new(LIMITS);
    let blocks: Vec<Block> = (0..=LIMITS.entries_max).map(|_| block(10)).collect();
    for block in &blocks {
        assert_eq!(cache.decide(*block, &(0..1), Cover::Whole), keep(0..10));
        cache.finish(block.id, 0..10, None);
        cache.on_whole_refused(block.id);
    }
    let mut decided = |block: Block| {
        let decided = cache.decide(block, &(0..1), Cover::Whole);
        let Decision::Keep { range, .. } = decided else { panic!("{decided:?}") };
        cache.finish(block.id, range.clone(), None);
        range
    };
    let as_whole = blocks.iter().filter(|block| decided(**block) == (0..10)).count();
    assert_eq!(as_whole, 1, "one is forgotten past the limit");
    cache.entries += 1;
    cache.on_ended(0);
    assert_eq!(cache.decide(blocks[1], &(0..1), Cover::Whole), keep(0..10), "there may be room");
}

fn block(bytes: u64) -> Block {
    Block { id: Memory::zeroed(1).unwrap().id(), bytes }
}

fn keep(range: Range<u64>) -> Decision<Fake> {
    Decision::Keep { range, evicted: Vec::new() }
}
