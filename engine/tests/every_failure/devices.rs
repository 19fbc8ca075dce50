//! Calls of the verbs library that fail, on scripted devices.

use crate::stories::{STORIES_OF_DEVICES, Story};
use crate::{Outcome, is_chosen, passes, run, runtime};
use handfast_fabric_control::{Fabric, Process};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::process::Command;

/// Devices of the node that serves memory, and of the one that moves bytes.
pub(crate) const OWNER: &str = "peer0";
pub(crate) const USER: &str = "own0";

/// The profiles of the devices: one that is connected out of band, and one that the connection manager alone
/// connects, where the side that has accepted breaks a law if it sends first.
const PROFILES: [&str; 2] = ["mlx5", MANAGED];
const MANAGED: &str = "erdma-standard:retry_ms=10:dialler_sends_first";
/// Names the profile in a process with devices.
const PROFILE: &str = "HANDFAST_EVERY_FAILURE_PROFILE";

/// Every call that a story makes, and the error that it fails with. `ibv_close_device` has none.
const CALLS: &[(&str, i32)] = &[
    ("ibv_open_device", libc::ENODEV),
    ("ibv_query_device", libc::EIO),
    ("ibv_query_port", libc::EIO),
    ("ibv_query_gid_table", libc::EIO),
    ("ibv_alloc_pd", libc::ENOMEM),
    ("ibv_create_comp_channel", libc::EMFILE),
    ("ibv_create_cq", libc::ENOMEM),
    ("ibv_req_notify_cq", libc::EIO),
    ("ibv_poll_cq", libc::EIO),
    ("ibv_reg_mr", libc::ENOMEM),
    ("ibv_create_qp", libc::ENOMEM),
    ("ibv_modify_qp(INIT)", libc::EIO),
    ("ibv_post_send", libc::ENOMEM),
    ("ibv_modify_qp(ERR)", libc::EIO),
    ("ibv_destroy_qp", libc::EBUSY),
    ("ibv_dereg_mr", libc::EBUSY),
    ("ibv_destroy_cq", libc::EBUSY),
    ("ibv_destroy_comp_channel", libc::EBUSY),
    ("ibv_dealloc_pd", libc::EBUSY),
];

/// Those that connect out of band.
const OUT_OF_BAND_CALLS: &[(&str, i32)] =
    &[("ibv_modify_qp(RTR)", libc::ETIMEDOUT), ("ibv_modify_qp(RTS)", libc::EIO)];

/// Those that connect through the connection manager. `rdma_create_id` and `rdma_destroy_id` are of no device.
const MANAGER_CALLS: &[(&str, i32)] = &[
    ("rdma_bind_addr", libc::EADDRINUSE),
    ("rdma_listen", libc::EADDRINUSE),
    ("rdma_resolve_addr", libc::EIO),
    ("rdma_resolve_route", libc::EIO),
    ("rdma_connect", libc::ENOMEM),
    ("rdma_accept", libc::ENOMEM),
    ("rdma_get_cm_event", libc::EIO),
    ("rdma_disconnect", libc::EIO),
];

/// Whether the devices of this process connect through the connection manager.
fn is_managed() -> bool {
    std::env::var(PROFILE).is_ok_and(|profile| profile == MANAGED)
}

/// The address at which the connection manager of a device listens: that of its place in the list, which no
/// interface of the machine has.
pub(crate) fn address(device: &str) -> Option<IpAddr> {
    let place: u8 = if device == USER { 1 } else { 2 };
    is_managed().then(|| [10, 0, 0, place].into())
}

/// The calls that fail on the devices of this process. At every change those of the connection manager alone fail on
/// devices that it connects.
fn calls() -> Vec<(&'static str, i32)> {
    match (is_managed(), crate::is_every()) {
        (false, _) => [CALLS, OUT_OF_BAND_CALLS].concat(),
        (true, false) => MANAGER_CALLS.to_vec(),
        (true, true) => [CALLS, MANAGER_CALLS].concat(),
    }
}

/// A thread polls as often as it gets to: later polls are not of a story's making.
const POLLS: u64 = 48;

/// Returns the devices of each profile.
pub(crate) fn processes() -> [(&'static str, Process); 2] {
    PROFILES.map(|profile| {
        let devices = format!("{USER}={profile},{OWNER}={profile}:numbers_from=1000");
        (profile, Process::new(&devices).unwrap())
    })
}

/// Returns this program with devices of a profile.
pub(crate) fn command(profile: &str, process: &Process) -> Command {
    let mut command = process.again().unwrap();
    command.env(PROFILE, profile);
    command
}

/// Runs the test in a process with devices of each profile.
pub(crate) fn pass() {
    for (profile, process) in processes() {
        println!("{profile}: {:?}", passes(&mut command(profile, &process)));
    }
}

/// Queue pairs, completion queues, identifiers and broken laws of both devices.
fn left(fabric: &Fabric) -> Vec<String> {
    let of = |device: &str| {
        let pairs = fabric.run(&format!("pairs {device}"));
        let identifiers = fabric.run(&format!("manager list {device}"));
        [pairs, fabric.run(&format!("queues {device}")), identifiers]
    };
    let mut left = [of(USER), of(OWNER)].concat();
    left.push(fabric.run("laws"));
    left
}

fn run_on(
    fabric: &Fabric,
    story: &Story,
    (device, call): (&str, &str),
    turn: u64,
    code: i32,
) -> Result<bool, String> {
    let count = || fabric.run(&format!("count {device} {call}")).parse::<u64>().unwrap();
    let before = count();
    let nothing = left(fabric);
    let fail =
        || drop(fabric.run(&format!("fail call {device} {call} {code} after {turn} times 1")));
    let end = || {
        fabric.run("pass");
        count() > before + turn
    };
    let has_failed = run(story, fail, end)?;
    let now = left(fabric);
    if now == nothing { Ok(has_failed) } else { Err(format!("{now:?} remain of {nothing:?}")) }
}

/// Every call of [`CALLS`], on either device.
pub(crate) fn every_failed_call_is_survived() {
    let fabric = Fabric::find().unwrap();
    let (mut outcome, mut uncalled) = (Outcome::default(), BTreeSet::new());
    let calls = calls();
    // librdmacm keeps a context of each device until its process ends.
    runtime().block_on((STORIES_OF_DEVICES[0].run)());
    for (number, story) in STORIES_OF_DEVICES.iter().enumerate() {
        run(story, || (), || false).unwrap_or_else(|why| panic!("{}: {why}", story.name));
        for (at, (call, code)) in calls.iter().enumerate() {
            for (side, device) in [USER, OWNER].into_iter().enumerate() {
                let name = format!("{}:{call}:{device}", story.name);
                let is_due = crate::is_every() || (at + number + side).is_multiple_of(2);
                if is_due && is_chosen(&name) {
                    outcome.try_turns((story, &name), 0, |turn| match *call {
                        "ibv_poll_cq" if turn >= POLLS => Ok(false),
                        _ => run_on(&fabric, story, (device, call), turn, *code),
                    });
                }
            }
        }
    }
    for (call, _) in &calls {
        if fabric.run(&format!("count {USER} {call}")) == "0" {
            uncalled.insert(call);
        }
    }
    outcome.check(STORIES_OF_DEVICES);
    assert!(uncalled.is_empty(), "never called: {uncalled:?}");
}
