//! Completions of posted slices.
//!
//! On a device that completes writes once they are sent, as on iWARP, each ends with a read behind it, as
//! in the shipping transport: the peer answers nothing behind a request that it refuses.

use crate::data::{NOW, SiteData};
use crate::verbs::{SendKind, Status, WorkCompletion, WorkRequest};
use crate::world::{World, error};
use handfast_core::transfer::{Completion, CompletionStatus, SliceId};
use handfast_core::transport::Side;
use handfast_core::visibility::{ShowingRead, Unseen};

/// Address of the byte that the reads fill.
pub(crate) const SCRATCH: u64 = 0xf000;
/// Length of a read.
const READ_BYTES: u32 = 1;
/// Marks the request of a read among those of slices.
const READ_BIT: u64 = 1 << 63;

/// A write that is posted, and its remote memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct PostedWrite {
    slice: SliceId,
    rkey: u32,
    address: u64,
}

/// The writes of a site that no read has proven.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct EarlyWrites {
    posted: Vec<PostedWrite>,
    unseen: Unseen<PostedWrite>,
    /// By the number of the request.
    reads: Vec<(u64, ShowingRead<PostedWrite>)>,
}

impl EarlyWrites {
    pub(crate) fn is_empty(&self) -> bool {
        self.posted.is_empty() && self.unseen.is_empty() && self.reads.is_empty()
    }
}

impl World {
    /// Returns the side charged with failed work, as the transport of a real device reports it. A
    /// device cannot distinguish a dead peer from its own port being down; its owner can.
    pub(crate) fn side_of(&self, site: usize, status: Status) -> Side {
        let backend = self.setup.devices.backend;
        let side = match status {
            Status::RemoteAccess => Side::Protection,
            Status::RemoteInvalid => Side::Configuration,
            Status::RemoteOperation
            | Status::RetryExceeded
            | Status::RnrExceeded
            | Status::General => Side::Peer,
            _ => Side::Local,
        };
        if backend.forgives_protection() && status.is_refused_access() {
            return Side::Peer;
        }
        match (side, self.port_is_up(site), backend.blames_port_on_peer()) {
            (Side::Peer, false, false) => Side::Local,
            (Side::Local, false, true) => Side::Peer,
            (side, ..) => side,
        }
    }

    /// Reports a completion to its target.
    pub(crate) fn complete(&mut self, nic: usize, at: usize, completion: &WorkCompletion) {
        let side = self.side_of(nic, completion.status);
        let cause = error(side, "simulated completion");
        let status = match (completion.status, side) {
            (Status::Success, _) => CompletionStatus::Done,
            (Status::Flushed, _) => CompletionStatus::Flushed,
            (_, Side::Protection | Side::Configuration) => CompletionStatus::Refused(cause.into()),
            _ => CompletionStatus::Failed(cause.into()),
        };
        let host = self.host(nic);
        let ended = match self.completes_early() {
            true => self.take_early(nic, completion, status),
            false => vec![Completion { slice: SliceId::from_bits(completion.wr_id), status }],
        };
        let Some(data) = self.data_mut() else { return };
        let machine = &mut data.sites[host].targets[at].machine;
        ended.into_iter().for_each(|ended| machine.handle_completion(NOW, ended));
    }

    pub(crate) fn completes_early(&self) -> bool {
        self.setup.devices.profile.completes_early
    }

    fn early_mut(&mut self, site: usize) -> Option<&mut EarlyWrites> {
        self.data_mut().map(|data| &mut data.sites[site].early)
    }

    /// Notes a write that the device has taken.
    pub(crate) fn note_posted(&mut self, site: usize, request: &WorkRequest) {
        let SendKind::Write { rkey, address } = request.kind else { return };
        let slice = SliceId::from_bits(request.wr_id);
        if let Some(early) = self.early_mut(site) {
            early.posted.push(PostedWrite { slice, rkey, address });
        }
    }

    /// Takes a completion of a device that completes writes early. Returns the slices that end, with
    /// their status.
    fn take_early(
        &mut self,
        nic: usize,
        completion: &WorkCompletion,
        status: CompletionStatus,
    ) -> Vec<Completion> {
        let site = self.host(nic);
        let Some(early) = self.early_mut(site) else { return Vec::new() };
        let is_read = |(id, _): &(u64, _)| *id == completion.wr_id;
        if let Some(at) = early.reads.iter().position(is_read) {
            let (_, read) = early.reads.remove(at);
            return ended(read, &status);
        }
        let slice = SliceId::from_bits(completion.wr_id);
        let posted = early.posted.iter().position(|write| write.slice == slice);
        match posted.map(|at| early.posted.remove(at)) {
            Some(write) if completion.status == Status::Success => {
                early.unseen.on_written(completion.number as usize, u64::from(write.rkey), write);
                self.show_writes(nic)
            }
            _ => vec![Completion { slice, status }],
        }
    }

    /// Posts the reads behind completed writes. Returns the writes of those that the device refuses.
    fn show_writes(&mut self, nic: usize) -> Vec<Completion> {
        let site = self.host(nic);
        let mut lost = Vec::new();
        while let Some(read) = self.early_mut(site).and_then(|early| early.unseen.poll_read()) {
            let Some(last) = read.writes.last().copied() else { continue };
            let Some(data) = &self.data else { break };
            let SiteData { scratch, .. } = &data.sites[site];
            let wr_id = READ_BIT | last.slice.to_bits();
            let request = WorkRequest {
                wr_id,
                kind: SendKind::Read { rkey: last.rkey, address: last.address },
                lkey: scratch.lkey,
                local: SCRATCH,
                length: READ_BYTES,
                signalled: true,
            };
            let is_posted = self.fabric.verbs.post_send(nic, read.pair as u32, request).is_ok();
            match self.early_mut(site).filter(|_| is_posted) {
                Some(early) => early.reads.push((wr_id, read)),
                None => lost.extend(ended(read, &CompletionStatus::Flushed)),
            }
        }
        lost
    }
}

fn ended(read: ShowingRead<PostedWrite>, status: &CompletionStatus) -> Vec<Completion> {
    let end = |write: PostedWrite| Completion { slice: write.slice, status: status.clone() };
    read.writes.into_iter().map(end).collect()
}
