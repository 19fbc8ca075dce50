//! Commands of a test, see `handfast-fabric`.

use crate::link::call;
use handfast_fabric::protocol::{Answer, Request};
use libc::{c_char, c_int};
use std::ffi::CStr;

/// Runs a command. The answer is a text with a null byte at its end; returns 0, or -1 with the error as
/// the text. An answer past the room is an error; an error is cut to it.
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
        Ok(Answer::Text(Ok(text))) => fitting(text, room),
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

/// An answer with its code, or the error of one that is past the room.
fn fitting(text: String, room: usize) -> (c_int, String) {
    if text.len() < room {
        return (0, text);
    }
    (-1, format!("the answer has {} bytes, and the caller has room for {room}", text.len()))
}

#[cfg(test)]
mod tests {
    use super::fitting;

    /// An answer that fills the room with its null byte is given, and a longer one refused.
    #[test]
    fn answer_past_the_room_is_an_error() {
        assert_eq!(fitting("x".repeat(7), 8), (0, "x".repeat(7)));
        let (code, why) = fitting("x".repeat(8), 8);
        assert_eq!(code, -1);
        assert!(why.contains("8 bytes"), "{why}");
    }
}
