//! An exploration in a file: stopped once, it goes on later, and ends as if it had not been stopped.
//!
//! A line with the version, a length and a header of JSON, lists of little-endian numbers with their
//! lengths, and the digest of all before it.

use crate::coverage::Coverage;
use crate::explorer::{Exploration, Explorer, Layer};
use crate::healings::Next;
use crate::liveness::Healing;
use crate::path_tree::Trail;
use handfast_core::node::{StateKind, TimerKind};
use handfast_core::wire::RefusalReason;
use handfast_transport_sim::World;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use xxhash_rust::xxh3::Xxh3;

const VERSION: &[u8] = b"handfast exploration 3\n";
/// Longest header, in bytes.
const HEADER_MAX: u32 = 1 << 20;
/// Worlds that are made again to see that the rules are those of the file.
const CHECKED: u32 = 64;

/// The reason why a file is not an exploration that can go on.
#[derive(Debug, thiserror::Error)]
pub enum SavedError {
    /// It cannot be read.
    #[error("cannot read the exploration: {0}")]
    Read(io::Error),
    /// It has another format, or one of another version.
    #[error("not an exploration of this version: begin a new one")]
    Version,
    /// It was changed, or is not whole.
    #[error("the exploration is damaged at its {0}: begin a new one")]
    Damaged(&'static str),
    /// Its worlds are others by the present rules.
    #[error("the exploration is of other rules or of another world: begin a new one")]
    Rules,
    /// It was explored with other options.
    #[error("the exploration was saved with other options: give the same ones")]
    Options,
}

impl From<io::Error> for SavedError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::UnexpectedEof => Self::Damaged("end"),
            _ => Self::Read(error),
        }
    }
}

/// The options of an exploration that change its figures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Options {
    liveness: bool,
    cycles: bool,
    apart: bool,
    oracles: Vec<String>,
}

impl Options {
    fn of(explorer: &Explorer) -> Self {
        let &Explorer { liveness, cycles, apart, .. } = explorer;
        let oracles = explorer.oracles.iter().map(|oracle| format!("{oracle:?}")).collect();
        Self { liveness, cycles, apart, oracles }
    }
}

/// A pair of newest states, and the worlds that have it.
type StatePair = ((Option<StateKind>, Option<StateKind>), u64);

#[derive(Serialize, Deserialize)]
struct Header {
    about: String,
    options: Options,
    layer: [u32; 2],
    from: u32,
    depth: u32,
    transitions: u64,
    worst: [u32; 2],
    state_pairs: Vec<StatePair>,
    states: BTreeMap<StateKind, u64>,
    refusals: BTreeMap<RefusalReason, u64>,
    timers: BTreeMap<TimerKind, u64>,
    /// The halves of the bits of taken transitions.
    taken: [u64; 2],
}

impl Header {
    fn of(exploration: &Exploration<'_>, about: &str) -> Self {
        let Coverage { state_pairs, states, refusals, timers, transitions } = &exploration.coverage;
        let Layer { numbers, from, depth, .. } = &exploration.layer;
        Self {
            about: about.to_owned(),
            options: Options::of(exploration.bounds),
            layer: [numbers.start, numbers.end],
            from: *from,
            depth: *depth,
            transitions: exploration.transitions,
            worst: [exploration.worst.events, exploration.worst.ended],
            state_pairs: state_pairs.iter().map(|(pair, count)| (*pair, *count)).collect(),
            states: states.clone(),
            refusals: refusals.clone(),
            timers: timers.clone(),
            taken: [(*transitions >> 64) as u64, *transitions as u64],
        }
    }

    fn coverage(self) -> Coverage {
        let [high, low] = self.taken.map(u128::from);
        Coverage {
            state_pairs: self.state_pairs.into_iter().collect(),
            states: self.states,
            refusals: self.refusals,
            timers: self.timers,
            transitions: high << 64 | low,
        }
    }
}

