//! Functions that move bytes.

use crate::abi::{
    Batch, Engine, HANDFAST_OK, HANDFAST_PENDING, HANDFAST_READ, HANDFAST_WRITE, Peer, Request,
};
use crate::engines::{duration, find};
use crate::errors::{call, done};
use handfast_compat::c::{address, array, place};
use handfast_compat::{BatchState, Direction, Failure, REQUESTS_MAX};
use std::ffi::c_void;
use std::time::Duration;

/// Starts requests to a peer as a batch and writes its handle. timeout_ms is the time limit of the
/// batch and of this call, 0 for the engine's. Waits for the peer's answer if it has restarted, and for the
/// RDMA device to register memory that it does not know. After a failure no request is under way, and remote
/// of the error is the state of the peer's memory. Past a deadline the device may go on with the
/// registration: handfast_memory_unregister waits for its end. A batch is released with handfast_batch_free.
///
/// # Safety
/// So many requests can be read; `batch` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handfast_batch_submit(
    engine: Engine,
    peer: Peer,
    requests: *const Request,
    count: usize,
    timeout_ms: u64,
    batch: *mut Batch,
) -> i32 {
    // SAFETY: the caller's promise is passed on.
    done(|| unsafe { submit(engine, peer, (requests, count), timeout_ms, None, batch) })
}

/// Starts a batch as handfast_batch_submit, once a CUDA stream has done the work that it has at the
/// call: a CUstream or cudaStream_t, or NULL for the default stream of the device that has the first
/// request's memory. The call waits for the stream within timeout_ms, or for 60 seconds; work that is
/// added to the stream meanwhile is not waited for. HANDFAST_ARGUMENT without a driver of CUDA.
///
/// # Safety
/// So many requests can be read; the stream exists during the call, and is not captured; `batch` is
/// NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handfast_batch_submit_after(
    engine: Engine,
    peer: Peer,
    requests: *const Request,
    count: usize,
    timeout_ms: u64,
    stream: *mut c_void,
    batch: *mut Batch,
) -> i32 {
    let stream = Some(address(stream));
    // SAFETY: the caller's promise is passed on.
    done(|| unsafe { submit(engine, peer, (requests, count), timeout_ms, stream, batch) })
}

/// # Safety
/// As of handfast_batch_submit and handfast_batch_submit_after.
unsafe fn submit(
    engine: Engine,
    peer: Peer,
    (requests, count): (*const Request, usize),
    timeout_ms: u64,
    stream: Option<u64>,
    batch: *mut Batch,
) -> Result<(), Failure> {
    let (node, out) = (find(engine)?, place(batch, "batch")?);
    let peer = node.peer(peer)?;
    // SAFETY: the caller's promise is passed on.
    let requests = unsafe { array(requests, count, REQUESTS_MAX, "requests")? };
    let requests = requests.iter().map(request).collect::<Result<Vec<_>, _>>()?;
    let mut timeout = duration(timeout_ms);
    if let Some(stream) = stream {
        let first = requests.first().map(|request| request.local);
        // SAFETY: the caller's promise is passed on.
        timeout =
            unsafe { node.engine.wait_for_stream((stream, None), first, timeout, &mut || false) }?;
    }
    let batch = node.engine.submit(&peer, &requests, timeout, &mut || false)?;
    // SAFETY: the place is writable, as the caller promises.
    unsafe { out.write(batch) };
    Ok(())
}

fn request(request: &Request) -> Result<handfast_compat::Request, Failure> {
    let Request { direction, reserved, local, remote, bytes } = *request;
    let direction = match (direction, reserved) {
        (HANDFAST_READ, 0) => Direction::Read,
        (HANDFAST_WRITE, 0) => Direction::Write,
        (HANDFAST_READ | HANDFAST_WRITE, _) => {
            return Err(Failure::argument("a request's reserved field is not 0"));
        }
        _ => {
            let text = format!("a request's direction is {direction}: read is 0, and write is 1");
            return Err(Failure::argument(text));
        }
    };
    Ok(handfast_compat::Request { direction, local: address(local), remote, bytes })
}

/// Waits for the end of a batch, for timeout_ms at most, HANDFAST_FOREVER without a limit.
/// HANDFAST_OK when every byte is at its destination, HANDFAST_PENDING when the batch is still
/// under way; it goes on then. A failure of the batch is the failure of this call. At the end the
/// bytes that have landed for certain are written, unless landed_bytes is NULL.
///
/// # Safety
/// `landed_bytes` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handfast_batch_wait(
    engine: Engine,
    batch: Batch,
    timeout_ms: u64,
    landed_bytes: *mut u64,
) -> i32 {
    call(|| {
        let node = find(engine)?;
        let timeout = duration(timeout_ms).unwrap_or(Duration::ZERO);
        let state = node.engine.wait_for(batch, timeout)?;
        // SAFETY: the caller's promise is passed on.
        unsafe { result(state, landed_bytes) }
    })
}

/// Returns the state of a batch as handfast_batch_wait, without waiting.
///
/// # Safety
/// `landed_bytes` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handfast_batch_status(
    engine: Engine,
    batch: Batch,
    landed_bytes: *mut u64,
) -> i32 {
    call(|| {
        let state = find(engine)?.engine.state(batch)?;
        // SAFETY: the caller's promise is passed on.
        unsafe { result(state, landed_bytes) }
    })
}

/// # Safety
/// `out` is NULL or can be written.
unsafe fn result(state: BatchState, out: *mut u64) -> Result<i32, Failure> {
    let (bytes, result) = match state {
        BatchState::Pending => return Ok(HANDFAST_PENDING),
        BatchState::Done { bytes } => (bytes, Ok(HANDFAST_OK)),
        BatchState::Failed { bytes, failure } => (bytes, Err(failure)),
    };
    if !out.is_null() {
        // SAFETY: the place is writable, as the caller promises.
        unsafe { place(out, "landed_bytes")?.write(bytes) };
    }
    result
}

/// Writes for each request of a batch, in their order, the bytes that have landed for certain.
/// count is the number of the batch's requests. Requests that are under way have 0.
///
/// # Safety
/// So many numbers can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handfast_batch_landed(
    engine: Engine,
    batch: Batch,
    bytes: *mut u64,
    count: usize,
) -> i32 {
    done(|| {
        let landed = find(engine)?.engine.landed(batch)?;
        if landed.len() != count {
            let text = format!("count is {count}: the batch has {} requests", landed.len());
            return Err(Failure::argument(text));
        }
        if count > 0 {
            let out = place(bytes, "bytes")?;
            // SAFETY: so many numbers can be written, as the caller promises.
            unsafe { std::ptr::copy_nonoverlapping(landed.as_ptr(), out, count) };
        }
        Ok(())
    })
}

/// Cancels what is under way in a batch, which ends soon. A batch that has ended stays as it is.
#[unsafe(no_mangle)]
pub extern "C" fn handfast_batch_cancel(engine: Engine, batch: Batch) -> i32 {
    done(|| find(engine)?.engine.cancel(batch))
}

/// Releases a batch that has ended; HANDFAST_UNFINISHED while it has not.
#[unsafe(no_mangle)]
pub extern "C" fn handfast_batch_free(engine: Engine, batch: Batch) -> i32 {
    done(|| find(engine)?.engine.free(batch))
}
