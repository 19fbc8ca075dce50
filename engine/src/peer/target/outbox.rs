//! Postings and withdrawals on their way to the data path, grouped by lane.

use handfast_core::Lifecycle;
use handfast_transport::{DataPath, Posting, SliceId};

/// What a target hands to the data path in one go. The slices of one lane form one posting, and so
/// ring one doorbell, however they alternate with those of others. Lists are kept for the next use.
#[derive(Default)]
pub(super) struct Outbox {
    runs: Vec<Run>,
    /// Runs in use; the others are empty and stand behind them.
    used: usize,
}

/// The slices of one lane.
struct Run {
    lane: Lifecycle,
    postings: Vec<Posting>,
    /// Slices to be given back, posted before or in this run.
    withdrawn: Vec<SliceId>,
}

impl Outbox {
    pub(super) fn is_empty(&self) -> bool {
        self.used == 0
    }

    pub(super) fn post(&mut self, lane: Lifecycle, posting: Posting) {
        self.run(lane).postings.push(posting);
    }

    pub(super) fn withdraw(&mut self, lane: Lifecycle, slice: SliceId) {
        self.run(lane).withdrawn.push(slice);
    }

    /// Hands everything over: lanes in the order of their first slice, and the slices of each in the
    /// order in which they came, postings before withdrawals.
    pub(super) fn dispatch(&mut self, data_path: &dyn DataPath) {
        for Run { lane, postings, withdrawn } in &mut self.runs[..self.used] {
            if !postings.is_empty() {
                data_path.post(*lane, postings);
            }
            withdrawn.drain(..).for_each(|slice| data_path.withdraw(*lane, slice));
        }
        self.used = 0;
    }

    fn run(&mut self, lane: Lifecycle) -> &mut Run {
        let known = self.runs[..self.used].iter().rposition(|run| run.lane == lane);
        let place = known.unwrap_or_else(|| {
            match self.runs.get_mut(self.used) {
                Some(run) => run.lane = lane,
                None => self.runs.push(Run { lane, postings: Vec::new(), withdrawn: Vec::new() }),
            }
            self.used += 1;
            self.used - 1
        });
        &mut self.runs[place]
    }
}
