//! The progress of the transfers of a world.

use crate::data::{Transfer, TransferSetup};
use handfast_core::transfer::BatchId;
use handfast_core::{Incarnation, Lifecycle};
use std::ops::Deref;

/// Progress of a transfer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Progress {
    /// Not submitted.
    Waiting,
    /// Submitted to an incarnation of the peer.
    Submitted { run: Incarnation, batch: BatchId, cancelled: bool },
    /// The submitting thread copies it, to an incarnation of the peer.
    Copied { run: Incarnation },
    /// Its end was reported. The content of both buffers must not change where it is `Some`.
    Reported { run: Incarnation, success: bool, remote: Option<Vec<u8>> },
    /// The submitting process is gone.
    Orphaned { run: Incarnation },
}

impl Progress {
    fn is_given_up(&self) -> bool {
        !matches!(self, Self::Submitted { cancelled: false, .. })
    }
}

/// The fence of an application, one of whose writes is indeterminate.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Fence {
    /// Index of the write.
    pub(crate) transfer: usize,
    /// Lanes that were in doubt at its report. Those of later doubts have no part of it.
    pub(crate) lanes: Vec<Lifecycle>,
}

/// The progress of every transfer, and the transfers with which an application can do something.
#[derive(Clone, Debug)]
pub(crate) struct ProgressList {
    all: Vec<Progress>,
    /// Indices of transfers that may be submitted or given up, in order. The rest determines it.
    open: Vec<usize>,
}

impl ProgressList {
    /// The list of transfers of which none is submitted.
    pub(crate) fn new(setup: &TransferSetup) -> Self {
        let all = vec![Progress::Waiting; setup.transfers.len()];
        let is_first = |index: &usize| {
            let site = setup.transfers[*index].site;
            !setup.in_order || setup.transfers[..*index].iter().all(|earlier| earlier.site != site)
        };
        let open = (0..all.len()).filter(is_first).collect();
        Self { all, open }
    }

    /// Returns the indices of transfers that may be submitted or given up, in order: those that wait, of
    /// each site the first if it submits in order, and those that are submitted and not given up.
    pub(crate) fn open(&self) -> &[usize] {
        &self.open
    }

    /// Sets the progress of a transfer.
    pub(crate) fn set(&mut self, index: usize, progress: Progress, setup: &TransferSetup) {
        let waited = std::mem::replace(&mut self.all[index], progress) == Progress::Waiting;
        let is_open = !self.all[index].is_given_up();
        self.list(index, is_open);
        let site = setup.transfers[index].site;
        let next = |(transfer, progress): (&Transfer, &Progress)| {
            transfer.site == site && *progress == Progress::Waiting
        };
        if waited
            && setup.in_order
            && let Some(next) = setup.transfers.iter().zip(&self.all).position(next)
        {
            self.list(next, true);
        }
    }

    fn list(&mut self, index: usize, is_open: bool) {
        match self.open.binary_search(&index) {
            Ok(place) if !is_open => {
                self.open.remove(place);
            }
            Err(place) if is_open => self.open.insert(place, index),
            _ => {}
        }
    }
}

impl Deref for ProgressList {
    type Target = [Progress];

    fn deref(&self) -> &[Progress] {
        &self.all
    }
}

#[cfg(test)]
mod tests {
    use super::{Progress, ProgressList};
    use crate::data::{Transfer, TransferSetup};
    use handfast_core::transfer::{
        BatchId, Direction, LocalSpan, RemoteSpan, Request, TransferLimits, Transfers,
    };
    use handfast_core::{Incarnation, Instant};

    /// Of each site that submits in order the first waiting transfer is open, and those that it may give up.
    #[test]
    fn open_transfers_follow_every_change() {
        let setup = setup(true);
        let mut list = ProgressList::new(&setup);
        assert_eq!(list.open(), [0, 1]);
        list.set(0, submitted(false), &setup);
        assert_eq!(list.open(), [0, 1, 2]);
        list.set(0, submitted(true), &setup);
        assert_eq!(list.open(), [1, 2]);
        list.set(2, submitted(false), &setup);
        list.set(2, Progress::Orphaned { run: Incarnation(1) }, &setup);
        assert_eq!(list.open(), [1, 3]);
        list.set(1, Progress::Copied { run: Incarnation(1) }, &setup);
        assert_eq!(list.open(), [3, 4]);
        assert_eq!(list[3], Progress::Waiting);
    }

    /// Without an order every waiting transfer is open.
    #[test]
    fn without_order_all_that_wait_are_open() {
        let setup = setup(false);
        let mut list = ProgressList::new(&setup);
        assert_eq!(list.open(), [0, 1, 2, 3, 4]);
        list.set(3, submitted(true), &setup);
        assert_eq!(list.open(), [0, 1, 2, 4]);
    }

    fn setup(in_order: bool) -> TransferSetup {
        let of = |site| Transfer {
            site,
            peer: 2,
            direction: Direction::Write,
            cancel: true,
            deadline: false,
            forbidden: false,
        };
        let transfers = [0, 1, 0, 0, 1].map(of).to_vec();
        TransferSetup { transfers, limits: TransferLimits::default(), in_order, dropped_by: None }
    }

    fn submitted(cancelled: bool) -> Progress {
        Progress::Submitted { run: Incarnation(1), batch: batch(), cancelled }
    }

    fn batch() -> BatchId {
        let request = Request {
            direction: Direction::Write,
            local: LocalSpan { region: 0, offset: 0 },
            remote: RemoteSpan { key: 1, address: 0x1000 },
            length: 4,
        };
        let mut machine = Transfers::new(TransferLimits::default());
        machine.submit(Instant(0), &[request], None).unwrap()
    }
}
