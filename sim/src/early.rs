//! Exploration of writes that complete before the peer has accepted them, as on iWARP: the shipping
//! [`Unseen`] and [`Refusals`], over queue pairs that break without a cause.
//!
//! The peer performs requests in order. One that it does not allow breaks the connection, no completion says
//! which, and the sender learns of it later.

use crate::machine_world::{MachineWorld, Violation};
use handfast_core::visibility::{Refusals, Unseen};
use handfast_transport_sim::Encoder;
use std::collections::VecDeque;
use std::hash::Hash;

/// Retries of a write that is charged.
const RETRIES_MAX: u8 = 1;
/// Answers after which a lane takes several writes at a time again.
const ANSWERS: u32 = 2;
const PEER: &str = "peer";

/// A rule that says when writes end, and which are charged.
pub trait EarlyRule: Clone + Hash {
    /// A write has completed. Returns whether it ends by it.
    fn on_written(&mut self, write: usize) -> bool;

    /// The writes of the next read to post.
    fn poll_read(&mut self) -> Option<Vec<usize>>;

    /// Whether the queue pair of a new lane takes one write at a time.
    fn are_apart(&self) -> bool;

    /// Whether the slices of a lost request are charged; see [`Refusals::on_first_lost`].
    fn on_lost(&mut self, is_first: bool, is_apart: bool, is_ended_here: bool) -> bool;

    /// The peer has answered the read behind a write that was alone.
    fn on_answered(&mut self);
}

/// The shipping rule.
#[derive(Clone, Debug, Hash)]
pub struct EarlyWrites {
    unseen: Unseen<usize>,
    refusals: Refusals,
}

impl EarlyRule for EarlyWrites {
    fn on_written(&mut self, write: usize) -> bool {
        self.unseen.on_written(0, 0, write);
        false
    }

    fn poll_read(&mut self) -> Option<Vec<usize>> {
        Some(self.unseen.poll_read()?.writes)
    }

    fn are_apart(&self) -> bool {
        self.refusals.are_apart(PEER)
    }

    fn on_lost(&mut self, is_first: bool, is_apart: bool, is_ended_here: bool) -> bool {
        is_first && self.refusals.on_first_lost(PEER, is_apart, is_ended_here)
    }

    fn on_answered(&mut self) {
        self.refusals.on_answered(PEER);
    }
}

impl Default for EarlyWrites {
    fn default() -> Self {
        Self { unseen: Unseen::default(), refusals: Refusals::until(ANSWERS) }
    }
}

/// The oracles, numbered as in `docs/testing.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EarlyOracle {
    /// O3: a write that has succeeded is in the peer's memory.
    Landed,
    /// O3: a write that the peer refuses is charged on every second lane at least, so that its retries are
    /// bounded.
    Charged,
    /// O8: no other write is charged for a refusal, one for a failed link, and none for an end of this node's.
    Innocent,
    /// O5: every write ends.
    Liveness,
}

/// Something that may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EarlyEvent {
    /// The next write is posted.
    Post,
    /// The device begins to send the next request. A read is sent at once.
    Send,
    /// The device has sent a write.
    Finish,
    /// The peer performs the next request.
    Perform,
    /// The link fails.
    Cut,
    /// This node ends the lane.
    End,
    /// The device learns that the connection is broken, and flushes what is left.
    Break,
    /// The poller handles all completions.
    Wake,
    /// The lane ends, and another one has its place.
    Renew,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Waiting,
    Posted,
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Write {
    is_allowed: bool,
    stage: Stage,
    charges: u8,
    /// Lanes in sequence that it has broken uncharged.
    uncharged: u8,
    /// Of the present attempt.
    has_landed: bool,
    is_charged: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Request {
    Write(usize),
    Read(Vec<usize>),
}

/// The queue pair of a lane.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct QueuePair {
    posted: VecDeque<Request>,
    /// The write in front is being sent.
    is_sending: bool,
    /// Requests from the first read without an answer on: completions come in order.
    sent: VecDeque<Request>,
    wire: VecDeque<Request>,
    /// Completions, and whether each is a success.
    completed: VecDeque<(Request, bool)>,
    culprit: Option<usize>,
    /// The connection has ended, and the device may not know.
    is_cut: bool,
    is_broken: bool,
    /// The poller has seen a flush.
    has_failed: bool,
    /// It takes one write at a time.
    is_apart: bool,
    is_ended_here: bool,
}

/// A node that writes to another one, over one lane at a time.
#[derive(Clone, Debug)]
pub struct EarlyWorld<R> {
    rule: R,
    writes: Vec<Write>,
    pair: QueuePair,
    cuts: u8,
    ends: u8,
    violation: Option<Violation<EarlyOracle>>,
}

impl<R: EarlyRule> EarlyWorld<R> {
    /// Writes in the order of posting, by whether the peer allows them, over a link that fails as often as
    /// `cuts`; this node ends as many lanes as `ends`.
    pub fn new(rule: R, writes: &[bool], (cuts, ends): (u8, u8)) -> Self {
        let write = |&is_allowed: &bool| Write {
            is_allowed,
            stage: Stage::Waiting,
            charges: 0,
            uncharged: 0,
            has_landed: false,
            is_charged: false,
        };
        let writes = writes.iter().map(write).collect();
        Self { rule, writes, pair: QueuePair::default(), cuts, ends, violation: None }
    }

