//! `ibv_modify_qp`: the checks in the order of the layers, then the effect by the device's table.

use super::attributes::{Access, AddressVector, Attributes};
use super::errors::{Call, Errno, VerbsError};
use super::fabric::{Fabric, PATH_MTUS};
use super::laws::Law;
use super::objects::{
    AsyncEvent, Bond, Gid, GidKind, Kept, Queue, QueuePair, Status, WorkCompletion,
};
use super::profile::{Completions, HeldSend, LatePost, Profile, PsnSource};
use super::rare::Rare;
use super::states::{QpState, Step};

/// Sequence numbers have 24 bits; higher ones are masked, not refused.
pub(super) const PSN_MASK: u32 = 0x00ff_ffff;
/// Half of the sequence numbers: a number less far ahead is a gap, any other is behind.
pub(super) const PSN_HALF: u32 = 0x0080_0000;
/// Time the kernel waits for a neighbour, in milliseconds.
const NEIGHBOUR_MS: u32 = 1_000;
/// Errors of a modify that the state of the network causes, for any caller.
const SURROUNDINGS: [Errno; 3] = [Errno::Etimedout, Errno::Enetunreach, Errno::Enodata];
/// The largest code of a timeout.
const TIMEOUT_MAX: u8 = 31;

impl Fabric {
    /// Requests a state.
    pub fn modify(
        &mut self,
        nic: usize,
        number: u32,
        attributes: &Attributes,
    ) -> Result<(), VerbsError> {
        let call = Call::Modify(attributes.state);
        self.check_injected(nic, call)?;
        // A backend cannot know an error that its device has not reported.
        let unknown = self
            .queue_pair(nic, number)
            .is_some_and(|qp| qp.state == QpState::Err && qp.asked != QpState::Err);
        let result = self.step(nic, number, attributes);
        if let Err(error) = result
            && !unknown
            && !SURROUNDINGS.iter().any(|errno| *errno as i32 == error.code)
        {
            self.note(Law::Refused { nic, state: attributes.state, code: error.code });
        }
        result
    }

    fn step(&mut self, nic: usize, number: u32, attributes: &Attributes) -> Result<(), VerbsError> {
        let call = Call::Modify(attributes.state);
        let refused = |errno| VerbsError::new(call, errno);
        let profile = self.nic(nic).profile;
        let qp = self.queue_pair(nic, number).ok_or(refused(Errno::Einval))?;
        if attributes.port.is_some_and(|port| port != 1) {
            return Err(refused(Errno::Einval));
        }
        let from = qp.state;
        if let Some(address) = &attributes.address {
            if qp.port != Some(address.port) {
                return Err(refused(Errno::Einval));
            }
            self.resolve(nic, address).map_err(|error| VerbsError { call, ..error })?;
        }
        let draining = profile.drains_first && from == QpState::Sqd && !qp.sent.is_empty();
        if draining && attributes.state != QpState::Err {
            return Err(refused(Errno::Einval));
        }
        let step = profile.transitions[from as usize][attributes.state as usize];
        if let Step::Refused(errno) = step {
            return Err(refused(errno));
        }
        if profile.checks_attributes && !attributes.fit(from) {
            return Err(refused(Errno::Einval));
        }
        let active = self.nic(nic).active_mtu();
        if profile.checks_path_mtu && attributes.path_mtu.is_some_and(|mtu| mtu > active) {
            return Err(refused(Errno::Einval));
        }
        if profile.checks_attributes && !values_fit(profile, attributes) {
            return Err(refused(Errno::Einval));
        }
        let result = match step {
            Step::To(state) => {
                self.enter(nic, number, state, attributes);
                Ok(())
            }
            Step::Connect => self.connect(nic, number, attributes).map_err(refused),
            Step::Nothing | Step::Refused(_) => {
                self.keep_port(nic, number, attributes);
                Ok(())
            }
        };
        if let (Ok(()), Some(qp)) = (result, self.queue_pair_mut(nic, number)) {
            qp.asked = attributes.state;
        }
        result
    }

