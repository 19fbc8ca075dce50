//! The whole state of a node as lines, and a node from such lines: what a trace begins with.

use super::lane::{Announcement, Held, Lane, State};
use super::machine::Node;
use super::peers::{Live, Name, Peer};
use super::weak::PlainCall;
use crate::codec::{Code, CodeError, Reader, Writer};
use crate::identity::Lifecycle;
use crate::{code_enum, code_structs};
use alloc::collections::{BTreeMap, VecDeque};

/// A count or number beyond half of its range is refused, so that counting on cannot overflow.
const NUMBER_MAX: u64 = u64::MAX / 2;
/// The same for the counts of one lifecycle or peer.
const COUNT_MAX: u32 = u32::MAX / 2;

code_structs! {
    Announcement { requests, offered, prove }
    Held { token, message }
    PlainCall { token, message }
    Lane { peer, state, body, held, plain, answered_plainly, timer }
    Live { incarnation, since }
    Peer { wanted, failures, first_failure, bound, last, open, backoff, plain, room }
    Name { live, superseded, lanes }
}

code_enum!(State {
    Raising,
    Announced(announcement),
    Fencing { remote, body, peer_wired },
    Wiring { remote, peer_wired },
    Wired { remote, readies },
    Established { remote },
    Proving { remote },
    Weak { remote },
    Draining { remote, cause },
    Quiescing { remote, cause, quiesces },
    Retiring { remote, attempts },
});

impl Node {
    /// Writes everything that the node's behaviour depends on, and its counters: a line `base`, then
    /// one for every peer, name and lifecycle. `end` is called after each line, and takes it.
    ///
    /// Outputs that were not polled are not part of it.
    pub fn save(&self, to: &mut Writer, end: &mut dyn FnMut(&mut Writer)) {
        to.word("base");
        self.config.write(to);
        self.next_lifecycle.write(to);
        self.counters.write(to);
        for count in [self.peers.len(), self.names.len(), self.lanes.len()] {
            count.write(to);
        }
        end(to);
        save_all("peer", &self.peers, to, end);
        save_all("name", &self.names, to, end);
        save_all("lane", &self.lanes, to, end);
    }
}

fn save_all<K: Code, V: Code>(
    word: &str,
    map: &BTreeMap<K, V>,
    to: &mut Writer,
    end: &mut dyn FnMut(&mut Writer),
) {
    for (key, value) in map {
        to.word(word);
        key.write(to);
        value.write(to);
        end(to);
    }
}

/// A node that is read from what [`Node::save`] wrote, line by line.
#[derive(Debug)]
pub struct Restoring {
    node: Node,
    left: [usize; 3],
}

impl Restoring {
    /// Takes the first line.
    ///
    /// # Errors
    /// [`CodeError`] if it is not one.
    pub fn begin(from: &mut Reader<'_>) -> Result<Self, CodeError> {
        keyword(from, "base")?;
        let mut node = Node::new(Code::read(from)?);
        node.next_lifecycle = Code::read(from)?;
        node.counters = Code::read(from)?;
        node.outputs = VecDeque::new();
        let left = [Code::read(from)?, Code::read(from)?, Code::read(from)?];
        from.end()?;
        Ok(Self { node, left })
    }

    /// Whether another line is to be taken.
    pub fn wants_more(&self) -> bool {
        self.left != [0; 3]
    }

    /// Takes the next line.
    ///
    /// # Errors
    /// [`CodeError`] if it is not one, or not in its order.
    pub fn take(&mut self, from: &mut Reader<'_>) -> Result<(), CodeError> {
        let Self { node, left: [peers, names, lanes] } = self;
        match (*peers, *names, *lanes) {
            (1.., ..) => {
                keyword(from, "peer")?;
                insert(&mut node.peers, from)?;
                *peers -= 1;
            }
            (0, 1.., _) => {
                keyword(from, "name")?;
                insert(&mut node.names, from)?;
                *names -= 1;
            }
            (0, 0, 1..) => {
                keyword(from, "lane")?;
                insert(&mut node.lanes, from)?;
                *lanes -= 1;
            }
            (0, 0, 0) => return Err(CodeError::State("there are more lines than were announced")),
        }
        from.end()
    }

    /// The node.
    ///
    /// # Errors
    /// [`CodeError::State`] if a line is missing, or one names what no other has.
    pub fn finish(self) -> Result<Node, CodeError> {
        let wrong = |what| Err(CodeError::State(what));
        if self.wants_more() {
            return wrong("there are fewer lines than were announced");
        }
        let node = self.node;
        let exists = |lifecycle: &Lifecycle| node.lanes.contains_key(lifecycle);
        if !node.names.values().flat_map(|name| &name.lanes).all(exists) {
            return wrong("a name has a lifecycle that does not exist");
        }
        let of_peers = |peer: &Peer| [peer.bound, peer.open];
        if !node.peers.values().flat_map(of_peers).flatten().all(|own| exists(&own)) {
            return wrong("a peer has a lifecycle that does not exist");
        }
        let counters = &node.counters;
        let counts = [
            counters.ignored,
            counters.refused,
            counters.rejected,
            counters.published,
            counters.ended,
            counters.undeclared,
        ];
        let last = node.lanes.keys().next_back().map_or(0, |lifecycle| lifecycle.0);
        if counts.iter().any(|count| *count > NUMBER_MAX) || node.next_lifecycle > NUMBER_MAX {
            return wrong("a counter is beyond half of its range");
        }
        if last >= node.next_lifecycle {
            return wrong("a lifecycle has a number that was not given yet");
        }
        let of_lanes = node.lanes.values().map(|lane| count_of(&lane.state));
        let of_peers = node.peers.values().map(|peer| peer.failures);
        if of_lanes.chain(of_peers).any(|count| count > COUNT_MAX) {
            return wrong("a count of attempts is beyond half of its range");
        }
        Ok(node)
    }
}

fn count_of(state: &State) -> u32 {
    match state {
        State::Announced(announcement) => announcement.requests,
        State::Wired { readies, .. } => *readies,
        State::Quiescing { quiesces, .. } => *quiesces,
        State::Retiring { attempts, .. } => *attempts,
        _ => 0,
    }
}

fn keyword(from: &mut Reader<'_>, word: &'static str) -> Result<(), CodeError> {
    match from.word(word)? {
        found if found == word => Ok(()),
        found => Err(from.unexpected(word, found)),
    }
}

/// Inserts the next entry, whose key must be the greatest so far: there is one order to write them.
fn insert<K: Code + Ord, V: Code>(
    map: &mut BTreeMap<K, V>,
    from: &mut Reader<'_>,
) -> Result<(), CodeError> {
    let (key, value) = (K::read(from)?, V::read(from)?);
    if map.last_key_value().is_some_and(|(last, _)| *last >= key) {
        return Err(CodeError::State("the lines are not in their order"));
    }
    map.insert(key, value);
    Ok(())
}
