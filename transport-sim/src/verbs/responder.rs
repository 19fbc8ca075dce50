//! The responder of a queue pair. It needs no action of the owning process.

use super::fabric::Fabric;
use super::modify::{PSN_HALF, PSN_MASK};
use super::objects::{
    Bond, Packet, PacketBody, Queue, QueuePair, Receive, Refusal, Region, Status, WorkCompletion,
};
use super::profile::{DuplicateAck, DuplicateRead};
use super::requester::packets_of;
use super::states::QpState;

impl Fabric {
    /// Handles a packet at an active port.
    pub(super) fn receive(&mut self, packet: Packet) {
        let Packet { from, to, dest_number, psn, body } = packet;
        let (nic, number) = (usize::from(to), dest_number);
        let Some(qp) = self.queue_pair(nic, number) else { return };
        // Only the address is checked, since a packet has no source number.
        if qp.bond.is_none_or(|bond| bond.host != from) {
            return;
        }
        if !body.is_request() {
            return self.on_answer(nic, number, psn, body);
        }
        if !matches!(qp.state, QpState::Rtr | QpState::Rts | QpState::Sqd) {
            return;
        }
        match psn.wrapping_sub(qp.expected_psn) & PSN_MASK {
            0 => self.on_request(nic, number, psn, body),
            // A gap; the sender retransmits the missing packets.
            1..PSN_HALF => {}
            _ => self.on_duplicate(nic, number, psn, &body),
        }
    }

    fn answer(&mut self, nic: usize, number: u32, psn: u32, body: PacketBody) {
        let Some(qp) = self.queue_pair(nic, number) else { return };
        let Some(Bond { host, number: dest_number }) = qp.bond else { return };
        self.send(Packet { from: nic as u16, to: host, dest_number, psn, body });
    }

    /// Acknowledges a duplicate without executing it again.
    fn on_duplicate(&mut self, nic: usize, number: u32, psn: u32, body: &PacketBody) {
        match body {
            PacketBody::ReadRequest { rkey, address, length } => {
                let remembered =
                    self.queue_pair(nic, number).is_some_and(|qp| qp.kept.0.reads.contains(&psn));
                let again =
                    remembered || self.nic(nic).profile.duplicate_read == DuplicateRead::Executed;
                let source = self.readable(nic, number, *rkey, *address, *length);
                if let (true, Ok(bytes)) = (again, source) {
                    self.answer(nic, number, psn, PacketBody::ReadResponse { bytes });
                }
            }
            _ => {
                let executed =
                    self.queue_pair(nic, number).map_or(0, |qp| qp.kept.0.after_executed);
                let psn = match self.nic(nic).profile.duplicate_ack {
                    DuplicateAck::Its => psn,
                    DuplicateAck::LastExecuted => executed.wrapping_sub(1) & PSN_MASK,
                };
                self.answer(nic, number, psn, PacketBody::Ack);
            }
        }
    }

    /// Records the state that the driver keeps of an executed request.
    fn remember(&mut self, nic: usize, number: u32, psn: u32, is_read: bool) {
        let profile = self.nic(nic).profile;
        let Some(qp) = self.queue_pair_mut(nic, number) else { return };
        if is_read && profile.duplicate_read == DuplicateRead::Dropped {
            qp.kept.0.reads.push_back(psn);
            while qp.kept.0.reads.len() > usize::from(qp.max_dest_rd_atomic) {
                qp.kept.0.reads.pop_front();
            }
        }
        if !is_read && profile.duplicate_ack == DuplicateAck::LastExecuted {
            qp.kept.0.after_executed = (psn + 1) & PSN_MASK;
        }
    }

    fn on_request(&mut self, nic: usize, number: u32, psn: u32, body: PacketBody) {
        let is_read = matches!(body, PacketBody::ReadRequest { .. });
        let result = match body {
            PacketBody::Write { rkey, address, reach, bytes, last } => {
                self.on_write(nic, number, (rkey, address, reach), &bytes).map(|()| {
                    self.advance(nic, number, 1);
                    last.then_some(PacketBody::Ack)
                })
            }
            PacketBody::ReadRequest { rkey, address, length } => {
                self.readable(nic, number, rkey, address, length).map(|bytes| {
                    let mtu = self.queue_pair(nic, number).map_or(1, |qp| qp.path_mtu);
                    self.advance(nic, number, packets_of(length, mtu));
                    Some(PacketBody::ReadResponse { bytes })
                })
            }
            PacketBody::Send { bytes, last } => self.on_send(nic, number, &bytes, last),
            _ => Ok(None),
        };
        if result.as_ref().is_ok_and(|answer| *answer != Some(PacketBody::ReceiverNotReady)) {
            self.remember(nic, number, psn, is_read);
        }
        match result {
            Ok(Some(answer)) => self.answer(nic, number, psn, answer),
            Ok(None) => {}
            Err(refusal) => {
                self.answer(nic, number, psn, PacketBody::Nak(refusal));
                self.fail_responder(nic, number);
            }
        }
    }