    /// Address checks and resolution of the layers above the driver.
    fn resolve(&self, nic: usize, address: &AddressVector) -> Result<(), VerbsError> {
        let refused = |errno| VerbsError::new(Call::Modify(QpState::Rtr), errno);
        let owner = self.nic(nic);
        let entry = owner.gids.get(usize::from(address.sgid_index));
        let own = entry.ok_or(refused(Errno::Einval))?.ok_or(refused(Errno::Enodata))?;
        if !owner.profile.resolves {
            return Ok(());
        }
        if !address.is_global || own.kind != address.dgid.kind {
            return Err(refused(Errno::Einval));
        }
        if own.kind == GidKind::LinkLocal && owner.profile.refuses_link_local {
            return Err(refused(Errno::Einval));
        }
        if !owner.port_up {
            return Err(refused(Errno::Enetunreach));
        }
        let peer = usize::from(address.dgid.host);
        if !self.answers(nic, peer, &address.dgid) {
            let silent = refused(Errno::Etimedout);
            return Err(VerbsError { blocked_ms: NEIGHBOUR_MS, ..silent });
        }
        Ok(())
    }

    /// Whether a neighbour answers: both directions are open and the address exists.
    fn answers(&self, nic: usize, peer: usize, gid: &Gid) -> bool {
        self.reaches(nic, peer)
            && self.reaches(peer, nic)
            && self.nic(peer).gids.contains(&Some(*gid))
    }

    fn keep_port(&mut self, nic: usize, number: u32, attributes: &Attributes) {
        if let Some(qp) = self.queue_pair_mut(nic, number) {
            qp.port = attributes.port.or(qp.port);
        }
    }

    fn connect(&mut self, nic: usize, number: u32, attributes: &Attributes) -> Result<(), Errno> {
        let profile = self.nic(nic).profile;
        let Some(qp) = self.queue_pair_mut(nic, number) else { return Err(Errno::Einval) };
        // The driver sets RTS before it asks the hardware, and does not revert it.
        qp.state = QpState::Rts;
        let Some(address) = attributes.address else { return Err(Errno::Einval) };
        if profile.connects_ipv4_only && address.dgid.kind != GidKind::Ipv4 {
            return Err(Errno::Eafnosupport);
        }
        let destination = attributes.dest_number.unwrap_or(0);
        qp.bond = Some(Bond { host: address.dgid.host, number: destination });
        (qp.next_psn, qp.expected_psn) = (0, 0);
        Ok(())
    }

    fn enter(&mut self, nic: usize, number: u32, state: QpState, attributes: &Attributes) {
        match state {
            QpState::Reset => return self.reset(nic, number),
            QpState::Err => return self.fail_queue_pair(nic, number, None),
            _ => {}
        }
        let owner = self.nic_mut(nic);
        let constant = owner.profile.psn_source == PsnSource::Constant;
        let Some(qp) = owner.queue_pairs.get_mut(&number) else { return };
        let from = qp.state;
        qp.state = state;
        let psn = |psn: Option<u32>, old: u32| {
            if constant { 0 } else { psn.map_or(old, |psn| psn & PSN_MASK) }
        };
        qp.port = attributes.port.or(qp.port);
        qp.access = attributes.access.unwrap_or(qp.access);
        qp.path_mtu = attributes.path_mtu.unwrap_or(qp.path_mtu).max(1);
        qp.expected_psn = psn(attributes.rq_psn, qp.expected_psn);
        qp.next_psn = psn(attributes.sq_psn, qp.next_psn);
        qp.max_dest_rd_atomic = attributes.max_dest_rd_atomic.unwrap_or(qp.max_dest_rd_atomic);
        qp.max_rd_atomic = attributes.max_rd_atomic.unwrap_or(qp.max_rd_atomic);
        qp.timeout = attributes.timeout.unwrap_or(qp.timeout);
        qp.retry_count = attributes.retry_count.unwrap_or(qp.retry_count);
        qp.rnr_retry = attributes.rnr_retry.unwrap_or(qp.rnr_retry);
        if let (Some(address), Some(destination)) = (attributes.address, attributes.dest_number) {
            qp.bond = Some(Bond { host: address.dgid.host, number: destination });
            let own = owner.gids.get(usize::from(address.sgid_index)).copied().flatten();
            qp.kept.0.own = own.filter(|_| owner.profile.statuses.port_down.is_some());
        }
        let resumes = owner.profile.held_send == HeldSend::Rts;
        if (from, state) == (QpState::Sqd, QpState::Rts) && resumes {
            let held = std::mem::take(&mut qp.held);
            held.into_iter().for_each(|request| self.execute(nic, number, request));
        }
    }

