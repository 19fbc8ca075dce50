//! Exploration of the shipping [`LookUps`]: batches to a peer that registers its memory again or refuses an
//! access, the look-ups that they share, their late answers, and the late notices of a metadata store.
//!
//! The steps are those of the engine's segments: a descriptor is cached, one look-up is under way at a time,
//! and a batch is submitted again once.

use crate::machine_world::{MachineWorld, Violation};
use handfast_core::policy::{AfterRefusal, Doubt, LookUp, LookUps};
use handfast_transport_sim::Encoder;
use std::collections::BTreeSet;
use std::hash::Hash;

/// A rule that says what an answer proves.
pub trait LookUpRule: Clone + Hash {
    /// Whether an answer settles a doubt about the peer.
    fn settles(&self, found: LookUp, doubt: Doubt) -> bool {
        found.settles(doubt)
    }

    /// The next step of a refused batch.
    fn decide(&self, doubt: Doubt, found: LookUp, is_same: bool) -> AfterRefusal {
        AfterRefusal::decide(doubt, found, is_same)
    }
}

/// The shipping rule.
#[derive(Clone, Copy, Debug, Hash)]
pub struct Shipping;

impl LookUpRule for Shipping {}

/// The oracles of look-ups, numbered as in `docs/testing.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookUpOracle {
    /// O6: a refusal stands if the peer still said the same after it.
    Justified,
    /// O5: a descriptor from before a change of which the store gave notice is not used after the notice.
    Noticed,
    /// O4: a change of the peer costs two look-ups at most.
    Bounded,
    /// O5: every batch ends.
    Liveness,
}

/// Something that may happen. A number is a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookUpEvent {
    /// A batch is submitted.
    Submit(usize),
    /// The peer executes a batch, or refuses its key.
    Execute(usize),
    /// The peer refuses a batch whose key is right.
    Deny(usize),
    /// A batch that waits for a descriptor looks for one, or begins a look-up.
    Resolve(usize),
    /// The peer makes the answer to the look-up.
    Make,
    /// The answer arrives.
    Arrive,
    /// The peer registers its memory again.
    Register,
    /// The notice of a registration arrives.
    Notice,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Batch {
    Ready,
    Posted { key: u32, from: LookUp, is_again: bool },
    Waiting(Option<Refused>),
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Refused {
    key: u32,
    doubt: Doubt,
}

/// The peer's answer to a look-up.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Answer {
    look_up: LookUp,
    key: u32,
    /// Batches that were refused before the peer made it.
    after: BTreeSet<usize>,
}

/// A peer, and the batches to one of its segments.
#[derive(Clone)]
pub struct LookUpWorld<R> {
    rule: R,
    look_ups: LookUps,
    batches: Vec<Batch>,
    /// Batches whose key was refused.
    refused: BTreeSet<usize>,
    /// The peer's present key, and the last of which a notice has come.
    key: u32,
    noticed: u32,
    cached: Answer,
    is_outdated: bool,
    /// The doubt about the peer, while it is not settled.
    doubt: Option<Doubt>,
    flight: Option<(LookUp, Option<Answer>)>,
    /// Registrations and denials so far.
    changes: u64,
    faults_left: u32,
    violation: Option<Violation<LookUpOracle>>,
}

impl<R: LookUpRule> LookUpWorld<R> {
    /// Batches to a peer whose descriptor is known.
    pub fn new(rule: R, batches: usize, faults: u32) -> Self {
        let mut look_ups = LookUps::default();
        let cached = Answer { look_up: look_ups.begin(), key: 0, after: BTreeSet::new() };
        Self {
            rule,
            look_ups,
            batches: vec![Batch::Ready; batches],
            refused: BTreeSet::new(),
            key: 0,
            noticed: 0,
            cached,
            is_outdated: false,
            doubt: None,
            flight: None,
            changes: 0,
            faults_left: faults,
            violation: None,
        }
    }

    fn is_stale(&self) -> bool {
        self.is_outdated || self.doubt.is_some()
    }

    fn violate(&mut self, oracle: LookUpOracle, detail: String) {
        self.violation.get_or_insert(Violation { oracle, detail });
    }

    fn post(&mut self, batch: usize, is_again: bool) {
        if self.cached.key < self.noticed && !self.is_stale() {
            let detail =
                format!("batch {batch} uses {:?}, notice of {}", self.cached, self.noticed);
            self.violate(LookUpOracle::Noticed, detail);
        }
        let Answer { key, look_up: from, .. } = self.cached;
        self.batches[batch] = Batch::Posted { key, from, is_again };
    }

    /// A batch comes back with a refusal.
    fn refuse(&mut self, batch: usize) {
        let Batch::Posted { key, from, is_again } = self.batches[batch] else { return };
        self.refused.insert(batch);
        self.is_outdated |= self.cached.look_up == from;
        let refused = Refused { key, doubt: self.look_ups.doubt() };
        self.batches[batch] = if is_again { Batch::Ended } else { Batch::Waiting(Some(refused)) };
    }

    fn begin(&mut self) {
        self.flight = Some((self.look_ups.begin(), None));
        let (begun, max) = (self.look_ups.begun() - 1, 2 * self.changes);
        if begun > max {
            let detail = format!("{begun} look-ups for {} changes", self.changes);
            self.violate(LookUpOracle::Bounded, detail);
        }
    }

