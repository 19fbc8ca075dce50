//! The stories on scripted devices of every profile, each in a process of its own.

use handfast_fabric_control::{Process, passed};

/// Devices of a process: the two that stories share, and two for each link of a story.
const LINKS: u32 = 15;
/// Stories of the kernel: they ask for its driver's own answers, its lists or its network.
const KERNEL: [&str; 15] = [
    "native::",
    "connections::",
    "two_kernels::",
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

/// On InfiniBand no neighbour is asked for an address before the connect, and the connection manager asks within its own
/// steps.
const RESOLVED: &str = "a_peer_whose_address_is_silent_delays_no_other_peers_wiring";

/// Stories that have no meaning where the connection manager connects: the failure of a post at once is RoCE's, RESET
/// forgets an exchange of numbers, and no step of the queue pair asks for an address.
const MANAGED: [&str; 4] = [OWN_PORT[0], OWN_PORT[1], RESET, RESOLVED];

/// The variable of the option `--rdma-cm`.
const FORCED: [(&str, &str); 1] = [("HANDFAST_RDMA_CM", "1")];

/// Runs the stories on devices of a profile, except those named; at least `enough` pass.
fn stories_pass(profile: &str, except: &[&str], enough: usize) {
    stories_pass_with(profile, &[], except, enough);
}

/// The same, with variables.
fn stories_pass_with(profile: &str, variables: &[(&str, &str)], except: &[&str], enough: usize) {
    let device = |number: u32| {
        // Equal numbers would hide a mix-up of both ends.
        let from = if number % 2 == 1 { ":numbers_from=500" } else { "" };
        format!("rxe{number}={profile}{from}")
    };
    let devices: Vec<String> = (0..2 * LINKS).map(device).collect();
    let process = Process::new(&devices.join(",")).unwrap();
    let mut again = process.again().unwrap();
    let passed = passed(again.envs(variables.iter().copied()), &[&KERNEL, except].concat());
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

/// RoCE that connects through the connection manager by choice.
#[test]
fn stories_pass_on_roce_through_the_manager() {
    for profile in ["rxe", "mlx5"] {
        stories_pass_with(profile, &FORCED, &MANAGED, 35);
    }
}

/// InfiniBand that connects through the connection manager by choice, in the default partition and in another one.
#[test]
fn stories_pass_on_infiniband_through_the_manager() {
    for profile in ["mlx5:infiniband", "mlx5:infiniband:grh:partition=0x8001"] {
        stories_pass_with(profile, &FORCED, &MANAGED, 35);
    }
}

/// eRDMA in its standard mode, through the connection manager.
#[test]
fn stories_pass_on_erdma_standard() {
    stories_pass("erdma-standard:retry_ms=10", &MANAGED, 35);
}

/// Stories of a completion that names the cause of a queue pair's end: a write that completes early has none.
const REPORTED: [&str; 2] = [
    "an_access_the_peer_does_not_allow_is_nobodys_to_retry",
    "memory_registered_for_reading_is_not_written",
];

/// Stories of a silent peer that the device reports: TCP gives one up after a quarter of an hour.
const CUT: [&str; 3] = [
    "cut_lane_is_reported_by_the_peers_device",
    "cut_nic_leaves_the_other_undisturbed",
    "withdrawn_slice_waits_for_the_device",
];

/// A story of short completion queues: soft-iWARP has long ones.
const SHORT_QUEUES: &str = "completion_queue_limit_is_freed_by_retire";

/// Soft-iWARP, as a table, and other NICs of iWARP.
#[test]
fn stories_pass_on_iwarp() {
    stories_pass("iwarp", &[&MANAGED[..], &CUT].concat(), 32);
    let except = [&MANAGED[..], &[SHORT_QUEUES]].concat();
    stories_pass("siw", &[&except[..], &CUT].concat(), 31);
    stories_pass("siw:completes_early", &[&except[..], &CUT, &REPORTED].concat(), 29);
}

/// eRDMA whose RESET breaks the ring of the queue pair.
#[test]
fn stories_pass_on_erdma_rocev2() {
    stories_pass("erdma-rocev2:retry_ms=10", &[&OWN_PORT[..], &[RESET]].concat(), 35);
}
