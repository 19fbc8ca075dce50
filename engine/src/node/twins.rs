//! Peers whose queue pairs have the numbers of their former run.

use handfast_core::wire::Message;
use handfast_core::{Incarnation, NicPath};
use std::collections::BTreeMap;

/// What each peer announced last, of as many as are known of.
#[derive(Default)]
pub(crate) struct Twins {
    last: BTreeMap<NicPath, (Incarnation, Vec<u32>)>,
}

impl Twins {
    /// Remembers what a peer announces. True where another run of it announced the same numbers,
    /// which is told once for each run.
    pub(crate) fn note(&mut self, message: &Message, peers_max: usize) -> bool {
        let numbers = &message.body.queue_pairs;
        if numbers.is_empty() {
            return false;
        }
        if self.last.len() >= peers_max && !self.last.contains_key(&message.from) {
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
    use handfast_core::wire::{Body, Op};
    use handfast_core::{Lifecycle, Pair};

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
    fn numbers_that_another_run_repeats_are_told_once() {
        let mut twins = Twins::default();
        let mut note = |run, numbers: &[u32]| twins.note(&announced("b@rdma", run, numbers), 9);
        assert!(!note(1, &[17, 18]));
        assert!(!note(1, &[17, 18]), "of the same run");
        assert!(!note(2, &[]), "it has none");
        assert!(note(2, &[17, 18]));
        assert!(!note(2, &[17, 18]));
        assert!(!note(3, &[19, 20]));
    }

    #[test]
    fn no_more_peers_are_remembered_than_are_allowed() {
        let mut twins = Twins::default();
        for peer in ["b@rdma", "c@rdma", "d@rdma"] {
            twins.note(&announced(peer, 1, &[17]), 2);
        }
        assert_eq!(twins.last.len(), 2);
        assert!(!twins.note(&announced("b@rdma", 2, &[17]), 2), "it was forgotten");
        assert!(twins.note(&announced("d@rdma", 2, &[17]), 2));
    }
}
