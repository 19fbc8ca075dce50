//! Functions that move bytes.

use crate::abi::{
    INVALID_BATCH, NotifyMsg, OPCODE_READ, OPCODE_WRITE, STATUS_COMPLETED, STATUS_FAILED,
    STATUS_WAITING, TransferRequest, TransferStatus,
};
use crate::node::{Running, find};
use crate::notifications::notification;
use crate::outcome::{Line, limit, log, run, status};
use handfast_compat::c::{address, array, place};
use handfast_compat::{BatchState, Direction, Failure, Notification, REQUESTS_MAX, Request};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// Makes a batch.
#[unsafe(no_mangle)]
pub extern "C" fn allocateBatchID(engine: *mut c_void, capacity: usize) -> u64 {
    let allocate = || {
        let node = find(engine)?;
        if capacity > REQUESTS_MAX {
            let cure = "use several batches";
            return Err(limit("REQUESTS_MAX", REQUESTS_MAX, cure));
        }
        node.running()?.engine.allocate(capacity)
    };
    run("allocateBatchID", allocate).unwrap_or(INVALID_BATCH)
}

/// Starts requests.
///
/// # Safety
/// So many entries can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn submitTransfer(
    engine: *mut c_void,
    batch: u64,
    entries: *mut TransferRequest,
    count: usize,
) -> c_int {
    status("submitTransfer", || {
        // SAFETY: the caller's promise is passed on.
        let entries = unsafe { array(entries.cast_const(), count, REQUESTS_MAX, "entries")? };
        submit(find(engine)?.running()?, batch, entries, None)
    })
}

/// Starts requests that end with a notification.
///
/// # Safety
/// So many entries can be read; the notification's texts are NULL, or end with a null byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn submitTransferWithNotify(
    engine: *mut c_void,
    batch: u64,
    entries: *mut TransferRequest,
    count: usize,
    message: NotifyMsg,
) -> c_int {
    status("submitTransferWithNotify", || {
        // SAFETY: the caller's promise is passed on.
        let (entries, message) = unsafe {
            let entries = array(entries.cast_const(), count, REQUESTS_MAX, "entries")?;
            (entries, notification(message)?)
        };
        if entries.is_empty() {
            return Err(Failure::argument("without a request the notification has no segment"));
        }
        submit(find(engine)?.running()?, batch, entries, Some(message))
    })
}

fn submit(
    running: &Running,
    batch: u64,
    entries: &[TransferRequest],
    message: Option<Notification>,
) -> Result<(), Failure> {
    let mut names = BTreeMap::<i32, Arc<str>>::new();
    let segments = running.segments.lock();
    let mut last = None;
    for TransferRequest { target_id, .. } in entries {
        if last.replace(*target_id) != Some(*target_id) && !names.contains_key(target_id) {
            names.insert(*target_id, segments.name((*target_id).into())?);
        }
    }
    drop(segments);
    let mut peer = None;
    let mut targets = Vec::with_capacity(entries.len());
    for entry in entries {
        let direction = match entry.opcode {
            OPCODE_READ => Direction::Read,
            OPCODE_WRITE => Direction::Write,
            opcode => return Err(Failure::argument(format!("no request has the opcode {opcode}"))),
        };
        let name = match peer {
            Some((id, name)) if id == entry.target_id => name,
            // Every id is in the map.
            _ => &*names[&entry.target_id],
        };
        peer = Some((entry.target_id, name));
        let (local, remote, bytes) = (address(entry.source), entry.target_offset, entry.length);
        targets.push((name, Request { direction, local, remote, bytes }));
    }
    running.engine.submit_to(batch, &targets, message, None, &mut || false)
}

/// Writes the status of a task.
///
/// # Safety
/// `out` is NULL, or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getTransferStatus(
    engine: *mut c_void,
    batch: u64,
    task: usize,
    out: *mut TransferStatus,
) -> c_int {
    status("getTransferStatus", || {
        let out = place(out, "status")?;
        let node = find(engine)?;
        let state = node.running()?.engine.request_state(batch, task)?;
        let (status, transferred_bytes) = match state {
            BatchState::Pending => (STATUS_WAITING, 0),
            BatchState::Done { bytes } => (STATUS_COMPLETED, bytes),
            BatchState::Failed { bytes, failure } => {
                log(format_args!("task {task} of batch {batch}: {}", Line(&failure)));
                (STATUS_FAILED, bytes)
            }
        };
        // SAFETY: the place is writable, as the caller promises.
        unsafe { out.write(TransferStatus { status, transferred_bytes }) };
        Ok(())
    })
}

/// Forgets a batch.
#[unsafe(no_mangle)]
pub extern "C" fn freeBatchID(engine: *mut c_void, batch: u64) -> c_int {
    status("freeBatchID", || find(engine)?.running()?.engine.free(batch))
}
