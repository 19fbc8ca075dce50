//! Effects of inputs on sites, kept for the worlds that share them.
//!
//! A site, an input and the time determine the site after the input, and its outputs. Worlds of one exploration
//! consist of few sites in many combinations, so that most effects are known.

use crate::fingerprint::Encoder;
use crate::letter::Letter;
use crate::oracle::Violation;
use crate::outputs::Made;
use crate::setup::Setup;
use crate::waits::Cause;
use crate::world::{Demand, Site, World};
use handfast_core::node::{CallToken, Counters, Limits, TimerId};
use handfast_core::{Input, Instant};
use hashbrown::HashMap;
use std::cell::RefCell;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::Arc;

/// Maximum effects that are kept. At the limit all are forgotten, which changes the time and no result.
const EFFECTS_MAX: usize = 1 << 16;

/// Effects of inputs on the sites of one setup.
pub struct Effects {
    table: Table<Arc<Effect>>,
    /// Every site, by the digest of all of it.
    sites: Table<Arc<Site>>,
    setup: Option<Arc<Setup>>,
    max: usize,
    figures: Figures,
}

/// Numbers of effects.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// Effects that were found out.
    pub found: u64,
    /// Effects that were known.
    pub known: u64,
    /// Times that all effects were forgotten: at the limit, and before those of another setup.
    pub forgotten: u64,
}

impl Default for Effects {
    fn default() -> Self {
        Self::holding(EFFECTS_MAX)
    }
}

type Table<T> = HashMap<u128, T, BuildHasherDefault<LowHalf>>;

/// The effect of an input on a site.
pub(crate) struct Effect {
    pub(crate) after: Arc<Site>,
    pub(crate) outputs: Box<[Made]>,
    pub(crate) violation: Option<Violation>,
    /// Rows of `TRANSITIONS`, and whether a message was refused on its arrival or ignored.
    pub(crate) transitions: u128,
    pub(crate) turns_away: bool,
}

/// A key is a digest already: its low half is its hash.
#[derive(Default)]
struct LowHalf(u64);

impl Hasher for LowHalf {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }
    fn write_u128(&mut self, value: u128) {
        self.0 = value as u64;
    }
}

/// An input of a node, or its timer that fires.
#[derive(Clone)]
#[allow(clippy::large_enum_variant, reason = "one lives for a turn")]
pub(crate) enum Told {
    Input(Input),
    Call(CallToken, Arc<Letter>),
    Answer(Arc<Letter>),
    Timer(TimerId),
}

impl From<Input> for Told {
    fn from(input: Input) -> Self {
        Self::Input(input)
    }
}

impl Told {
    /// Passes it to the node of a site.
    pub(crate) fn to(self, at: &mut Site, now: Instant) {
        let input = match self {
            Self::Input(input) => input,
            Self::Call(token, letter) => {
                Input::CallReceived { token, message: Letter::into_message(letter) }
            }
            Self::Answer(letter) => Input::CallAnswered(Letter::into_message(letter)),
            Self::Timer(timer) => {
                at.waits.begin(now, None, Cause::Timer(timer.clone()), &at.node);
                at.node.handle_timer(now, &timer);
                return;
            }
        };
        at.waits.begin(now, Some(&input), Cause::of(&input), &at.node);
        at.node.handle_input(now, input);
    }

    fn hash(&self, encoder: &mut Encoder) {
        match self {
            Self::Input(Input::Open(path)) => (1u8, path).hash(encoder),
            Self::Input(Input::Close(path)) => (2u8, path).hash(encoder),
            Self::Input(Input::Release(path)) => (3u8, path).hash(encoder),
            Self::Input(Input::CallReceived { token, message }) => {
                (4u8, token, message).hash(encoder);
            }
            Self::Input(Input::CallAnswered(message)) => (5u8, message).hash(encoder),
            Self::Input(Input::PlainCallReceived { token, message }) => {
                (6u8, token, message).hash(encoder);
            }
            Self::Input(Input::PlainCallAnswered { lifecycle, message }) => {
                (7u8, lifecycle, message).hash(encoder);
            }
            Self::Input(Input::CallFailed { lifecycle, failure }) => {
                (8u8, lifecycle, failure).hash(encoder);
            }
            Self::Input(Input::OperationDone { id, outcome }) => (9u8, id, outcome).hash(encoder),
            Self::Input(Input::LaneFailed { lifecycle, error }) => {
                (10u8, lifecycle, error).hash(encoder);
            }
            Self::Call(token, letter) => (11u8, token, letter.digest()).hash(encoder),
            Self::Answer(letter) => (12u8, letter.digest()).hash(encoder),
            Self::Timer(timer) => (13u8, timer).hash(encoder),
        }
    }
}

thread_local! {
    static KEPT: RefCell<Option<Effects>> = const { RefCell::new(None) };
}

impl Effects {
    /// Effects of which so many are kept at a time.
    pub fn holding(max: usize) -> Self {
        Self {
            table: Table::default(),
            sites: Table::default(),
            setup: None,
            max,
            figures: Figures::default(),
        }
    }

    /// Returns how often effects were known.
    pub fn figures(&self) -> Figures {
        self.figures
    }

