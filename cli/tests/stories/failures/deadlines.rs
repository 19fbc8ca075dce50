//! Deadlines of transfers whose device reports nothing.

use super::{BYTES, Nodes, on};
use crate::helpers::PATIENCE;
use crate::rdma_engine::pattern;
use handfast::{Cause, Memory, TransportChoice};
use std::time::{Duration, Instant};

/// Devices whose lanes drain within half a second.
const DEVICES: &str = "nic0=erdma-compat,peer0=erdma-compat:numbers_from=500";
/// Longer than the device may take for a request with the timers of these nodes, 1.75 s.
const LIMIT: Duration = Duration::from_secs(2);
/// The drain, and some for a slow machine. With all of the device's time after the deadline it
/// would be 2.25 s.
const LATE_AT_MOST: Duration = Duration::from_secs(2);

/// A read whose completions never come fails soon after its deadline: the device has had its time
/// before. Nothing arrives in its memory afterwards, and the next read goes over another lane.
#[test]
fn deadline_holds_though_no_completion_comes() {
    on(DEVICES, "deadlines::deadline_holds_though_no_completion_comes", async |fabric| {
        let nodes = Nodes::new(1, TransportChoice::Rdma).await;
        let segment = nodes.open(1).await;
        nodes.write(&segment, 1).await;
        let pairs = fabric.run("pairs nic0");
        for line in pairs.lines().filter(|line| line.contains(" RTS ")) {
            fabric.run(&format!("hold completions nic0 {}", line.split(' ').next().unwrap()));
        }
        let (block, mark) = (Memory::zeroed(BYTES).unwrap(), pattern(BYTES, 9));
        let since = Instant::now();
        let error = segment.read(&block.whole(), 0).timeout(LIMIT).await.unwrap_err();
        let late = since.elapsed().saturating_sub(LIMIT);
        println!("measured: {late:?} after the deadline");
        assert!(matches!(error.cause(), Cause::DeadlinePassed), "{error}");
        assert!(late < LATE_AT_MOST, "{late:?}");
        let mut bytes = vec![0; BYTES];
        mark.copy_out(0, &mut bytes).unwrap();
        block.copy_in(0, &bytes).unwrap();

        let back = Memory::zeroed(BYTES).unwrap();
        segment.read(&back.whole(), 0).timeout(PATIENCE).await.unwrap();
        assert!(nodes.has(&back));
        assert_eq!(block.crc32c(0, BYTES).unwrap(), mark.crc32c(0, BYTES).unwrap());
        nodes.close().await;
    });
}
