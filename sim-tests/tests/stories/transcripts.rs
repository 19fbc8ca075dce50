//! Races of other engines, replayed: each ends well here. `sim-tests/transcripts` has them, one
//! file each, named after what went wrong there.

use handfast_core::Node;
use handfast_sim::script::Script;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

/// Set to rewrite the effects of each event in the transcripts.
const UPDATE: &str = "UPDATE_TRANSCRIPTS";

#[test]
fn every_transcript_plays_to_its_end_as_it_is_written_down() {
    let mut faults = Vec::new();
    for (name, path) in files() {
        let kept = fs::read_to_string(&path).expect("a transcript is text");
        match Script::new(&name, &kept).play(Arc::new(Node::new)) {
            Err(fault) => faults.push(fault.to_string()),
            Ok(played) if played == kept => {}
            Ok(played) if std::env::var_os(UPDATE).is_some() => {
                fs::write(&path, played).expect("a transcript can be written");
            }
            Ok(played) => faults.push(format!(
                "{name}: {}; {UPDATE}=1 rewrites it",
                first_difference(&kept, &played)
            )),
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
}

#[test]
fn a_line_that_cannot_be_played_is_named_with_what_was_possible() {
    let fault = |text: &str| {
        let played = Script::new("races.txt", text).play(Arc::new(Node::new));
        played.expect_err("it cannot be played").to_string()
    };
    let impossible = fault("# a race\n\na opens b\na gets reply of b#1\n");
    assert!(impossible.starts_with("races.txt:4: 'a gets reply of b#1'"), "{impossible}");
    assert!(impossible.contains("B receives request of A#1"), "{impossible}");
    let ambiguous = fault("a opens b\nb opens a\nreceives request\n");
    assert!(ambiguous.starts_with("races.txt:3: 'receives request': this may mean"), "{ambiguous}");
    let unmet = fault("a opens b\nexpect a#1 established\n");
    assert!(unmet.contains("races.txt:2") && unmet.contains("Announced"), "{unmet}");
    let late = fault("a opens b\nwith sites a b c\n");
    assert!(late.contains("races.txt:2") && late.contains("has begun"), "{late}");
    let unknown = fault("with patience_max 3\n");
    assert!(unknown.contains("no limit 'patience_max'"), "{unknown}");
    let nobody = fault("a opens b\nexpect q established towards b\n");
    assert!(nobody.contains("no site 'q'"), "{nobody}");
}

#[test]
fn what_a_transcript_says_an_event_caused_is_written_anew() {
    let text = "a opens b\n    something else\nsettle\nexpect a and b connected\n";
    let played = Script::new("one.txt", text).play(Arc::new(Node::new)).expect("it plays");
    assert!(played.starts_with("a opens b\n    asks for Create of #1\n"), "{played}");
    assert!(!played.contains("something else"), "{played}");
    let again = Script::new("one.txt", &played).play(Arc::new(Node::new)).expect("it plays");
    assert_eq!(again, played);
}

pub(crate) fn files() -> Vec<(String, PathBuf)> {
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
