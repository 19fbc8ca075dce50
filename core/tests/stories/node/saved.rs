//! A node through its serde form.

use super::alike::{Told, cases, error, step};
use super::solo::{Solo, far};
use handfast_core::node::{CallFailure, CallToken, Failure, Limits};
use handfast_core::transport::{OperationId, OperationKind, Outcome};
use handfast_core::wire::{Body, PlainMessage};
use handfast_core::{Event, Incarnation, Input, Instant, Lifecycle, Node, NodeName, Output, Pair};
use proptest::collection::vec;
use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

fn text(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap()
}

#[track_caller]
fn survives<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: &T) {
    let text = text(value);
    assert_eq!(serde_json::from_str::<T>(&text).as_ref().ok(), Some(value), "{text}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..Default::default() })]

    /// A node that is saved and restored at any step behaves like the original from there on.
    #[test]
    fn restored_node_behaves_like_original(moves in vec(step(), 1..60), at in 0..60usize) {
        let mut original = Told::new(0);
        let mut other = None;
        for (number, step) in moves.iter().enumerate() {
            if number == at % moves.len() {
                let node: Node = serde_json::from_str(&text(&original.node)).expect("a saved node");
                prop_assert_eq!(text(&node), text(&original.node));
                let mut told = original.clone();
                told.node = node;
                other = Some(told);
            }
            let outputs = original.step(step);
            outputs.iter().for_each(survives);
            if let Some(other) = &mut other {
                prop_assert_eq!(&outputs, &other.step(step));
                prop_assert_eq!(text(&other.node), text(&original.node));
            }
        }
    }
}

#[test]
fn inputs_and_outputs_survive_serialization() {
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
    let id = OperationId { lifecycle: Lifecycle(1), kind: OperationKind::Create };
    for input in [
        Input::Open(far(1)),
        Input::Release(far(2)),
        Input::PlainCallReceived { token, message: plain.clone() },
        Input::PlainCallAnswered { lifecycle: Lifecycle(2), message: plain.clone() },
        Input::CallFailed { lifecycle: Lifecycle(2), failure: CallFailure::Broken },
        Input::OperationDone { id, outcome: Outcome::Created(body) },
        Input::LaneFailed { lifecycle: Lifecycle(2), error: error() },
    ] {
        survives(&input);
    }
    survives(&Output::PlainAnswer { token, message: plain });
    survives(&Output::Publish { local: pair, remote: pair, peer: far(1) });
    let failure = Failure::Limit("lifecycles_max".into());
    survives(&Output::Event(Event::OpenFailed { peer: far(1), failure }));
    survives(&Instant(u64::MAX));
    survives(&Incarnation(u128::MAX));
    survives(&NodeName::new("a b%").unwrap());
}

/// Names and incarnations are checked when they are read, as they are on the wire.
#[test]
fn malformed_names_and_incarnations_are_refused() {
    for wrong in ["\"\"", "\"a@b\"", "\"a\\nb\"", "7"] {
        assert!(serde_json::from_str::<NodeName>(wrong).is_err(), "{wrong}");
    }
    for wrong in ["\"\"", "\"no\"", "\"-1\"", "\"100000000000000000000000000000000\""] {
        assert!(serde_json::from_str::<Incarnation>(wrong).is_err(), "{wrong}");
    }
}

/// A state whose parts contradict each other is refused before it becomes a node.
#[test]
fn inconsistent_state_is_refused() {
    let mut told = Told::new(0);
    told.node.handle_input(Instant(1), Input::Open(far(1)));
    while told.node.poll_output().is_some() {}
    let state: serde_json::Value = serde_json::to_value(&told.node).unwrap();
    assert!(serde_json::from_value::<Node>(state.clone()).is_ok());
    let wrong = |part: &str, change: &dyn Fn(&mut serde_json::Value)| {
        let mut state = state.clone();
        change(&mut state);
        let error = serde_json::from_value::<Node>(state).expect_err(part).to_string();
        assert!(error.contains(part), "'{part}' is missing in: {error}");
    };
    let max = u64::MAX;
    wrong("a key twice", &|state| {
        let entry = state["peers"][0].clone();
        state["peers"].as_array_mut().unwrap().push(entry);
    });
    wrong("a name of the state has", &|state| state["names"][0][1]["lanes"] = vec![99].into());
    wrong("a peer of the state has", &|state| state["peers"][0][1]["open"] = 99.into());
    wrong("not given yet", &|state| state["next_lifecycle"] = 1.into());
    wrong("a counter", &|state| state["counters"]["ignored"] = max.into());
    wrong("a counter", &|state| state["next_lifecycle"] = max.into());
    wrong("a count of attempts", &|state| state["peers"][0][1]["failures"] = u32::MAX.into());
    let mut greatest = state.clone();
    greatest["counters"]["ignored"] = (max / 2).into();
    greatest["peers"][0][1]["failures"] = (u32::MAX / 2).into();
    assert!(serde_json::from_value::<Node>(greatest).is_ok(), "half of each range");
}

/// The counts of a lifecycle are bounded in every state that has one.
#[test]
fn counts_of_lifecycles_are_bounded() {
    let announced = |solo: &mut Solo| {
        solo.tell(Input::Open(far(1)));
        solo.operate_all();
    };
    let connected = |solo: &mut Solo| {
        solo.connect_to(1, 10, 1);
    };
    let quiescing = |solo: &mut Solo| {
        solo.connect_to(1, 10, 1);
        solo.tell(Input::Close(far(1)));
    };
    let retiring = |solo: &mut Solo| {
        let lifecycle = solo.establish(1, 10, 1);
        solo.tell(Input::LaneFailed { lifecycle, error: error() });
    };
    let states: [(fn(&mut Solo), _); 4] = [
        (announced, "Announced/requests"),
        (connected, "Connected/readies"),
        (quiescing, "Quiescing/quiesces"),
        (retiring, "Retiring/attempts"),
    ];
    for (enter, count) in states {
        let mut solo = Solo::new(Limits::default());
        enter(&mut solo);
        let mut state = serde_json::to_value(&solo.node).unwrap();
        let pointer = format!("/lanes/0/1/state/{count}");
        *state.pointer_mut(&pointer).expect(count) = (u32::MAX / 2).into();
        assert!(serde_json::from_value::<Node>(state.clone()).is_ok(), "{count}");
        *state.pointer_mut(&pointer).expect(count) = (u32::MAX / 2 + 1).into();
        let refused = serde_json::from_value::<Node>(state).expect_err(count).to_string();
        assert!(refused.contains("a count of attempts"), "{count}: {refused}");
    }
}
