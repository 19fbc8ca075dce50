//! Arguments as C passes them.

use crate::abi::NotifyMsg;
use crate::outcome::Error;
use handfast_compat::Notification;
use std::ffi::{c_char, c_void};

/// Longest text that is read, in bytes.
const TEXT_BYTES_MAX: usize = 1 << 20;

/// Reads text.
///
/// # Safety
/// `start` is NULL, or bytes up to a null byte can be read there.
pub(crate) unsafe fn text<'a>(start: *const c_char, what: &'static str) -> Result<&'a str, Error> {
    if start.is_null() {
        return Err(Error::Pointer(what));
    }
    // SAFETY: reads up to the null byte, which the caller promises.
    let length = unsafe { libc::strnlen(start, TEXT_BYTES_MAX + 1) };
    if length > TEXT_BYTES_MAX {
        let text =
            format!("{what} has more than {TEXT_BYTES_MAX} bytes, or no null byte at its end");
        return Err(Error::argument(text));
    }
    // SAFETY: so many bytes were read just now.
    let bytes = unsafe { std::slice::from_raw_parts(start.cast::<u8>(), length) };
    std::str::from_utf8(bytes).map_err(|_| Error::argument(format!("{what} is not UTF-8 text")))
}

/// Reads an array; NULL is an empty one.
///
/// # Safety
/// `start` is NULL, or `count` values can be read there, unless `count` exceeds `max`.
pub(crate) unsafe fn array<'a, T>(
    start: *const T,
    count: usize,
    max: usize,
    what: &'static str,
) -> Result<&'a [T], Error> {
    match count {
        0 => Ok(&[]),
        _ if count > max => Err(Error::Limit { name: what, max, cure: "split the call" }),
        _ if start.is_null() || !start.is_aligned() => Err(Error::Pointer(what)),
        // SAFETY: the values can be read, as the caller promises.
        _ => Ok(unsafe { std::slice::from_raw_parts(start, count) }),
    }
}

/// Reads a notification.
///
/// # Safety
/// As of [`text`], for both texts.
pub(crate) unsafe fn notification(message: NotifyMsg) -> Result<Notification, Error> {
    // SAFETY: the caller's promise is passed on.
    let (name, message) = unsafe {
        (
            text(message.name, "the notification's name")?,
            text(message.msg, "the notification's msg")?,
        )
    };
    Ok(Notification { name: name.to_owned(), message: message.to_owned() })
}

/// Checks that there is a place for a result.
pub(crate) fn place<T>(start: *mut T, what: &'static str) -> Result<*mut T, Error> {
    match start.is_null() || !start.is_aligned() {
        true => Err(Error::Pointer(what)),
        false => Ok(start),
    }
}

/// Writes text, cut to the room for it and its null byte.
///
/// # Safety
/// `start` is NULL, or `room` bytes can be written there.
pub(crate) unsafe fn put_text(start: *mut c_char, room: usize, text: &str) -> Result<(), Error> {
    let start = place(start, "the buffer")?;
    if room == 0 {
        return Err(Error::argument("the buffer has no room"));
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
pub(crate) fn address(start: *mut c_void) -> u64 {
    start.expose_provenance() as u64
}
