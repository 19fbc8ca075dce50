//! Shrinks a schedule: events are left out as long as the same oracle breaks, then a bounded
//! breadth-first search looks for a shorter way, from the start and from every world on the way.

use crate::case::Case;
use crate::line::{Line, LineError, ReplayError, Schedule, rules};
use crate::liveness::{Healer, wasteful};
use crate::path_tree::Steps;
use crate::play::{Rules, Run, play, play_schedule};
use crate::transcript::transcript;
use crate::{Coverage, seen::Memo};
use handfast_transport_sim::{
    Action, Choice, Faults, Operations, Oracle, Step, Subject, Violation, World,
};

/// Worlds that each search from the start may reach: half a second of an optimised build.
const WORLDS_FROM_START: usize = 40_000;
/// Worlds that the searches from all worlds on the way may reach together.
const WORLDS_AROUND: usize = 60_000;

/// Reasons for not shrinking a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MinimizeError {
    /// Nothing is wrong with it.
    #[error(
        "nothing breaks on this schedule, so there is nothing to shrink: take a line that `explore` \
         or `sweep` printed with a broken oracle"
    )]
    Holds,
    /// It does not replay.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// The result does not fit into a line.
    #[error(transparent)]
    Line(#[from] LineError),
}

/// A schedule that could not be made shorter.
#[derive(Clone, Debug)]
pub struct Minimized {
    /// Replays it.
    pub line: Line,
    /// Its run.
    pub run: Run,
    /// Events before.
    pub events_before: usize,
    /// Schedules tried with events left out.
    pub schedules: u64,
    /// Worlds looked at in the search for shorter ways.
    pub worlds: usize,
    /// Every schedule of fewer events was tried, with the same kinds and number of faults.
    pub shortest: bool,
    /// All of it in words, what does not hold at the end.
    pub transcript: String,
}

/// A case and a schedule on which the oracle breaks.
struct Shrinker {
    case: Case,
    start: World,
    oracle: Oracle,
    schedule: Vec<Choice>,
    schedules: u64,
    worlds: usize,
    /// Of these, the worlds of searches from worlds on the way.
    around: usize,
}

/// Shrinks what a line replays to as few events as it finds.
///
/// # Errors
/// [`MinimizeError::Holds`] if nothing breaks; the others if the line does not replay here.
pub fn minimize(line: &Line) -> Result<Minimized, MinimizeError> {
    let run = line.play()?;
    let Some(violation) = run.violation.clone() else { return Err(MinimizeError::Holds) };
    let events_before = run.schedule.len();
    if let Schedule::Events { circle: 1.., .. } = &line.schedule {
        // Every event of a circle is needed to come back to where it began.
        return Ok(finished(line.clone(), run, events_before, (0, 0), false));
    }
    let case = Case { faults_max: run.faults, ..line.case };
    let mut shrinker = Shrinker {
        start: case.start(),
        case,
        oracle: violation.oracle,
        schedule: run.schedule,
        schedules: 0,
        worlds: 0,
        around: 0,
    };
    shrinker.coarsen();
    shrinker.leave_out();
    let shortest = shrinker.search();
    let Shrinker { mut case, schedule, schedules, worlds, .. } = shrinker;
    case.faults_max = schedule.iter().map(|choice| choice.cost).sum();
    case.faults = kinds_used(&schedule);
    let line = Line::of_events(case, &schedule, 0)?;
    let run = line.play()?;
    Ok(finished(line, run, events_before, (schedules, worlds), shortest))
}

fn finished(
    line: Line,
    run: Run,
    events_before: usize,
    (schedules, worlds): (u64, usize),
    shortest: bool,
) -> Minimized {
    let whole: Vec<Choice> = run.schedule.iter().chain(&run.healing).cloned().collect();
    let mut text = transcript(&line.case.start(), &whole);
    if let Some(violation) = &run.violation {
        text.push_str(&format!("violated: {:?}: {}\n", violation.oracle, violation.detail));
    }
    Minimized { line, run, events_before, schedules, worlds, shortest, transcript: text }
}

