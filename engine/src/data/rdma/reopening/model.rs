//! Every course of events of one device and, up to a depth, of two: checked against what the
//! documentation says, and with wrong machines that are found.

use super::*;
use std::collections::{BTreeSet, VecDeque};

const MILLIS: u64 = 1_000_000;
/// The pauses in a row, in milliseconds; the last one stays.
const PAUSES: [u64; 10] = [100, 200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 30_000];
/// Time in use that ends the row.
const STEADY: u64 = 10_000 * MILLIS;
const NAMES: [&str; 2] = ["nic0", "nic1"];
/// Events of two devices.
const DEPTH_OF_TWO: usize = 11;
/// More than there are of one device.
const STATES_MAX: usize = 1_000_000;

/// The machine, or a wrong one.
#[derive(Clone, Default)]
struct Machine {
    inner: Reopening,
    wrong: Option<Wrong>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    /// A loss that is reported during an attempt begins a pause, after which another attempt
    /// begins.
    PausesDuringAnAttempt,
    /// A loss is ignored once the device was opened again.
    IgnoresLaterLosses,
    /// A device that was opened again is opened once more.
    OpensWhatWorks,
    NeverDoubles,
    DoublesForEver,
    NeverResets,
    ResetsAtOnce,
    /// An attempt begins before its pause is over.
    BeginsEarly,
    /// The second device waits for the first.
    OpensOneOfAll,
}

const WRONG: [Wrong; 9] = [
    Wrong::PausesDuringAnAttempt,
    Wrong::IgnoresLaterLosses,
    Wrong::OpensWhatWorks,
    Wrong::NeverDoubles,
    Wrong::DoublesForEver,
    Wrong::NeverResets,
    Wrong::ResetsAtOnce,
    Wrong::BeginsEarly,
    Wrong::OpensOneOfAll,
];

impl Machine {
    fn is(&self, wrong: Wrong) -> bool {
        self.wrong == Some(wrong)
    }

    fn handle_lost(&mut self, now: Instant, device: &str) -> bool {
        let (pauses, ignores) =
            (self.is(Wrong::PausesDuringAnAttempt), self.is(Wrong::IgnoresLaterLosses));
        if let Some(state) = self.inner.devices.get_mut(device) {
            match &mut state.stage {
                Stage::Opening if pauses => {
                    state.pause(now);
                }
                Stage::Open { .. } if ignores => return false,
                Stage::Open { since } if self.wrong == Some(Wrong::NeverResets) => *since = now,
                _ => {}
            }
        }
        self.inner.handle_lost(now, device)
    }

    fn handle_opened(&mut self, now: Instant, device: &str) {
        self.inner.handle_opened(now, device);
        let Some(state) = self.inner.devices.get_mut(device) else { return };
        match self.wrong {
            Some(Wrong::OpensWhatWorks) => state.stage = Stage::Paused { until: now },
            Some(Wrong::ResetsAtOnce) => state.pauses = 0,
            _ => {}
        }
    }

    fn handle_failed(&mut self, now: Instant, device: &str) -> Option<Duration> {
        if self.is(Wrong::NeverDoubles)
            && let Some(state) = self.inner.devices.get_mut(device)
        {
            state.pauses = 0;
        }
        let pauses = self.inner.devices.get(device).map_or(0, |state| state.pauses);
        let pause = self.inner.handle_failed(now, device);
        if self.is(Wrong::DoublesForEver) && pause.is_some() {
            let pause = REOPEN_PAUSE_MIN.doubled(pauses);
            self.inner.devices.get_mut(device)?.stage = Stage::Paused { until: now + pause };
            return Some(pause);
        }
        pause
    }

    fn poll_due(&mut self, now: Instant) -> Option<String> {
        let is_opening = |state: &State| state.stage == Stage::Opening;
        if self.is(Wrong::OpensOneOfAll) && self.inner.devices.values().any(is_opening) {
            return None;
        }
        self.inner.poll_due(Instant(now.0 + u64::from(self.is(Wrong::BeginsEarly))))
    }
}

