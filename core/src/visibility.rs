//! The end of writes into memory whose owner sees them late.
//!
//! A NIC acknowledges a write before the accelerator behind its bus has the bytes. A read of the same
//! memory on the same queue pair is answered behind them, so its completion says that they are there. The
//! caller posts each read of [`Unseen::poll_read`], and ends its writes when it has completed.
//!
//! On iWARP a write completes at its sender before the peer has accepted it. The same read proves it, and
//! [`Refusals`] says who is charged for a refusal that no completion reports.

use alloc::borrow::ToOwned as _;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

/// Writes that the device has completed, and that their owner may not see yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Unseen<W>(Vec<Write<W>>);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Write<W> {
    pair: usize,
    region: u64,
    write: W,
}

/// A read that shows writes to their owner.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ShowingRead<W> {
    /// The queue pair.
    pub pair: usize,
    /// The key of the region.
    pub region: u64,
    /// The writes that end with the read; at least one.
    pub writes: Vec<W>,
}

impl<W> Default for Unseen<W> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<W> Unseen<W> {
    /// Whether no write waits for a read.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Keeps a write of a queue pair to a region, which has completed.
    pub fn on_written(&mut self, pair: usize, region: u64, write: W) {
        self.0.push(Write { pair, region, write });
    }

    /// Takes the next read to post: one for all writes of a queue pair to one region. The region's memory
    /// is on one device: a read says nothing of writes on their way to others.
    pub fn poll_read(&mut self) -> Option<ShowingRead<W>> {
        let last = self.0.last()?;
        let (pair, region) = (last.pair, last.region);
        let is_of_read = |it: &mut Write<W>| (it.pair, it.region) == (pair, region);
        let writes = self.0.extract_if(.., is_of_read).map(|it| it.write).collect();
        Some(ShowingRead { pair, region, writes })
    }
}

/// Answers of a peer after which queue pairs take several slices at a time again.
pub const APART_ANSWERS: u32 = 256;
/// Peers whose slices go one at a time; one more displaces the one with the fewest answers left.
pub const PEERS_APART_MAX: usize = 1_024;

/// The slice that is charged for a refusal that no completion reports, on a device that completes writes before they
/// have arrived.
///
/// The peer answers nothing behind the request that it refuses. A read behind several writes does not say
/// which of them that was: the lane charges nobody, and queue pairs of the next lanes to that peer take one slice at
/// a time. The first that they lose is the refused one. After [`APART_ANSWERS`] they take several again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Refusals {
    /// Answers that are left, by the name of the peer.
    apart: BTreeMap<String, u32>,
    answers: u32,
}

impl Default for Refusals {
    fn default() -> Self {
        Self::until(APART_ANSWERS)
    }
}

impl Refusals {
    /// Slices go one at a time until a peer has answered as many requests.
    pub const fn until(answers: u32) -> Self {
        Self { apart: BTreeMap::new(), answers }
    }

    /// Whether queue pairs to a peer take one slice at a time. A lane that takes several goes on to do so.
    pub fn are_apart(&self, peer: &str) -> bool {
        self.apart.contains_key(peer)
    }

    /// A queue pair has lost its first request without a cause. Returns whether the slices of that request
    /// are charged. `is_apart`: its queue pairs take one slice at a time. `has_other_cause`: see
    /// [`LaneEnd::on_first_lost`].
    pub fn on_first_lost(&mut self, peer: &str, is_apart: bool, has_other_cause: bool) -> bool {
        if has_other_cause {
            return false;
        }
        if self.apart.len() >= PEERS_APART_MAX && !self.are_apart(peer) {
            let fewest = self.apart.iter().min_by_key(|(_, answers)| **answers);
            let fewest = fewest.map(|(peer, _)| peer.clone());
            fewest.and_then(|fewest| self.apart.remove(&fewest));
        }
        self.apart.insert(peer.to_owned(), self.answers);
        is_apart
    }

    /// A peer has answered a request that was alone: a read, or the one behind a write.
    pub fn on_answered(&mut self, peer: &str) {
        if let Some(answers) = self.apart.get_mut(peer) {
            *answers = answers.saturating_sub(1);
            if *answers == 0 {
                self.apart.remove(peer);
            }
        }
    }
}

/// The cause of a lane's end, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LaneEnd {
    /// This node has ended the lane, or the request that failed it is known.
    is_settled: bool,
    /// The queue pair that failed, where an event has named it.
    pair: Option<usize>,
}

