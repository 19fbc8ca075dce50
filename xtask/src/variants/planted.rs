//! Variants planted into the engine: each turns a test of it red.

use super::cargo_with_variants;
use crate::features::Features;
use crate::project::Project;
use crate::report::Outcome;
use anyhow::{Result, bail, ensure};
use std::collections::BTreeSet;
use std::time::Instant;

/// The variable that plants a variant of targets or policies in every such machine of a process.
const PLANTED: &str = "HANDFAST_PLANTED";
/// cargo's line about a test binary in which a test failed.
const RED: &str = "test result: FAILED";

/// Variants of targets and policies, each with a test of the engine that it turns red.
const TESTS: [(&str, &str); 23] = [
    ("BreakerNeverOpens", "rail_that_failed_is_tried_after_its_pause"),
    ("BreakerNeverCloses", "rail_that_failed_is_tried_after_its_pause"),
    ("ProbeSkipped", "lane_over_a_failed_rail_waits_for_its_probe"),
    ("ProbeForgotten", "lane_over_a_failed_rail_waits_for_its_probe"),
    ("WatchdogAsleep", "lanes_without_an_answer_are_reported"),
    ("FencedWhileEnding", "moved_write_waits_for_the_end_of_its_lane"),
    ("FenceUnrecorded", "moved_write_succeeds_once_its_rail_reopens"),
    ("FenceLossUnreported", "moved_write_fails_when_its_rail_stays_down"),
    ("DrainedWithWork", "lane_is_drained_once_its_work_has_ended"),
    ("DrainedByFailure", "lane_is_drained_once_its_work_has_ended"),
    ("EndForgotten", "restart_ends_a_posted_transfer"),
    ("BusyLaneEvicted", "excess_lane_is_refused_while_none_is_idle"),
    ("HoldForgotten", "owner_at_lane_limit_serves_callers_in_turn"),
    ("UsesIgnored", "owner_evicts_the_lane_of_an_idle_peer"),
    ("GivenUpAtOnce", "lane_limit_evicts_the_longest_idle"),
    ("LookedForEver", "busy_callers_take_turns_at_the_lane_limit"),
    ("NicsApart", "half_open_flood_is_bounded_and_reclaimed"),
    ("PeersTogether", "half_open_flood_is_bounded_and_reclaimed"),
    ("BegunRefused", "half_open_flood_is_bounded_and_reclaimed"),
    ("SameRunReported", "repeated_queue_pair_numbers_are_logged"),
    ("FirstNumberCompared", "repeated_queue_pair_numbers_are_logged"),
    ("FirstRunRemembered", "repeated_queue_pair_numbers_are_logged"),
    ("NoneForgets", "repeated_queue_pair_numbers_are_logged"),
];

/// The same, of tests that need the feature `verbs`.
const TESTS_WITH_VERBS: [(&str, &str); 6] = [
    ("FirstFailureFinal", "unanswered_lanes_give_rdma_up_for_a_time"),
    ("NeverTriedAgain", "unanswered_lanes_give_rdma_up_for_a_time"),
    ("AnswerForgotten", "unanswered_lanes_give_rdma_up_for_a_time"),
    ("AnsweredLaneBlamed", "unanswered_lanes_give_rdma_up_for_a_time"),
    ("FailuresKept", "unanswered_lanes_give_rdma_up_for_a_time"),
    ("TriedAtOnce", "unanswered_lanes_give_rdma_up_for_a_time"),
];

/// Runs the named tests without a variant, where they pass, and each with its variant, where it fails.
pub(crate) fn step(project: &Project, deadline: Instant) -> Outcome {
    let features = Features::with_verbs(project, deadline).ok();
    let mut words =
        vec!["test", "--package", "handfast", "--lib", "--test", "stories", "--test", "sweeps"];
    words.extend(features.iter().flat_map(|_| ["--features", "verbs"]));
    let run = |planted: Option<&str>, tests: &[&str]| -> Result<String> {
        let mut command = cargo_with_variants(project, &[&words[..], &["--"], tests].concat())?;
        features.iter().for_each(|features| features.apply(&mut command));
        command.envs(planted.map(|variant| (PLANTED, variant)));
        let log = format!("planted-{}", planted.unwrap_or("none"));
        project.run(command, &log, deadline)
    };
    let with_verbs = TESTS_WITH_VERBS.iter().filter(|_| features.is_some());
    let tests: Vec<_> = TESTS.iter().chain(with_verbs).collect();
    let names: BTreeSet<&str> = tests.iter().map(|(_, test)| *test).collect();
    let names: Vec<&str> = names.into_iter().collect();
    let output = run(None, &names)?;
    for test in names {
        ensure!(output.contains(&format!("{test} ... ok")), "{test} does not run");
    }
    let mut green = Vec::new();
    for (variant, test) in &tests {
        match run(Some(variant), &[test]) {
            Ok(_) => green.push(format!("{test} passes with {variant}")),
            Err(error) => ensure!(format!("{error:#}").contains(RED), "{variant}: {error:#}"),
        }
    }
    if !green.is_empty() {
        bail!("planted variants that go unnoticed:\n{}", green.join("\n"));
    }
    Ok(format!("{} planted variants turn a test red", tests.len()))
}
