//! Stories of connections through the connection manager.

use super::{on, sites};
use crate::support::{BYTES, LANE, connect_lane, pattern};
use handfast_transport::{CompletionStatus, Direction};

/// The profiles whose queue pairs only the kernel connects.
const MANAGED: [&str; 1] = ["erdma-standard"];

/// Bytes move both ways over a lane that the connection manager connected, and nothing is left of it.
#[test]
fn bytes_move_through_the_connection_manager() {
    on(&MANAGED, "managed::bytes_move_through_the_connection_manager", |fabric| {
        let (one, other) = sites();
        connect_lane(&one, &other, LANE, 2);
        one.memory.copy_in(0, &pattern(1)).unwrap();
        one.post_all(&other, Direction::Write, 16);
        assert!(one.told.ends(16).iter().all(|end| *end == CompletionStatus::Done));
        assert_eq!(other.bytes(), pattern(1));
        one.told.forget();
        other.memory.copy_in(0, &vec![7; BYTES]).unwrap();
        one.post_all(&other, Direction::Read, 4);
        assert!(one.told.ends(4).iter().all(|end| *end == CompletionStatus::Done));
        assert_eq!(one.bytes(), vec![7; BYTES]);
        one.nic.retire(LANE).unwrap();
        other.nic.retire(LANE).unwrap();
        for device in ["rxe0", "rxe1"] {
            let list = fabric.run(&format!("manager list {device}"));
            assert!(list.lines().all(|line| line.contains("listening")), "{list}");
        }
    });
}
