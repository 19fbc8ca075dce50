//! The lines of a trace.

use crate::edge::Edge;
use handfast_core::{Incarnation, Input, Instant, NicPath, Node, Output};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

/// The beginning of the first line of every trace.
pub const MAGIC: &str = "handfast-trace";
/// The version of the format, which follows in the first line. Version 1 had words in place of JSON.
pub const VERSION: u32 = 3;
/// Maximum length of a line, in bytes. The longest lines begin a segment: they hold the state of
/// the node, about 90 MB with every table full.
pub const LINE_BYTES_MAX: usize = 128 << 20;
/// Maximum kinds of outputs listed in effects; `more` replaces the others.
const KINDS_MAX: usize = 16;

/// A summary of the outputs of an input.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effects {
    /// The number of outputs.
    pub count: usize,
    /// XXH3-64 of their JSON texts, each with a line feed after it.
    pub digest: u64,
    /// The variants of the first sixteen outputs, joined by commas, followed by `more` if there are
    /// more; `-` if there are none. For people.
    pub kinds: String,
}

impl Effects {
    /// Returns the effects of an input with these outputs.
    pub fn of(outputs: &[Output]) -> Self {
        let texts: Vec<_> = outputs.iter().map(json).collect();
        let variant = |text: &String| text.split('"').nth(1).unwrap_or_default().to_owned();
        let mut kinds: Vec<_> = texts.iter().take(KINDS_MAX).map(variant).collect();
        if texts.len() > KINDS_MAX {
            kinds.push("more".to_owned());
        }
        let kinds = if kinds.is_empty() { "-".to_owned() } else { kinds.join(",") };
        let text: String = texts.iter().flat_map(|text| [text, "\n"]).collect();
        Self { count: outputs.len(), digest: xxh3_64(text.as_bytes()), kinds }
    }
}

/// The content of an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// An input of the core. The effects are absent if the process ended while the core handled it.
    Input(Box<Input>, Option<Effects>),
    /// A timeout of the core.
    Timeout(Option<Effects>),
    /// An edge of the transfers to one incarnation of a peer.
    Edge(NicPath, Incarnation, Edge),
}

/// One entry of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its number, from 1, over the whole run.
    pub number: u64,
    /// Its time, in nanoseconds of the run's clock.
    pub now: Instant,
    /// Its content.
    pub what: What,
}

/// One line after the first.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// The beginning of a segment, which replays by itself.
    Segment {
        /// Its number, from 1, over the whole run.
        number: u64,
        /// The number of its first entry.
        entry: u64,
        /// The state of the node before that entry.
        node: Box<Node>,
    },
    /// An entry.
    Entry(Entry),
    /// The end of the engine, and of the trace.
    End {
        /// One more than the number of the last entry.
        entry: u64,
        /// The time of the end.
        now: Instant,
    },
}

/// Returns the first line.
pub(crate) fn header(program: &str) -> String {
    format!("{MAGIC} {VERSION} {program}\n")
}

/// Returns the JSON text of a value of a trace. No such value contains a map.
pub(crate) fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("structs, enums and lists are JSON")
}

/// Returns `json` followed by its checksum and a line feed.
pub fn signed(json: &str) -> String {
    format!("{json} {}\n", checksum(json))
}

/// Returns the checksum: eight hexadecimal digits, the low half of XXH3-64.
pub(crate) fn checksum(json: &str) -> String {
    format!("{:08x}", xxh3_64(json.as_bytes()) as u32)
}
