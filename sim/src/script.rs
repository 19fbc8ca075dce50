//! Schedules written by people, one event per line, played on the shipping machine.
//!
//! An event line holds words of what may happen next, as [`World::describe`] puts it, case aside:
//! of everything possible, the line names what it is contained in, word by word and in order, with
//! the fewest words left over. `a opens b` is thus `A opens towards B`. Other lines:
//!
//! | line | meaning |
//! | --- | --- |
//! | `# …` | for the reader |
//! | `with sites a b b`, `with lifecycles_max 1`, `with operations one by one` | the start |
//! | `settle`, `settle within 9 events` | what needs no fault happens, in a fair order, until nothing is left |
//! | `expect …` | what must hold here |
//! | four blanks and more | what the event above caused; kept by the player, not by people |
//!
//! Expectations: `a established towards b`, `a not connected to b`, `a and b connected`,
//! `a#2 announced` (any state, `gone`, `usable`, `unusable`), `a holds 2 queue pairs`,
//! `a published 1 lanes`, `a ended 0 lifecycles`, `a reported PeerRestarted`,
//! `a never reported OpenFailed`, `refused gone`, `nothing refused`, `a ignored it`,
//! `b receives ready impossible`.
//!
//! Every oracle is asked after every line, and at the end the world must heal (oracle O5).

use crate::expectation::{self, Seen};
use crate::liveness::{HEAL_EVENTS_MAX, Healer, next};
use crate::scenario::Scenario;
use handfast_core::node::Limits;
use handfast_core::{Event, NicPath};
use handfast_transport_sim::{
    Action, Build, Choice, Command, CommandKind, Operations, Setup, Step, Violation, World,
};
use std::fmt;

/// More faults than a person writes down.
const FAULTS_MAX: u32 = 1_000;

/// A script and the name of its file.
#[derive(Clone, Debug)]
pub struct Script {
    file: String,
    text: String,
}

/// Reasons for a script to stop early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The line is no line of the language.
    Unreadable(String),
    /// Nothing possible contains these words.
    Impossible {
        /// The possible events.
        possible: Vec<String>,
    },
    /// Different things contain these words.
    Ambiguous {
        /// The matching events.
        matching: Vec<String>,
    },
    /// An expectation does not hold; what does.
    Unmet(String),
    /// An oracle does not hold.
    Violated(Violation),
}

/// Position and reason of a script's early stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The file.
    pub file: String,
    /// The line, counted from one.
    pub line: usize,
    /// Text of the line.
    pub words: String,
    /// The reason.
    pub reason: Reason,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: '{}': ", self.file, self.line, self.words)?;
        match &self.reason {
            Reason::Unreadable(why) => write!(f, "{why}"),
            Reason::Impossible { possible } => {
                write!(f, "this cannot happen here; what can:\n  {}", possible.join("\n  "))
            }
            Reason::Ambiguous { matching } => {
                write!(f, "this may mean:\n  {}", matching.join("\n  "))
            }
            Reason::Unmet(seen) => write!(f, "not so: {seen}"),
            Reason::Violated(violation) => {
                write!(f, "{:?} does not hold: {}", violation.oracle, violation.detail)
            }
        }
    }
}

impl std::error::Error for Fault {}

impl Script {
    /// A script; the file is named in errors only.
    pub fn new(file: &str, text: &str) -> Self {
        Self { file: file.into(), text: text.into() }
    }

    /// Plays it with nodes from `build`, and returns the text with the effects of each event
    /// rewritten below it.
    ///
    /// # Errors
    /// The first line that cannot be played, does not hold, or breaks an oracle.
    pub fn play(&self, build: Build) -> Result<String, Fault> {
        let mut text = String::new();
        let mut player = Player { setup: setup(build), stage: None };
        let mut last = (0, "");
        for (number, line) in (1..).zip(self.text.lines()) {
            if line.starts_with("    ") {
                continue;
            }
            text.push_str(line);
            text.push('\n');
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            last = (number, line);
            let notes = player.line(line).map_err(|reason| self.fault(last, reason))?;
            notes.iter().for_each(|note| text.push_str(&format!("    {note}\n")));
        }
        let world = player.stage().world.clone();
        let heals = Healer::default().liveness(&world);
        heals.map_err(|(violation, _)| self.fault(last, Reason::Violated(violation)))?;
        Ok(text)
    }

