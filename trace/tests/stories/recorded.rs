//! The recorder: entries, the bound, and segments that are dropped.

use crate::run::{Folder, PEERS, Run, error, numbers, options, path, replayed};
use handfast_core::{Incarnation, Input, Instant, Lifecycle};
use handfast_trace::{
    BYTES_MAX, BYTES_MIN, Edge, Ending, RecordError, RecordOptions, Recorder, SEGMENT_BYTES, Step,
    TraceReader, What, replay, signed,
};
use std::fs;
use std::os::unix::fs::PermissionsExt;

#[test]
fn recorded_run_replays_bit_for_bit() {
    for seed in 1..40 {
        let folder = Folder::new();
        let mut run = Run::new(&folder.file(), seed, &PEERS);
        run.live(300);
        let (entries, counters) = (run.trace.status().entries, run.node.counters());
        run.end();
        let mut last = None;
        let file = fs::read(folder.file()).unwrap();
        let replayed = replay(TraceReader::new(&*file, false).unwrap(), &mut |step| {
            if let Step::Entry { node, .. } = step {
                last = Some(node.counters());
            }
        });
        let replayed = replayed.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert!(replayed.ended && !replayed.cut && replayed.missing == 0, "{replayed:?}");
        assert_eq!(replayed.steps + replayed.edges, entries);
        assert!(replayed.outputs > 100, "{replayed:?}");
        assert_eq!(last, Some(counters), "seed {seed}");
    }
}

#[test]
fn empty_run_replays() {
    let folder = Folder::new();
    Run::new(&folder.file(), 1, &PEERS).end();
    let replayed = replayed(&fs::read(folder.file()).unwrap()).unwrap();
    assert_eq!((replayed.segments, replayed.steps, replayed.ended), (1, 0, true));
}

/// A run longer than the bound keeps its newest entries and the neighbourhood of a failure.
#[test]
fn long_run_keeps_newest_and_failed_entries() {
    let folder = Folder::new();
    let mut run = Run::new(&folder.file(), 5, &PEERS);
    run.live(2_000);
    let failure = run.trace.status().entries + 1;
    let failed = Edge::Ended { batch: u64::MAX, ending: Ending::Exhausted(error()) };
    let peer = path(PEERS[0]);
    let edge = [(Instant(1), failed)].into_iter();
    assert!(!run.trace.edges(&peer, Incarnation(7), edge));
    // Closing peers that were never opened fails nothing.
    while run.trace.status().dropped < 40 {
        for peer in PEERS {
            run.tell(Input::Close(path(peer)));
        }
        let bytes = fs::metadata(folder.file()).unwrap().len();
        let slack = SEGMENT_BYTES * 2;
        assert!(bytes <= BYTES_MIN + slack, "{bytes} bytes");
        assert_eq!(bytes, run.trace.status().bytes);
    }
    let last = run.trace.status().entries;
    run.end();
    let file = fs::read(folder.file()).unwrap();
    let numbers = numbers(&file);
    assert_eq!(numbers.last(), Some(&last));
    let at = numbers.binary_search(&failure).expect("the failure is kept");
    assert_eq!(numbers[at - 100..at + 100], Vec::from_iter(failure - 100..failure + 100));
    let replayed = replayed(&file).unwrap();
    assert_eq!(replayed.missing + numbers.len() as u64, last);
    assert!(replayed.segments > 5 && replayed.missing > 1000, "{replayed:?}");
}

#[test]
fn edges_past_a_full_segment_are_counted() {
    let folder = Folder::new();
    let run = Run::new(&folder.file(), 1, &PEERS);
    let tell = |batch| {
        let edge = Edge::Ended { batch, ending: Ending::TimedOut };
        run.trace.edges(&path(PEERS[0]), Incarnation(7), [(Instant(batch), edge)].into_iter())
    };
    let full = (0..100_000).find(|batch| tell(*batch)).expect("the segment gets full");
    assert!(!tell(full + 1), "a segment is asked for once");
    let before = run.trace.status();
    assert!(!tell(full + 2));
    assert_eq!(run.trace.status(), before, "nothing more is kept");
    run.node.begin_segment();
    assert!(!tell(full + 3));
    run.end();
    let mut edges = Vec::new();
    let file = fs::read(folder.file()).unwrap();
    let read = replay(TraceReader::new(&*file, false).unwrap(), &mut |step| {
        if let Step::Entry { entry, .. } = step
            && let What::Edge(_, _, edge) = &entry.what
        {
            edges.push(edge.clone());
        }
    });
    assert_eq!(read.unwrap().segments, 2);
    let last = Edge::Ended { batch: full + 3, ending: Ending::TimedOut };
    assert_eq!(edges[full as usize..], [Edge::Missed(3), last]);
}