    /// Moves the responder of a refused request to error as well.
    fn fail_responder(&mut self, nic: usize, number: u32) {
        self.fail_queue_pair(nic, number, None);
        let owner = self.nic_mut(nic);
        if owner.profile.error_event {
            owner.raise(super::objects::AsyncEvent::QueuePairFatal(number));
        }
    }

    fn advance(&mut self, nic: usize, number: u32, packets: u32) {
        if let Some(qp) = self.queue_pair_mut(nic, number) {
            qp.expected_psn = (qp.expected_psn + packets) & PSN_MASK;
        }
    }

    fn on_write(
        &mut self,
        nic: usize,
        number: u32,
        (rkey, address, reach): (u32, u64, u64),
        bytes: &[u8],
    ) -> Result<(), Refusal> {
        let qp = self.queue_pair(nic, number).ok_or(Refusal::Invalid)?;
        check_right(qp, bytes.len(), |qp| qp.access.remote_write)?;
        if reach == 0 {
            return Ok(());
        }
        // Every packet but the last is full.
        if bytes.len() as u64 != reach.min(u64::from(qp.path_mtu)) {
            return Err(Refusal::Invalid);
        }
        let domain = qp.domain();
        let owner = self.nic_mut(self.memory_of(nic));
        let region = owner.regions.get_mut(&rkey).filter(|region| region.is_of(domain));
        let region = region.ok_or(Refusal::Access)?;
        let start = region.range(address, reach).ok_or(Refusal::Access)?.start;
        if !region.access.remote_write {
            return Err(Refusal::Access);
        }
        region.bytes.write(start, bytes);
        Ok(())
    }

    fn readable(
        &self,
        nic: usize,
        number: u32,
        rkey: u32,
        address: u64,
        length: u32,
    ) -> Result<Vec<u8>, Refusal> {
        let qp = self.queue_pair(nic, number).ok_or(Refusal::Invalid)?;
        check_right(qp, 0, |qp| qp.access.remote_read && qp.max_dest_rd_atomic > 0)?;
        let profile = self.nic(nic).profile;
        if [(0, profile.refuses_empty_read), (1, profile.refuses_byte_read)]
            .contains(&(length, true))
        {
            return Err(Refusal::Access);
        }
        if length == 0 {
            return Ok(Vec::new());
        }
        let owner = self.nic(self.memory_of(nic));
        let region = owner.regions.get(&rkey).filter(|region| region.is_of(qp.domain()));
        let region = region.ok_or(Refusal::Access)?;
        let range = region.range(address, u64::from(length)).ok_or(Refusal::Access)?;
        if !region.access.remote_read {
            return Err(Refusal::Access);
        }
        Ok(region.bytes.read(range).into_owned())
    }

    fn on_send(
        &mut self,
        nic: usize,
        number: u32,
        bytes: &[u8],
        last: bool,
    ) -> Result<Option<PacketBody>, Refusal> {
        let memory = self.memory_of(nic);
        let owner = self.nic_mut(nic);
        let too_short = owner.profile.statuses.receive_too_short;
        let wrong_key = owner.profile.statuses.receive_key;
        let qp = owner.queue_pairs.get_mut(&number).ok_or(Refusal::Invalid)?;
        let Some(&receive) = qp.receives.front() else {
            return Ok(Some(PacketBody::ReceiverNotReady));
        };
        qp.arriving.extend_from_slice(bytes);
        qp.expected_psn = (qp.expected_psn + 1) & PSN_MASK;
        if qp.arriving.len() <= receive.length as usize && !last {
            return Ok(None);
        }
        qp.receives.pop_front();
        let domain = qp.domain();
        let message = std::mem::take(&mut qp.arriving);
        let end = if message.len() > receive.length as usize {
            Err((too_short, Refusal::Operation))
        } else {
            owner_write(&mut self.nic_mut(memory).regions, (&receive, domain), &message)
                .ok_or((wrong_key, Refusal::Operation))
        };
        let status = end.map_or_else(|(status, _)| status, |()| Status::Success);
        let (wr_id, queue) = (receive.wr_id, Queue::Receive);
        self.nic_mut(nic).complete(WorkCompletion { number, wr_id, queue, status });
        end.map(|()| Some(PacketBody::Ack)).map_err(|(_, refusal)| refusal)
    }
}

fn check_right(
    qp: &QueuePair,
    piece: usize,
    right: impl Fn(&QueuePair) -> bool,
) -> Result<(), Refusal> {
    if right(qp) && piece <= qp.path_mtu as usize { Ok(()) } else { Err(Refusal::Invalid) }
}

fn owner_write(
    regions: &mut std::collections::BTreeMap<u32, Region>,
    (receive, domain): (&Receive, u32),
    message: &[u8],
) -> Option<()> {
    let is_named = |region: &&mut Region| region.keys.lkey == receive.lkey && region.is_of(domain);
    let region = regions.values_mut().find(is_named)?;
    let range = region.range(receive.local, message.len() as u64)?;
    region.bytes.write(range.start, message);
    Some(())
}