    /// Plays it, and returns the initial world and what happened there.
    ///
    /// # Errors
    /// As [`play`](Self::play), except that the end of the world is not examined.
    pub fn schedule(&self, build: Build) -> Result<(World, Vec<Choice>), Fault> {
        let mut player = Player { setup: setup(build), stage: None };
        for (number, line) in (1..).zip(self.text.lines()) {
            if !line.starts_with("    ") && !line.trim().is_empty() && !line.starts_with('#') {
                player.line(line).map_err(|reason| self.fault((number, line), reason))?;
            }
        }
        // With failures of steps a world has the queue pairs of its devices, as a backend has.
        let mut setup = player.setup.clone();
        setup.faults.step_failure = true;
        Ok((World::new(setup), std::mem::take(&mut player.stage().schedule)))
    }

    fn fault(&self, (line, words): (usize, &str), reason: Reason) -> Fault {
        Fault { file: self.file.clone(), line, words: words.into(), reason }
    }
}

struct Player {
    setup: Setup,
    stage: Option<Stage>,
}

struct Stage {
    world: World,
    seen: Seen,
    schedule: Vec<Choice>,
}

fn setup(build: Build) -> Setup {
    Setup {
        sites: sites(&["a", "b"]),
        processes: Vec::new(),
        mute: None,
        without_gid: None,
        rails: false,
        old: None,
        prompt: false,
        commands: Vec::new(),
        reopen: false,
        operations: Operations::AtOnce,
        build,
        ..Scenario::SimultaneousOpen.setup(FAULTS_MAX)
    }
}

fn sites(names: &[&str]) -> Vec<NicPath> {
    names.iter().filter_map(|name| NicPath::parse(&format!("{name}:1@nic")).ok()).collect()
}

impl Player {
    fn stage(&mut self) -> &mut Stage {
        let setup = &self.setup;
        self.stage.get_or_insert_with(|| {
            let world = World::new(setup.clone());
            let seen = Seen::new(&world);
            Stage { world, seen, schedule: Vec::new() }
        })
    }

    fn line(&mut self, line: &str) -> Result<Vec<String>, Reason> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["with", ..] if self.stage.is_some() => {
                Err(Reason::Unreadable("the world has begun already".into()))
            }
            ["with", ref what @ ..] => self.prepare(what).map(|()| Vec::new()),
            ["expect", ref what @ ..] => {
                let stage = self.stage();
                if let [of @ .., "impossible"] = what {
                    return stage.expect_impossible(&of.join(" "));
                }
                expectation::check(&stage.world, &stage.seen, what).map(|()| Vec::new())
            }
            ["settle"] => self.stage().settle(HEAL_EVENTS_MAX),
            ["settle", "within", count, "events"] => {
                let unreadable = || Reason::Unreadable(format!("'{count}' is no number"));
                let events_max = count.parse().map_err(|_| unreadable())?;
                self.stage().settle(events_max)
            }
            _ => self.stage().event(line),
        }
    }

    fn prepare(&mut self, what: &[&str]) -> Result<(), Reason> {
        match what {
            ["sites", names @ ..] if !names.is_empty() => self.setup.sites = sites(names),
            ["operations", "one", "by", "one"] => self.setup.operations = Operations::Stepwise,
            [limit, number] => {
                let number: u32 = number
                    .parse()
                    .map_err(|_| Reason::Unreadable(format!("'{number}' is no number")))?;
                set_limit(&mut self.setup.limits, limit, number)?;
            }
            _ => return Err(Reason::Unreadable("no world begins with this".into())),
        }
        Ok(())
    }
}

