//! The address at which the connection manager of a device listens leaves.

use super::{Nodes, on, rdma, until_reopened};
use crate::helpers::until;
use handfast::TransportChoice;

/// One NIC at each node, with an address of IPv6 too.
const PAIR: &str = "nic0=mlx5:ipv6,peer0=mlx5:ipv6:numbers_from=500";
/// The entries of the address of IPv4, one for each version of RoCE.
const IPV4: [u32; 2] = [2, 3];

/// Both NICs are opened again at the address that is left, without a restart of their nodes, and carry bytes again.
#[test]
fn device_is_opened_again_at_the_address_that_is_left() {
    let name = "moved::device_is_opened_again_at_the_address_that_is_left";
    on(PAIR, name, async |fabric| {
        let names = |kind: &str| vec![format!("{kind}0")];
        let nodes = Nodes::with_options(names, TransportChoice::Rdma, |it| {
            it.connection_manager = true;
        });
        let nodes = nodes.await;
        let segment = nodes.open(1).await;
        nodes.write(&segment, 1).await;
        for device in ["nic0", "peer0"] {
            for index in IPV4 {
                fabric.run(&format!("gid {device} remove {index}"));
            }
        }
        for engine in [&nodes.user, &nodes.owner] {
            until_reopened(engine, 1);
            assert_eq!(rdma(engine).devices_lost, 1);
        }
        nodes.write_at_last(&segment, 2).await;
        for engine in [&nodes.user, &nodes.owner] {
            until("the NIC is usable", || engine.unusable_devices().is_empty());
        }
        nodes.close().await;
    });
}