impl Exploration<'_> {
    /// Writes all that is known between two steps. `about` is returned by [`Saved::about`].
    ///
    /// # Errors
    /// Those of the writer.
    pub fn save(&self, about: &str, to: impl Write) -> io::Result<()> {
        let mut to = Sink { to, digest: Xxh3::new() };
        to.put(VERSION)?;
        let header = serde_json::to_vec(&Header::of(self, about))?;
        to.put(&u32::try_from(header.len()).unwrap_or(u32::MAX).to_le_bytes())?;
        to.put(&header)?;
        let worlds = self.known.seen.entries();
        to.list(worlds.iter(), |to, [low, high, _]| to.numbers([*low, *high]))?;
        to.list(self.known.ways.steps.all(), |to, (parent, place)| {
            to.numbers([parent])?;
            to.put(&place.to_le_bytes())
        })?;
        let graph = self.graph.iter().flat_map(|graph| graph.all()).collect::<Vec<_>>();
        to.list(graph.into_iter(), |to, successors| {
            to.list(successors.iter(), |to, world| to.numbers([*world]))
        })?;
        to.list(self.healings.all(), |to, (next, may_end)| {
            let [kind, first, second] = match next {
                Next::Rest => [0, 0, 0],
                Next::To(world, ended) => [1, world, ended],
                Next::Apart(healing) => [2, healing.events, healing.ended],
            };
            to.numbers([kind, first, second, may_end.unwrap_or(u32::MAX)])
        })?;
        let healed = self.known.healer.as_ref().map(|healer| healer.settled().entries());
        let healed = healed.unwrap_or_default();
        to.list(healed.iter(), |to, entry| to.numbers(*entry))?;
        let mut samples: Vec<(&u128, &Vec<u128>)> = self.known.samples.iter().collect();
        samples.sort_unstable_by_key(|(world, _)| **world);
        to.list(samples.into_iter(), |to, (world, successors)| {
            to.put(&world.to_le_bytes())?;
            to.list(successors.iter(), |to, it| to.put(&it.to_le_bytes()))
        })?;
        let digest = to.digest.digest128();
        to.put(&digest.to_le_bytes())?;
        to.to.flush()
    }
}

/// A writer that digests what it writes.
struct Sink<W> {
    to: W,
    digest: Xxh3,
}

impl<W: Write> Sink<W> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.digest.update(bytes);
        self.to.write_all(bytes)
    }

    fn numbers<const COUNT: usize>(&mut self, numbers: [u32; COUNT]) -> io::Result<()> {
        numbers.iter().try_for_each(|number| self.put(&number.to_le_bytes()))
    }

    fn list<T>(
        &mut self,
        items: impl ExactSizeIterator<Item = T>,
        mut put: impl FnMut(&mut Self, T) -> io::Result<()>,
    ) -> io::Result<()> {
        self.numbers([u32::try_from(items.len()).unwrap_or(u32::MAX)])?;
        items.into_iter().try_for_each(|item| put(self, item))
    }
}

/// A reader that digests what it reads.
struct Source<R> {
    from: R,
    digest: Xxh3,
}

impl<R: Read> Source<R> {
    fn take<const BYTES: usize>(&mut self) -> Result<[u8; BYTES], SavedError> {
        let mut bytes = [0; BYTES];
        self.from.read_exact(&mut bytes)?;
        self.digest.update(&bytes);
        Ok(bytes)
    }

    fn number(&mut self) -> Result<u32, SavedError> {
        self.take().map(u32::from_le_bytes)
    }

    /// Reads a list item by item, so that a damaged length allocates nothing.
    fn list(
        &mut self,
        mut take: impl FnMut(&mut Self, u32) -> Result<(), SavedError>,
    ) -> Result<u32, SavedError> {
        let items = self.number()?;
        (0..items).try_for_each(|at| take(self, at))?;
        Ok(items)
    }
}

/// A saved exploration whose header was read.
pub struct Saved<R> {
    source: Source<R>,
    header: Header,
}

impl<R: Read> Saved<R> {
    /// Reads the header.
    ///
    /// # Errors
    /// [`SavedError`] if the file is not an exploration of this version.
    pub fn open(from: R) -> Result<Self, SavedError> {
        let mut source = Source { from, digest: Xxh3::new() };
        let version: [u8; VERSION.len()] = source.take().map_err(|error| match error {
            SavedError::Damaged(_) => SavedError::Version,
            other => other,
        })?;
        if version != *VERSION {
            return Err(SavedError::Version);
        }
        let length = source.number()?;
        if length > HEADER_MAX {
            return Err(SavedError::Damaged("header"));
        }
        let mut header = vec![0; length as usize];
        source.from.read_exact(&mut header)?;
        source.digest.update(&header);
        let header = serde_json::from_slice(&header);
        let header = header.map_err(|_| SavedError::Damaged("header"))?;
        Ok(Self { source, header })
    }

    /// Returns the words that were given to [`Exploration::save`].
    pub fn about(&self) -> &str {
        &self.header.about
    }

