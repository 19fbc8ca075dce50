//! Calls of the verbs library that fail, on scripted devices.

use crate::stories::{STORIES_OF_DEVICES, Story};
use crate::{Outcome, is_chosen, run};
use handfast_fabric_control::{Fabric, Process};
use std::collections::BTreeSet;
use std::process::Stdio;

/// Devices of the node that serves memory, and of the one that moves bytes.
pub(crate) const OWNER: &str = "peer0";
pub(crate) const USER: &str = "own0";

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
    ("ibv_modify_qp(RTR)", libc::ETIMEDOUT),
    ("ibv_modify_qp(RTS)", libc::EIO),
    ("ibv_post_send", libc::ENOMEM),
    ("ibv_modify_qp(ERR)", libc::EIO),
    ("ibv_destroy_qp", libc::EBUSY),
    ("ibv_dereg_mr", libc::EBUSY),
    ("ibv_destroy_cq", libc::EBUSY),
    ("ibv_destroy_comp_channel", libc::EBUSY),
    ("ibv_dealloc_pd", libc::EBUSY),
];

/// A thread polls as often as it gets to: later polls are not of a story's making.
const POLLS: u64 = 48;

/// Runs the test of this name in a process with devices.
pub(crate) fn pass(name: &str) {
    let process = Process::new(&format!("{USER}=mlx5,{OWNER}=mlx5:numbers_from=1000")).unwrap();
    let mut command = process.again().unwrap();
    command.args([name, "--exact", "--nocapture"]);
    let output = command.stderr(Stdio::inherit()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    println!("{}", text.lines().filter(|line| line.starts_with("failed")).collect::<String>());
}

/// Queue pairs, completion queues and broken laws of both devices.
fn left(fabric: &Fabric) -> Vec<String> {
    let of = |device: &str| {
        let pairs = fabric.run(&format!("pairs {device}"));
        [pairs, fabric.run(&format!("queues {device}"))]
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
    for (number, story) in STORIES_OF_DEVICES.iter().enumerate() {
        run(story, || (), || false).unwrap_or_else(|why| panic!("{}: {why}", story.name));
        for (at, (call, code)) in CALLS.iter().enumerate() {
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
            if fabric.run(&format!("count {USER} {call}")) == "0" {
                uncalled.insert(call);
            }
        }
    }
    println!("failed verbs calls by story: {:?}", outcome.tried);
    outcome.check(STORIES_OF_DEVICES);
    assert!(uncalled.is_empty(), "never called: {uncalled:?}");
}
