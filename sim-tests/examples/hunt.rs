//! Hunts for broken variants of the handshake and prints the shortest ways: `hunt [ID]...`.

use handfast_sim::hunt::{explore, hunt_all};
use handfast_sim::mutants;

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    for entry in wanted.iter().filter_map(|id| mutants::find(id)) {
        match explore(entry) {
            Ok((found, states)) => println!("{}, {states} worlds\n{}", entry.id, found.transcript),
            Err(escape) => println!("{}: {escape}", entry.id),
        }
    }
    if wanted.is_empty() {
        for (id, caught) in hunt_all() {
            println!("{id}: {caught:?}");
        }
    }
}
