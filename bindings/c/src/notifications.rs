//! Functions of notifications.

use crate::abi::NotifyMsg;
use crate::node::find;
use crate::outcome::{code, limit, no_such_segment, run};
use handfast_compat::c::{place, text};
use handfast_compat::{Failure, Notification, PerProcess};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;

/// Maximum arrays of notifications that have not been released.
pub const NOTIFICATION_ARRAYS_MAX: usize = 65_536;

/// Notifications of each array that has not been released, by its address.
static ARRAYS: PerProcess<Mutex<BTreeMap<usize, usize>>> = PerProcess::new();

fn arrays() -> Result<&'static Mutex<BTreeMap<usize, usize>>, Failure> {
    ARRAYS.get(Mutex::default)
}

/// Takes the notifications.
///
/// # Safety
/// `size` is NULL, or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getNotifsFromEngine(
    engine: *mut c_void,
    size: *mut c_int,
) -> *mut NotifyMsg {
    let get = || {
        let size = place(size, "size")?;
        // SAFETY: the place is writable, as the caller promises.
        unsafe { size.write(0) };
        let node = find(engine)?;
        let engine = &node.running()?.engine;
        if arrays()?.lock().len() >= NOTIFICATION_ARRAYS_MAX {
            let (name, cure) = ("NOTIFICATION_ARRAYS_MAX", "release notifications");
            return Err(limit(name, NOTIFICATION_ARRAYS_MAX, cure));
        }
        let taken = engine.take_notifications()?;
        if taken.is_empty() {
            return Ok(null_mut());
        }
        let count = c_int::try_from(taken.len()).map_err(|_| no_memory())?;
        let array = copy(&taken)?;
        // SAFETY: as above.
        unsafe { size.write(count) };
        Ok(array)
    };
    run("getNotifsFromEngine", get).unwrap_or(null_mut())
}

fn no_memory() -> Failure {
    Failure::argument("no memory for notifications, which are lost")
}

/// Reads a notification.
///
/// # Safety
/// As of [`text`], for both texts.
pub(crate) unsafe fn notification(message: NotifyMsg) -> Result<Notification, Failure> {
    // SAFETY: the caller's promise is passed on.
    let (name, message) = unsafe {
        (
            text(message.name, "the notification's name")?,
            text(message.msg, "the notification's msg")?,
        )
    };
    Ok(Notification { name: name.to_owned(), message: message.to_owned() })
}

/// Copies notifications to memory of the C library.
fn copy(all: &[Notification]) -> Result<*mut NotifyMsg, Failure> {
    // SAFETY: asks for zeroed memory.
    let array: *mut NotifyMsg = unsafe { libc::calloc(all.len(), size_of::<NotifyMsg>()) }.cast();
    if array.is_null() {
        return Err(no_memory());
    }
    for (place, notification) in all.iter().enumerate() {
        let entry =
            NotifyMsg { name: c_text(&notification.name), msg: c_text(&notification.message) };
        // SAFETY: the array has so many entries.
        unsafe { array.add(place).write(entry) };
        if entry.name.is_null() || entry.msg.is_null() {
            // SAFETY: the array is new, and entries that were not written are null.
            unsafe { release(array, all.len()) };
            return Err(no_memory());
        }
    }
    arrays()?.lock().insert(array.addr(), all.len());
    Ok(array)
}

/// Copies text up to its first null byte.
fn c_text(text: &str) -> *mut c_char {
    let length = text.bytes().position(|byte| byte == 0).unwrap_or(text.len());
    // SAFETY: reads so many bytes of the text.
    unsafe { libc::strndup(text.as_ptr().cast(), length) }
}

/// # Safety
/// `array` is of [`copy`], with so many entries, and not used after the call.
unsafe fn release(array: *mut NotifyMsg, count: usize) {
    // SAFETY: the entries and their texts are of the C library, as the caller promises.
    unsafe {
        for place in 0..count {
            let NotifyMsg { name, msg } = array.add(place).read();
            libc::free(name.cast());
            libc::free(msg.cast());
        }
        libc::free(array.cast());
    }
}

/// Releases notifications.
#[unsafe(no_mangle)]
// Only an array of the table is read.
#[allow(clippy::not_unsafe_ptr_arg_deref)]
pub extern "C" fn freeNotifsMsgBuf(array: *mut NotifyMsg, size: c_int) -> c_int {
    code("freeNotifsMsgBuf", || {
        if array.is_null() {
            return Ok(());
        }
        let mut arrays = arrays()?.lock();
        match arrays.get(&array.addr()) {
            Some(count) if c_int::try_from(*count) == Ok(size) => {
                arrays.remove(&array.addr());
                drop(arrays);
                // SAFETY: the array was in the table, so it is of `copy` and not released before.
                unsafe { release(array, size as usize) };
                Ok(())
            }
            Some(count) => Err(Failure::argument(format!("size is {size}: the array has {count}"))),
            None => {
                Err(Failure::argument("msg is no array of getNotifsFromEngine, or is released"))
            }
        }
    })
}

/// Sends a notification.
///
/// # Safety
/// The texts are NULL, or end with a null byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn genNotifyInEngine(
    engine: *mut c_void,
    segment: u64,
    message: NotifyMsg,
) -> c_int {
    code("genNotifyInEngine", || {
        let node = find(engine)?;
        let running = node.running()?;
        // SAFETY: the caller's promise is passed on.
        let message = unsafe { notification(message)? };
        let id = i64::try_from(segment).map_err(|_| no_such_segment(-1))?;
        let name = running.segments.lock().name(id)?;
        running.engine.notify(&name, &message, &mut || false)
    })
}
