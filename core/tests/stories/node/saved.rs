//! A node as lines, and a node from lines.

use super::alike::{Told, cases, error, step};
use super::solo::far;
use handfast_core::codec::{Code, CodeError, Reader, TextKind, Texts, Writer};
use handfast_core::node::{CallFailure, CallToken, Failure, Restoring};
use handfast_core::transport::{OperationId, OperationKind, Outcome};
use handfast_core::wire::{Body, PlainMessage};
use handfast_core::{Event, Incarnation, Input, Instant, Lifecycle, Node, NodeName, Output, Pair};
use proptest::collection::vec;
use proptest::prelude::*;
use std::fmt::Debug;

/// Takes texts as they are, and knows the names of calls that stand in this file's worlds.
struct Known;

impl Texts for Known {
    fn text(&mut self, _: TextKind, text: String) -> String {
        text
    }

    fn lasting(&mut self, name: &str) -> Option<&'static str> {
        let known = [error().call, "lifecycles_max", "peers_max"];
        known.into_iter().find(|known| *known == name)
    }
}

fn lines(node: &Node) -> Vec<String> {
    let (mut words, mut lines) = (Writer::default(), Vec::new());
    node.save(&mut words, &mut |words| {
        lines.push(words.as_str().to_owned());
        words.clear();
    });
    lines
}

fn restored(lines: &[String]) -> Result<Node, CodeError> {
    let (first, rest) = lines.split_first().expect("a node has one line at least");
    let mut restoring = Restoring::begin(&mut Reader::new(first, &mut Known))?;
    for line in rest {
        restoring.take(&mut Reader::new(line, &mut Known))?;
    }
    restoring.finish()
}

#[track_caller]
fn survives<T: Code + PartialEq + Debug>(value: &T) {
    let mut words = Writer::default();
    value.write(&mut words);
    let mut texts = Known;
    let mut from = Reader::new(words.as_str(), &mut texts);
    assert_eq!(T::read(&mut from).as_ref(), Ok(value), "{}", words.as_str());
    assert_eq!(from.end(), Ok(()), "{}", words.as_str());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..Default::default() })]

    #[test]
    fn a_node_that_was_saved_and_restored_does_the_same(moves in vec(step(), 1..60), at in 0..60usize) {
        let mut original = Told::new(0);
        let mut other = None;
        for (number, step) in moves.iter().enumerate() {
            if number == at % moves.len() {
                let node = restored(&lines(&original.node)).expect("what was saved");
                prop_assert_eq!(lines(&node), lines(&original.node));
                let mut told = original.clone();
                told.node = node;
                other = Some(told);
            }
            let outputs = original.step(step);
            outputs.iter().for_each(survives);
            if let Some(other) = &mut other {
                prop_assert_eq!(&outputs, &other.step(step));
                prop_assert_eq!(lines(&other.node), lines(&original.node));
            }
        }
    }

    #[test]
    fn a_text_of_any_characters_is_one_word(text in ".*") {
        let mut words = Writer::default();
        words.text(&text);
        prop_assert!(!words.as_str().contains([' ', '\n', '\0', '\x7f']));
        let read = Reader::new(words.as_str(), &mut Known).text(TextKind::Detail);
        prop_assert_eq!(read, Ok(text));
    }
}

#[test]
fn what_a_node_can_be_told_survives_being_written() {
    let pair = Pair { incarnation: Incarnation(9), lifecycle: Lifecycle(u64::MAX) };
    let body = Body {
        queue_pairs: vec![1, u32::MAX],
        psns: vec![0],
        gid: "fe80::1".into(),
        token: "a b%".into(),
        address: "[::1]:7".into(),
        ..Body::default()
    };
    let plain = PlainMessage {
        from: Some(far(1)),
        body: body.clone(),
        ready: Some(false),
        rejected: Some("no\n".into()),
        ..PlainMessage::default()
    };
    let token = CallToken(3);
    let id = OperationId { lifecycle: Lifecycle(1), kind: OperationKind::BringUp };
    for input in [
        Input::Open(far(1)),
        Input::Release(far(2)),
        Input::PlainCallReceived { token, message: plain.clone() },
        Input::PlainCallAnswered { lifecycle: Lifecycle(2), message: plain.clone() },
        Input::CallFailed { lifecycle: Lifecycle(2), failure: CallFailure::Broken },
        Input::OperationDone { id, outcome: Outcome::BroughtUp(body) },
        Input::LaneFailed { lifecycle: Lifecycle(2), error: error() },
    ] {
        survives(&input);
    }
    survives(&Output::PlainAnswer { token, message: plain });
    survives(&Output::Publish { local: pair, remote: pair, peer: far(1) });
    let failure = Failure::Limit("lifecycles_max");
    survives(&Output::Event(Event::OpenFailed { peer: far(1), failure }));
    survives(&Instant(u64::MAX));
    survives(&NodeName::new("a b%").unwrap());
}

#[test]
fn what_is_written_in_another_way_is_refused() {
    let read = |word: &str| u64::read(&mut Reader::new(word, &mut Known));
    assert_eq!(read("17"), Ok(17));
    for wrong in ["017", "+17", "-1", "1e3", "", "18446744073709551616"] {
        assert!(matches!(read(wrong), Err(CodeError::Word { position: 1, .. })), "{wrong}");
    }
    let text = |word: &str| Reader::new(word, &mut Known).text(TextKind::Name);
    for wrong in ["a", "=%", "=%4", "=%41", "=%0A", "=%zz", "=\u{1}"] {
        assert!(text(wrong).is_err(), "{wrong:?}");
    }
    let list = Vec::<u32>::read(&mut Reader::new("18446744073709551615 1", &mut Known));
    assert!(matches!(list, Err(CodeError::Word { position: 3, found: None, .. })), "{list:?}");
    let unknown = Input::read(&mut Reader::new("Open =a =b", &mut Known));
    assert!(unknown.is_ok());
    let unknown = Input::read(&mut Reader::new("Opens =a =b", &mut Known));
    assert!(unknown.unwrap_err().to_string().contains("'Opens'"));
    let call = "LaneFailed 1 Peer =nobody's 0 =";
    assert_eq!(
        Input::read(&mut Reader::new(call, &mut Known)),
        Err(CodeError::TooManyNames),
        "a name that does not last"
    );
}

#[test]
fn lines_that_do_not_fit_together_make_no_node() {
    let mut told = Told::new(0);
    told.node.handle_input(Instant(1), Input::Open(far(1)));
    while told.node.poll_output().is_some() {}
    let lines = lines(&told.node);
    assert_eq!(lines.len(), 6, "{lines:#?}");
    assert!(restored(&lines).is_ok());
    let wrong = |lines: &[String], part: &str| {
        let error = restored(lines).expect_err("it does not fit").to_string();
        assert!(error.contains(part), "'{part}' is missing in: {error}");
    };
    wrong(&lines[..5], "fewer lines");
    wrong(&[&lines[..], &lines[5..]].concat(), "more lines");
    let mut swapped = lines.clone();
    swapped.swap(1, 2);
    wrong(&swapped, "not in their order");
    let changed = |at: usize, from: &str, to: &str| {
        let mut lines = lines.clone();
        assert!(lines[at].contains(from), "{}", lines[at]);
        lines[at] = lines[at].replace(from, to);
        lines
    };
    wrong(&changed(5, "lane 2 ", "lane 3 "), "does not exist");
    wrong(&changed(0, " 3 0 0 ", " 2 0 0 "), "not given yet");
}