    fn resolve(&mut self, batch: usize) {
        let Batch::Waiting(refused) = self.batches[batch] else { return };
        if self.is_stale() {
            return self.begin();
        }
        let Some(Refused { key, doubt }) = refused else { return self.post(batch, false) };
        let is_same = self.cached.key == key;
        match self.rule.decide(doubt, self.cached.look_up, is_same) {
            AfterRefusal::LookUp => self.is_outdated = true,
            AfterRefusal::Submit => self.post(batch, true),
            AfterRefusal::Fail => {
                if !self.cached.after.contains(&batch) {
                    let detail = format!("batch {batch} fails by {:?}", self.cached);
                    self.violate(LookUpOracle::Justified, detail);
                }
                self.batches[batch] = Batch::Ended;
            }
        }
    }

    fn arrive(&mut self) {
        let Some((look_up, Some(answer))) = self.flight.take() else { return };
        (self.cached, self.is_outdated) = (answer, false);
        if self.doubt.is_some_and(|doubt| self.rule.settles(look_up, doubt)) {
            self.doubt = None;
        }
    }
}

impl<R: LookUpRule> MachineWorld for LookUpWorld<R> {
    type Event = LookUpEvent;
    type Oracle = LookUpOracle;

    const NO_END: LookUpOracle = LookUpOracle::Liveness;

    fn events(&self) -> Vec<(LookUpEvent, u32)> {
        let mut events = Vec::new();
        for (number, batch) in self.batches.iter().enumerate() {
            match batch {
                Batch::Ready => events.push((LookUpEvent::Submit(number), 0)),
                Batch::Posted { .. } => {
                    events.push((LookUpEvent::Execute(number), 0));
                    events.push((LookUpEvent::Deny(number), 1));
                }
                // A caller waits for the look-up that is under way.
                Batch::Waiting(_) if self.is_stale() && self.flight.is_some() => {}
                Batch::Waiting(_) => events.push((LookUpEvent::Resolve(number), 0)),
                Batch::Ended => {}
            }
        }
        match &self.flight {
            Some((_, None)) => events.push((LookUpEvent::Make, 0)),
            Some((_, Some(_))) => events.push((LookUpEvent::Arrive, 0)),
            None => {}
        }
        events.push((LookUpEvent::Register, 1));
        if self.noticed < self.key {
            events.push((LookUpEvent::Notice, 0));
        }
        events.retain(|(_, price)| *price <= self.faults_left);
        events
    }

    fn happen(&mut self, (event, price): (LookUpEvent, u32)) {
        self.faults_left -= price;
        self.changes += u64::from(price);
        match event {
            LookUpEvent::Submit(batch) if self.is_stale() => {
                self.batches[batch] = Batch::Waiting(None);
            }
            LookUpEvent::Submit(batch) => self.post(batch, false),
            LookUpEvent::Execute(batch) => match self.batches[batch] {
                Batch::Posted { key, .. } if key == self.key => self.batches[batch] = Batch::Ended,
                _ => self.refuse(batch),
            },
            LookUpEvent::Deny(batch) => self.refuse(batch),
            LookUpEvent::Resolve(batch) => self.resolve(batch),
            LookUpEvent::Make => {
                if let Some((look_up, answer)) = &mut self.flight {
                    let (look_up, after) = (*look_up, self.refused.clone());
                    *answer = Some(Answer { look_up, key: self.key, after });
                }
            }
            LookUpEvent::Arrive => self.arrive(),
            LookUpEvent::Register => self.key += 1,
            LookUpEvent::Notice => {
                self.noticed += 1;
                if self.cached.key < self.noticed {
                    self.doubt = Some(self.look_ups.doubt());
                }
            }
        }
    }

    fn violation(&self) -> Option<&Violation<LookUpOracle>> {
        self.violation.as_ref()
    }

    fn unsettled(&self) -> Option<Violation<LookUpOracle>> {
        let batch = self.batches.iter().position(|batch| *batch != Batch::Ended)?;
        let detail = format!("batch {batch} never ends: {:?}", self.batches[batch]);
        Some(Violation { oracle: LookUpOracle::Liveness, detail })
    }

    fn fingerprint(&self) -> u128 {
        let mut encoder = Encoder::default();
        let hasher = &mut encoder;
        (&self.rule, &self.look_ups, &self.batches, &self.refused).hash(hasher);
        (self.key, self.noticed, &self.cached, self.is_outdated, self.doubt).hash(hasher);
        (&self.flight, self.changes, self.faults_left).hash(hasher);
        encoder.digest()
    }

    fn describe(&self, event: LookUpEvent) -> String {
        match event {
            LookUpEvent::Submit(batch) => format!("batch {batch} is submitted"),
            LookUpEvent::Execute(batch) => format!("the peer takes batch {batch}"),
            LookUpEvent::Deny(batch) => format!("the peer denies batch {batch}"),
            LookUpEvent::Resolve(batch) => format!("batch {batch} looks for a descriptor"),
            LookUpEvent::Make => format!("the peer answers a look-up with key {}", self.key),
            LookUpEvent::Arrive => "the answer arrives".to_owned(),
            LookUpEvent::Register => format!("the peer registers key {}", self.key + 1),
            LookUpEvent::Notice => format!("notice of key {} arrives", self.noticed + 1),
        }
    }
}
