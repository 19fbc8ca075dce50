//! One line that replays a schedule anywhere:
//! `hf2:SCENARIO:GROUND:VARIANT:FAULTS:GRAIN:SCHEDULE:TRACE:CHECK`.
//!
//! GROUND is `-` for the strict device without traffic; otherwise device, traffic (or `-`), and two
//! letters: a restart reuses numbers and keys (`a`) or continues them (`g`), sequence numbers are
//! exchanged (`x`) or start at zero (`z`). VARIANT is `-` for the shipping rules, FAULTS the
//! budget, `x` and the kinds as hexadecimal bits, GRAIN `s` (stepwise) or `a` (at once), with `p`
//! if answers that can only be ignored are dropped. SCHEDULE is `e` with the index of each event
//! among the possible ones, one letter each, and `~N` if the last N events form a cycle; or `r`,
//! seed, event limit and scheduler of a random run. TRACE is the hash of the choices and of worlds
//! on the way, CHECK the hash of the preceding text.

use crate::case::{Case, bits_of, faults_of};
use crate::coverage::Coverage;
use crate::devices::Ground;
use crate::play::{Rules, Run, play};
use crate::scenario::Scenario;
use crate::scheduler::Scheduler;
use crate::sweep::Random;
use crate::variants;
use handfast_core::excerpt::excerpt;
use handfast_transport_sim::{Choice, Operations, Oracle, Step, Violation};
use std::fmt::{self, Display};
use std::str::FromStr;
use xxhash_rust::xxh3::xxh3_64;

/// Maximum length of a line.
pub const LINE_MAX: usize = 200;
/// Maximum events of a schedule.
pub const EVENTS_MAX: u32 = 100_000;
/// Prefix of lines of this version.
const VERSION: &str = "hf2";
/// Six bits per letter. The last letter introduces two more with twelve bits.
const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
const ESCAPE: usize = 63;

/// A schedule decoded from a replay line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// Each by its place among those that are possible then; the last `circle` recur.
    Events {
        /// Event indices.
        places: Vec<usize>,
        /// Number of final events that form a cycle; 0 without a cycle.
        circle: usize,
    },
    /// Drawn from a seed.
    Random(Random),
}

/// Errors in the text of a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// The text lacks the prefix of a replay line.
    #[error(
        "this is no replay line: one begins with 'hf2:' and has nine parts; copy the whole line, \
         in quotes"
    )]
    NotALine,
    /// Another version wrote it.
    #[error(
        "the line has format '{found}', this program reads '{VERSION}': replay it with the \
         version of handfast that printed it"
    )]
    Version {
        /// The version in the line.
        found: String,
    },
    /// The checksum does not match.
    #[error(
        "the line is damaged: its checksum is {found}, its text has {expected}; copy the whole \
         line again"
    )]
    Checksum {
        /// Computed hash.
        expected: String,
        /// Hash in the line.
        found: String,
    },
    /// It names a scenario that this build does not have.
    #[error(
        "there is no scenario '{name}' in this build: replay the line with the version of handfast \
         that printed it; `handfast sim explore --scenario list` lists those of this one"
    )]
    UnknownScenario {
        /// Name of the unknown scenario.
        name: String,
    },
    /// It names a variant that this build does not have.
    #[error(
        "there is no variant '{id}' of the rules in this build: {cure}",
        cure = if variants::ALL.is_empty() {
            "it has the shipping rules only; run `cargo xtask variants -- sim replay LINE` in the sources"
        } else {
            "replay the line with the version of handfast that printed it"
        }
    )]
    UnknownVariant {
        /// Id of the unknown variant.
        id: String,
    },
    /// A part is malformed although the checksum matches.
    #[error(
        "the line's {part} is '{text}', which this version cannot read: replay it with the version \
         of handfast that printed it"
    )]
    Part {
        /// The part.
        part: &'static str,
        /// Its text.
        text: String,
    },
    /// The schedule is too long for a line.
    #[error(
        "the schedule of {events} events does not fit into a line of {LINE_MAX} characters: \
         explore with fewer faults, or sweep, whose lines hold a seed"
    )]
    TooLong {
        /// Number of events.
        events: usize,
    },
}

