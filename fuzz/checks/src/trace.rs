//! Bytes as a file may have them that is said to be a recorded run.

use handfast_trace::{
    MAGIC, RedactError, ReplayError, TraceReader, VERSION, redact, replay, signed,
};

/// Longest error text: a difference lists sixteen outputs.
const ERROR_BYTES_MAX: usize = 64 << 10;

/// Panics unless a trace that replays can be redacted and replays then too, and what does not fails
/// in bounded words.
pub fn check(bytes: &[u8]) {
    check_trace(bytes);
    // A mutation does not keep checksums in step: try the lines with right ones too.
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.lines();
    lines.next();
    let mut repaired = format!("{MAGIC} {VERSION} fuzz\n");
    for line in lines {
        let words = line.rsplit_once(' ').map_or(line, |(words, _)| words);
        repaired += &signed(words);
    }
    check_trace(repaired.as_bytes());
}

fn check_trace(bytes: &[u8]) {
    let open = || TraceReader::new(bytes, false);
    let replayed = open().map_err(ReplayError::from).and_then(|it| replay(it, &mut |_| {}));
    if let Err(error) = &replayed {
        let text = error.to_string();
        assert!(text.len() <= ERROR_BYTES_MAX, "an error text of {} bytes", text.len());
    }
    let mut out = Vec::new();
    match (replayed, redact(open, &mut out)) {
        (Ok(replayed), Ok(redacted)) => {
            assert_eq!(redacted.replayed, replayed);
            let again = TraceReader::new(&*out, false).expect("what was redacted is a trace");
            let again = replay(again, &mut |_| {}).expect("what was redacted replays");
            assert_eq!(again, replayed);
        }
        (Err(expected), Err(RedactError::Replay(found))) => assert_eq!(expected, found),
        (replayed, redacted) => panic!("{replayed:?}, but redacted: {redacted:?}"),
    }
}
