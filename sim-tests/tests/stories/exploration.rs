//! Stories about the explorer itself: what makes it faster changes no result.

use crate::shipping::{at_once, pruned};
use handfast_sim::{Ending, Explorer, Scenario};
use handfast_transport_sim::{Faults, Setup};

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
