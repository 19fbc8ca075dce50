//! A recorded run of one node as a picture: the node, and its peers as it saw them.
//!
//! The other side of a message is not known: a call is drawn where it was sent, and what became of
//! it where that showed.

use crate::record::{Fate, Passage, Picture, Row, SiteState};
use handfast_core::transport::{Operation, Outcome};
use handfast_core::wire::Message;
use handfast_core::{Event, Incarnation, Input, Lifecycle, NicPath, Node, Output, Pair};
use handfast_trace::{Edge, Entry, ReplayError, Step, TraceReader, What, replay};
use std::collections::BTreeMap;
use std::io::BufRead;

/// Most entries in one picture.
pub const ENTRIES_SHOWN_MAX: u64 = 2_000;
/// Peers with a line of their own; others share one.
const PEERS_SHOWN_MAX: usize = 6;

/// The range of entries to show.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// The first; without it, so that the last is shown.
    pub from: Option<u64>,
    /// Number of entries, at most [`ENTRIES_SHOWN_MAX`].
    pub entries: u64,
}

/// Draws a window of a trace that is read twice: first to the end, to see that it replays.
///
/// # Errors
/// [`ReplayError`] if it does not; or what `open` fails with.
pub fn picture<R: BufRead, E: From<ReplayError>>(
    open: &mut dyn FnMut() -> Result<TraceReader<R>, E>,
    window: Window,
) -> Result<Picture, E> {
    let mut end = 0;
    replay(open()?, &mut |step| {
        if let Step::Entry { entry, .. } = step {
            end = entry.number + 1;
        }
    })?;
    let entries = window.entries.min(ENTRIES_SHOWN_MAX);
    let from = window.from.unwrap_or(end.saturating_sub(entries));
    let shown = from..from.saturating_add(entries);
    let mut drawing = Drawing::default();
    replay(open()?, &mut |step| match step {
        Step::Segment { node, missing, .. } => drawing.begin(node, missing),
        Step::Entry { entry, node, outputs } if shown.contains(&entry.number) => {
            drawing.entry(entry, node, outputs);
        }
        Step::Entry { .. } | Step::End(_) => {}
    })?;
    Ok(drawing.finish())
}

#[derive(Default)]
struct Drawing {
    picture: Picture,
    peers: Vec<NicPath>,
    /// The runs of each peer, in the order in which they showed.
    runs: BTreeMap<NicPath, Vec<Incarnation>>,
    /// Calls that were not answered yet.
    open: Vec<(Lifecycle, Passage)>,
    /// Entries that are missing before the next row.
    missing: u64,
}

impl Drawing {
    fn begin(&mut self, node: &Node, missing: u64) {
        let name = node.path();
        if self.picture.sites.is_empty() {
            self.picture.sites.push(format!("A ({name})"));
        }
        self.missing += missing;
    }

    fn entry(&mut self, entry: &Entry, node: &Node, outputs: &[Output]) {
        let missing = std::mem::take(&mut self.missing);
        let mut notes = Vec::new();
        if missing > 0 && !self.picture.rows.is_empty() {
            notes.push(format!("{missing} entries before this one made way"));
        }
        let (site, words) = self.words(entry);
        for output in outputs {
            let note = self.note(output);
            notes.push(note);
        }
        let (nanos, number) = (entry.now.0, entry.number);
        let (millis, micros) = (nanos / 1_000_000, nanos / 1_000 % 1_000);
        let details = self.details(node);
        let lifecycles = node.lifecycles().map(|(own, kind, ..)| format!("A#{} {kind:?}", own.0));
        self.picture.rows.push(Row {
            site,
            words: format!("entry {number}, {millis}.{micros:03} ms: {words}"),
            fault: entry.fails(outputs),
            healing: false,
            notes,
            violations: Vec::new(),
            states: vec![SiteState { lifecycles: lifecycles.collect(), details }],
        });
    }