impl Shrinker {
    fn rules(&self) -> Rules<'static> {
        rules(&self.case)
    }

    /// The same words at the coarser grain, where operations are no events of their own.
    fn coarsen(&mut self) {
        if self.case.operations == Operations::AtOnce {
            return;
        }
        let words = self.words();
        let case = Case { operations: Operations::AtOnce, ..self.case };
        let fine = std::mem::replace(&mut self.start, case.start());
        match self.fails(&words) {
            Some(schedule) => (self.case, self.schedule) = (case, schedule),
            None => self.start = fine,
        }
    }

    /// Drops events, in ever smaller pieces, as long as the same oracle breaks.
    fn leave_out(&mut self) {
        let mut kept = self.words();
        let mut chunk = kept.len().div_ceil(2);
        while chunk > 0 {
            let mut at = 0;
            let before = kept.len();
            while at < kept.len() {
                let mut fewer = kept.clone();
                fewer.drain(at..(at + chunk).min(kept.len()));
                if let Some(schedule) = self.fails(&fewer) {
                    self.schedule = schedule;
                    kept = self.words();
                } else {
                    at += chunk;
                }
            }
            // Single events are tried again as long as that helps: one may need another gone.
            if chunk > 1 || kept.len() == before {
                chunk /= 2;
            }
        }
    }

    /// Words by which each event can be found again when others are left out.
    fn words(&self) -> Vec<String> {
        let mut world = self.start.clone();
        let mut words = Vec::new();
        for choice in &self.schedule {
            words.push(world.describe(&choice.action));
            world.apply(choice, &mut Step::default());
        }
        words
    }

    /// The schedule of those of the words that are possible in turn, if the oracle breaks on it.
    fn fails(&mut self, words: &[String]) -> Option<Vec<Choice>> {
        self.schedules += 1;
        let mut left = words.iter();
        let start = self.start.clone();
        let run = play(start, self.rules(), &mut Coverage::default(), |world, choices| {
            left.find_map(|wanted| {
                choices.iter().position(|choice| world.describe(&choice.action) == *wanted)
            })
        });
        run.violation.is_some_and(|found| found.oracle == self.oracle).then_some(run.schedule)
    }

    /// Looks for shorter ways, with few faults first, and where operations are no events of their
    /// own before where they are; says whether every shorter schedule was tried.
    fn search(&mut self) -> bool {
        let faults = kinds_used(&self.schedule);
        let spent: u32 = self.schedule.iter().map(|choice| choice.cost).sum();
        let grains = match self.case.operations {
            Operations::AtOnce => vec![Operations::AtOnce],
            Operations::Stepwise => vec![Operations::AtOnce, Operations::Stepwise],
        };
        let mut limit = self.schedule.len() + usize::from(grains.len() > 1);
        for operations in grains {
            let mut every = true;
            let mut found = false;
            for faults_max in 0..=spent {
                let case = Case { faults, faults_max, operations, ..self.case };
                let start = case.start();
                let mut search = Search::new(self, WORLDS_FROM_START);
                let shorter = search.shorter(&start, limit);
                self.worlds += search.reached;
                every &= search.exhausted || shorter.is_some();
                if let Some(schedule) = shorter {
                    limit = schedule.len();
                    (self.case, self.start, self.schedule) = (case, start, schedule);
                    found = true;
                }
            }
            if found || operations == self.case.operations {
                if every {
                    return true;
                }
                break;
            }
            limit = self.schedule.len();
        }
        while self.search_around() {}
        false
    }

    /// From every world on the way, the last first.
    fn search_around(&mut self) -> bool {
        let mut worlds = vec![self.start.clone()];
        for choice in &self.schedule {
            let mut after = worlds[worlds.len() - 1].clone();
            after.apply(choice, &mut Step::default());
            worlds.push(after);
        }
        let share = WORLDS_AROUND / worlds.len().max(1);
        for (events, world) in worlds.iter().enumerate().rev() {
            let mut search = Search::new(self, share);
            let found = search.shorter(world, self.schedule.len() - events);
            let reached = search.reached;
            self.worlds += reached;
            self.around += reached;
            let Some(rest) = found else { continue };
            let schedule = [&self.schedule[..events], &rest].concat();
            let run = play_schedule(&self.start, self.rules(), &schedule);
            if run.violation.is_some_and(|found| found.oracle == self.oracle) {
                self.schedule = run.schedule;
                return self.around < 2 * WORLDS_AROUND;
            }
        }
        false
    }
}

