//! Comparison of the table of queue pairs with the devices that hold them.

use crate::fabric::QueuePair;
use crate::verbs::{QpState, SendKind, Status, WorkRequest};
use crate::world::World;

impl World {
    /// Compares the table used by oracles with the devices: the same queue pairs, errors and
    /// destinations, and bytes flow exactly as in the table. An empty write on a copy of the
    /// devices tests the flow.
    ///
    /// # Errors
    /// Returns the first difference.
    pub fn check_refinement(&self) -> Result<(), String> {
        let verbs = &self.fabric.verbs;
        let count: usize =
            (0..self.sites.len()).map(|site| verbs.nic(site).queue_pairs().count()).sum();
        if count != self.fabric.table.len() {
            return Err(format!("{count} queue pairs, {} in the table", self.fabric.table.len()));
        }
        self.fabric.table.iter().try_for_each(|qp| self.check_refined(qp))
    }

    fn check_refined(&self, qp: &QueuePair) -> Result<(), String> {
        let device = self.fabric.verbs.queue_pair(qp.site, qp.number);
        let device = device.ok_or_else(|| format!("{qp:?} is on no device"))?;
        if (device.state() == QpState::Err) != qp.broken {
            return Err(format!("{qp:?} is in {:?}", device.state()));
        }
        let target = qp.target.map(|target| (target.site, target.number));
        if device.bond() != target {
            return Err(format!("{qp:?} is bound to {:?}", device.bond()));
        }
        let reached = target.is_none_or(|(peer, _)| {
            self.fabric.verbs.reaches(qp.site, peer) && self.fabric.verbs.reaches(peer, qp.site)
        });
        let sends = self.fabric.verbs.has_own_address(qp.site, qp.number);
        if device.state() != QpState::Rts || !reached || !sends || device.outstanding() > 0 {
            return Ok(());
        }
        match self.answers_a_write(qp) == self.fabric.intact(qp) {
            true => Ok(()),
            false => Err(format!("an empty write on {qp:?} ends otherwise")),
        }
    }

    fn answers_a_write(&self, qp: &QueuePair) -> bool {
        let mut verbs = self.fabric.verbs.clone();
        while !verbs.packets().is_empty() {
            verbs.lose(0);
        }
        verbs.poll_queue_pair(qp.site, qp.number);
        let kind = SendKind::Write { rkey: 0, address: 0 };
        let (wr_id, lkey, local, length) = (0, 0, 0, 0);
        let request = WorkRequest { wr_id, kind, lkey, local, length, signalled: true };
        if verbs.post_send(qp.site, qp.number, request).is_err() {
            return false;
        }
        verbs.run();
        let ends = verbs.poll_queue_pair(qp.site, qp.number);
        ends.iter().any(|end| end.status == Status::Success)
    }
}
