//! Functions that register memory.

use crate::abi::BufferEntry;
use crate::node::find;
use crate::outcome::code;
use handfast_compat::LOCAL_REGIONS_MAX;
use handfast_compat::c::{address, array, text};
use std::ffi::{c_char, c_int, c_void};

/// Registers memory.
///
/// # Safety
/// The memory stays mapped until [`unregisterLocalMemory`] or
/// [`destroyTransferEngine`](crate::destroyTransferEngine) has succeeded; `location` is NULL, or
/// ends with a null byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn registerLocalMemory(
    engine: *mut c_void,
    start: *mut c_void,
    bytes: usize,
    location: *const c_char,
    remote_accessible: c_int,
) -> c_int {
    code("registerLocalMemory", || {
        let node = find(engine)?;
        let (engine, start) = (&node.running()?.engine, address(start));
        // SAFETY: the caller's promise is passed on.
        unsafe {
            let location = text(location, "location")?;
            match remote_accessible {
                0 => engine.register_private(start, bytes as u64)?,
                _ => engine.register(start, bytes as u64, location)?,
            }
        }
        Ok(())
    })
}

/// Registers buffers.
///
/// # Safety
/// As of [`registerLocalMemory`], for each buffer; so many entries can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn registerLocalMemoryBatch(
    engine: *mut c_void,
    buffers: *mut BufferEntry,
    count: usize,
    location: *const c_char,
) -> c_int {
    code("registerLocalMemoryBatch", || {
        let node = find(engine)?;
        // SAFETY: the caller's promise is passed on.
        unsafe {
            let buffers = array(buffers, count, LOCAL_REGIONS_MAX, "buffer_list")?;
            let location = text(location, "location")?;
            let places = buffers.iter().map(|it| (address(it.addr), it.length as u64));
            let places: Vec<_> = places.collect();
            node.running()?.engine.register_all(&places, location)?;
        }
        Ok(())
    })
}

/// Ends a registration.
#[unsafe(no_mangle)]
pub extern "C" fn unregisterLocalMemory(engine: *mut c_void, start: *mut c_void) -> c_int {
    code("unregisterLocalMemory", || find(engine)?.running()?.engine.unregister(address(start)))
}

/// Ends registrations.
///
/// # Safety
/// So many addresses can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unregisterLocalMemoryBatch(
    engine: *mut c_void,
    starts: *mut *mut c_void,
    count: usize,
) -> c_int {
    code("unregisterLocalMemoryBatch", || {
        let node = find(engine)?;
        // SAFETY: the caller's promise is passed on.
        let starts = unsafe { array(starts.cast_const(), count, LOCAL_REGIONS_MAX, "addr_list")? };
        let engine = &node.running()?.engine;
        let ended: Vec<_> = starts.iter().map(|start| engine.unregister(address(*start))).collect();
        ended.into_iter().collect::<Result<(), _>>()
    })
}
