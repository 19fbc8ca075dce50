//! Commands of a test, see `handfast-fabric`.

use crate::link::call;
use handfast_fabric::protocol::{Answer, Request};
use libc::{c_char, c_int};
use std::ffi::CStr;

/// Runs a command. The answer is a text with a null byte at its end, cut to the room; returns 0, or
/// -1 with the error as the text.
///
/// # Safety
/// The line ends with a null byte, and `answer` has `room` bytes, at least one.
#[unsafe(no_mangle)]
unsafe extern "C" fn handfast_fabric_command(
    line: *const c_char,
    answer: *mut c_char,
    room: usize,
) -> c_int {
    // SAFETY: by the function's own condition.
    let line = unsafe { CStr::from_ptr(line) }.to_string_lossy().into_owned();
    let (code, text) = match call(Request::Command { line }) {
        Ok(Answer::Text(Ok(text))) => (0, text),
        Ok(Answer::Text(Err(why))) => (-1, why),
        Ok(_) => (-1, "an answer of another kind".to_owned()),
        Err(code) => (-1, format!("error {code}")),
    };
    let length = text.len().min(room.saturating_sub(1));
    // SAFETY: by the function's own condition, and the length is below the room.
    unsafe {
        text.as_ptr().cast::<c_char>().copy_to_nonoverlapping(answer, length);
        answer.add(length).write(0);
    }
    code
}
