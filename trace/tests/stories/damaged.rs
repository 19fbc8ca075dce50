//! Damaged, cut and foreign files are typed errors and never panics.

use crate::run::{Folder, PEERS, Run, replayed};
use handfast_core::transport::Side;
use handfast_trace::{ReplayError, TraceCause, TraceReader, replay, signed};
use proptest::prelude::*;
use proptest::sample::Index;
use std::fs;
use std::io::{BufReader, Read as _};
use std::sync::LazyLock;

static TRACE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let folder = Folder::new();
    let mut run = Run::new(&folder.file(), 11, &PEERS);
    run.live(120);
    run.end();
    fs::read(folder.file()).unwrap()
});

fn cause(bytes: &[u8]) -> TraceCause {
    match replayed(bytes).expect_err("it is no whole trace") {
        ReplayError::Trace(error) => {
            assert_eq!(error.side(), Side::Local);
            let text = error.to_string();
            assert!(text.starts_with("our side, reading the trace, line "), "{text}");
            assert!(text.ends_with(&error.cause.to_string()), "{text}");
            error.cause
        }
        ReplayError::Differs(difference) => panic!("{difference}"),
    }
}

#[test]
fn foreign_files_are_named_by_their_cause() {
    assert_eq!(cause(b""), TraceCause::Empty);
    assert_eq!(cause(b"hello\n"), TraceCause::NotATrace);
    assert_eq!(cause(&[0xff; 4096]), TraceCause::NotATrace);
    assert_eq!(cause(b"handfast-trace"), TraceCause::NotATrace);
    assert_eq!(cause(b"handfast-trace one 0.1.0\n"), TraceCause::NotATrace);
    assert_eq!(cause(b"handfast-trace 4 0.9.0\n"), TraceCause::Version { found: 4 });
    assert_eq!(cause(b"handfast-trace 3 0.1"), TraceCause::Cut);
    assert!(matches!(cause(b"handfast-trace 3 0.1.0\n"), TraceCause::Order(_)));
}

#[test]
fn missing_and_doubled_lines_are_found() {
    let text = str::from_utf8(&TRACE).unwrap();
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let entry = lines.iter().position(|line| line.contains("\"number\":5,")).unwrap();
    let mut without = lines.clone();
    without.remove(entry);
    assert!(matches!(cause(without.concat().as_bytes()), TraceCause::Order(_)));
    let mut twice = lines.clone();
    twice.insert(entry, lines[entry]);
    assert!(matches!(cause(twice.concat().as_bytes()), TraceCause::Order(_)));
    let mut without_segment = lines.clone();
    without_segment.remove(1);
    assert!(matches!(cause(without_segment.concat().as_bytes()), TraceCause::Order(_)));
    let after_end = [text, &signed(r#"{"end":{"entry":1,"now":1}}"#)].concat();
    assert!(matches!(cause(after_end.as_bytes()), TraceCause::Order(_)));
}

#[test]
fn malformed_lines_name_their_cause() {
    let header = "handfast-trace 3 0.1.0\n";
    let trace = format!("{header}{}", signed(r#"{"sigment":{"number":1}}"#));
    assert!(matches!(cause(trace.as_bytes()), TraceCause::Json(_)));
    let error = replayed(trace.as_bytes()).unwrap_err().to_string();
    assert!(error.contains("unknown variant `sigment`"), "{error}");
    let trace = format!("{header}{}", signed(&format!("{{\"{}\":1}}", "x".repeat(4096))));
    let TraceCause::Json(reason) = cause(trace.as_bytes()) else { panic!("a bounded reason") };
    assert_eq!(reason.len(), 512, "{reason}");
    let bytes = [header.as_bytes(), b"\xff\xfe\n"].concat();
    assert_eq!(cause(&bytes), TraceCause::NotText);
}

/// A line without end is read up to the bound and no further.
#[test]
fn line_over_bound_is_refused() {
    let header = &b"handfast-trace 3 0.1.0\n"[..];
    let endless = BufReader::new(header.chain(std::io::repeat(b'x')));
    let error = TraceReader::new(endless, false).unwrap().next_line().unwrap_err();
    assert_eq!((error.line, error.cause), (2, TraceCause::LineTooLong));
}

/// A trace of version 1, which had words in place of JSON, is refused with both versions.
#[test]
fn trace_of_version_1_is_refused_by_its_version() {
    let first = "handfast-trace 1 0.1.0\nsegment 1 1 c5a754f6\n";
    assert_eq!(cause(first.as_bytes()), TraceCause::Version { found: 1 });
    let error = replayed(first.as_bytes()).unwrap_err().to_string();
    for part in ["version 1 of the format", "reads version 3"] {
        assert!(error.contains(part), "'{part}' is missing in: {error}");
    }
}

/// A trace that is cut at any byte replays up to its last whole line, if the caller allows a cut.
#[test]
fn cut_trace_replays_up_to_its_last_whole_line() {
    let whole = replayed(&TRACE).unwrap();
    let first = TRACE.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    let ends = (first..TRACE.len()).filter(|at| TRACE[at - 1] == b'\n');
    for length in ends.chain((first..TRACE.len()).step_by(41)) {
        let cut = &TRACE[..length];
        let reader = TraceReader::new(cut, true).unwrap();
        let read = replay(reader, &mut |_| {}).unwrap_or_else(|error| panic!("{length}: {error}"));
        assert!(!read.ended && read.steps <= whole.steps);
        if cut.last() != Some(&b'\n') {
            assert_eq!(cause(cut), TraceCause::Cut, "{length}");
            assert!(read.cut);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..Default::default() })]

    #[test]
    fn changed_byte_is_found(at in any::<Index>(), to in any::<u8>()) {
        let mut bytes = TRACE.clone();
        let at = at.index(bytes.len());
        let program = bytes.starts_with(b"handfast-trace 3 ") && (17..22).contains(&at);
        prop_assume!(bytes[at] != to && !program);
        bytes[at] = to;
        let error = replayed(&bytes).expect_err("it was changed");
        prop_assert!(matches!(error, ReplayError::Trace(_)), "{error}");
    }

    /// A part of one line in place of a part of another, under a right checksum, ends as a value.
    #[test]
    fn changed_json_under_right_checksum_does_no_harm(
        line in any::<Index>(),
        part in any::<Index>(),
        from in any::<(Index, Index)>(),
    ) {
        let text = str::from_utf8(&TRACE).unwrap();
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let parts_of = |line: &str| -> Vec<String> {
            let json = line.rsplit_once(' ').map_or(line, |(json, _)| json);
            json.split_inclusive(',').map(str::to_owned).collect()
        };
        let line = 1 + line.index(lines.len() - 1);
        let other = parts_of(&lines[1 + from.0.index(lines.len() - 1)]);
        let mut parts = parts_of(&lines[line]);
        let part = part.index(parts.len());
        parts[part] = other[from.1.index(other.len())].clone();
        lines[line] = signed(&parts.concat()).trim_end().to_owned();
        let text = lines.join("\n") + "\n";
        if let Err(error) = replayed(text.as_bytes()) {
            prop_assert!(error.to_string().len() < 32 << 10);
        }
    }

    #[test]
    fn arbitrary_bytes_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(replayed(&bytes).is_err());
        let trace = [&b"handfast-trace 3 0.1.0\n"[..], &bytes].concat();
        prop_assert!(replayed(&trace).is_err());
    }
}