    fn next(&self) -> Option<usize> {
        let is_busy = self.writes.iter().any(|write| write.stage == Stage::Posted);
        let is_alone = self.pair.is_apart && self.rule.are_apart();
        let is_open = !(self.pair.has_failed || is_alone && is_busy);
        let waits = |write: &Write| write.stage == Stage::Waiting && !write.is_charged;
        self.writes.iter().position(waits).filter(|_| is_open)
    }

    fn violate(&mut self, oracle: EarlyOracle, detail: String) {
        self.violation.get_or_insert(Violation { oracle, detail });
    }

    fn post(&mut self) {
        let Some(number) = self.next() else { return };
        self.pair.is_apart &= self.rule.are_apart();
        self.writes[number].stage = Stage::Posted;
        let write = Request::Write(number);
        match self.pair.is_broken {
            true => self.pair.completed.push_back((write, false)),
            false => self.pair.posted.push_back(write),
        }
    }

    fn send(&mut self) {
        let Some(request) = self.pair.posted.front().cloned() else { return };
        if !self.pair.is_cut {
            self.pair.wire.push_back(request.clone());
        }
        match request {
            Request::Write(_) => self.pair.is_sending = true,
            Request::Read(_) => self.finish(),
        }
    }

    fn finish(&mut self) {
        self.pair.is_sending = false;
        self.pair.sent.extend(self.pair.posted.pop_front());
        self.complete(None);
    }

    /// Completes what was sent, up to a read without an answer.
    fn complete(&mut self, answered: Option<Request>) {
        let pair = &mut self.pair;
        let is_done =
            |sent: &Request| matches!(sent, Request::Write(_)) || Some(sent) == answered.as_ref();
        let done = pair.sent.iter().take_while(|sent| is_done(sent)).count();
        pair.completed.extend(pair.sent.drain(..done).map(|request| (request, true)));
    }

    fn perform(&mut self) {
        match self.pair.wire.pop_front() {
            Some(Request::Write(number)) if self.writes[number].is_allowed => {
                self.writes[number].has_landed = true;
            }
            Some(Request::Write(number)) => {
                self.pair.culprit = Some(number);
                self.cut();
            }
            Some(read @ Request::Read(_)) => self.complete(Some(read)),
            None => {}
        }
    }

    fn cut(&mut self) {
        self.pair.is_cut = true;
        self.pair.wire.clear();
    }

    fn break_pair(&mut self) {
        let pair = &mut self.pair;
        (pair.is_broken, pair.is_sending) = (true, false);
        let left = pair.sent.drain(..).chain(pair.posted.drain(..));
        pair.completed.extend(left.map(|request| (request, false)));
    }

    fn wake(&mut self) {
        for (request, is_success) in std::mem::take(&mut self.pair.completed) {
            if !is_success {
                let is_first = !std::mem::replace(&mut self.pair.has_failed, true);
                self.lose(request, is_first, self.pair.is_apart);
                continue;
            }
            match request {
                Request::Write(number) if self.rule.on_written(number) => self.succeed(number),
                Request::Write(_) => {}
                Request::Read(writes) => {
                    if self.pair.is_apart {
                        self.rule.on_answered();
                    }
                    writes.into_iter().for_each(|it| self.succeed(it));
                }
            }
        }
        while let Some(writes) = self.rule.poll_read() {
            // A queue pair in ERR accepts nothing here, and a failed lane posts nothing.
            if self.pair.is_broken || self.pair.has_failed {
                self.pair.has_failed = true;
                self.lose(Request::Read(writes), true, self.pair.is_apart);
            } else {
                self.pair.posted.push_back(Request::Read(writes));
            }
        }
    }

    fn succeed(&mut self, number: usize) {
        let write = &mut self.writes[number];
        write.stage = Stage::Ended;
        if !write.has_landed {
            let detail = format!("write {number} succeeds: {write:?}");
            self.violate(EarlyOracle::Landed, detail);
        }
    }

    /// Ends the attempt of a lost request's writes.
    fn lose(&mut self, request: Request, is_first: bool, is_apart: bool) {
        let writes = match request {
            Request::Write(number) => vec![number],
            Request::Read(writes) => writes,
        };
        let is_charged = self.rule.on_lost(is_first, is_apart, self.pair.is_ended_here);
        for number in writes {
            let write = &mut self.writes[number];
            write.is_charged = is_charged;
            write.charges += u8::from(is_charged);
            let is_over = write.charges > RETRIES_MAX;
            write.stage = if is_over { Stage::Ended } else { Stage::Waiting };
        }
    }

