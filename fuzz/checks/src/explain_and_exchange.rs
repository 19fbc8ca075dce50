//! Bytes as a log, and as the frame of another host's doctor.

use crate::check_error;
use handfast_diagnosis::doctor::{encode, read_half};
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
}