    /// Text of an entry, and the site it belongs to.
    fn words(&mut self, entry: &Entry) -> (usize, String) {
        let input = match &entry.what {
            What::Input(input, _) => &**input,
            What::Timeout(_) => return (0, "time has passed".to_owned()),
            What::Edge(peer, run, edge) => {
                let name = self.name_of(peer, *run);
                return (0, format!("transfers to {name}: {}", edge_words(edge)));
            }
        };
        let words = match input {
            Input::Open(peer) => format!("the application wants a lane to {}", self.letter(peer)),
            Input::Close(peer) => {
                format!("the application wants no lane to {}", self.letter(peer))
            }
            Input::Release(peer) => {
                format!("the application needs none to {}", self.letter(peer))
            }
            Input::CallReceived { message, .. } => {
                let (words, site) = self.arrived(message);
                return (site, format!("called: {words}"));
            }
            Input::CallAnswered(message) => {
                if let Some(echo) = message.echo {
                    self.settle(echo.lifecycle, Fate::Arrived);
                }
                let (words, site) = self.arrived(message);
                return (site, format!("answered: {words}"));
            }
            Input::PlainCallReceived { .. } => "a node without our key calls".to_owned(),
            Input::PlainCallAnswered { lifecycle, .. } => {
                self.settle(*lifecycle, Fate::Arrived);
                format!("a node without our key answers a call of A#{}", lifecycle.0)
            }
            Input::CallFailed { lifecycle, failure } => {
                self.settle(*lifecycle, Fate::Lost);
                format!("a call of A#{} fails: {failure:?}", lifecycle.0)
            }
            Input::OperationDone { id, outcome } => {
                let (kind, own) = (id.kind, id.lifecycle.0);
                match outcome {
                    Outcome::Failed(error) => format!("{kind:?} of A#{own} fails: {error}"),
                    _ => format!("{kind:?} of A#{own} is done"),
                }
            }
            Input::LaneFailed { lifecycle, error } => {
                format!("the lane A#{} fails: {error}", lifecycle.0)
            }
        };
        (0, words)
    }

    /// Draws a message of a peer, whose way is not known.
    fn arrived(&mut self, message: &Message) -> (String, usize) {
        let sender = self.name_of_pair(&message.from, message.sender);
        let echo = message.echo.map(|echo| format!(" echoing A#{}", echo.lifecycle.0));
        let why = message.refusal.as_ref().map(|refusal| format!(": {:?}", refusal.reason));
        let (echo, why) = (echo.unwrap_or_default(), why.unwrap_or_default());
        let words = format!("{:?} of {sender}{echo}{why}", message.op);
        let (site, row) = (self.site(&message.from), self.picture.rows.len());
        let (sent, ended, fate) = (row, row, Fate::Arrived);
        let passage = Passage { words: words.clone(), from: site, to: 0, sent, ended, fate };
        self.picture.passages.push(passage);
        (words, 0)
    }

    /// Draws an outgoing message; the fate of a call may show later.
    fn sent(&mut self, message: &Message, is_call: bool) -> String {
        let own = message.sender.lifecycle;
        let echo = message.echo.map(|echo| self.name_of_pair(&message.to, echo));
        let echo = echo.map(|echo| format!(" echoing {echo}")).unwrap_or_default();
        let why = message.refusal.as_ref().map(|refusal| format!(": {:?}", refusal.reason));
        let words = format!("{:?} of A#{}{echo}{}", message.op, own.0, why.unwrap_or_default());
        let (to, row) = (self.site(&message.to), self.picture.rows.len());
        let (words_again, fate) = (words.clone(), Fate::Arrived);
        let passage = Passage { words: words_again, from: 0, to, sent: row, ended: row, fate };
        if is_call {
            self.open.push((own, passage));
        } else {
            self.picture.passages.push(passage);
        }
        words
    }

    /// Sets the fate of the oldest call of a lifecycle.
    fn settle(&mut self, own: Lifecycle, fate: Fate) {
        let Some(at) = self.open.iter().position(|(caller, _)| *caller == own) else { return };
        let (_, passage) = self.open.remove(at);
        self.picture.passages.push(Passage { fate, ..passage });
    }

