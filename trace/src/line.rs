//! The lines of a trace.

use crate::edge::Edge;
use handfast_core::codec::{Code, CodeError, Reader, Writer};
use handfast_core::{Incarnation, Input, Instant, NicPath, Output};
use xxhash_rust::xxh3::xxh3_64;

/// What the first line of every trace begins with.
pub const MAGIC: &str = "handfast-trace";
/// The version of the format: what the first line goes on with.
pub const VERSION: u32 = 1;
/// Longest line, in bytes. The longest ones are lifecycles with many calls that wait, and names with
/// many lifecycles.
pub const LINE_BYTES_MAX: usize = 4 << 20;
/// Kinds of outputs that effects name; for what is beyond, `more` stands.
const KINDS_MAX: usize = 16;
/// Longest list of them, in bytes.
const KINDS_BYTES_MAX: usize = 256;
/// Between what the core was told and what came of it.
const RESULT: &str = ">";

/// What came of an input, in brief.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// How many outputs.
    pub count: usize,
    /// XXH3-64 of their words, each output with a line feed after it.
    pub digest: u64,
    /// What they are, for people: the variants of the first sixteen, joined by commas, and `more` if
    /// there are more; `-` if there are none.
    pub kinds: String,
}

impl Effects {
    /// Those of some outputs.
    pub fn of(outputs: &[Output]) -> Self {
        let (mut words, mut kinds) = (Writer::default(), String::new());
        let mut text = String::new();
        for (at, output) in outputs.iter().enumerate() {
            output.write(&mut words);
            if at <= KINDS_MAX {
                let comma = if at == 0 { "" } else { "," };
                let kind = words.as_str().split(' ').next().unwrap_or_default();
                kinds += comma;
                kinds += if at < KINDS_MAX { kind } else { "more" };
            }
            text.push_str(words.as_str());
            text.push('\n');
            words.clear();
        }
        if kinds.is_empty() {
            kinds.push('-');
        }
        Self { count: outputs.len(), digest: xxh3_64(text.as_bytes()), kinds }
    }
}

impl Code for Effects {
    fn write(&self, to: &mut Writer) {
        self.count.write(to);
        to.word(&format!("{:016x}", self.digest));
        to.word(&self.kinds);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, CodeError> {
        let count = usize::read(from)?;
        let word = from.word("a digest")?;
        let digest = u64::from_str_radix(word, 16).ok();
        let digest = digest.filter(|digest| format!("{digest:016x}") == word);
        let digest = digest.ok_or_else(|| from.unexpected("a digest", word))?;
        let kinds = from.word("the kinds of outputs")?;
        let plain = |letter: u8| letter.is_ascii_alphanumeric() || matches!(letter, b',' | b'-');
        if !(1..=KINDS_BYTES_MAX).contains(&kinds.len()) || !kinds.bytes().all(plain) {
            return Err(from.unexpected("the kinds of outputs", kinds));
        }
        Ok(Self { count, digest, kinds: kinds.to_owned() })
    }
}

/// What an entry says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// The core was told something. Without effects: the process ended while it was.
    Input(Box<Input>, Option<Effects>),
    /// The core was told that time has passed.
    Timeout(Option<Effects>),
    /// Something happened to the transfers to one run of a peer.
    Edge(NicPath, Incarnation, Edge),
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its number, from 1, over the whole run.
    pub number: u64,
    /// When, in nanoseconds of the run's clock.
    pub now: Instant,
    /// What.
    pub what: What,
}

/// One line after the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// What follows can be replayed by itself.
    Segment {
        /// Its number, from 1, over the whole run.
        number: u64,
        /// The number of its first entry.
        entry: u64,
    },
    /// A part of the node's state before the first entry of the segment, as
    /// [`Node::save`](handfast_core::Node::save) writes it.
    State(String),
    /// Something that happened.
    Entry(Entry),
    /// The engine was closed; nothing follows.
    End {
        /// One more than the number of the last entry.
        entry: u64,
        /// When.
        now: Instant,
    },
}

pub(crate) fn write_input(to: &mut Writer, number: u64, now: Instant, input: Option<&Input>) {
    to.word(if input.is_some() { "input" } else { "timeout" });
    number.write(to);
    now.write(to);
    if let Some(input) = input {
        input.write(to);
    }
}

pub(crate) fn write_effects(to: &mut Writer, effects: &Effects) {
    to.word(RESULT);
    effects.write(to);
}

pub(crate) fn write_edge(
    to: &mut Writer,
    number: u64,
    now: Instant,
    (peer, run): (&NicPath, Incarnation),
    edge: &Edge,
) {
    to.word("edge");
    number.write(to);
    now.write(to);
    peer.write(to);
    run.write(to);
    edge.write(to);
}

/// The first line.
pub(crate) fn header(program: &str) -> String {
    format!("{MAGIC} {VERSION} {program}\n")
}

/// The line of some words, with its checksum and its end.
pub fn signed(words: &str) -> String {
    format!("{words} {}\n", checksum(words))
}

/// Eight hexadecimal digits: the low half of XXH3-64.
pub(crate) fn checksum(words: &str) -> String {
    format!("{:08x}", xxh3_64(words.as_bytes()) as u32)
}

impl Line {
    /// Appends its words; a checksum and a line feed make them a line.
    pub fn write(&self, to: &mut Writer) {
        match self {
            Self::Segment { number, entry } => {
                to.word("segment");
                number.write(to);
                entry.write(to);
            }
            Self::State(part) => {
                to.word("state");
                to.word(part);
            }
            Self::Entry(Entry { number, now, what }) => match what {
                What::Input(input, effects) => {
                    write_input(to, *number, *now, Some(input));
                    effects.iter().for_each(|effects| write_effects(to, effects));
                }
                What::Timeout(effects) => {
                    write_input(to, *number, *now, None);
                    effects.iter().for_each(|effects| write_effects(to, effects));
                }
                What::Edge(peer, run, edge) => write_edge(to, *number, *now, (peer, *run), edge),
            },
            Self::End { entry, now } => {
                to.word("end");
                entry.write(to);
                now.write(to);
            }
        }
    }

    /// Reads its words.
    pub(crate) fn read(words: &str, from: &mut Reader<'_>) -> Result<Self, CodeError> {
        let expected = "the kind of a line";
        let kind = from.word(expected)?;
        if kind == "state" {
            // Read when the node is restored, with whatever maps its texts then.
            let part = words.split_once(' ').map(|(_, part)| part.to_owned());
            return part.map(Self::State).ok_or_else(|| from.unexpected(expected, kind));
        }
        let line = match kind {
            "segment" => Self::Segment { number: Code::read(from)?, entry: Code::read(from)? },
            "end" => Self::End { entry: Code::read(from)?, now: Code::read(from)? },
            "input" | "timeout" | "edge" => {
                let (number, now) = (Code::read(from)?, Code::read(from)?);
                let what = match kind {
                    "input" => What::Input(Box::new(Code::read(from)?), read_effects(from)?),
                    "timeout" => What::Timeout(read_effects(from)?),
                    _ => What::Edge(Code::read(from)?, Code::read(from)?, Code::read(from)?),
                };
                Self::Entry(Entry { number, now, what })
            }
            _ => return Err(from.unexpected(expected, kind)),
        };
        from.end()?;
        Ok(line)
    }
}

fn read_effects(from: &mut Reader<'_>) -> Result<Option<Effects>, CodeError> {
    if from.is_at_end() {
        return Ok(None);
    }
    match from.word(RESULT)? {
        RESULT => Effects::read(from).map(Some),
        word => Err(from.unexpected(RESULT, word)),
    }
}
