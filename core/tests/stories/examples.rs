//! The programs in `core/examples`, run as a newcomer runs them.

#[allow(dead_code, reason = "main prints what run returns")]
#[path = "../../examples/two_nodes.rs"]
mod two_nodes;

#[test]
fn two_nodes_example_tells_the_same_story_twice() {
    let lines = two_nodes::run().unwrap();
    for line in [
        "   alice: lane 1 is up",
        "   bob: lane 1 is up",
        "   4 bytes land over lane 1",
        "   alice: a lane is wanted",
        "   4 bytes land over lane 2",
        "   alice: the batch ends: Success",
        "   bob's memory holds \"one-sided writes need no receiver\"",
        "   no lifecycle is left on either side",
    ] {
        assert!(lines.iter().any(|told| told == line), "'{line}' is not in {lines:#?}");
    }
    assert_eq!(two_nodes::run().unwrap(), lines);
}
