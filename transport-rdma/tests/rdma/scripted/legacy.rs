//! Stories of lanes to nodes that know no connection manager, as Mooncake's.

use super::managed::{MANAGED, another_lane_works};
use super::on;
use crate::support::{LANE, Site, config};
use handfast_core::Lifecycle;
use handfast_core::transport::Side;
use handfast_fabric_control::Fabric;
use handfast_transport::{CompletionStatus, Direction};
use handfast_transport_rdma::NicConfig;

/// A RoCE device that connects through the connection manager by choice has lanes out of band to a node that
/// connects so alone, next to those of the others; its retirement leaves nothing.
#[test]
fn legacy_lane_connects_out_of_band_beside_managed_ones() {
    let name = "legacy::legacy_lane_connects_out_of_band_beside_managed_ones";
    on(&["rxe", "mlx5"], name, |fabric| {
        let forced = |device| Site::new(NicConfig { connection_manager: true, ..config(device) });
        let (one, other) = (forced("rxe0"), forced("rxe1"));
        let legacy = Site::new(config("rxe1"));
        assert!(!legacy.nic.uses_connection_manager());
        let mine = one.nic.create_out_of_band(LANE, &[1]).unwrap();
        assert_eq!(mine.connection_manager, None);
        let theirs = legacy.nic.create(LANE, &[2]).unwrap();
        one.nic.connect(LANE, &theirs).unwrap();
        legacy.nic.connect(LANE, &mine).unwrap();
        for (from, to) in [(&one, &legacy), (&legacy, &one)] {
            from.nic.post(LANE, &mut vec![from.posting(to, 1, Direction::Write, 0, 4096)]);
            assert_eq!(from.told.ends(1), [CompletionStatus::Done]);
            from.told.forget();
        }
        another_lane_works(&one, &other, Lifecycle(8));
        one.nic.retire(LANE).unwrap();
        legacy.nic.retire(LANE).unwrap();
        nothing_is_connected(fabric);
    });
}

/// A device that connects through the connection manager alone has no lane to such a node, and says so before a
/// queue pair is made.
#[test]
fn legacy_lane_is_refused_where_only_the_kernel_connects() {
    let name = "legacy::legacy_lane_is_refused_where_only_the_kernel_connects";
    on(&MANAGED, name, |fabric| {
        let one = Site::new(config("rxe0"));
        let error = one.nic.create_out_of_band(LANE, &[1]).unwrap_err();
        assert_eq!(error.side, Side::Configuration, "{error}");
        assert!(error.detail.contains("out of band alone"), "{error}");
        assert_eq!(one.nic.lanes(), 0);
        nothing_is_connected(fabric);
    });
}

fn nothing_is_connected(fabric: &Fabric) {
    for device in ["rxe0", "rxe1"] {
        let list = fabric.run(&format!("manager list {device}"));
        assert!(list.lines().all(|line| line.contains("listening")), "{device}: {list}");
    }
}
