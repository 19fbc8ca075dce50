//! Work requests, and posting them to a queue pair.
#![allow(unsafe_code)]

use super::binding::{ibv_post_send, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wr_opcode, rdma_t};
use super::objects::QueuePair;
use crate::error::VerbsError;
use handfast_transport::Direction;
use std::mem::MaybeUninit;
use std::ptr;

/// The call that posts.
pub(super) const POST: &str = "ibv_post_send";

/// One request with its only piece, as verbs takes them, with every check made.
pub(super) struct WorkRequest {
    pub(super) request: ibv_send_wr,
    pub(super) piece: ibv_sge,
}

// SAFETY: its pointers are null or left over from a call of `QueuePair::post` that is over. They are
// followed by the device library alone, within such a call, which sets them again.
unsafe impl Send for WorkRequest {}

impl WorkRequest {
    /// A signalled request with an id.
    pub(super) fn new(direction: Direction, piece: ibv_sge, remote: rdma_t, name: u64) -> Self {
        // SAFETY: integers, null pointers and unions of these: all zeroes are a value.
        let mut request: ibv_send_wr = unsafe { MaybeUninit::zeroed().assume_init() };
        request.wr_id = name;
        request.num_sge = 1;
        request.opcode = match direction {
            Direction::Read => ibv_wr_opcode::IBV_WR_RDMA_READ,
            Direction::Write => ibv_wr_opcode::IBV_WR_RDMA_WRITE,
        };
        request.send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        // Writing whole fields of a union is safe, and these are what the two kinds of work read.
        request.wr.rdma = remote;
        Self { request, piece }
    }
}

/// Splits requests, in order, into one part per call.
pub(super) fn calls(
    requests: &mut [WorkRequest],
    bytes_max: Option<u32>,
) -> impl Iterator<Item = &mut [WorkRequest]> {
    let bytes_max = bytes_max.map_or(u64::MAX, u64::from);
    let mut bytes = 0;
    requests.chunk_by_mut(move |one, next| {
        bytes += u64::from(one.piece.length);
        let fits = bytes + u64::from(next.piece.length) <= bytes_max;
        if !fits {
            bytes = 0;
        }
        fits
    })
}

impl QueuePair {
    /// Posts the requests in order with one call; each ends with a completion.
    ///
    /// Call only in RTS: some drivers later execute a request that they refused before RTS.
    /// After an error it is unknown which requests the driver holds: only ERR and destruction
    /// of the queue pair settle it.
    pub(super) fn post(&self, requests: &mut [WorkRequest]) -> Result<(), VerbsError> {
        if requests.is_empty() {
            return Ok(());
        }
        let count = requests.len();
        let first = requests.as_mut_ptr();
        for place in 0..count {
            // SAFETY: `place` is within the slice, and so is the one after it where it is not the
            // last. No reference into the slice is alive until the call is over.
            unsafe {
                let entry = first.add(place);
                (*entry).request.sg_list = &raw mut (*entry).piece;
                (*entry).request.next = match place + 1 < count {
                    true => &raw mut (*first.add(place + 1)).request,
                    false => ptr::null_mut(),
                };
            }
        }
        let mut refused = ptr::null_mut();
        // SAFETY: the queue pair lives while `self` does. The chain and its pieces live through the
        // call, which copies them. The memory they name is registered, and the lane holds the
        // registration until the completion; see `Lane::admit`.
        let returned =
            unsafe { ibv_post_send(self.raw(), &raw mut (*first).request, &raw mut refused) };
        self.context().check(POST, returned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests share a call up to its limit of bytes, and a longer one goes alone.
    #[test]
    fn requests_are_batched_by_bytes() {
        let request = |length| {
            let piece = ibv_sge { addr: 0, length, lkey: 0 };
            WorkRequest::new(Direction::Read, piece, rdma_t { remote_addr: 0, rkey: 0 }, 0)
        };
        let lengths = |all: &[u32], bytes_max| -> Vec<Vec<u32>> {
            let mut requests: Vec<_> = all.iter().copied().map(request).collect();
            let lengths = |part: &mut [WorkRequest]| part.iter().map(|r| r.piece.length).collect();
            calls(&mut requests, bytes_max).map(lengths).collect()
        };
        let all = [4, 4, 2, 1, 9, 30, 10, u32::MAX, u32::MAX];
        let whole: &[u32] = &all;
        let parts: [&[u32]; 6] = [&[4, 4, 2], &[1, 9], &[30], &[10], &[u32::MAX], &[u32::MAX]];
        assert_eq!(lengths(&all, Some(10)), parts);
        assert_eq!(lengths(&all, None), [whole]);
        assert!(lengths(&[], Some(10)).is_empty());
    }
}
