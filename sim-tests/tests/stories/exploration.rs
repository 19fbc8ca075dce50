//! Stories about the explorer itself: what makes it faster changes no result.

use crate::shipping::{at_once, pruned};
use handfast_sim::{Ending, Exploration, Explorer, Saved, SavedError, Scenario};
use handfast_transport_sim::{Faults, Setup, World};

/// One thread and several have the same figures, coverage and depth at a fixpoint.
#[test]
fn threads_change_no_figure() {
    for scenario in [Scenario::SimultaneousOpen, Scenario::Established, Scenario::SelfConnection] {
        let setup = pruned(at_once(scenario.setup(1)));
        let explored = |threads| {
            let explorer = Explorer { threads, whole_max: 100, ..Explorer::default() };
            format!("{:?}", explorer.explore(&scenario.begin(setup.clone())))
        };
        let alone = explored(1);
        for threads in 2..=4 {
            assert_eq!(alone, explored(threads), "{scenario:?}, {threads} threads");
        }
    }
}

/// One thread and several find the same schedule to the same violation first.
#[test]
fn threads_change_no_finding() {
    // Faults end lifecycles, which this oracle forbids.
    let scenario = Scenario::Established;
    let setup = Setup { lasting: true, faults: Faults::ALL, ..scenario.setup(1) };
    let found = |threads| {
        let explorer = Explorer { threads, ..Explorer::default() };
        let report = explorer.explore(&scenario.begin(setup.clone()));
        assert!(matches!(report.ending, Ending::Violation(_)), "{:?}", report.ending);
        format!("{report:?}")
    };
    let alone = found(1);
    for threads in 2..=4 {
        assert_eq!(alone, found(threads), "{threads} threads");
    }
}

/// Stopped after any number of steps, an exploration goes on from its file and ends with the figures,
/// coverage and depth that it has without a stop.
#[test]
fn resumed_exploration_ends_as_if_never_stopped() {
    let scenario = Scenario::SimultaneousOpen;
    let faults = Faults { loss: true, crash: true, ..Faults::NONE };
    let start = scenario.begin(Setup { faults, ..pruned(at_once(scenario.setup(2))) });
    let explorer = Explorer { whole_max: 100, ..Explorer::default() };
    let whole = explorer.explore(&start);
    assert!(matches!(whole.ending, Ending::Fixpoint), "{:?}", whole.ending);
    for steps in [1, 5, steps_within_a_layer(&explorer, &start)] {
        let file = stopped(&explorer, &start, steps);
        let saved = Saved::open(file.as_slice()).unwrap();
        assert_eq!(saved.about(), "both open");
        let resumed = saved.resume(&explorer, &start).unwrap();
        assert!(resumed.progress().states < whole.states, "{steps} steps are all");
        assert_eq!(format!("{:?}", finished(resumed)), format!("{whole:?}"), "{steps} steps");
    }
}

/// An exploration that goes on from its file finds the same schedule to the same violation.
#[test]
fn resumed_exploration_finds_the_same_violation() {
    let scenario = Scenario::SimultaneousOpen;
    let faults = Faults { lane_error: true, ..Faults::NONE };
    let setup = Setup { lasting: true, faults, ..scenario.setup(1) };
    let (start, explorer) = (scenario.begin(setup), Explorer::default());
    let file = stopped(&explorer, &start, 1);
    let resumed = Saved::open(file.as_slice()).unwrap().resume(&explorer, &start).unwrap();
    let whole = explorer.explore(&start);
    assert!(matches!(whole.ending, Ending::Violation(_)), "{:?}", whole.ending);
    assert_eq!(format!("{:?}", finished(resumed)), format!("{whole:?}"));
}

/// A file that was cut or changed anywhere is refused, and so is one of another world or of other options.
#[test]
fn unsound_saved_explorations_are_refused() {
    let scenario = Scenario::SimultaneousOpen;
    let start = scenario.begin(pruned(at_once(scenario.setup(1))));
    let explorer = Explorer::default();
    let file = stopped(&explorer, &start, 5);
    let refused = |file: &[u8]| {
        let resumed = Saved::open(file).and_then(|saved| saved.resume(&explorer, &start));
        resumed.err().expect("it goes on")
    };
    for at in (0..file.len()).step_by(file.len() / 50) {
        let mut changed = file.clone();
        changed[at] ^= 1;
        refused(&changed);
        assert!(matches!(refused(&file[..at]), SavedError::Version | SavedError::Damaged(_)));
    }
    let resume = |explorer: &Explorer, start: &World| {
        Saved::open(file.as_slice()).unwrap().resume(explorer, start).err()
    };
    let other = Scenario::Established;
    let other = other.begin(pruned(at_once(other.setup(1))));
    assert!(matches!(resume(&explorer, &other), Some(SavedError::Rules)));
    let safety = Explorer { cycles: false, ..Explorer::default() };
    assert!(matches!(resume(&safety, &start), Some(SavedError::Options)));
}

/// Steps after which the next one is of the same layer.
fn steps_within_a_layer(explorer: &Explorer, start: &World) -> usize {
    let mut exploration = explorer.begin(start);
    let mut depth = None;
    for steps in 0.. {
        assert!(exploration.advance().is_none(), "no layer takes two steps");
        let now = Some(exploration.progress().depth);
        if std::mem::replace(&mut depth, now) == now {
            return steps;
        }
    }
    unreachable!("an exploration ends")
}

/// The file of an exploration that was stopped after some steps.
fn stopped(explorer: &Explorer, start: &World, steps: usize) -> Vec<u8> {
    let mut exploration = explorer.begin(start);
    for step in 0..steps {
        assert!(exploration.advance().is_none(), "it ends at step {step}");
    }
    let mut file = Vec::new();
    exploration.save("both open", &mut file).unwrap();
    file
}

fn finished(mut exploration: Exploration<'_>) -> handfast_sim::Report {
    loop {
        if let Some(ending) = exploration.advance() {
            return exploration.report(ending);
        }
    }
}