    /// Takes over the options of the exploration that change its figures, other than its oracles.
    pub fn configure(&self, explorer: &mut Explorer) {
        let &Options { liveness, cycles, apart, .. } = &self.header.options;
        (explorer.liveness, explorer.cycles, explorer.apart) = (liveness, cycles, apart);
    }

    /// Reads the rest. The exploration of the same start goes on with the next [`Exploration::advance`].
    ///
    /// # Errors
    /// [`SavedError`] if the file is damaged, or of other rules, another start or other options.
    pub fn resume<'a>(
        mut self,
        explorer: &'a Explorer,
        start: &World,
    ) -> Result<Exploration<'a>, SavedError> {
        if self.header.options != Options::of(explorer) {
            return Err(SavedError::Options);
        }
        let mut resumed = explorer.empty(start);
        let source = &mut self.source;
        read_worlds(source, &mut resumed)?;
        let digest = source.digest.digest128();
        if source.take().map(u128::from_le_bytes)? != digest {
            return Err(SavedError::Damaged("digest"));
        }
        let [first, end] = self.header.layer;
        let (from, depth) = (self.header.from, self.header.depth);
        let worlds = resumed.known.ways.steps.len();
        if !(first <= from && from <= end && end <= worlds) {
            return Err(SavedError::Damaged("layer"));
        }
        if explorer.liveness && resumed.healings.len() != from {
            return Err(SavedError::Damaged("healings"));
        }
        resumed.layer = Layer::new(first..end, from, depth, Vec::new());
        resumed.keeps_next = end == worlds;
        resumed.transitions = self.header.transitions;
        let [events, ended] = self.header.worst;
        resumed.worst = Healing { events, ended };
        resumed.coverage = self.header.coverage();
        has_same_rules(&resumed).then_some(resumed).ok_or(SavedError::Rules)
    }
}

fn read_worlds(
    source: &mut Source<impl Read>,
    resumed: &mut Exploration<'_>,
) -> Result<(), SavedError> {
    let known = &mut resumed.known;
    let worlds = source.list(|source, number| {
        let (low, high) = (source.number()?, source.number()?);
        known.seen.restore([low, high, number]);
        Ok(())
    })?;
    source.list(|source, before| {
        let parent = source.number()?;
        let place = source.take().map(u16::from_le_bytes)?;
        known.ways.steps.add(parent, &place);
        (parent <= before).then_some(()).ok_or(SavedError::Damaged("ways"))
    })?;
    if known.ways.steps.len() != worlds || known.seen.len() != worlds as usize {
        return Err(SavedError::Damaged("worlds"));
    }
    let graph = &mut resumed.graph;
    source.list(|source, _| {
        graph.as_mut().ok_or(SavedError::Damaged("graph"))?.begin();
        source.list(|source, _| {
            let world = source.number()?;
            graph.iter_mut().for_each(|graph| graph.lead_to(world));
            (world < worlds).then_some(()).ok_or(SavedError::Damaged("graph"))
        })?;
        Ok(())
    })?;
    let healings = &mut resumed.healings;
    source.list(|source, _| {
        let next = match (source.number()?, source.number()?, source.number()?) {
            (0, ..) => Next::Rest,
            (1, world, ended) if world < worlds => Next::To(world, ended),
            (2, events, ended) => Next::Apart(Healing { events, ended }),
            _ => return Err(SavedError::Damaged("healings")),
        };
        let may_end = source.number()?;
        healings.add(next, (may_end != u32::MAX).then_some(may_end));
        Ok(())
    })?;
    source.list(|source, _| {
        let entry = [source.number()?, source.number()?, source.number()?];
        let healer = known.healer.as_mut().ok_or(SavedError::Damaged("healings"))?;
        healer.settled_mut().restore(entry);
        Ok(())
    })?;
    source.list(|source, _| {
        let world = source.take().map(u128::from_le_bytes)?;
        let mut successors = Vec::new();
        source.list(|source, _| {
            successors.push(source.take().map(u128::from_le_bytes)?);
            Ok(())
        })?;
        known.samples.insert(world, successors);
        Ok(())
    })?;
    Ok(())
}

/// Whether worlds all over the exploration, made again, have their fingerprints.
fn has_same_rules(resumed: &Exploration<'_>) -> bool {
    let worlds = resumed.known.ways.steps.len();
    let mut trail = Trail::default();
    let apart = (worlds / CHECKED).max(1) as usize;
    (0..worlds).rev().step_by(apart).all(|number| {
        let world = resumed.known.ways.world(number, &mut trail);
        resumed.known.seen.get(world.fingerprint()) == Some(number)
    })
}