/// A device as the documentation describes it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Expected {
    InUse { since: u64 },
    Waiting { until: u64 },
    Opening,
}

#[derive(Clone)]
struct World {
    machine: Machine,
    now: u64,
    /// Each device, and the pauses in its row.
    devices: Vec<(Expected, usize)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The device is lost, or its loss is reported once more.
    Lost(usize),
    /// An attempt ends.
    Opened(usize),
    Failed(usize),
    /// Attempts begin that are due.
    Begin,
    /// Until a moment before the next attempt is due, or until that.
    AlmostDue,
    Due,
    /// Until a moment before a device in use is steady, or until that.
    AlmostSteady(usize),
    Steady(usize),
}

/// A state with times relative to now: of each device what is expected, the pauses in its row, and
/// the machine's stage, time and pauses.
type Key = Vec<(Expected, usize, Option<(u8, u64, u32)>)>;

/// A law that the machine broke.
type Broken = &'static str;

impl World {
    fn new(devices: usize, wrong: Option<Wrong>) -> Self {
        let in_use = (Expected::InUse { since: 0 }, 0);
        let machine = Machine { inner: Reopening::default(), wrong };
        Self { machine, now: 0, devices: vec![in_use; devices] }
    }

    fn due(&self) -> Option<u64> {
        let until = |(expected, _): &(Expected, usize)| match expected {
            Expected::Waiting { until } => Some(*until),
            _ => None,
        };
        self.devices.iter().filter_map(until).min()
    }

    fn steady(&self, device: usize) -> Option<u64> {
        match self.devices[device].0 {
            Expected::InUse { since } => Some(since + STEADY),
            _ => None,
        }
    }

    fn steps(&self) -> Vec<Step> {
        let mut steps = vec![Step::Begin];
        let later = |at: Option<u64>| at.is_some_and(|at| at > self.now);
        if later(self.due()) {
            steps.extend([Step::AlmostDue, Step::Due]);
        }
        for (place, (expected, _)) in self.devices.iter().enumerate() {
            steps.push(Step::Lost(place));
            if *expected == Expected::Opening {
                steps.extend([Step::Opened(place), Step::Failed(place)]);
            }
            if later(self.steady(place)) {
                steps.extend([Step::AlmostSteady(place), Step::Steady(place)]);
            }
        }
        steps
    }

    /// Takes a step; an error names the law that the machine broke.
    fn take(&mut self, step: Step) -> Result<(), Broken> {
        let now = Instant(self.now);
        match step {
            Step::Lost(place) => {
                let is_in_use = matches!(self.devices[place].0, Expected::InUse { .. });
                if self.machine.handle_lost(now, NAMES[place]) != is_in_use {
                    return Err("a device in use is lost once");
                }
                if let (Expected::InUse { since }, pauses) = &mut self.devices[place] {
                    if self.now - *since >= STEADY {
                        *pauses = 0;
                    }
                    self.pause(place);
                }
            }
            Step::Opened(place) => {
                self.machine.handle_opened(now, NAMES[place]);
                self.devices[place].0 = Expected::InUse { since: self.now };
            }
            Step::Failed(place) => {
                let pause = self.machine.handle_failed(now, NAMES[place]);
                let expected = self.pause(place);
                if pause != Some(Duration(expected)) {
                    return Err("pauses double up to the longest, and begin again");
                }
            }
            Step::Begin => self.begin()?,
            Step::AlmostDue => self.now = self.due().map_or(self.now, |due| due - 1),
            Step::Due => self.now = self.due().unwrap_or(self.now),
            Step::AlmostSteady(place) => self.now = self.steady(place).unwrap_or(1) - 1,
            Step::Steady(place) => self.now = self.steady(place).unwrap_or(0),
        }
        if self.machine.inner.poll_timeout() != self.due().map(Instant) {
            return Err("the next attempt is at the end of the shortest pause");
        }
        Ok(())
    }