    /// Ends the lane, all of whose work has ended, and lets its writes be tried again.
    fn renew(&mut self) {
        let pair = std::mem::take(&mut self.pair);
        self.pair.is_apart = self.rule.are_apart();
        let culprit = pair.culprit.filter(|_| !pair.is_ended_here);
        if let Some(number) = culprit {
            let write = &mut self.writes[number];
            write.uncharged = if write.is_charged { 0 } else { write.uncharged + 1 };
            let (is_forgotten, detail) =
                (write.uncharged > 1, format!("write {number}: {write:?}"));
            if is_forgotten {
                self.violate(EarlyOracle::Charged, detail);
            }
        }
        let charged: Vec<_> =
            (0..self.writes.len()).filter(|it| self.writes[*it].is_charged).collect();
        let allowed = usize::from(!pair.is_ended_here);
        let is_wrong = culprit.is_some_and(|culprit| charged.iter().any(|it| *it != culprit));
        if is_wrong || charged.len() > allowed {
            let detail = format!("charged: {charged:?}, refused: {culprit:?}");
            self.violate(EarlyOracle::Innocent, detail);
        }
        for write in &mut self.writes {
            (write.has_landed, write.is_charged) = (false, false);
        }
    }
}

impl<R: EarlyRule> MachineWorld for EarlyWorld<R> {
    type Event = EarlyEvent;
    type Oracle = EarlyOracle;

    const NO_END: EarlyOracle = EarlyOracle::Liveness;

    fn events(&self) -> Vec<(EarlyEvent, u32)> {
        let pair = &self.pair;
        let is_drained = pair.has_failed && pair.is_broken && pair.completed.is_empty();
        let events = [
            (EarlyEvent::Post, self.next().is_some()),
            (EarlyEvent::Send, !pair.posted.is_empty() && !pair.is_sending),
            (EarlyEvent::Finish, pair.is_sending),
            (EarlyEvent::Perform, !pair.wire.is_empty()),
            (EarlyEvent::Cut, self.cuts > 0 && !pair.is_cut),
            (EarlyEvent::End, self.ends > 0 && !pair.is_broken),
            (EarlyEvent::Break, pair.is_cut && !pair.is_broken),
            (EarlyEvent::Wake, !pair.completed.is_empty()),
            (EarlyEvent::Renew, is_drained || self.is_idle_and_broken()),
        ];
        let possible = events.into_iter().filter(|(_, is_possible)| *is_possible);
        possible.map(|(event, _)| (event, 0)).collect()
    }

    fn happen(&mut self, (event, _): (EarlyEvent, u32)) {
        match event {
            EarlyEvent::Post => self.post(),
            EarlyEvent::Send => self.send(),
            EarlyEvent::Finish => self.finish(),
            EarlyEvent::Perform => self.perform(),
            EarlyEvent::Cut => {
                self.cuts -= 1;
                self.cut();
            }
            EarlyEvent::End => {
                self.ends -= 1;
                self.pair.is_ended_here = true;
                self.cut();
                self.break_pair();
            }
            EarlyEvent::Break => self.break_pair(),
            EarlyEvent::Wake => self.wake(),
            EarlyEvent::Renew => self.renew(),
        }
    }

    fn violation(&self) -> Option<&Violation<EarlyOracle>> {
        self.violation.as_ref()
    }

    fn unsettled(&self) -> Option<Violation<EarlyOracle>> {
        let number = self.writes.iter().position(|write| write.stage != Stage::Ended)?;
        let detail = format!("write {number} never ends: {:?}", self.writes[number]);
        Some(Violation { oracle: EarlyOracle::Liveness, detail })
    }

    fn fingerprint(&self) -> u128 {
        let mut encoder = Encoder::default();
        (&self.rule, &self.writes, &self.pair, self.cuts, self.ends).hash(&mut encoder);
        encoder.digest()
    }

    fn describe(&self, event: EarlyEvent) -> String {
        match event {
            EarlyEvent::Post => format!("write {:?} is posted", self.next()),
            EarlyEvent::Send => match self.pair.posted.front() {
                Some(Request::Write(number)) => format!("the device begins to send write {number}"),
                _ => "a read is sent".to_owned(),
            },
            EarlyEvent::Finish => "the write is sent and completes".to_owned(),
            EarlyEvent::Perform => match self.pair.wire.front() {
                Some(Request::Write(number)) if self.writes[*number].is_allowed => {
                    format!("the peer performs write {number}")
                }
                Some(Request::Write(number)) => format!("the peer refuses write {number}"),
                _ => "the peer answers a read".to_owned(),
            },
            EarlyEvent::Cut => "the link fails".to_owned(),
            EarlyEvent::End => "this node ends the lane".to_owned(),
            EarlyEvent::Break => "the queue pair breaks".to_owned(),
            EarlyEvent::Wake => "the poller handles the completions".to_owned(),
            EarlyEvent::Renew => "another lane has its place".to_owned(),
        }
    }
}

impl<R: EarlyRule> EarlyWorld<R> {
    /// A broken queue pair without work, of which the lane learns by an event.
    fn is_idle_and_broken(&self) -> bool {
        let pair = &self.pair;
        let is_at_work = self.writes.iter().any(|write| write.stage == Stage::Posted);
        pair.is_broken && pair.completed.is_empty() && !is_at_work
    }
}
