//! The sending half of a queue pair.

use super::attributes::Access;
use super::errors::{Call, Errno, VerbsError};
use super::fabric::Fabric;
use super::laws::Law;
use super::modify::{PSN_HALF, PSN_MASK};
use super::objects::{
    Bond, Packet, PacketBody, Queue, QueuePair, Refusal, Region, SendKind, Sent, Status,
    WorkCompletion, WorkRequest,
};
use super::profile::{EarlySend, Profile};
use super::states::QpState;
use std::ops::Range;

/// A range within a region.
type Piece<'a> = (&'a Region, Range<usize>);

/// The retry count for unlimited waiting for a receiver.
const RNR_FOR_EVER: u8 = 7;

impl Fabric {
    /// Posts a request to the send queue.
    pub fn post_send(
        &mut self,
        nic: usize,
        number: u32,
        request: WorkRequest,
    ) -> Result<(), VerbsError> {
        let call = Call::PostSend;
        self.check_injected(nic, call)?;
        let profile = self.nic(nic).profile;
        let refused = |errno| VerbsError::new(call, errno).negative(profile.negative_data_codes);
        let Some(qp) = self.queue_pair_mut(nic, number) else {
            return Err(refused(Errno::Einval));
        };
        let state = qp.state;
        // A backend cannot know an error that its device has not reported.
        let outside = qp.asked != QpState::Rts;
        if let (QpState::Err, Some(errno)) = (qp.asked, profile.post_after_own_error) {
            self.note(Law::PostedOutsideRts { nic, number, state });
            return Err(refused(errno));
        }
        let queued = qp.outstanding() + qp.held.len() + qp.early.len();
        if queued as u32 >= qp.send_depth {
            return Err(refused(Errno::Enomem));
        }
        qp.unsettled += 1;
        let result = match state {
            QpState::Rts if qp.ring_broken => {
                qp.lost += 1;
                return Ok(());
            }
            QpState::Rts => {
                let early = std::mem::take(&mut qp.early);
                let held = std::mem::take(&mut qp.held);
                early.into_iter().chain(held).chain([request]).for_each(|request| {
                    self.execute(nic, number, request);
                });
                return Ok(());
            }
            QpState::Sqd => {
                qp.held.push_back(request);
                Ok(())
            }
            QpState::Err | QpState::Sqe => {
                self.end_late(nic, number, request.wr_id, Queue::Send);
                Ok(())
            }
            QpState::Reset | QpState::Init | QpState::Rtr => match profile.early_send {
                EarlySend::Refused(errno) => {
                    qp.unsettled -= 1;
                    Err(refused(errno))
                }
                EarlySend::RefusedAndKept(errno) => {
                    qp.early.push_back(request);
                    Err(refused(errno))
                }
                EarlySend::Kept => {
                    qp.early.push_back(request);
                    Ok(())
                }
            },
        };
        if outside {
            self.note(Law::PostedOutsideRts { nic, number, state });
        }
        result
    }

    /// Checks a request locally and sends its packets.
    pub(super) fn execute(&mut self, nic: usize, number: u32, request: WorkRequest) {
        let owner = self.nic(nic);
        let profile = owner.profile;
        let Some(qp) = owner.queue_pairs.get(&number) else { return };
        if qp.state != QpState::Rts {
            return self.end_late(nic, number, request.wr_id, Queue::Send);
        }
        let sends = owner.port_up && self.has_own_address(nic, number);
        let fails = match request.kind {
            // The NIC checks the destination of a read when the bytes arrive.
            SendKind::Read { .. } => None,
            SendKind::Write { .. } | SendKind::Send if request.length == 0 => None,
            SendKind::Write { .. } | SendKind::Send => match self.local(nic, qp.domain(), &request)
            {
                None => Some(profile.statuses.local_key),
                Some(None) => Some(profile.statuses.local_bounds),
                Some(Some(_)) => None,
            },
        };
        if let Some(status) = fails.or(profile.statuses.port_down.filter(|_| !sends)) {
            return self.fail_queue_pair(nic, number, Some((request.wr_id, Queue::Send, status)));
        }
        let Some(qp) = self.queue_pair_mut(nic, number) else { return };
        let packets = packets_of(request.length, qp.path_mtu);
        let first_psn = qp.next_psn;
        let last_psn = (first_psn + packets - 1) & PSN_MASK;
        qp.next_psn = (last_psn + 1) & PSN_MASK;
        let sent = Sent { request, first_psn, last_psn, is_completed: false };
        qp.sent.push_back(sent);
        self.transmit(nic, number, &sent);
        self.complete_early(nic, number);
    }

