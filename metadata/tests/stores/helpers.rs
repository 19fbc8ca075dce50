//! Waits and skips of the tests with real stores.

use std::io::Write;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// Longer than anything here takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let waited = timeout(PATIENCE, async {
        while !holds().await {
            sleep(Duration::from_millis(20)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("not in time: {what}"));
}

pub(crate) fn skipped(why: &str) {
    let name = std::thread::current().name().unwrap_or("a story").to_owned();
    // The macros that print would print into the capture.
    std::io::stderr().write_all(format!("skipped: {name}: {why}\n").as_bytes()).unwrap();
}