/// The file is readable by its owner only, and an earlier recording at its path is renamed.
#[test]
fn recording_is_private_and_renames_an_earlier_one() {
    let folder = Folder::new();
    let (file, earlier) = (folder.file(), folder.file().with_extension("trace.old"));
    let mut first = Run::new(&file, 1, &PEERS);
    first.live(10);
    let (first_bytes, mode) = (fs::read(&file).unwrap(), fs::metadata(&file).unwrap());
    assert_eq!(mode.permissions().mode() & 0o777, 0o600);
    drop(first);
    let second = Run::new(&file, 2, &PEERS);
    assert_eq!(fs::read(&earlier).unwrap(), first_bytes);
    drop(second);
    fs::write(&file, "notes of mine").unwrap();
    let refused = Recorder::create(options(&file)).unwrap_err();
    assert_eq!(refused, RecordError::Occupied { path: file.clone() });
    assert_eq!(fs::read(&file).unwrap(), b"notes of mine");
}

#[test]
fn recording_that_cannot_begin_is_a_typed_error() {
    let folder = Folder::new();
    for bytes_max in [BYTES_MIN - 1, BYTES_MAX + 1] {
        let options = RecordOptions { path: folder.file(), bytes_max };
        assert_eq!(Recorder::create(options).unwrap_err(), RecordError::Bytes { bytes: bytes_max });
    }
    let nowhere = folder.file().join("nowhere");
    let error = Recorder::create(options(&nowhere)).unwrap_err();
    assert!(matches!(error, RecordError::File { .. }), "{error}");
    assert!(error.to_string().contains("nowhere"), "{error}");
}

/// The error of a replay names the first entry that differs, its time and both effects.
#[test]
fn first_different_entry_is_named() {
    let folder = Folder::new();
    let mut run = Run::new(&folder.file(), 3, &PEERS);
    run.live(50);
    run.end();
    let text = fs::read_to_string(folder.file()).unwrap();
    let line = text.lines().find(|line| line.contains(r#"{"Open":"#)).expect("a peer is opened");
    let json = line.rsplit_once(' ').unwrap().0;
    let entry = &serde_json::from_str::<serde_json::Value>(json).unwrap()["entry"];
    let (number, now) = (entry["number"].as_u64().unwrap(), entry["now"].as_u64().unwrap());
    let changed = text.replace(&format!("{line}\n"), &signed(&json.replace("Open", "Close")));
    let error = replayed(changed.as_bytes()).unwrap_err();
    let handfast_trace::ReplayError::Differs(difference) = &error else { panic!("{error}") };
    assert_eq!((difference.entry, difference.now), (number, Instant(now)));
    assert!(difference.expected.contains("Operate"), "{error}");
    assert!(difference.got.contains("0 outputs"), "{error}");
}

#[test]
fn state_that_differs_from_the_replay_is_named() {
    let folder = Folder::new();
    let mut run = Run::new(&folder.file(), 3, &PEERS);
    while run.trace.status().bytes < SEGMENT_BYTES * 2 {
        run.live(50);
    }
    run.end();
    let text = fs::read_to_string(folder.file()).unwrap();
    let line = text.lines().filter(|line| line.starts_with(r#"{"segment""#)).nth(1).unwrap();
    let mut json: serde_json::Value =
        serde_json::from_str(line.rsplit_once(' ').unwrap().0).unwrap();
    let next = &mut json["segment"]["node"]["next_lifecycle"];
    *next = (next.as_u64().unwrap() + 1).into();
    let changed = text.replace(&format!("{line}\n"), &signed(&json.to_string()));
    let error = replayed(changed.as_bytes()).unwrap_err();
    let handfast_trace::ReplayError::Differs(difference) = &error else { panic!("{error}") };
    assert!(difference.expected.contains("next_lifecycle"), "{error}");
}

#[test]
fn failure_of_unknown_lane_is_recorded() {
    let folder = Folder::new();
    let mut run = Run::new(&folder.file(), 1, &PEERS);
    run.tell(Input::LaneFailed { lifecycle: Lifecycle(99), error: error() });
    run.end();
    let text = fs::read_to_string(folder.file()).unwrap();
    assert!(text.contains(r#"{"input":[{"LaneFailed":{"lifecycle":99,"error":{"side":"Peer","call":"receive","code":104,"detail":"10.1.2.3 hung up"}}},{"count":0,"#), "{text}");
}

#[test]
fn node_outlives_a_failed_recording() {
    let folder = Folder::new();
    let mut run = Run::new(&folder.file(), 8, &PEERS);
    run.live(20);
    // Without the folder the ring cannot drop old segments.
    fs::remove_dir_all(folder.file().parent().unwrap()).unwrap();
    while run.trace.status().failure.is_none() {
        run.live(100);
    }
    let status = run.trace.status();
    assert!(
        matches!(&status.failure, Some(RecordError::File { doing, .. }) if doing.contains("dropping old segments"))
    );
    let published = run.node.counters().published;
    run.live(1_000);
    assert!(run.node.counters().published > published, "the node lives on");
    assert_eq!(run.trace.status(), status, "and nothing more is recorded");
}
