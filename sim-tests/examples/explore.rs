//! Explores one scenario and prints its figures: `explore SCENARIO FAULTS [at-once] [prune] [classic]`.

use handfast_transport_sim::{Faults, Operations};
use sim_tests::{Ending, Explorer, Scenario};

#[allow(clippy::disallowed_types, clippy::float_arithmetic, reason = "a stopwatch for people")]
fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let named = |scenario: &Scenario| Some(&format!("{scenario:?}")) == words.first();
    let faults = words.get(1).and_then(|word| word.parse().ok());
    let (Some(scenario), Some(faults)) = (Scenario::ALL.into_iter().find(named), faults) else {
        println!("explore SCENARIO FAULTS [at-once] [prune] [classic]");
        println!("scenarios: {:?}", Scenario::ALL);
        return;
    };
    let mut setup = scenario.setup(faults);
    let given = |word: &str| words.iter().any(|given| given == word);
    setup.prune = given("prune");
    if given("at-once") {
        setup.operations = Operations::AtOnce;
    }
    if given("classic") {
        setup.faults = Faults::CLASSIC;
    }
    let started = std::time::Instant::now();
    let explorer = Explorer { states_max: 50_000_000, ..Explorer::default() };
    let report = explorer.explore(&scenario.begin(setup));
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "{words:?}: {} states, {} transitions, depth {}, longest {:?}, {seconds:.1} s, {:.0} transitions/s, {:?}",
        report.states,
        report.transitions,
        report.depth,
        report.longest_free,
        report.transitions as f64 / seconds,
        report.worst_healing
    );
    println!("refusals {:?}\ntimers {:?}", report.coverage.refusals, report.coverage.timers);
    for (pair, worlds) in &report.coverage.state_pairs {
        println!("{pair:?}: {worlds} worlds");
    }
    match report.ending {
        Ending::Violation(found) => println!("{}", found.transcript),
        other => println!("{other:?}"),
    }
}