    /// Completes sent writes without an answer, in order, on a device that does so.
    fn complete_early(&mut self, nic: usize, number: u32) {
        let owner = self.nic_mut(nic);
        if !owner.profile.completes_early {
            return;
        }
        let Some(qp) = owner.queue_pairs.get_mut(&number) else { return };
        let is_write = |sent: &&mut Sent| matches!(sent.request.kind, SendKind::Write { .. });
        let mut told = Vec::new();
        for sent in qp.sent.iter_mut().take_while(is_write).filter(|sent| !sent.is_completed) {
            sent.is_completed = true;
            told.push(sent.request);
        }
        told.iter().for_each(|request| self.report_success(nic, number, request));
    }

    /// Returns the local bytes of a request: no region, out of bounds, or these bytes.
    fn local(&self, nic: usize, domain: u32, request: &WorkRequest) -> Option<Option<Piece<'_>>> {
        let mut regions = self.nic(self.memory_of(nic)).regions.values();
        let is_named = |region: &&Region| region.keys.lkey == request.lkey && region.is_of(domain);
        let region = regions.find(is_named)?;
        let range = region.range(request.local, u64::from(request.length));
        Some(range.map(|range| (region, range)))
    }

    fn transmit(&mut self, nic: usize, number: u32, sent: &Sent) {
        let Some(qp) = self.queue_pair(nic, number) else { return };
        let Some(Bond { host, number: dest_number }) = qp.bond else { return };
        let mtu = qp.path_mtu as usize;
        let packet = |psn: u32, body| Packet {
            from: nic as u16,
            to: host,
            dest_number,
            psn: psn & PSN_MASK,
            body,
        };
        let request = &sent.request;
        let mut out = Vec::new();
        if let SendKind::Read { rkey, address } = request.kind {
            if qp.max_rd_atomic > 0 {
                let body = PacketBody::ReadRequest { rkey, address, length: request.length };
                out.push(packet(sent.first_psn, body));
            }
        } else {
            let read = |(region, range): Piece<'_>| region.bytes.read(range).into_owned();
            let bytes =
                self.local(nic, qp.domain(), request).flatten().map(read).unwrap_or_default();
            let count = packets_of(request.length, qp.path_mtu);
            for index in 0..count {
                let start = index as usize * mtu;
                let piece = bytes.get(start..).unwrap_or_default();
                let piece = piece[..piece.len().min(mtu)].to_vec();
                let last = index + 1 == count;
                let body = match request.kind {
                    SendKind::Write { rkey, address } => PacketBody::Write {
                        rkey,
                        address: address.wrapping_add(start as u64),
                        reach: u64::from(request.length) - start as u64,
                        bytes: piece,
                        last,
                    },
                    SendKind::Send | SendKind::Read { .. } => {
                        PacketBody::Send { bytes: piece, last }
                    }
                };
                out.push(packet(sent.first_psn + index, body));
            }
        }
        out.into_iter().for_each(|packet| self.send(packet));
    }

    /// Returns the queue pairs that wait for an answer with a finite timer.
    pub fn waiting(&self, nic: usize) -> impl Iterator<Item = u32> + '_ {
        let profile = self.nic(nic).profile;
        let waits = move |(number, qp): (u32, &QueuePair)| {
            (resends(profile, qp) && !qp.sent.is_empty()).then_some(number)
        };
        self.nic(nic).queue_pairs().filter_map(waits)
    }

    /// Returns the time before a queue pair retransmits, in nanoseconds; `None` if it never does.
    pub fn retry_interval_ns(&self, nic: usize, number: u32) -> Option<u64> {
        let retry = self.nic(nic).profile.retry;
        let qp = self.queue_pair(nic, number)?;
        let resends = qp.timeout > 0 || retry.count_fixed.is_some();
        resends.then(|| retry.interval_ns(qp.timeout, qp.tries))
    }

    /// Whether the retries of a queue pair are limited.
    pub fn gives_up(&self, nic: usize, number: u32) -> bool {
        let retry = self.nic(nic).profile.retry;
        let qp = self.queue_pair(nic, number);
        qp.is_some_and(|qp| retry.count(qp.timeout, qp.retry_count).is_some())
    }

    /// Expires the retry timer of a queue pair once: unanswered packets are retransmitted, or given
    /// up after the last try.
    pub fn expire(&mut self, nic: usize, number: u32) {
        let profile = self.nic(nic).profile;
        let Some(qp) = self.queue_pair_mut(nic, number) else { return };
        if qp.sent.is_empty() || !resends(profile, qp) {
            return;
        }
        if !std::mem::take(&mut qp.rnr_waits) {
            let count = profile.retry.count(qp.timeout, qp.retry_count);
            if count.is_some_and(|count| qp.tries >= count) {
                return self.exhaust(nic, number);
            }
            qp.tries = qp.tries.saturating_add(1);
        }
        let sent: Vec<Sent> = qp.sent.iter().copied().collect();
        sent.iter().for_each(|sent| self.transmit(nic, number, sent));
    }

    /// Expires all tries of a queue pair at once. A queue pair with unlimited retries continues.
    pub fn exhaust(&mut self, nic: usize, number: u32) {
        let profile = self.nic(nic).profile;
        let Some(qp) = self.queue_pair_mut(nic, number) else { return };
        if profile.retry.count(qp.timeout, qp.retry_count).is_none() {
            return;
        }
        let Some(oldest) = qp.sent.pop_front() else { return };
        let first = (oldest.request.wr_id, Queue::Send, profile.statuses.retry_exceeded);
        self.fail_queue_pair(nic, number, Some(first).filter(|_| !oldest.is_completed));
    }

    /// Handles an answer.
    pub(super) fn on_answer(&mut self, nic: usize, number: u32, psn: u32, body: PacketBody) {
        let Some(qp) = self.queue_pair(nic, number) else { return };
        if !matches!(qp.state, QpState::Rts | QpState::Sqd) {
            return;
        }
        let covers = |sent: &Sent| {
            let span = sent.last_psn.wrapping_sub(sent.first_psn) & PSN_MASK;
            (psn.wrapping_sub(sent.first_psn) & PSN_MASK) <= span
        };
        let Some(index) = qp.sent.iter().position(covers) else {
            // An answer to nothing outstanding is dropped, except by some devices.
            if self.nic(nic).profile.ack_beyond_ends && body == PacketBody::Ack {
                self.on_ack_beyond(nic, number, psn);
            }
            return;
        };
        // An answer to a later request answers the earlier ones, up to a read without its bytes.
        let is_read = |sent: &Sent| matches!(sent.request.kind, SendKind::Read { .. });
        if qp.sent.iter().take(index).any(is_read) {
            return;
        }
        let answered = qp.sent[index];
        (0..index).for_each(|_| self.succeed(nic, number));
        match body {
            PacketBody::Ack if psn == answered.last_psn && !is_read(&answered) => {
                self.succeed(nic, number);
            }
            PacketBody::ReadResponse { bytes } if is_read(&answered) => {
                self.on_read(nic, number, &answered, &bytes);
            }
            PacketBody::Nak(refusal) => self.on_refusal(nic, number, refusal),
            PacketBody::ReceiverNotReady => self.on_receiver_not_ready(nic, number),
            _ => {}
        }
        self.complete_early(nic, number);
    }

    /// An acknowledgement of an unsent number ends all work before it, up to a read.
    fn on_ack_beyond(&mut self, nic: usize, number: u32, psn: u32) {
        let ends = |sent: &Sent| {
            let ahead = psn.wrapping_sub(sent.last_psn) & PSN_MASK;
            ahead < PSN_HALF && !matches!(sent.request.kind, SendKind::Read { .. })
        };
        while self.queue_pair(nic, number).and_then(|qp| qp.sent.front()).is_some_and(ends) {
            self.succeed(nic, number);
        }
    }

    /// Completes the oldest request with a success.
    fn succeed(&mut self, nic: usize, number: u32) {
        let Some(qp) = self.queue_pair_mut(nic, number) else { return };
        let Some(done) = qp.sent.pop_front() else { return };
        (qp.tries, qp.rnr_tries, qp.rnr_waits) = (0, 0, false);
        if !done.is_completed {
            self.report_success(nic, number, &done.request);
        }
    }

    fn report_success(&mut self, nic: usize, number: u32, request: &WorkRequest) {
        let owner = self.nic_mut(nic);
        let Some(qp) = owner.queue_pairs.get_mut(&number) else { return };
        let wr_id = request.wr_id;
        if request.signalled {
            owner.complete(WorkCompletion {
                number,
                wr_id,
                queue: Queue::Send,
                status: Status::Success,
            });
        } else {
            qp.unsettled = qp.unsettled.saturating_sub(1);
        }
    }

    /// Fails the oldest sent request of a queue pair.
    pub fn fail_oldest(&mut self, nic: usize, number: u32, status: Status) {
        let Some(qp) = self.queue_pair_mut(nic, number) else { return };
        let Some(failed) = qp.sent.pop_front() else { return };
        let first = (failed.request.wr_id, Queue::Send, status);
        self.fail_queue_pair(nic, number, Some(first).filter(|_| !failed.is_completed));
    }

    fn on_read(&mut self, nic: usize, number: u32, answered: &Sent, bytes: &[u8]) {
        let request = answered.request;
        let profile = self.nic(nic).profile;
        let failed = profile.statuses.local_read;
        let is_sink = |access: Access| {
            access.local_write && (access.remote_write || !profile.sink_needs_remote_write)
        };
        let domain = self.queue_pair(nic, number).map_or(0, |qp| qp.domain());
        let owner = self.nic_mut(self.memory_of(nic));
        let is_named = |region: &&mut Region| {
            region.keys.lkey == request.lkey && region.is_of(domain) && is_sink(region.access)
        };
        let place = owner.regions.values_mut().find(is_named).and_then(|region| {
            let range = region.range(request.local, bytes.len() as u64)?;
            Some((region, range))
        });
        match place {
            Some((region, range)) => {
                region.bytes.write(range.start, bytes);
                self.succeed(nic, number);
            }
            None if request.length == 0 => self.succeed(nic, number),
            None => self.fail_oldest(nic, number, failed),
        }
    }

    fn on_refusal(&mut self, nic: usize, number: u32, refusal: Refusal) {
        let statuses = &self.nic(nic).profile.statuses;
        let status = match refusal {
            Refusal::Access => statuses.remote_access,
            Refusal::Invalid => statuses.remote_invalid,
            Refusal::Operation => statuses.remote_operation,
        };
        self.fail_oldest(nic, number, status);
    }

    fn on_receiver_not_ready(&mut self, nic: usize, number: u32) {
        let profile = self.nic(nic).profile;
        let Some(qp) = self.queue_pair_mut(nic, number) else { return };
        let for_ever = qp.rnr_retry == RNR_FOR_EVER;
        if profile.retry.waits_for_receiver && (for_ever || qp.rnr_tries < qp.rnr_retry) {
            qp.rnr_tries = if for_ever { 0 } else { qp.rnr_tries + 1 };
            qp.rnr_waits = true;
        } else {
            self.fail_oldest(nic, number, profile.statuses.rnr_exceeded);
        }
    }
}

/// Packets of a message, each with a sequence number; for a read, those of its response.
pub(super) fn packets_of(length: u32, mtu: u32) -> u32 {
    length.div_ceil(mtu).max(1)
}

/// Whether unanswered packets are retransmitted in this state.
fn resends(profile: &Profile, qp: &QueuePair) -> bool {
    qp.state == QpState::Rts || (qp.state == QpState::Sqd && !profile.drains_first)
}
