//! Bytes as a log, and as a question, a frame or a datagram of another host's doctor.

use crate::check_error;
use handfast_diagnosis::doctor::{
    DATAGRAM_BYTES_MIN, Question, answer_to, encode, length_of_question, read_half, read_question,
};
use handfast_diagnosis::explain::{CONNECTIONS_MAX, EXCERPT_CHARS_MAX, Explainer};
use handfast_diagnosis::{Language, Style};

/// Panics unless a log is explained alike however it is cut, in bounded words, and a frame that is
/// read is written the same again.
pub fn check(bytes: &[u8]) {
    let mut whole = Explainer::default();
    whole.feed(bytes);
    let mut cut = Explainer::default();
    bytes.chunks(7).for_each(|piece| cut.feed(piece));
    let explained = whole.finish();
    assert_eq!(explained, cut.finish(), "the cut changed it");
    assert_eq!(explained.first.is_some(), !explained.seen.is_empty());
    assert!(explained.connections.len() <= CONNECTIONS_MAX);
    let bounded = |text: &String| text.chars().count() <= EXCERPT_CHARS_MAX + 1;
    assert!(explained.seen.iter().all(|seen| bounded(&seen.text)));
    let columns = bytes.len() % 120;
    let style = Style { language: Language::Chinese, columns, colour: false };
    assert!(!explained.words(&style).contains('\u{1b}'), "an escape sequence came through");
    match read_half(&mut &bytes[..]) {
        Ok(half) => {
            let again = encode(&half).expect("what was read fits");
            assert_eq!(read_half(&mut &again[..]).ok(), Some(half), "the half changed");
        }
        Err(error) => check_error(&error.to_string()),
    }
    check_question(bytes);
    check_datagram(bytes);
}

/// A question is a half, or asks for bytes and has none.
fn check_question(bytes: &[u8]) {
    let half = || read_half(&mut &bytes[..]).ok();
    match read_question(&mut &bytes[..]) {
        Ok(Question::Half(asked)) => assert_eq!(half().as_ref(), Some(&*asked)),
        Ok(Question::Bytes) => assert_eq!(half(), None, "a half asks for bytes"),
        Err(error) => check_error(&error.to_string()),
    }
}

/// An answer is no longer than its question, and is no question itself.
fn check_datagram(bytes: &[u8]) {
    if let Some(answer) = answer_to(bytes) {
        assert!(bytes.len() >= DATAGRAM_BYTES_MIN, "a short question is answered");
        assert_eq!(length_of_question(&answer), Some(bytes.len()));
        assert_eq!(answer_to(&answer), None, "an answer is answered");
    }
    if let Some(length) = length_of_question(bytes) {
        assert!(bytes.len() == DATAGRAM_BYTES_MIN && length <= u32::MAX as usize);
    }
}