/// Errors of a replay.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// An event of the line is impossible.
    #[error(
        "event {event} of the line is not possible here ({possible} others are): the rules or the \
         simulated fabric changed since it was printed; replay it with the version of handfast \
         that printed it"
    )]
    NotPossible {
        /// Event number, from 1.
        event: usize,
        /// Events that are possible.
        possible: usize,
    },
    /// The events are possible but lead to another world.
    #[error(
        "the line leads to other worlds than when it was printed (trace {found:08x} instead of \
         {expected:08x}): the rules or the simulated fabric changed since; replay it with the \
         version of handfast that printed it"
    )]
    Trace {
        /// Hash in the line.
        expected: u32,
        /// Hash of the replay.
        found: u32,
    },
}

/// A case, a schedule, and the hash of the resulting worlds.
#[derive(Clone, Debug)]
pub struct Line {
    /// The setting.
    pub case: Case,
    /// The events.
    pub schedule: Schedule,
    /// The hash of the worlds passed through.
    pub trace: u32,
}

impl Line {
    /// The line of events; the last `circle` of them recur.
    ///
    /// # Errors
    /// [`LineError::TooLong`] if it would be longer than [`LINE_MAX`].
    pub fn of_events(case: Case, events: &[Choice], circle: usize) -> Result<Self, LineError> {
        let mut left = events.iter();
        let mut places = Vec::new();
        let run = play(case.start(), rules(&case), &mut Coverage::default(), |_, choices| {
            let wanted = left.next()?;
            let place = choices.iter().position(|choice| choice == wanted)?;
            places.push(place);
            Some(place)
        });
        let line = Self { case, schedule: Schedule::Events { places, circle }, trace: run.trace() };
        match line.to_string().len() {
            0..=LINE_MAX => Ok(line),
            _ => Err(LineError::TooLong { events: events.len() }),
        }
    }

    /// The replay line of a finished random run.
    pub fn of_random(case: Case, random: Random, run: &Run) -> Self {
        Self { case, schedule: Schedule::Random(random), trace: run.trace() }
    }

    /// Replays the line and checks that it leads to the recorded worlds.
    ///
    /// # Errors
    /// [`ReplayError`] if the code has changed since.
    pub fn play(&self) -> Result<Run, ReplayError> {
        let mut run = match &self.schedule {
            Schedule::Random(random) => random.run(&self.case, &mut Coverage::default()),
            Schedule::Events { places, .. } => self.play_places(places)?,
        };
        if run.trace() != self.trace {
            return Err(ReplayError::Trace { expected: self.trace, found: run.trace() });
        }
        if let Schedule::Events { circle: 1.., .. } = &self.schedule
            && run.violation.is_none()
        {
            run.violation = self.recurs(&run);
        }
        Ok(run)
    }

    fn play_places(&self, places: &[usize]) -> Result<Run, ReplayError> {
        let (mut next, mut missing) = (0, None);
        let start = self.case.start();
        let run = play(start, rules(&self.case), &mut Coverage::default(), |_, choices| {
            let place = *places.get(next)?;
            next += 1;
            if place >= choices.len() {
                missing = Some(ReplayError::NotPossible { event: next, possible: choices.len() });
                return None;
            }
            Some(place)
        });
        missing.map_or(Ok(run), Err)
    }

    /// The last events return to the world before them, without a fault.
    fn recurs(&self, run: &Run) -> Option<Violation> {
        let Schedule::Events { circle, .. } = &self.schedule else { return None };
        let (way, round) = run.schedule.split_at(run.schedule.len().checked_sub(*circle)?);
        let mut world = self.case.start();
        way.iter().for_each(|choice| world.apply(choice, &mut Step::default()));
        let before = world.fingerprint();
        round.iter().for_each(|choice| world.apply(choice, &mut Step::default()));
        let free = round.iter().all(|choice| choice.cost == 0);
        (free && world.fingerprint() == before).then(|| Violation {
            oracle: Oracle::Liveness,
            detail: format!("a schedule of {circle} events without a fault recurs"),
        })
    }
}

/// Safety is asked on the way of any line, and healing where the case asks for it.
pub(crate) fn rules(case: &Case) -> Rules<'static> {
    Rules::new(EVENTS_MAX, case.oracles())
}

impl Display for Line {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case { scenario, devices, variant, faults, faults_max, operations, prune } = &self.case;
        let variant = variant.map_or("-", |entry| entry.id);
        let grain = if *operations == Operations::Stepwise { "s" } else { "a" };
        let prune = if *prune { "p" } else { "" };
        let mut schedule = String::new();
        match &self.schedule {
            Schedule::Events { places, circle } => {
                schedule.push('e');
                places.iter().for_each(|place| push_place(&mut schedule, *place));
                if *circle > 0 {
                    schedule.push_str(&format!("~{circle}"));
                }
            }
            Schedule::Random(Random { seed, events_max, scheduler }) => {
                schedule.push_str(&format!("r{seed:x}.{events_max}.{scheduler}"));
            }
        }
        let text = format!(
            "{VERSION}:{scenario:?}:{devices}:{variant}:{faults_max}x{:02x}:{grain}{prune}:{schedule}:{:08x}",
            bits_of(*faults),
            self.trace
        );
        write!(formatter, "{text}:{}", checksum(&text))
    }
}