    fn note(&mut self, output: &Output) -> String {
        match output {
            Output::Call(message) => format!("calls {}", self.sent(message, true)),
            Output::Answer { message, .. } => format!("answers {}", self.sent(message, false)),
            Output::PlainAnswer { .. } => "answers a node without our key".to_owned(),
            Output::Operate(operation) => operation_words(operation),
            Output::Publish { local, remote, peer } => {
                let remote = self.name_of_pair(peer, *remote);
                format!("lane A#{} to {remote} is up", local.lifecycle.0)
            }
            Output::Revoke(own) => format!("lane A#{} is revoked", own.0),
            Output::Event(event) => self.event_words(event),
        }
    }

    fn event_words(&mut self, event: &Event) -> String {
        match event {
            Event::Ended { lifecycle, failure, .. } => format!("A#{} ends: {failure}", lifecycle.0),
            Event::OpenFailed { peer, failure } => {
                format!("no lane to {} could be opened: {failure}", self.letter(peer))
            }
            Event::PeerRestarted { peer, new, .. } => {
                format!("{} has restarted: {}", self.letter(peer), self.name_of(peer, *new))
            }
            event => format!("{event:?}"),
        }
    }

    /// Every lifecycle with whom it is towards.
    fn details(&mut self, node: &Node) -> Vec<String> {
        let lifecycles = node.lifecycles().map(|(own, kind, peer, remote)| {
            let towards = match remote {
                Some(remote) => self.name_of_pair(peer, remote),
                None => self.letter(peer),
            };
            format!("A#{} {kind:?} towards {towards}", own.0)
        });
        lifecycles.collect()
    }

    fn site(&mut self, peer: &NicPath) -> usize {
        if let Some(at) = self.peers.iter().position(|known| known == peer) {
            return at + 1;
        }
        if self.peers.len() >= PEERS_SHOWN_MAX {
            if self.picture.sites.len() == self.peers.len() + 1 {
                self.picture.sites.push(format!("{} (others)", letter(self.peers.len() + 1)));
            }
            return self.peers.len() + 1;
        }
        self.peers.push(peer.clone());
        let site = self.peers.len();
        self.picture.sites.push(format!("{} ({peer})", letter(site)));
        site
    }

    fn letter(&mut self, peer: &NicPath) -> String {
        match self.site(peer) {
            site if site <= PEERS_SHOWN_MAX => letter(site).to_string(),
            _ => peer.to_string(),
        }
    }

    /// A run of a peer: a prime for each run before it that showed.
    fn name_of(&mut self, peer: &NicPath, run: Incarnation) -> String {
        let runs = self.runs.entry(peer.clone()).or_default();
        let at = runs.iter().position(|known| *known == run).unwrap_or_else(|| {
            runs.push(run);
            runs.len() - 1
        });
        format!("{}{}", self.letter(peer), "'".repeat(at.min(3)))
    }

    fn name_of_pair(&mut self, peer: &NicPath, pair: Pair) -> String {
        format!("{}#{}", self.name_of(peer, pair.incarnation), pair.lifecycle.0)
    }

    fn finish(mut self) -> Picture {
        let rows = self.picture.rows.len();
        for (_, passage) in std::mem::take(&mut self.open) {
            let passage = Passage { fate: Fate::OnItsWay, ended: rows, ..passage };
            self.picture.passages.push(passage);
        }
        self.picture
    }
}

fn letter(site: usize) -> char {
    char::from(b'A'.saturating_add(u8::try_from(site).unwrap_or(25)))
}

fn operation_words(operation: &Operation) -> String {
    let id = operation.id();
    format!("{:?} of A#{}", id.kind, id.lifecycle.0)
}

fn edge_words(edge: &Edge) -> String {
    match edge {
        Edge::Submitted { batch, requests, bytes } => {
            format!("batch {batch} of {requests} requests, {bytes} bytes, is submitted")
        }
        Edge::Ended { batch, ending } => format!("batch {batch} ends: {ending:?}"),
        Edge::LaneUp(own) => format!("lane A#{} is up", own.0),
        Edge::LaneRevoked(own) => format!("nothing more is posted on lane A#{}", own.0),
        Edge::LaneDown { lane, cause } => format!("lane A#{} is gone: {cause}", lane.0),
        Edge::PeerLost(cause) => format!("the peer is given up: {cause}"),
        Edge::PeerRestarted => "the peer runs anew".to_owned(),
        Edge::Missed(count) => format!("{count} edges before this were not kept"),
    }
}
