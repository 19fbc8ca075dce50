//! Lanes whose queue pairs a device does not destroy.

use super::{BYTES, Nodes, PAIR, RAILS, on};
use crate::helpers::{PATIENCE, until};
use handfast::{Event, Memory, Side, TransportChoice};
use handfast_fabric_control::Fabric;
use std::time::{Duration, Instant};

/// `errno` of a queue pair that the device does not destroy yet.
const EBUSY: i32 = 16;
/// The lane is retired four times within 0.2 s before it is given up, far from the limits of a
/// handshake, 20 s.
const REPORTED_WITHIN: Duration = Duration::from_secs(5);

/// Breaks a connected queue pair of a device that destroys none.
fn break_lane(fabric: &Fabric, device: &str) {
    fabric.run(&format!("fail call {device} ibv_destroy_qp {EBUSY}"));
    let pairs = fabric.run(&format!("pairs {device}"));
    let connected = pairs.lines().find(|line| line.contains(" RTS ")).unwrap();
    fabric.run(&format!("break {device} {}", connected.split(' ').next().unwrap()));
}

/// With one NIC, transfers fail with the device's error, the first as soon as the lane is given up
/// and later ones at once, until a later attempt destroys the queue pairs.
#[test]
fn undestroyed_lane_fails_transfers_with_its_cause() {
    on(PAIR, "unretired::undestroyed_lane_fails_transfers_with_its_cause", async |fabric| {
        let nodes = Nodes::new(1, TransportChoice::Rdma).await;
        let segment = nodes.open(1).await;
        nodes.write(&segment, 1).await;
        break_lane(fabric, "nic0");
        let block = Memory::zeroed(BYTES).unwrap();
        for attempt in 0..3 {
            let since = Instant::now();
            let read = segment.read(&block.whole(), 0).timeout(PATIENCE).await;
            let error = read.unwrap_err();
            println!("measured: attempt {attempt} failed after {:?}", since.elapsed());
            assert!(since.elapsed() < REPORTED_WITHIN, "{:?}: {error}", since.elapsed());
            assert_eq!(error.side(), Side::Local, "{error}");
            assert!(error.to_string().contains("ibv_destroy_qp"), "{error}");
        }
        fabric.run("pass");
        nodes.write_at_last(&segment, 2).await;
        nodes.close().await;
    });
}

/// With two NICs the transfers go over the other one. The NIC of the lane is used again once its
/// queue pairs are destroyed.
#[test]
fn undestroyed_lane_leaves_other_nics_in_use() {
    on(RAILS, "unretired::undestroyed_lane_leaves_other_nics_in_use", async |fabric| {
        let nodes = Nodes::new(2, TransportChoice::Rdma).await;
        let segment = nodes.open(2).await;
        nodes.write(&segment, 1).await;
        let mut events = nodes.user.events();
        break_lane(fabric, "nic0");
        let since = Instant::now();
        nodes.write_at_last(&segment, 2).await;
        assert!(since.elapsed() < REPORTED_WITHIN, "{:?}", since.elapsed());
        until("the lane is given up", || {
            matches!(events.try_recv(), Ok(Event::RetireFailed { .. }))
        });
        nodes.write(&segment, 3).await;
        fabric.run("pass");
        nodes.until_used(&segment, "peer0").await;
        nodes.close().await;
    });
}
