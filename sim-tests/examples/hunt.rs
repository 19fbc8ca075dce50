//! Hunts for broken variants of the rules and prints how each was found: `hunt [ID]`.

use sim_tests::hunt::{explore, sweep};
use sim_tests::mutants;

#[allow(clippy::disallowed_types, reason = "a stopwatch for people")]
fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    for entry in mutants::ALL.iter().chain([&mutants::CANARY]) {
        if !wanted.is_empty() && !wanted.iter().any(|id| id == entry.id) {
            continue;
        }
        let started = std::time::Instant::now();
        let found = explore(entry);
        let exhaustive = started.elapsed().as_millis();
        let started = std::time::Instant::now();
        let schedules = sweep(entry);
        let random = started.elapsed().as_millis();
        let (id, name) = (entry.id, entry.name);
        match &found {
            Ok(found) => {
                let (oracle, states, events) = (&found.oracle, found.states, found.events);
                println!(
                    "{id} {name}: {oracle}, {states} states, {events} events, {exhaustive} ms"
                );
                if !wanted.is_empty() {
                    println!("{}", found.transcript);
                }
            }
            Err(escape) => println!("{id} {name}: ESCAPED: {escape}, {exhaustive} ms"),
        }
        println!("    {schedules:?} schedules, {random} ms");
    }
}
