//! Races of other engines, replayed: each ends well here. `sim-tests/transcripts` has them, one
//! file each, named after what went wrong there.

use handfast_core::Node;
use handfast_core::node::Mutant::{self, *};
use handfast_sim::script::{Reason, Script};
use handfast_transport_sim::Oracle;
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

/// Set to rewrite the effects of each event in the transcripts.
const UPDATE: &str = "UPDATE_TRANSCRIPTS";

#[test]
fn every_transcript_plays_to_its_end_as_it_is_written_down() {
    let mut mishaps = Vec::new();
    for (name, path) in files() {
        let kept = fs::read_to_string(&path).expect("a transcript is text");
        match Script::new(&name, &kept).play(Arc::new(Node::new)) {
            Err(mishap) => mishaps.push(mishap.to_string()),
            Ok(played) if played == kept => {}
            Ok(played) if std::env::var_os(UPDATE).is_some() => {
                fs::write(&path, played).expect("a transcript can be written");
            }
            Ok(played) => mishaps.push(format!(
                "{name}: {}; {UPDATE}=1 writes it anew",
                first_difference(&kept, &played)
            )),
        }
    }
    assert!(mishaps.is_empty(), "{}", mishaps.join("\n\n"));
}

/// A transcript and a variant it must not play to its end with.
struct Pair(&'static str, Mutant, Fails);

/// Expected failure of a variant.
#[derive(Debug, PartialEq)]
enum Fails {
    /// An oracle does not hold.
    At(Oracle),
    /// An expectation does not hold.
    Otherwise,
}

const MUST_FAIL: [Pair; 25] = [
    Pair("acknowledgement-lost-after-the-peer-accepted", EstablishedOnFirstSight, UNWIRED),
    Pair("both-hold-their-lock-while-they-wait-for-each-other", TwoMessagesEqual, UNWIRED),
    Pair("clients-that-come-and-go-use-up-the-queue-pairs", OfferedUnfenced, GHOST),
    Pair("connect-returns-before-the-last-message", EstablishedOnFirstSight, UNWIRED),
    Pair("crossing-request-is-dropped", ReplacedByRequest, UNWIRED),
    Pair("duplicate-request-resets-a-live-connection", WiredOnFirstSight, GHOST),
    Pair("duplicate-request-resets-a-live-connection", ReplacedByRequest, UNWIRED),
    Pair("each-side-waits-for-the-other-to-begin", LowerInitiates, Fails::Otherwise),
    Pair("given-up-attempt-is-answered-in-place-of-the-next", ReusedNumbers, Fails::Otherwise),
    Pair("handshake-is-sent-once-and-lost", OfferedUnfenced, GHOST),
    Pair(
        "name-of-a-process-that-died-before-its-first-request-arrived",
        SupersededSet,
        Fails::Otherwise,
    ),
    Pair("opener-dies-before-its-last-message", TwoMessagesOrdered, UNWIRED),
    Pair("own-failed-call-wipes-what-the-peer-has-set-up", TwoMessagesEqual, UNWIRED),
    Pair(
        "passive-side-posts-before-the-active-side-can-receive",
        TwoMessagesOrdered,
        Fails::Otherwise,
    ),
    Pair("peer-exits-between-two-steps", ReusedNumbers, Fails::At(Oracle::Liveness)),
    Pair("peer-restarts-in-the-middle-of-our-first-handshake", ReusedNumbers, Fails::Otherwise),
    Pair(
        "queue-pairs-are-made-in-two-places-at-once",
        ReplacedByRequest,
        Fails::At(Oracle::Undeclared),
    ),
    Pair("rejected-attempt-takes-the-accepted-one-along", WiredOnFirstSight, Fails::Otherwise),
    Pair("reply-resurrects-a-retired-endpoint", ReplacedByRequest, Fails::Otherwise),
    Pair("request-is-answered-by-an-endpoint-that-dies", OfferedUnfenced, Fails::Otherwise),
    Pair("request-of-a-dead-process-locks-the-live-one-out", SupersededSet, Fails::Otherwise),
    Pair("restarted-peer-comes-back-while-writes-are-in-flight", SupersededSet, Fails::Otherwise),
    Pair("restarted-peer-has-the-same-queue-pair-numbers", OfferedUnfenced, Fails::Otherwise),
    Pair("three-nodes-ask-each-other-in-a-circle", RebuiltByWaiter, UNWIRED),
    Pair("waiter-cleans-up-the-attempt-of-another", RebuiltByWaiter, Fails::Otherwise),
];

const UNWIRED: Fails = Fails::At(Oracle::PublishedUnwired);
const GHOST: Fails = Fails::At(Oracle::GhostHit);

#[test]
fn broken_variants_do_not_get_to_the_end_of_a_transcript() {
    let files = files();
    for Pair(race, mutant, expected) in &MUST_FAIL {
        let (mutant, name) = (*mutant, format!("{race}.txt"));
        let (_, path) = files.iter().find(|(file, _)| *file == name).expect("it is there");
        let script = Script::new(&name, &fs::read_to_string(path).expect("it is text"));
        let played = script.play(Arc::new(move |config| Node::with_mutant(config, mutant)));
        let mishap = played.err().unwrap_or_else(|| panic!("{mutant:?} gets through {name}"));
        let fails = match &mishap.reason {
            Reason::Violated(violation) => Some(Fails::At(violation.oracle)),
            Reason::Unmet(_) => Some(Fails::Otherwise),
            _ => None,
        };
        assert_eq!(fails.as_ref(), Some(expected), "{mutant:?}: {mishap}");
    }
    let shown: BTreeSet<Mutant> = MUST_FAIL.iter().map(|Pair(_, mutant, _)| *mutant).collect();
    assert_eq!(shown.len(), 10, "{shown:?}");
}

#[test]
fn a_line_that_cannot_be_played_is_named_with_what_was_possible() {
    let mishap = |text: &str| {
        let played = Script::new("races.txt", text).play(Arc::new(Node::new));
        played.expect_err("it cannot be played").to_string()
    };
    let impossible = mishap("# a race\n\na opens b\na gets reply of b#1\n");
    assert!(impossible.starts_with("races.txt:4: 'a gets reply of b#1'"), "{impossible}");
    assert!(impossible.contains("B receives request of A#1"), "{impossible}");
    let ambiguous = mishap("a opens b\nb opens a\nreceives request\n");
    assert!(ambiguous.starts_with("races.txt:3: 'receives request': this may mean"), "{ambiguous}");
    let unmet = mishap("a opens b\nexpect a#1 established\n");
    assert!(unmet.contains("races.txt:2") && unmet.contains("Announced"), "{unmet}");
    let late = mishap("a opens b\nwith sites a b c\n");
    assert!(late.contains("races.txt:2") && late.contains("has begun"), "{late}");
    let unknown = mishap("with patience_max 3\n");
    assert!(unknown.contains("no limit 'patience_max'"), "{unknown}");
    let nobody = mishap("a opens b\nexpect q established towards b\n");
    assert!(nobody.contains("no site 'q'"), "{nobody}");
}

#[test]
fn what_a_transcript_says_an_event_caused_is_written_anew() {
    let text = "a opens b\n    something else\nsettle\nexpect a and b connected\n";
    let played = Script::new("one.txt", text).play(Arc::new(Node::new)).expect("it plays");
    assert!(played.starts_with("a opens b\n    asks for BringUp of #1\n"), "{played}");
    assert!(!played.contains("something else"), "{played}");
    let again = Script::new("one.txt", &played).play(Arc::new(Node::new)).expect("it plays");
    assert_eq!(again, played);
}

fn files() -> Vec<(String, PathBuf)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("transcripts");
    let entries = fs::read_dir(folder).expect("there is a folder of transcripts");
    let paths = entries.map(|entry| entry.expect("its entries can be read").path());
    let mut files: Vec<(String, PathBuf)> = paths
        .map(|path| (path.file_name().expect("a file").to_string_lossy().into_owned(), path))
        .collect();
    files.sort();
    files
}

fn first_difference(kept: &str, played: &str) -> String {
    let mut lines = kept.lines().zip(played.lines());
    let differing = lines.find(|(kept, played)| kept != played);
    let (kept, played) = differing.unwrap_or(("(one ends earlier)", ""));
    format!("kept '{}', now '{}'", kept.trim(), played.trim())
}
