//! The stories on scripted devices of every profile, each in a process of its own.

use handfast_fabric_control::{Process, passed};

/// Devices of a process: the two that stories share, and two for each link of a story.
const LINKS: u32 = 12;
/// Stories of the kernel: they ask for its driver's own answers, its lists or its network.
const KERNEL: [&str; 14] = [
    "native::",
    "connections::",
    "scripted::",
    "discovery::",
    "program::",
    "a_machine_without_the_library_is_told_so",
    "a_new_address_of_the_port_is_told",
    "an_old_pairing_is_seen_by_a_read_and_not_by_a_write",
    "memlock_error_names_limit_and_cure",
    "packets_have_traffic_class_and_mtu_of_sender",
    "queue_pair_churn_leaks_nothing",
    "sides_of_different_families_meet_at_the_second_lane",
    "silent_address_fails_in_bounded_time",
    "the_ipv4_address_is_chosen_and_explained",
];

/// Stories of a driver that fails a post at once while its own port or address is gone.
const OWN_PORT: [&str; 2] =
    ["link_down_fails_posts_until_it_returns", "moved_address_breaks_lanes_and_is_refound"];

/// The experiment of RESET, on drivers that take it for an error or do not come back from it.
const RESET: &str = "reset_is_for_idle_connected_lanes_alone";

/// On InfiniBand no neighbour is asked for an address before the connect.
const RESOLVED: &str = "a_peer_whose_address_is_silent_delays_no_other_peers_wiring";

/// Stories of queue pairs that are wired by one side alone, or whose peer ends unnoticed: the connection
/// manager joins both sides or none, and reports the end of one to the other at once.
const ONE_SIDE: [&str; 10] = [
    "a_lane_wired_late_by_its_peer_loses_a_wait_and_no_byte",
    "a_lane_is_wired_once_and_only_towards_what_can_be_wired",
    "a_peer_that_dies_on_an_idle_lane_is_noticed_by_a_probe",
    "both_sides_wire_at_the_same_instant_two_hundred_times",
    "completions_of_lanes_that_share_a_queue_go_to_their_own",
    "destroyed_peer_is_the_first_error",
    "full_lane_returns_the_next_slice",
    "retire_ends_every_slice_once",
    "what_was_posted_before_the_lane_was_wired_never_runs_later",
    "withdrawn_slice_waits_for_the_device",
];

/// Runs the stories on devices of a profile, except those named; at least `enough` pass.
fn stories_pass(profile: &str, except: &[&str], enough: usize) {
    let device = |number: u32| {
        // Equal numbers would hide a mix-up of both ends.
        let from = if number % 2 == 1 { ":numbers_from=500" } else { "" };
        format!("rxe{number}={profile}{from}")
    };
    let devices: Vec<String> = (0..2 * LINKS).map(device).collect();
    let process = Process::new(&devices.join(",")).unwrap();
    let passed = passed(&mut process.again().unwrap(), &[&KERNEL, except].concat());
    let passed = passed.unwrap_or_else(|failed| panic!("{profile}:\n{failed}"));
    assert!(passed >= enough, "{profile}: {passed}");
    println!("{profile}: {passed} stories passed");
}

/// The specification's device.
#[test]
fn stories_pass_on_strict() {
    stories_pass("strict", &OWN_PORT, 36);
}

/// Soft-RoCE, as a table.
#[test]
fn stories_pass_on_rxe() {
    stories_pass("rxe", &[], 38);
}

/// InfiniBand: a peer is found by its LID, without a GRH or with one, in the default partition.
#[test]
fn stories_pass_on_infiniband() {
    for profile in ["mlx5:infiniband", "mlx5:infiniband:grh"] {
        stories_pass(profile, &[&OWN_PORT[..], &[RESOLVED]].concat(), 35);
    }
}

/// The reference NIC.
#[test]
fn stories_pass_on_mlx5() {
    stories_pass("mlx5", &OWN_PORT, 36);
}

/// A NIC on which RESET is an error.
#[test]
fn stories_pass_on_irdma() {
    stories_pass("irdma", &[&OWN_PORT[..], &[RESET]].concat(), 35);
}

/// eRDMA that ignores RESET and PSNs, and flushes no late post.
#[test]
fn stories_pass_on_erdma_compat() {
    stories_pass("erdma-compat:retry_ms=10", &OWN_PORT, 36);
}

/// eRDMA in its standard mode, through the connection manager.
#[test]
fn stories_pass_on_erdma_standard() {
    let except = [&OWN_PORT[..], &[RESET, RESOLVED], &ONE_SIDE].concat();
    stories_pass("erdma-standard:retry_ms=10", &except, 25);
}

/// Stories of a completion that names the cause of a queue pair's end: a write that completes early has none.
const REPORTED: [&str; 4] = [
    "an_access_the_peer_does_not_allow_is_nobodys_to_retry",
    "cut_lane_is_reported_by_the_peers_device",
    "cut_nic_leaves_the_other_undisturbed",
    "memory_registered_for_reading_is_not_written",
];

/// Stories of a cut that the device reports: TCP gives a silent peer up after a quarter of an hour.
const CUT: [&str; 2] =
    ["cut_lane_is_reported_by_the_peers_device", "cut_nic_leaves_the_other_undisturbed"];

/// A story of short completion queues: soft-iWARP has long ones.
const SHORT_QUEUES: &str = "completion_queue_limit_is_freed_by_retire";

/// Soft-iWARP, as a table, and other NICs of iWARP.
#[test]
fn stories_pass_on_iwarp() {
    let except = [&OWN_PORT[..], &[RESET, RESOLVED], &ONE_SIDE].concat();
    stories_pass("iwarp", &[&except[..], &CUT].concat(), 23);
    let except = [&except[..], &[SHORT_QUEUES]].concat();
    stories_pass("siw", &[&except[..], &CUT].concat(), 22);
    stories_pass("siw:completes_early", &[&except[..], &REPORTED].concat(), 20);
}

/// eRDMA whose RESET breaks the ring of the queue pair.
#[test]
fn stories_pass_on_erdma_rocev2() {
    stories_pass("erdma-rocev2:retry_ms=10", &[&OWN_PORT[..], &[RESET]].concat(), 35);
}
