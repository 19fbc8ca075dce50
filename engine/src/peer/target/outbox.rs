//! Postings and withdrawals on their way to the data path, grouped by lane.

use handfast_core::{Duration, Lifecycle};
use handfast_transport::{DataPath, LaneHandle, Posting, SliceId};
use std::sync::Arc;

/// The slices that a target hands to the data path in one go. The slices of one lane form one posting, and so
/// ring one doorbell, however they alternate with those of others. Lists are kept for the next use.
#[derive(Default)]
pub(super) struct Outbox {
    runs: Vec<Run>,
    /// Runs in use; the others are empty and stand behind them.
    used: usize,
    /// Lanes of the last dispatch whose bytes the posting thread moves.
    copying: Vec<Arc<dyn LaneHandle>>,
}

/// The slices of one lane.
struct Run {
    lane: Lifecycle,
    handle: Option<Arc<dyn LaneHandle>>,
    postings: Vec<Posting>,
    /// Slices to be given back, posted before or in this run, with the silence of the lane.
    withdrawn: Vec<(SliceId, Duration)>,
}

impl Outbox {
    pub(super) fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Adds a posting; with a handle the data path does not look the lane up. Returns whether it is
    /// the first on its lane.
    pub(super) fn post(
        &mut self,
        lane: Lifecycle,
        handle: Option<&Arc<dyn LaneHandle>>,
        posting: Posting,
    ) -> bool {
        let run = self.run(lane);
        if run.handle.is_none() {
            run.handle = handle.cloned();
        }
        run.postings.push(posting);
        run.postings.len() == 1
    }

    pub(super) fn withdraw(&mut self, lane: Lifecycle, slice: SliceId, silence: Duration) {
        self.run(lane).withdrawn.push((slice, silence));
    }

    /// Hands everything over: lanes in the order of their first slice, and the slices of each in the
    /// order in which they came, postings before withdrawals.
    pub(super) fn dispatch(&mut self, data_path: &dyn DataPath) {
        for Run { lane, handle, postings, withdrawn } in &mut self.runs[..self.used] {
            let handle = handle.take();
            let posted = handle.as_ref().is_some_and(|handle| handle.post(postings));
            self.copying.extend(handle.filter(|handle| posted && handle.copies()));
            if !posted && !postings.is_empty() {
                data_path.post(*lane, postings);
            }
            for (slice, silence) in withdrawn.drain(..) {
                data_path.withdraw(*lane, slice, silence);
            }
        }
        self.used = 0;
    }

    /// Takes the lanes of the last dispatch whose bytes the posting thread moves.
    pub(super) fn take_copying(&mut self, into: &mut Vec<Arc<dyn LaneHandle>>) {
        into.append(&mut self.copying);
    }

    fn run(&mut self, lane: Lifecycle) -> &mut Run {
        let known = self.runs[..self.used].iter().rposition(|run| run.lane == lane);
        let place = known.unwrap_or_else(|| {
            match self.runs.get_mut(self.used) {
                Some(run) => run.lane = lane,
                None => self.runs.push(Run {
                    lane,
                    handle: None,
                    postings: Vec::new(),
                    withdrawn: Vec::new(),
                }),
            }
            self.used += 1;
            self.used - 1
        });
        &mut self.runs[place]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handfast_transport::{Direction, Memory, RemoteSpan};
    use parking_lot::Mutex;

    const FIRST: Lifecycle = Lifecycle(1);
    const SECOND: Lifecycle = Lifecycle(2);

    /// Writes down the calls, in order.
    #[derive(Default)]
    struct Calls(Mutex<Vec<String>>);

    impl DataPath for Calls {
        fn post(&self, lane: Lifecycle, postings: &mut Vec<Posting>) {
            self.0.lock().push(format!("post {} {:?}", lane.0, names(postings)));
            postings.clear();
        }

        fn withdraw(&self, lane: Lifecycle, slice: SliceId, _: Duration) {
            self.0.lock().push(format!("withdraw {} {}", lane.0, slice.to_bits()));
        }
    }

    /// A lane that takes postings until it is gone.
    struct Direct(Arc<Calls>, bool);

    impl LaneHandle for Direct {
        fn post(&self, postings: &mut Vec<Posting>) -> bool {
            if self.1 {
                self.0.0.lock().push(format!("direct {:?}", names(postings)));
                postings.clear();
            }
            self.1
        }
    }

    fn names(postings: &[Posting]) -> Vec<u64> {
        postings.iter().map(|posting| posting.slice.to_bits()).collect()
    }

    fn posting(slice: u64) -> Posting {
        Posting {
            slice: SliceId::from_bits(slice),
            direction: Direction::Write,
            span: Memory::zeroed(8).unwrap().whole(),
            remote: RemoteSpan { key: 1, address: 0 },
            memory: None,
            region_key: None,
        }
    }

    /// Slices that alternate between lanes are posted once on each, before what is given back there.
    #[test]
    fn slices_are_posted_once_on_each_lane() {
        let calls = Calls::default();
        let mut outbox = Outbox::default();
        for _ in 0..2 {
            outbox.withdraw(SECOND, SliceId::from_bits(9), Duration(0));
            for (slice, lane) in (0..).zip([FIRST, SECOND, FIRST, SECOND]) {
                let first = outbox.post(lane, None, posting(slice));
                assert_eq!(first, slice < 2, "on its lane");
            }
            outbox.withdraw(FIRST, SliceId::from_bits(2), Duration(0));
            assert!(!outbox.is_empty());
            outbox.dispatch(&calls);
            assert!(outbox.is_empty());
            let expected = ["post 2 [1, 3]", "withdraw 2 9", "post 1 [0, 2]", "withdraw 1 2"];
            assert_eq!(std::mem::take(&mut *calls.0.lock()), expected);
        }
    }

    /// With a handle the lane is not looked up. One that is gone hands its slices to the data path,
    /// which completes them.
    #[test]
    fn handle_of_a_lane_takes_its_slices() {
        let calls = Arc::new(Calls::default());
        let direct =
            |is_there| -> Arc<dyn LaneHandle> { Arc::new(Direct(calls.clone(), is_there)) };
        let (there, gone) = (direct(true), direct(false));
        let mut outbox = Outbox::default();
        for slice in 0..2 {
            outbox.post(FIRST, Some(&there), posting(slice));
            outbox.post(SECOND, Some(&gone), posting(10 + slice));
        }
        outbox.dispatch(&*calls);
        assert_eq!(*calls.0.lock(), ["direct [0, 1]", "post 2 [10, 11]"]);
        drop(outbox);
        assert_eq!(Arc::strong_count(&there), 1, "a run keeps no handle");
    }
}
