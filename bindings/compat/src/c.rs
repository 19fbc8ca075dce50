//! Calls of C: their arguments, and panics.
#![allow(unsafe_code)]

use crate::failure::{Cause, Failure};
use std::ffi::{c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Longest text that is read, in bytes.
const TEXT_BYTES_MAX: usize = 1 << 20;

/// Runs a call of C. No panic leaves it.
///
/// # Errors
/// The call's, or [`Cause::Panicked`].
pub fn caught<T>(call: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        // The drop of a payload may panic as well.
        std::mem::forget(panic);
        Err(Cause::Panicked.into())
    })
}

fn pointer(what: &str) -> Failure {
    Failure::argument(format!("{what} is NULL or misaligned"))
}

/// Reads text.
///
/// # Safety
/// `start` is NULL, or bytes up to a null byte can be read there.
///
/// # Errors
/// It is NULL, too long or not UTF-8.
pub unsafe fn text<'a>(start: *const c_char, what: &'static str) -> Result<&'a str, Failure> {
    if start.is_null() {
        return Err(pointer(what));
    }
    // SAFETY: reads up to the null byte, which the caller promises.
    let length = unsafe { libc::strnlen(start, TEXT_BYTES_MAX + 1) };
    if length > TEXT_BYTES_MAX {
        let text =
            format!("{what} has more than {TEXT_BYTES_MAX} bytes, or no null byte at its end");
        return Err(Failure::argument(text));
    }
    // SAFETY: so many bytes were read just now.
    let bytes = unsafe { std::slice::from_raw_parts(start.cast::<u8>(), length) };
    std::str::from_utf8(bytes).map_err(|_| Failure::argument(format!("{what} is not UTF-8 text")))
}

/// Reads an array; NULL is an empty one.
///
/// # Safety
/// `start` is NULL, or `count` values can be read there, unless `count` exceeds `max`.
///
/// # Errors
/// More than `max` values, or NULL with a count.
pub unsafe fn array<'a, T>(
    start: *const T,
    count: usize,
    max: usize,
    what: &'static str,
) -> Result<&'a [T], Failure> {
    match count {
        0 => Ok(&[]),
        _ if count > max => Err(Cause::Limit { name: what, max, cure: "split the call" }.into()),
        _ if start.is_null() || !start.is_aligned() => Err(pointer(what)),
        // SAFETY: the values can be read, as the caller promises.
        _ => Ok(unsafe { std::slice::from_raw_parts(start, count) }),
    }
}

/// Checks that there is a place for a result.
///
/// # Errors
/// There is none.
pub fn place<T>(start: *mut T, what: &'static str) -> Result<*mut T, Failure> {
    match start.is_null() || !start.is_aligned() {
        true => Err(pointer(what)),
        false => Ok(start),
    }
}

/// Writes text, cut to the room for it and its null byte.
///
/// # Safety
/// `start` is NULL, or `room` bytes can be written there.
///
/// # Errors
/// There is no room.
pub unsafe fn put_text(start: *mut c_char, room: usize, text: &str) -> Result<(), Failure> {
    let start = place(start, "the buffer")?;
    if room == 0 {
        return Err(Failure::argument("the buffer has no room"));
    }
    let length = text.len().min(room - 1);
    // SAFETY: one byte less than there is room, and the null byte.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), start.cast::<u8>(), length);
        start.add(length).write(0);
    }
    Ok(())
}

/// The number of an address.
pub fn address(start: *mut c_void) -> u64 {
    start.expose_provenance() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Touchy;

    impl Drop for Touchy {
        fn drop(&mut self) {
            panic!("dropped");
        }
    }

    /// A panic becomes a failure, also when its payload cannot be dropped.
    #[test]
    fn panic_does_not_leave_a_call() {
        let is_panic = |it: Result<(), Failure>| matches!(it.unwrap_err().cause(), Cause::Panicked);
        assert!(is_panic(caught(|| panic!("a bug"))));
        assert!(is_panic(caught(|| std::panic::panic_any(Touchy))));
        assert_eq!(caught(|| Ok(7)).unwrap(), 7);
        let error = caught(|| Err::<(), _>(Cause::NoSuchEngine(1).into())).unwrap_err();
        assert_eq!(error.code(), -1);
    }
}
