//! Functions that register memory.

use crate::abi::{Engine, Grant, HANDFAST_ACCESS_READ, HANDFAST_ACCESS_WRITE};
use crate::engines::find;
use crate::errors::done;
use handfast_compat::c::{address, array, place, put_text, text};
use handfast_compat::{Access, Cause, Failure, GRANTS_MAX};
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

/// Registers memory that the peers with a grant alone can reach, as handfast_memory_serve otherwise.
/// Without grants no peer does until handfast_memory_grant.
///
/// # Safety
/// As of handfast_memory_serve; `grants` has `count` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handfast_memory_serve_granted(
    engine: Engine,
    name: *const c_char,
    start: *mut c_void,
    bytes: usize,
    location: *const c_char,
    grants: *const Grant,
    count: usize,
) -> i32 {
    done(|| {
        let node = find(engine)?;
        // SAFETY: the caller's promise is passed on.
        unsafe {
            let location = if location.is_null() { "*" } else { text(location, "location")? };
            let name = if name.is_null() { None } else { Some(text(name, "name")?) };
            if count > GRANTS_MAX {
                let cure = "give fewer: a pattern covers many names";
                return Err(Cause::Limit { name: "GRANTS_MAX", max: GRANTS_MAX, cure }.into());
            }
            let grants = array(grants, count, GRANTS_MAX, "grants")?.iter();
            let grants = grants.map(|it| match it.reserved {
                0 => granted(it.peers, it.access),
                _ => Err(Failure::argument("the field `reserved` of a grant is not 0")),
            });
            let grants: Vec<_> = grants.collect::<Result<_, _>>()?;
            let place = (address(start), bytes as u64);
            node.engine.register_granted(name, place, location, &grants)
        }
    })
}

/// Adds a grant to memory, by its first byte. Peers find it with their next batch.
///
/// # Safety
/// `peers` is NULL, or ends with a null byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handfast_memory_grant(
    engine: Engine,
    start: *mut c_void,
    peers: *const c_char,
    access: u32,
) -> i32 {
    // SAFETY: the caller's promise is passed on.
    done(|| find(engine)?.engine.grant(address(start), unsafe { granted(peers, access)? }))
}

/// Takes what a grant allows from a pattern of names; another pattern that covers a peer keeps its
/// own. In force on return, also for batches under way.
///
/// # Safety
/// As of handfast_memory_grant.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handfast_memory_revoke(
    engine: Engine,
    start: *mut c_void,
    peers: *const c_char,
    access: u32,
) -> i32 {
    // SAFETY: the caller's promise is passed on.
    done(|| find(engine)?.engine.revoke(address(start), &unsafe { granted(peers, access)? }))
}

/// Writes the grants of memory, by its first byte, as text: a line "read PATTERN", "write PATTERN" or
/// "read-write PATTERN" for each, and a null byte. `needed` is the length with that byte; a longer text
/// than `size` is cut.
///
/// # Safety
/// `text` is NULL and `size` 0, or `size` bytes can be written; `needed` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handfast_memory_grants(
    engine: Engine,
    start: *mut c_void,
    text: *mut c_char,
    size: usize,
    needed: *mut usize,
) -> i32 {
    done(|| {
        let needed = place(needed, "needed")?;
        let grants = find(engine)?.engine.grants(address(start))?;
        // SAFETY: both places are writable, as the caller promises.
        unsafe { put_grants(&grants, (text, size), needed) }
    })
}

/// Writes a line for each grant, and the length of all with the null byte.
///
/// # Safety
/// The text is NULL and its size 0, or so many bytes can be written; `needed` can be written.
pub(crate) unsafe fn put_grants(
    grants: &[handfast_compat::Grant],
    (text, size): (*mut c_char, usize),
    needed: *mut usize,
) -> Result<(), Failure> {
    let line = |it: &handfast_compat::Grant| format!("{} {}\n", it.access(), it.peers());
    let lines: String = grants.iter().map(line).collect();
    // SAFETY: both places are writable, as the caller promises.
    unsafe {
        needed.write(lines.len() + 1);
        match size {
            0 => Ok(()),
            _ => put_text(text, size, &lines),
        }
    }
}

/// # Safety
/// `peers` is NULL, or ends with a null byte.
pub(crate) unsafe fn granted(
    peers: *const c_char,
    access: u32,
) -> Result<handfast_compat::Grant, Failure> {
    let access = match access {
        HANDFAST_ACCESS_READ => Access::READ,
        HANDFAST_ACCESS_WRITE => Access::WRITE,
        3 => Access::READ_WRITE,
        other => {
            let text = "HANDFAST_ACCESS_READ, HANDFAST_ACCESS_WRITE or both";
            let text = format!("the access of a grant is {other}: expected {text}");
            return Err(Failure::argument(text));
        }
    };
    // SAFETY: the caller's promise is passed on.
    let peers = unsafe { text(peers, "peers")? };
    let grant = handfast_compat::Grant::new(access, peers);
    grant.map_err(|error| Failure::argument(error.to_string()))
}

/// Ends a registration, by its first byte, and waits until nothing touches the memory any more.
/// HANDFAST_IN_USE if transfers use it after 10 seconds: peers cannot reach it any more, but it
/// must stay mapped, and the call may be repeated.
#[unsafe(no_mangle)]
pub extern "C" fn handfast_memory_unregister(engine: Engine, start: *mut c_void) -> i32 {
    done(|| find(engine)?.engine.unregister(address(start)))
}
