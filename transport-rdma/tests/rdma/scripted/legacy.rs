//! Stories of lanes to nodes that know no connection manager, as Mooncake's, or whose devices are of another
//! kind.

use super::managed::{MANAGED, another_lane_works};
use super::{on, on_pairs};
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

/// Devices of iWARP and of RoCE have no lane, through the connection manager neither: both sides say so before
/// anything is dialled, and leave the device as it was.
#[test]
fn kinds_that_no_connection_joins_are_told_on_both_sides() {
    let name = "legacy::kinds_that_no_connection_joins_are_told_on_both_sides";
    on_pairs(&[["siw", "rxe"], ["mlx5", "erdma-standard"]], name, |fabric| {
        let forced = |device| Site::new(NicConfig { connection_manager: true, ..config(device) });
        let (one, other) = (forced("rxe0"), forced("rxe1"));
        let bodies = [one.nic.create(LANE, &[1]).unwrap(), other.nic.create(LANE, &[2]).unwrap()];
        for (site, peer) in [(&one, &bodies[1]), (&other, &bodies[0])] {
            let error = site.nic.connect(LANE, peer).unwrap_err();
            assert_eq!(error.side, Side::Configuration, "{error}");
            assert!(error.detail.contains("iWARP with those of RoCE"), "{error}");
            assert!(error.detail.contains("use TCP"), "{error}");
            site.nic.retire(LANE).unwrap();
        }
        nothing_is_connected(fabric);
    });
}

/// Two RoCE devices of which one connects out of band: the errors name the option.
#[test]
fn option_of_the_other_side_is_named_on_roce() {
    let name = "legacy::option_of_the_other_side_is_named_on_roce";
    on_pairs(&[["mlx5", "rxe"]], name, |_| one_side_is_managed(true));
}

/// A RoCE device, and an iWARP one that connects through the connection manager alone: the option does not
/// help, and no error names it.
#[test]
fn option_is_not_named_beside_iwarp() {
    let name = "legacy::option_is_not_named_beside_iwarp";
    on_pairs(&[["siw", "rxe"], ["erdma-standard", "mlx5"]], name, |_| one_side_is_managed(false));
}

/// Connects a device through the connection manager to one out of band, and the other way.
fn one_side_is_managed(option_helps: bool) {
    let managed = Site::new(NicConfig { connection_manager: true, ..config("rxe0") });
    let plain = Site::new(config("rxe1"));
    let bodies = [managed.nic.create(LANE, &[1]).unwrap(), plain.nic.create(LANE, &[2]).unwrap()];
    for (site, peer) in [(&managed, &bodies[1]), (&plain, &bodies[0])] {
        let error = site.nic.connect(LANE, peer).unwrap_err();
        assert_eq!(error.side, Side::Configuration, "{error}");
        assert_eq!(error.detail.contains("--rdma-cm"), option_helps, "{error}");
        assert!(error.detail.contains("use TCP"), "{error}");
    }
}

fn nothing_is_connected(fabric: &Fabric) {
    for device in ["rxe0", "rxe1"] {
        let list = fabric.run(&format!("manager list {device}"));
        assert!(list.lines().all(|line| line.contains("listening")), "{device}: {list}");
    }
}
