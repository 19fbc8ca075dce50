//! The walk over a chain of requests.

use crate::abi::{ReceiveWr, SendWr};
use handfast_fabric::protocol::{Answer, LocalMemory, Reply};
use libc::c_int;

/// A request of a chain, and its memory if that is not one registered range.
pub(super) type Linked<Request> = (Request, Option<LocalMemory>);

/// Requests posted at once.
pub(super) enum Batch<Request> {
    Plain(Vec<Request>),
    Of(Request, LocalMemory),
}

/// A request that names the next.
pub(super) trait Chained {
    fn next(&self) -> *mut Self;
}

impl Chained for SendWr {
    fn next(&self) -> *mut Self {
        self.next
    }
}

impl Chained for ReceiveWr {
    fn next(&self) -> *mut Self {
        self.next
    }
}

/// Posts a chain in order. At an error, `refused` is the first request that was not posted.
///
/// # Safety
/// The chain lives through the call, and `refused` is valid for a write.
pub(super) unsafe fn post<Wr: Chained, Request>(
    first: *mut Wr,
    refused: *mut *mut Wr,
    convert: impl Fn(&Wr) -> Result<Linked<Request>, c_int>,
    post: impl Fn(Batch<Request>) -> Reply,
) -> c_int {
    let mut unposted = first;
    let mut hand_over = |batch| {
        if matches!(&batch, Batch::Plain(requests) if requests.is_empty()) {
            return 0;
        }
        let (count, code) = posted(post(batch));
        for _ in 0..count {
            // SAFETY: as many requests of the chain were posted.
            unposted = unsafe { (*unposted).next() };
        }
        code
    };
    let (mut next, mut plain) = (first, Vec::new());
    let code = loop {
        // SAFETY: by the function's own condition.
        let request = unsafe { next.as_ref() };
        let step = request.map(|request| (convert(request), request.next()));
        let rest = match step {
            Some((Ok((request, None)), after)) => {
                plain.push(request);
                next = after;
                continue;
            }
            Some((Ok((request, Some(memory))), after)) => Some(Ok((request, memory, after))),
            Some((Err(code), _)) => Some(Err(code)),
            None => None,
        };
        let code = hand_over(Batch::Plain(std::mem::take(&mut plain)));
        match rest {
            _ if code != 0 => break code,
            None => break 0,
            Some(Err(code)) => break code,
            Some(Ok((request, memory, after))) => {
                let code = hand_over(Batch::Of(request, memory));
                if code != 0 {
                    break code;
                }
                next = after;
            }
        }
    };
    if code != 0 {
        // SAFETY: by the function's own condition.
        unsafe { *refused = unposted };
    }
    code
}

/// Requests taken, and the error.
fn posted(answer: Reply) -> (u32, c_int) {
    match answer {
        Ok(Answer::Posted { count, code }) => (count, code),
        Ok(_) => (0, libc::EPROTO),
        Err(code) => (0, code),
    }
}