    fn begin(&mut self) -> Result<(), Broken> {
        while let Some(device) = self.machine.poll_due(Instant(self.now)) {
            let place = NAMES.iter().position(|name| *name == device).unwrap();
            match self.devices[place].0 {
                Expected::InUse { .. } => return Err("a device that works is not opened"),
                Expected::Opening => return Err("a device has one attempt at a time"),
                Expected::Waiting { until } if until > self.now => {
                    return Err("no attempt begins within its pause");
                }
                Expected::Waiting { .. } => self.devices[place].0 = Expected::Opening,
            }
        }
        match self.due() {
            Some(due) if due <= self.now => Err("every attempt begins that is due"),
            _ => Ok(()),
        }
    }

    fn pause(&mut self, place: usize) -> u64 {
        let (expected, pauses) = &mut self.devices[place];
        let pause = PAUSES[(*pauses).min(PAUSES.len() - 1)] * MILLIS;
        *pauses += 1;
        *expected = Expected::Waiting { until: self.now + pause };
        pause
    }

    /// The future depends on nothing else.
    fn key(&self) -> Key {
        let since = |since: u64| (self.now - since).min(STEADY);
        let of = |(place, (expected, pauses)): (usize, &(Expected, usize))| {
            let expected = match *expected {
                Expected::InUse { since: at } => Expected::InUse { since: since(at) },
                Expected::Waiting { until } => {
                    Expected::Waiting { until: until.saturating_sub(self.now) }
                }
                Expected::Opening => Expected::Opening,
            };
            let state = self.machine.inner.devices.get(NAMES[place]).map(|state| {
                let (kind, time) = match state.stage {
                    Stage::Open { since: at } => (0, since(at.0)),
                    Stage::Paused { until } => (1, until.0.saturating_sub(self.now)),
                    Stage::Opening => (2, 0),
                };
                (kind, time, state.pauses.min(PAUSES.len() as u32))
            });
            (expected, (*pauses).min(PAUSES.len()), state)
        };
        self.devices.iter().enumerate().map(of).collect()
    }
}

/// Takes every step from every state, up to a depth. Returns the number of states, or the shortest
/// way to a broken law.
fn explore(
    devices: usize,
    depth_max: usize,
    wrong: Option<Wrong>,
) -> Result<usize, (Broken, Vec<Step>)> {
    let first = World::new(devices, wrong);
    let mut known = BTreeSet::from([first.key()]);
    let mut next = VecDeque::from([(first, Vec::new())]);
    while let Some((world, way)) = next.pop_front() {
        if way.len() >= depth_max {
            continue;
        }
        for step in world.steps() {
            let (mut world, mut way) = (world.clone(), way.clone());
            way.push(step);
            if let Err(broken) = world.take(step) {
                return Err((broken, way));
            }
            assert!(known.len() < STATES_MAX, "the states do not end");
            if known.insert(world.key()) {
                next.push_back((world, way));
            }
        }
    }
    Ok(known.len())
}

/// One device in every state that it can reach, and two of them together.
#[test]
fn every_state_of_a_lost_device_keeps_the_laws() {
    let of_one = explore(1, usize::MAX, None).unwrap();
    let of_two = explore(2, DEPTH_OF_TWO, None).unwrap();
    println!("{of_one} states of one device, {of_two} of two");
    // The longest pause is after ten failures.
    assert!(of_one > 50 && of_two > 10 * of_one, "{of_one}, {of_two}");
}

/// Each wrong machine breaks a law.
#[test]
fn wrong_machines_of_lost_devices_are_found() {
    for wrong in WRONG {
        let found =
            explore(1, usize::MAX, Some(wrong)).and_then(|_| explore(2, DEPTH_OF_TWO, Some(wrong)));
        let (broken, way) = found.expect_err(&format!("{wrong:?} is not found"));
        println!("{wrong:?}: {broken}, after {} steps: {way:?}", way.len());
    }
}