impl LaneEnd {
    /// This node ends the lane.
    pub const fn on_ended_here(&mut self) {
        self.is_settled = true;
    }

    /// An event says that a queue pair has failed. The first one counts.
    pub fn on_event(&mut self, pair: usize) {
        self.pair.get_or_insert(pair);
    }

    /// A queue pair has lost its first request. Returns whether that follows from another cause.
    pub fn on_first_lost(&mut self, pair: usize) -> bool {
        let follows = self.is_settled || self.pair.is_some_and(|failed| failed != pair);
        self.is_settled |= !follows;
        follows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    /// One read shows the writes of a queue pair to a region, and no others.
    #[test]
    fn read_shows_the_writes_of_its_pair_and_region() {
        let mut unseen = Unseen::default();
        assert!(unseen.is_empty() && unseen.poll_read().is_none());
        for (pair, region, write) in [(0, 7, 'a'), (1, 7, 'b'), (0, 8, 'c'), (0, 7, 'd')] {
            unseen.on_written(pair, region, write);
        }
        let mut shown = [(); 3].map(|()| {
            assert!(!unseen.is_empty());
            let read = unseen.poll_read().unwrap();
            (read.pair, read.region, read.writes)
        });
        shown.sort();
        let of = |writes: &str| writes.chars().collect::<Vec<_>>();
        assert_eq!(shown, [(0, 7, of("ad")), (0, 8, of("c")), (1, 7, of("b"))]);
        assert!(unseen.is_empty() && unseen.poll_read().is_none());
    }

    /// A peer's slices go one at a time after a loss without a cause, until it has answered; those of others do
    /// not, and a loss with a cause changes nothing.
    #[test]
    fn slices_go_one_at_a_time_until_their_peer_answers() {
        let mut refusals = Refusals::until(2);
        assert!(!refusals.on_first_lost("a", false, true));
        assert!(!refusals.are_apart("a"), "a loss with a cause");
        assert!(!refusals.on_first_lost("a", false, false), "nobody is charged");
        assert!(refusals.are_apart("a") && !refusals.are_apart("b"));
        refusals.on_answered("b");
        refusals.on_answered("a");
        assert!(refusals.on_first_lost("a", true, false), "it was alone");
        for _ in 0..2 {
            assert!(refusals.are_apart("a"));
            refusals.on_answered("a");
        }
        assert_eq!(refusals, Refusals::until(2));
    }

    /// One peer more than are known displaces the one that has answered most.
    #[test]
    fn peer_past_the_limit_displaces_one() {
        let mut refusals = Refusals::default();
        let name = |peer: usize| format!("{peer}");
        for peer in 0..PEERS_APART_MAX {
            refusals.on_first_lost(&name(peer), false, false);
        }
        refusals.on_answered("7");
        refusals.on_first_lost("7", false, true);
        refusals.on_first_lost(&name(PEERS_APART_MAX), false, false);
        assert!(!refusals.are_apart("7") && refusals.are_apart(&name(PEERS_APART_MAX)));
        assert_eq!(
            (0..=PEERS_APART_MAX).filter(|it| refusals.are_apart(&name(*it))).count(),
            PEERS_APART_MAX
        );
    }

    /// In every order of two queue pairs' events and losses and of an end of this node's: one loss at most is the cause,
    /// none after an own end; of the pair that an event has named before, if one has, else the first.
    #[test]
    fn lane_ends_with_the_queue_pair_that_failed() {
        const LENGTH: u32 = 6;
        const INPUTS: u32 = 5;
        for order in 0..INPUTS.pow(LENGTH) {
            let inputs = (0..LENGTH).map(|at| order / INPUTS.pow(at) % INPUTS);
            let (mut end, mut named, mut is_over) = (LaneEnd::default(), None, false);
            for input in inputs {
                let pair = usize::from(input % 2 == 1);
                match input {
                    0 | 1 => {
                        end.on_event(pair);
                        named = named.or(Some(pair));
                    }
                    2 | 3 => {
                        let follows = is_over || named.is_some_and(|named| named != pair);
                        assert_eq!(
                            end.on_first_lost(pair),
                            follows,
                            "order {order}, input {input}"
                        );
                        is_over |= !follows;
                    }
                    _ => {
                        end.on_ended_here();
                        is_over = true;
                    }
                }
            }
        }
    }
}
