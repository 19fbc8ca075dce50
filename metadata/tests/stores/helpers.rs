//! Waits and skips of the tests with real stores.

use std::io::Write;
use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// Longer than anything here takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A port that was free a moment ago, below those that the system gives to connections.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id() * 64;
    let numbers = std::iter::from_fn(|| Some(first + NEXT.fetch_add(1, Ordering::Relaxed)));
    let mut ports = numbers.map(|number| 20_000 + (number % 12_000) as u16);
    ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).unwrap()
}

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