    fn reset(&mut self, nic: usize, number: u32) {
        let owner = self.nic_mut(nic);
        let (fresh, breaks) = (owner.profile.fresh, owner.profile.reset_breaks_ring);
        if owner.profile.completions_at_reset == Completions::Removed {
            owner.completions.retain(|completion| completion.number != number);
        }
        let left = owner.completions.iter().filter(|left| left.number == number).count() as u32;
        let Some(qp) = owner.queue_pairs.get_mut(&number) else { return };
        let pieces = qp.unsettled - left.min(qp.unsettled);
        let used = qp.bond.is_some();
        **qp = QueuePair {
            state: fresh,
            asked: QpState::Reset,
            port: None,
            access: Access::ALL,
            bond: None,
            ring_broken: qp.ring_broken || (breaks && used),
            early: Default::default(),
            held: Default::default(),
            sent: Default::default(),
            receives: Default::default(),
            arriving: Vec::new(),
            lost: 0,
            tries: 0,
            rnr_tries: 0,
            rnr_waits: false,
            unsettled: left,
            kept: Rare(Kept { after_executed: qp.kept.0.after_executed, ..Kept::default() }),
            ..(**qp).clone()
        };
        if used {
            self.note(Law::Reset { nic, number });
        }
        if pieces > 0 {
            self.note(Law::DroppedWork { nic, number, pieces });
        }
    }

    /// Moves a queue pair to error, by the application or by the device, which reports the first
    /// failure. All later work is flushed, sends and receives each in the order of posting.
    pub(super) fn fail_queue_pair(
        &mut self,
        nic: usize,
        number: u32,
        first: Option<(u64, Queue, Status)>,
    ) {
        let owner = self.nic_mut(nic);
        let Some(qp) = owner.queue_pairs.get_mut(&number) else { return };
        let was = std::mem::replace(&mut qp.state, QpState::Err);
        let first =
            first.map(|(wr_id, queue, status)| WorkCompletion { number, wr_id, queue, status });
        let flushed =
            |wr_id, queue| WorkCompletion { number, wr_id, queue, status: Status::Flushed };
        let sent = qp.sent.drain(..).filter(|sent| !sent.is_completed);
        let sends = sent.map(|sent| sent.request.wr_id);
        let sends = sends.chain(qp.held.drain(..).map(|request| request.wr_id));
        let sends: Vec<u64> = sends.chain(qp.early.drain(..).map(|early| early.wr_id)).collect();
        let receives: Vec<u64> = qp.receives.drain(..).map(|receive| receive.wr_id).collect();
        qp.arriving.clear();
        let failed_by_device = first.is_some();
        let sends = sends.into_iter().map(|wr_id| flushed(wr_id, Queue::Send));
        let receives = receives.into_iter().map(|wr_id| flushed(wr_id, Queue::Receive));
        first.into_iter().chain(sends).chain(receives).for_each(|end| owner.complete(end));
        let raises = owner.profile.error_event && failed_by_device && was != QpState::Err;
        if raises {
            owner.raise(AsyncEvent::QueuePairFatal(number));
        }
    }

    /// Breaks a queue pair spontaneously, without a completion that gives a reason.
    pub fn break_queue_pair(&mut self, nic: usize, number: u32) {
        self.fail_queue_pair(nic, number, None);
        let owner = self.nic_mut(nic);
        if owner.queue_pairs.contains_key(&number) {
            owner.raise(AsyncEvent::QueuePairFatal(number));
        }
    }

    /// Completes work that was posted to a queue pair in error.
    pub(super) fn end_late(&mut self, nic: usize, number: u32, wr_id: u64, queue: Queue) {
        let owner = self.nic_mut(nic);
        match owner.profile.late_post {
            LatePost::Flushed => {
                owner.complete(WorkCompletion { number, wr_id, queue, status: Status::Flushed });
            }
            LatePost::Lost => {
                if let Some(qp) = owner.queue_pairs.get_mut(&number) {
                    qp.lost += 1;
                }
            }
        }
    }
}

/// Whether a driver that checks values accepts these.
fn values_fit(profile: &Profile, attributes: &Attributes) -> bool {
    let largest = PATH_MTUS[PATH_MTUS.len() - 1];
    attributes.timeout.is_none_or(|timeout| timeout <= TIMEOUT_MAX)
        && attributes.path_mtu.is_none_or(|mtu| mtu <= largest)
        && (attributes.max_rd_atomic)
            .is_none_or(|reads| profile.reads_max.is_none_or(|max| reads <= max))
}
