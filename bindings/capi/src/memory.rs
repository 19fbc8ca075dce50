//! Functions that register memory.

use crate::abi::Engine;
use crate::engines::find;
use crate::errors::done;
use handfast_compat::c::{address, text};
use std::ffi::{c_char, c_void};

/// Registers memory for transfers of this engine alone. Peers cannot reach it.
///
/// # Safety
/// The memory stays mapped until handfast_memory_unregister or handfast_engine_close has succeeded.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handfast_memory_register(
    engine: Engine,
    start: *mut c_void,
    bytes: usize,
) -> i32 {
    // SAFETY: the caller's promise is passed on.
    done(|| unsafe { find(engine)?.engine.register_private(address(start), bytes as u64) })
}

/// Registers memory that peers can read and write. They find it by name with
/// handfast_peer_segment; NULL if they have its address by other means. location is where the
/// memory is, such as "cpu:0"; NULL if the kernel knows.
///
/// # Safety
/// As of handfast_memory_register; texts are NULL, or end with a null byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handfast_memory_serve(
    engine: Engine,
    name: *const c_char,
    start: *mut c_void,
    bytes: usize,
    location: *const c_char,
) -> i32 {
    done(|| {
        let node = find(engine)?;
        let (start, bytes) = (address(start), bytes as u64);
        // SAFETY: the caller's promise is passed on.
        unsafe {
            let location = if location.is_null() { "*" } else { text(location, "location")? };
            match name.is_null() {
                true => node.engine.register(start, bytes, location),
                false => node.engine.register_named(text(name, "name")?, start, bytes, location),
            }
        }
    })
}

/// Ends a registration, by its first byte, and waits until nothing touches the memory any more.
/// HANDFAST_IN_USE if transfers use it after 10 seconds: peers cannot reach it any more, but it
/// must stay mapped, and the call may be repeated.
#[unsafe(no_mangle)]
pub extern "C" fn handfast_memory_unregister(engine: Engine, start: *mut c_void) -> i32 {
    done(|| find(engine)?.engine.unregister(address(start)))
}
