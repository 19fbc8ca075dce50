//! Work requests: how slices are handed to a queue pair.
#![allow(unsafe_code)]

use super::binding::{ibv_post_send, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wr_opcode};
use super::objects::QueuePair;
use crate::error::VerbsError;
use handfast_transport::Direction;
use std::mem::MaybeUninit;
use std::ptr;

/// One request, with every check made.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorkRequest {
    pub(super) name: u64,
    pub(super) direction: Direction,
    pub(super) address: u64,
    pub(super) length: u32,
    pub(super) local_key: u32,
    pub(super) remote_address: u64,
    pub(super) remote_key: u32,
}

/// The requests, in order, as one call each may take them.
pub(super) fn calls(
    requests: &[WorkRequest],
    bytes_max: Option<u32>,
) -> impl Iterator<Item = &[WorkRequest]> {
    let bytes_max = bytes_max.map_or(u64::MAX, u64::from);
    let mut bytes = 0;
    requests.chunk_by(move |one, next| {
        bytes += u64::from(one.length);
        let fits = bytes + u64::from(next.length) <= bytes_max;
        if !fits {
            bytes = 0;
        }
        fits
    })
}

impl QueuePair {
    /// Hands the requests over, in order, in one call; each ends with a completion.
    ///
    /// To be called in RTS alone: what a driver refuses before, some execute later all the same.
    /// After an error it is not known which of the requests the driver has: only ERR and the end
    /// of the queue pair give certainty.
    pub(super) fn post(&self, requests: &[WorkRequest]) -> Result<(), VerbsError> {
        let mut pieces: Vec<ibv_sge> = requests.iter().map(piece).collect();
        let mut chain: Vec<ibv_send_wr> = requests.iter().map(unlinked).collect();
        let pieces = pieces.as_mut_ptr();
        let first = chain.as_mut_ptr();
        for place in 0..requests.len() {
            // SAFETY: `place` is within both arrays, which are not moved before the call is over.
            unsafe {
                let request = first.add(place);
                (*request).sg_list = pieces.add(place);
                if place + 1 < requests.len() {
                    (*request).next = first.add(place + 1);
                }
            }
        }
        if requests.is_empty() {
            return Ok(());
        }
        let mut refused = ptr::null_mut();
        // SAFETY: the queue pair lives while `self` does. The chain and its pieces live through the
        // call, which copies them. The memory they name is registered, and the lane holds the
        // registration until the completion; see `Lane::admit`.
        let returned = unsafe { ibv_post_send(self.raw(), first, &raw mut refused) };
        self.context().check("ibv_post_send", returned)
    }
}

pub(super) fn piece(request: &WorkRequest) -> ibv_sge {
    ibv_sge { addr: request.address, length: request.length, lkey: request.local_key }
}

pub(super) fn unlinked(request: &WorkRequest) -> ibv_send_wr {
    // SAFETY: integers, null pointers and unions of these: all zeroes are a value.
    let mut work: ibv_send_wr = unsafe { MaybeUninit::zeroed().assume_init() };
    work.wr_id = request.name;
    work.num_sge = 1;
    work.opcode = match request.direction {
        Direction::Read => ibv_wr_opcode::IBV_WR_RDMA_READ,
        Direction::Write => ibv_wr_opcode::IBV_WR_RDMA_WRITE,
    };
    work.send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
    // Writing whole fields of a union is safe, and these are what the two kinds of work read.
    work.wr.rdma = rdma(request);
    work
}

fn rdma(request: &WorkRequest) -> super::binding::rdma_t {
    super::binding::rdma_t { remote_addr: request.remote_address, rkey: request.remote_key }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests share a call up to its limit of bytes, and a longer one goes alone.
    #[test]
    fn requests_are_batched_by_bytes() {
        let request = |length| WorkRequest {
            name: u64::from(length),
            direction: Direction::Read,
            address: 0,
            length,
            local_key: 0,
            remote_address: 0,
            remote_key: 0,
        };
        let lengths = |all: &[u32], bytes_max| -> Vec<Vec<u32>> {
            let requests: Vec<_> = all.iter().copied().map(request).collect();
            let lengths = |part: &[WorkRequest]| part.iter().map(|r| r.length).collect();
            calls(&requests, bytes_max).map(lengths).collect()
        };
        let all = [4, 4, 2, 1, 9, 30, 10, u32::MAX, u32::MAX];
        let whole: &[u32] = &all;
        let parts: [&[u32]; 6] = [&[4, 4, 2], &[1, 9], &[30], &[10], &[u32::MAX], &[u32::MAX]];
        assert_eq!(lengths(&all, Some(10)), parts);
        assert_eq!(lengths(&all, None), [whole]);
        assert!(lengths(&[], Some(10)).is_empty());
    }
}
