//! Resources that dropped transports leave open.

use crate::support::{Node, Setup, eventually};
use std::process::Command;

/// Set for the process that counts its descriptors, in which no other test runs.
const COUNTS: &str = "HANDFAST_TEST_COUNTS";
const TRANSPORTS: u64 = 20;

/// Dropped transports leave no descriptor open, also on a runtime of one thread, on which their task does
/// not run while they are dropped.
#[test]
fn dropped_transports_leave_no_descriptor() {
    if std::env::var_os(COUNTS).is_none() {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "ends::dropped_transports_leave_no_descriptor"]).env(COUNTS, "1");
        let output = child.output().unwrap();
        return assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let before = open();
        for number in 0..TRANSPORTS {
            drop(Node::start(number, &Setup::default()));
        }
        eventually(|| open() == before).await;
    });
}
