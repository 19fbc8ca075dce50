//! Functions that open segments.

use crate::node::{Running, find};
use crate::outcome::{code, run};
use handfast_compat::Failure;
use handfast_compat::c::text;
use std::ffi::{c_char, c_int, c_void};

/// Opens a segment.
///
/// # Safety
/// The name is NULL, or ends with a null byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openSegment(engine: *mut c_void, name: *const c_char) -> i32 {
    let open = || {
        let node = find(engine)?;
        // SAFETY: the caller's promise is passed on.
        open(node.running()?, unsafe { segment_name(name)? })
    };
    run("openSegment", open).unwrap_or(-1)
}

/// Opens a segment after a new look-up.
///
/// # Safety
/// The name is NULL, or ends with a null byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openSegmentNoCache(engine: *mut c_void, name: *const c_char) -> i32 {
    let open = || {
        let node = find(engine)?;
        // SAFETY: the caller's promise is passed on.
        let (running, name) = (node.running()?, unsafe { segment_name(name)? });
        running.engine.close_peer(name);
        open(running, name)
    };
    run("openSegmentNoCache", open).unwrap_or(-1)
}

fn open(running: &Running, name: &str) -> Result<i32, Failure> {
    let known = running.segments.lock().id(name);
    if known == Some(crate::LOCAL_SEGMENT) {
        return Ok(crate::LOCAL_SEGMENT);
    }
    running.engine.open(name, &mut || false)?;
    running.segments.lock().insert(name)
}

/// # Safety
/// As of [`text`].
unsafe fn segment_name<'a>(name: *const c_char) -> Result<&'a str, Failure> {
    // SAFETY: the caller's promise is passed on.
    match unsafe { text(name, "segment_name")? }.trim_start_matches('/') {
        "" => Err(Failure::argument("segment_name is empty")),
        name => Ok(name),
    }
}

/// Forgets what is known of a segment.
#[unsafe(no_mangle)]
pub extern "C" fn closeSegment(engine: *mut c_void, id: i32) -> c_int {
    code("closeSegment", || {
        let node = find(engine)?;
        let running = node.running()?;
        let name = running.segments.lock().name(id.into())?;
        running.engine.close_peer(&name);
        Ok(())
    })
}

/// Forgets what is known of a segment.
///
/// # Safety
/// The name is NULL, or ends with a null byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn removeLocalSegment(engine: *mut c_void, name: *const c_char) -> c_int {
    code("removeLocalSegment", || {
        let node = find(engine)?;
        // SAFETY: the caller's promise is passed on.
        node.running()?.engine.close_peer(unsafe { segment_name(name)? });
        Ok(())
    })
}

/// Forgets what is known of all segments.
#[unsafe(no_mangle)]
pub extern "C" fn syncSegmentCache(engine: *mut c_void) -> c_int {
    code("syncSegmentCache", || {
        let node = find(engine)?;
        let running = node.running()?;
        let segments = running.segments.lock();
        for name in segments.peers() {
            running.engine.close_peer(name);
        }
        Ok(())
    })
}

/// Does nothing.
///
/// # Safety
/// The name is NULL, or ends with a null byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warmupEfaSegment(engine: *mut c_void, name: *const c_char) -> c_int {
    code("warmupEfaSegment", || {
        find(engine)?;
        // SAFETY: the caller's promise is passed on.
        unsafe { text(name, "segment_name")? };
        Ok(())
    })
}
