//! Nodes that answer a node without the key in the wrong order.

use handfast_sim::{mutant_search, variants};
use sim_tests::assert_snapshot;

/// A side that answers only in turn waits for ever on a legacy node that holds its lock.
#[test]
fn answering_in_turn_deadlocks_with_a_legacy_lock() {
    let entry = variants::find("H7-2").expect("a registered variant");
    let (found, _) = mutant_search::explore(entry).unwrap_or_else(|escape| panic!("{escape}"));
    assert_snapshot(entry.name, &found.transcript);
}