/// The kinds of fault that a schedule spends its budget on.
fn kinds_used(schedule: &[Choice]) -> Faults {
    let mut faults = Faults::NONE;
    for choice in schedule.iter().filter(|choice| choice.cost > 0) {
        let kind = match &choice.action {
            Action::LoseCall(_, false)
            | Action::LoseAnswer(_, false)
            | Action::LosePacket(_)
            | Action::LoseNotice(..) => &mut faults.loss,
            Action::DuplicateCall(..) | Action::DuplicatePacket(_) | Action::RepeatRequest(_) => {
                &mut faults.duplication
            }
            Action::LoseCall(_, true) | Action::LoseAnswer(_, true) => &mut faults.call_failure,
            Action::FailOperation(_) => &mut faults.operation_failure,
            Action::StallOperation(_) => &mut faults.operation_stall,
            Action::Restart(_) => &mut faults.crash,
            Action::LaneError(..) => &mut faults.lane_error,
            Action::Timer(..)
            | Action::Exhaust(..)
            | Action::TargetTimer(..)
            | Action::DialOverdue(..) => &mut faults.early_timer,
            Action::FailStep(..) => &mut faults.step_failure,
            Action::ProtectionError(..) => &mut faults.protection,
            Action::BreakChannel(..) => &mut faults.channel,
            Action::ForgeRequest(..) | Action::ForgeAnswer(_) => &mut faults.forgery,
            Action::Disturb(disturbance) => match disturbance.subject {
                Subject::Port => &mut faults.port,
                Subject::Address => &mut faults.address,
                Subject::Path(_) => &mut faults.partition,
                Subject::Process => &mut faults.mute,
                Subject::Listener => &mut faults.stranger,
            },
            _ => continue,
        };
        *kind = true;
    }
    faults
}

/// A breadth-first search for a schedule that breaks one oracle.
struct Search {
    oracle: Oracle,
    asked: &'static [Oracle],
    healer: Option<Healer>,
    worlds_max: usize,
    reached: usize,
    /// Every schedule that was short enough was tried.
    exhausted: bool,
}

impl Search {
    fn new(shrinker: &Shrinker, worlds_max: usize) -> Self {
        let heals = shrinker.oracle == Oracle::Liveness;
        let asked = shrinker.case.oracles();
        Self {
            oracle: shrinker.oracle,
            asked,
            healer: heals.then(|| Healer::asking(asked)),
            worlds_max,
            reached: 0,
            exhausted: false,
        }
    }

    /// A schedule of fewer than `events` events on which nothing else breaks before.
    fn shorter(&mut self, start: &World, events: usize) -> Option<Vec<Choice>> {
        let mut seen: Memo<()> = Memo::default();
        seen.insert(start.fingerprint(), ());
        let mut steps: Steps<Choice> = Steps::default();
        let mut layer = vec![(0, start.clone())];
        let mut choices = Vec::new();
        for _ in 1..events {
            let mut next = Vec::new();
            for (number, world) in &layer {
                world.actions(&mut choices);
                for choice in &choices {
                    let mut after = world.clone();
                    let mut step = Step::default();
                    after.apply(choice, &mut step);
                    after.check(&mut step.violations);
                    let rules = Rules::new(0, self.asked);
                    match step.violations.iter().find(|found| rules.asks(found.oracle)) {
                        Some(found) if found.oracle == self.oracle => {
                            return Some(steps.schedule(*number, Some(choice)));
                        }
                        Some(_) => continue,
                        None => {}
                    }
                    if seen.insert(after.fingerprint(), ()).is_some() {
                        continue;
                    }
                    self.reached += 1;
                    if self.cannot_heal(&after) {
                        return Some(steps.schedule(*number, Some(choice)));
                    }
                    if self.reached >= self.worlds_max {
                        return None;
                    }
                    next.push((steps.add(*number, choice), after));
                }
            }
            layer = next;
        }
        self.exhausted = true;
        None
    }

    fn cannot_heal(&mut self, world: &World) -> bool {
        let Some(healer) = &mut self.healer else { return false };
        let oracle = self.oracle;
        let broken = |violation: Violation| violation.oracle == oracle;
        match healer.liveness(world) {
            Ok(healing) => wasteful(world, healing).is_some_and(broken),
            Err((violation, _)) => broken(violation),
        }
    }
}