    /// Returns the number of effects that are kept.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether no effect is kept.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Keeps the effects in all worlds of this thread while `work` runs.
    pub fn during<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let outer = KEPT.replace(Some(std::mem::take(self)));
        // A panic in `work` leaves nothing with the thread either.
        let _lent = Lent { owner: self, outer };
        work()
    }

    /// Whether this thread keeps effects. Those of another setup than the present one are forgotten.
    fn are_kept(setup: &Arc<Setup>) -> bool {
        KEPT.with_borrow_mut(|kept| {
            let Some(kept) = kept else { return false };
            if !kept.setup.as_ref().is_some_and(|known| Arc::ptr_eq(known, setup)) {
                kept.forget();
                kept.setup = Some(setup.clone());
            }
            true
        })
    }

    fn get(key: u128) -> Option<Arc<Effect>> {
        KEPT.with_borrow_mut(|kept| {
            let kept = kept.as_mut()?;
            let known = kept.table.get(&key).cloned();
            kept.figures.known += u64::from(known.is_some());
            known
        })
    }

    /// Keeps an effect, and shares the site after it with those of equal effects.
    fn keep(key: u128, mut effect: Effect, number: usize) -> Arc<Effect> {
        KEPT.with_borrow_mut(|kept| {
            let Some(kept) = kept else { return Arc::new(effect) };
            effect.after = kept.shared(effect.after, number);
            let effect = Arc::new(effect);
            kept.table.insert(key, effect.clone());
            kept.figures.found += 1;
            effect
        })
    }

    /// Returns the site that is equal to this one, if one is kept, and otherwise keeps it.
    fn shared(&mut self, site: Arc<Site>, number: usize) -> Arc<Site> {
        if self.table.len().max(self.sites.len()) >= self.max {
            self.forget();
        }
        self.sites.entry(site.digest(number)).or_insert(site).clone()
    }

    fn forget(&mut self) {
        self.table.clear();
        self.sites.clear();
        self.figures.forgotten += 1;
    }
}

/// Effects that a thread keeps for a while, and those that it kept before.
struct Lent<'a> {
    owner: &'a mut Effects,
    outer: Option<Effects>,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        *self.owner = KEPT.replace(self.outer.take()).unwrap_or_default();
    }
}

/// Messages that a node has refused on their arrival, or ignored.
pub(crate) fn turned_away(counters: &Counters) -> u64 {
    counters.ignored + counters.rejected
}

impl Effect {
    fn of(before: &Site, told: Told, now: Instant, (site, limits): (usize, &Limits)) -> Self {
        let mut after = before.clone();
        // Sites that differ in what they have counted are one: the effect has the counts of the input alone.
        after.node.take_counters();
        told.to(&mut after, now);
        let mut outputs = Vec::new();
        while let Some(output) = after.node.poll_output() {
            after.waits.observe(&output, &after.node, limits);
            outputs.push(Made::of(site, output, &after.node));
        }
        let violation = after.waits.end(&after.node);
        let counted = after.node.take_counters();
        let turns_away = turned_away(&counted) > 0;
        let (outputs, transitions) = (outputs.into(), counted.transitions);
        Self { after: Arc::new(after), outputs, violation, transitions, turns_away }
    }
}

impl World {
    /// Returns the digest of a change of a site, if the effect may be kept: nothing but the site decides it.
    fn key(&self, site: usize, change: impl FnOnce(&mut Encoder)) -> Option<u128> {
        if !self.keeps_effects(site) {
            return None;
        }
        let mut encoder = Encoder::default();
        self.sites[site].digest(site).hash(&mut encoder);
        change(&mut encoder);
        Some(encoder.digest())
    }

    fn keeps_effects(&self, site: usize) -> bool {
        let at = &self.sites[site];
        // Otherwise an encoding depends on what a node has counted.
        let is_alone = !self.knows_by_number();
        let is_whole = at.old.is_none() && at.waits.is_idle();
        is_alone && is_whole && Effects::are_kept(&self.setup)
    }

    /// Returns the effect of an input on a site, if effects are kept.
    pub(crate) fn effect(&self, site: usize, told: &Told, now: Instant) -> Option<Arc<Effect>> {
        let key = self.key(site, |encoder| {
            now.0.hash(encoder);
            told.hash(encoder);
        })?;
        if let Some(known) = Effects::get(key) {
            return Some(known);
        }
        let whole = (site, &self.setup.limits);
        let effect = Effect::of(&self.sites[site], told.clone(), now, whole);
        Some(Effects::keep(key, effect, site))
    }

    /// Sets the demand of a site's application.
    pub(crate) fn set_demand(&mut self, site: usize, peer: usize, demand: Demand) {
        self.touch(site);
        if self.sites[site].demands[peer] == demand {
            return;
        }
        let Some(key) = self.key(site, |encoder| (14u8, peer, demand).hash(encoder)) else {
            self.site_mut(site).demands[peer] = demand;
            return;
        };
        let effect = Effects::get(key).unwrap_or_else(|| {
            let mut after = Site::clone(&self.sites[site]);
            after.demands[peer] = demand;
            let after = Arc::new(after);
            let outputs = Box::default();
            let effect =
                Effect { after, outputs, violation: None, transitions: 0, turns_away: false };
            Effects::keep(key, effect, site)
        });
        self.sites[site] = effect.after.clone();
    }

    /// Returns the site that is equal to one, if effects are kept.
    pub(crate) fn shared(&self, number: usize, site: Arc<Site>) -> Arc<Site> {
        if !self.keeps_effects(number) {
            return site;
        }
        KEPT.with_borrow_mut(|kept| match kept {
            Some(kept) => kept.shared(site, number),
            None => site,
        })
    }
}