fn set_limit(limits: &mut Limits, name: &str, number: u32) -> Result<(), Reason> {
    match name {
        "peers_max" => limits.peers_max = number as usize,
        "lifecycles_max" => limits.lifecycles_max = number as usize,
        "answers_held_max" => limits.answers_held_max = number as usize,
        "requests_max" => limits.requests_max = number,
        "readies_max" => limits.readies_max = number,
        "retires_max" => limits.retires_max = number,
        "opens_max" => limits.opens_max = number,
        _ => return Err(Reason::Unreadable(format!("there is no limit '{name}'"))),
    }
    Ok(())
}

impl Stage {
    fn event(&mut self, line: &str) -> Result<Vec<String>, Reason> {
        let choice = choose(&self.world, line)?;
        let step = self.apply(&choice, Step::traced())?;
        Ok(step.notes.unwrap_or_default())
    }

    fn settle(&mut self, events_max: u32) -> Result<Vec<String>, Reason> {
        let mut notes = Vec::new();
        while let Some(choice) = next(&self.world) {
            notes.push(self.world.describe(&choice.action));
            if notes.len() > events_max as usize {
                let detail = format!("{events_max} events do not suffice:\n  ");
                return Err(Reason::Unmet(detail + &notes.join("\n  ")));
            }
            self.apply(&choice, Step::default())?;
        }
        Ok(notes)
    }

    fn apply(&mut self, choice: &Choice, mut step: Step) -> Result<Step, Reason> {
        let ignored = self.seen.ignored(&self.world);
        self.schedule.push(choice.clone());
        self.world.apply(choice, &mut step);
        self.world.check(&mut step.violations);
        if let Some(violation) = step.violations.pop() {
            return Err(Reason::Violated(violation));
        }
        if let Action::Restart(site) = choice.action {
            self.seen.restarted(site);
        }
        let ended = |event: &Event| matches!(event, Event::Ended { .. });
        for (site, event) in &step.events {
            self.seen.sites[*site].ended += usize::from(ended(event));
            self.seen.sites[*site].reported.push(event.clone());
        }
        self.seen.refusals = step.refusals.clone();
        self.seen.ignored_before = ignored;
        Ok(step)
    }

    fn expect_impossible(&self, words: &str) -> Result<Vec<String>, Reason> {
        match choose(&self.world, words) {
            Err(Reason::Impossible { .. }) => Ok(Vec::new()),
            Ok(choice) => Err(Reason::Unmet(self.world.describe(&choice.action))),
            Err(reason) => Err(reason),
        }
    }
}

/// The possible event that contains the words of a line, with the fewest words left over.
fn choose(world: &World, line: &str) -> Result<Choice, Reason> {
    let mut choices = Vec::new();
    world.actions(&mut choices);
    for site in 0..world.sites() {
        for peer in 0..world.sites() {
            for kind in [CommandKind::Open, CommandKind::Close] {
                let action = Action::Ask(Command { site, peer, kind });
                choices.push(Choice { action, cost: 0 });
            }
        }
    }
    let wanted = words(line);
    let described = choices.iter().map(|choice| (world.describe(&choice.action), choice));
    let left_over = |description: &str| {
        let offered = words(description);
        let mut rest = offered.iter();
        let within = wanted.iter().all(|word| rest.any(|offered| offered == word));
        within.then(|| offered.len() - wanted.len())
    };
    let matching: Vec<(usize, String, &Choice)> = described
        .clone()
        .filter_map(|(description, choice)| Some((left_over(&description)?, description, choice)))
        .collect();
    let fewest = matching.iter().map(|(left, ..)| *left).min();
    let mut nearest = matching.into_iter().filter(|(left, ..)| Some(*left) == fewest);
    let Some((_, first, choice)) = nearest.next() else {
        let possible = described.map(|(description, _)| description).collect();
        return Err(Reason::Impossible { possible });
    };
    let others: Vec<String> =
        nearest.map(|(_, other, _)| other).filter(|other| *other != first).collect();
    if others.is_empty() {
        return Ok(choice.clone());
    }
    Err(Reason::Ambiguous { matching: [vec![first], others].concat() })
}

fn words(line: &str) -> Vec<String> {
    let plain = |word: &str| word.trim_matches([',', ':']).to_lowercase();
    line.split_whitespace().map(plain).collect()
}
