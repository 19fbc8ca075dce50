//! Detection of queue-pair numbers that a restarted peer repeats.

use crate::identity::{Incarnation, NicPath};
use crate::wire::Message;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Detects peers whose queue pairs have the numbers of their previous incarnation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QpnReuseDetector {
    /// The last announcement of each peer.
    last: BTreeMap<NicPath, (Incarnation, Vec<u32>)>,
    peers_max: usize,
}

impl QpnReuseDetector {
    /// A detector that remembers at most so many peers; past the bound it forgets the one with the
    /// lowest name.
    pub const fn new(peers_max: usize) -> Self {
        Self { last: BTreeMap::new(), peers_max }
    }

    /// Takes an announcement. True, once for each incarnation, if the previous incarnation announced
    /// the same numbers.
    pub fn handle_message(&mut self, message: &Message) -> bool {
        let numbers = &message.body.queue_pairs;
        if numbers.is_empty() {
            return false;
        }
        if self.last.len() >= self.peers_max && !self.last.contains_key(&message.from) {
            self.last.pop_first();
        }
        let now = (message.sender.incarnation, numbers.clone());
        let before = self.last.insert(message.from.clone(), now);
        before.is_some_and(|(run, same)| run != message.sender.incarnation && same == *numbers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{Lifecycle, Pair};
    use crate::wire::{Body, Op};

    fn announced(peer: &str, run: u128, queue_pairs: &[u32]) -> Message {
        Message {
            op: Op::Request,
            from: NicPath::parse(peer).unwrap(),
            to: NicPath::parse("a@rdma").unwrap(),
            sender: Pair { incarnation: Incarnation(run), lifecycle: Lifecycle(1) },
            echo: None,
            body: Body { queue_pairs: queue_pairs.to_vec(), ..Body::default() },
            refusal: None,
        }
    }

    #[test]
    fn repeated_numbers_are_reported_once() {
        let mut detector = QpnReuseDetector::new(9);
        let mut reused =
            |run, numbers: &[u32]| detector.handle_message(&announced("b@rdma", run, numbers));
        assert!(!reused(1, &[17, 18]));
        assert!(!reused(1, &[17, 18]), "of the same incarnation");
        assert!(!reused(2, &[]), "without numbers");
        assert!(reused(2, &[17, 18]));
        assert!(!reused(2, &[17, 18]));
        assert!(!reused(3, &[19, 20]));
    }

    #[test]
    fn peers_past_the_bound_are_forgotten() {
        let mut detector = QpnReuseDetector::new(2);
        for peer in ["b@rdma", "c@rdma", "d@rdma"] {
            detector.handle_message(&announced(peer, 1, &[17]));
        }
        assert_eq!(detector.last.len(), 2);
        assert!(!detector.handle_message(&announced("b@rdma", 2, &[17])), "it was forgotten");
        assert!(detector.handle_message(&announced("d@rdma", 2, &[17])));
    }
}