impl FromStr for Line {
    type Err = LineError;

    fn from_str(text: &str) -> Result<Self, LineError> {
        let text = text.trim();
        let (version, _) = text.split_once(':').ok_or(LineError::NotALine)?;
        let digits = version.strip_prefix("hf").ok_or(LineError::NotALine)?;
        if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
            return Err(LineError::NotALine);
        }
        if version != VERSION {
            return Err(LineError::Version { found: excerpt(version) });
        }
        let (body, found) = text.rsplit_once(':').ok_or(LineError::NotALine)?;
        let expected = checksum(body);
        if found != expected {
            return Err(LineError::Checksum { expected, found: excerpt(found) });
        }
        let parts: Vec<&str> = body.split(':').collect();
        let [_, scenario, devices, variant, faults, grain, schedule, trace] = parts[..] else {
            return Err(LineError::NotALine);
        };
        let wrong = |part, text: &str| LineError::Part { part, text: excerpt(text) };
        let (faults_max, bits) =
            faults.split_once('x').ok_or_else(|| wrong("budget of faults", faults))?;
        let bits = u32::from_str_radix(bits, 16).ok().and_then(faults_of);
        let scenario = Scenario::named(scenario)
            .ok_or_else(|| LineError::UnknownScenario { name: excerpt(scenario) })?;
        let devices: Ground = devices
            .parse()
            .ok()
            .filter(|at: &Ground| at.traffic.is_none_or(|traffic| scenario.carries(traffic)))
            .ok_or_else(|| wrong("device and traffic", devices))?;
        let case = Case {
            scenario,
            devices,
            variant: match variant {
                "-" => None,
                id => Some(
                    variants::find(id)
                        .ok_or_else(|| LineError::UnknownVariant { id: excerpt(id) })?,
                ),
            },
            faults: bits.ok_or_else(|| wrong("kinds of fault", faults))?,
            faults_max: faults_max.parse().map_err(|_| wrong("budget of faults", faults))?,
            operations: match grain.as_bytes().first() {
                Some(b's') => Operations::Stepwise,
                Some(b'a') => Operations::AtOnce,
                _ => return Err(wrong("grain", grain)),
            },
            prune: match &grain[1..] {
                "" => false,
                "p" => true,
                _ => return Err(wrong("grain", grain)),
            },
        };
        let schedule = parse_schedule(schedule).ok_or_else(|| wrong("schedule", schedule))?;
        let trace = u32::from_str_radix(trace, 16).map_err(|_| wrong("trace", trace))?;
        Ok(Self { case, schedule, trace })
    }
}

fn checksum(text: &str) -> String {
    format!("{:08x}", xxh3_64(text.as_bytes()) as u32)
}

fn push_place(text: &mut String, place: usize) {
    let letter = |value: usize| char::from(LETTERS[value & 63]);
    if place < ESCAPE {
        text.push(letter(place));
    } else {
        text.extend([ESCAPE, place >> 6, place].map(letter));
    }
}

fn parse_schedule(text: &str) -> Option<Schedule> {
    if let Some(random) = text.strip_prefix('r') {
        let mut parts = random.splitn(3, '.');
        let seed = u64::from_str_radix(parts.next()?, 16).ok()?;
        let events_max = parts.next()?.parse().ok().filter(|events| *events <= EVENTS_MAX)?;
        let scheduler = Scheduler::parse(parts.next()?)?;
        return Some(Schedule::Random(Random { seed, events_max, scheduler }));
    }
    let events = text.strip_prefix('e')?;
    let (letters, circle) = events.split_once('~').unwrap_or((events, "0"));
    let value = |letter: u8| LETTERS.iter().position(|known| *known == letter);
    let mut letters = letters.bytes();
    let mut places = Vec::new();
    while let Some(letter) = letters.next() {
        places.push(match value(letter)? {
            ESCAPE => value(letters.next()?)? << 6 | value(letters.next()?)?,
            place => place,
        });
    }
    let circle = circle.parse().ok().filter(|circle| *circle <= places.len())?;
    Some(Schedule::Events { places, circle })
}
