//! Batches that the submitting thread copies over a mapped region, without slices.

use super::{LaneId, Slice, Stage};
use crate::data::NOW;
use crate::progress::Progress;
use crate::world::{Step, World};
use handfast_core::Instant;
use handfast_core::sharing::{GrantId, Wanted};
use handfast_core::transfer::{BatchOutcome, BatchReport, Request, RequestStatus, SliceId};

impl World {
    /// Begins to copy a transfer of one request within its submission, if its target and the channel of
    /// its lane permit it. One that may be cancelled stands for a longer one.
    pub(crate) fn submit_at_once(
        &mut self,
        (index, at): (usize, usize),
        request: &Request,
        deadline: Option<Instant>,
        step: &mut Step,
    ) -> bool {
        let transfer = self.transfer_setup().map(|setup| setup.transfers[index]);
        let Some(transfer) = transfer.filter(|transfer| self.is_shared() && !transfer.cancel)
        else {
            return false;
        };
        let Some(data) = self.data_mut() else { return false };
        let machine = &mut data.sites[transfer.site].targets[at].machine;
        let size = (1, request.length);
        let Some(lane) = machine.lane_at_once(NOW, size, deadline) else { return false };
        let lane = (transfer.site, lane);
        let Some(grant) = self.begin_at_once(lane, request) else { return false };
        let slice = Slice {
            id: SliceId::from_bits(u64::MAX - index as u64),
            direction: request.direction,
            key: request.remote.key,
            address: request.remote.address,
            local: request.local.offset,
            length: request.length as u32,
            done: 0,
            stage: Stage::Copied(grant),
            at_once: Some(index),
            is_disowned: self.setup.devices.backend.copies_unannounced(),
        };
        self.hold(lane, slice, step);
        if let Some(data) = &self.data {
            let run = data.sites[transfer.site].targets[at].run;
            self.set_progress(index, Progress::Copied { run });
        }
        true
    }

    fn begin_at_once(&mut self, lane: LaneId, request: &Request) -> Option<GrantId> {
        let is_unannounced = self.setup.devices.backend.copies_unannounced();
        let end = self.end_mut(lane)?;
        if is_unannounced {
            return end.maps.keys().next().copied();
        }
        let wanted = Wanted {
            key: request.remote.key,
            address: request.remote.address,
            length: request.length,
            direction: request.direction,
        };
        let mut copies = Vec::new();
        let is_begun = end.machine.begin_at_once([wanted], &mut copies);
        is_begun.then(|| copies[0].0)
    }

    /// Ends a batch that was copied at once, after its last byte.
    pub(super) fn end_at_once(
        &mut self,
        lane: LaneId,
        (index, grant): (usize, GrantId),
        is_disowned: bool,
        step: &mut Step,
    ) {
        if !is_disowned {
            self.with_machine(lane, step, |machine| machine.end(grant));
        }
        self.forget_over();
        let progress = self.data.as_ref().map(|data| &data.progress[index]);
        let Some(&Progress::Copied { run }) = progress else { return };
        let report = BatchReport {
            outcome: BatchOutcome::Success,
            requests: vec![RequestStatus::Complete],
            first_error: None,
            submitted: NOW,
            finished: NOW,
        };
        self.check_report(index, run, &report, step);
    }
}
