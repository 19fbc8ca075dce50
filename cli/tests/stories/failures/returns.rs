//! Devices that return as something else, and memory that a device refuses.

use super::{BYTES, Nodes, RAILS, on, rdma, until_reopened};
use crate::helpers::{PATIENCE, until};
use crate::rdma_engine::pattern;
use handfast::{Access, Memory, Side, Stage, TransportChoice};
use handfast_fabric_control::Fabric;
use std::path::PathBuf;

const ENOMEM: i32 = 12;

/// The folder of a device in the system's list.
fn listed(device: &str) -> PathBuf {
    let sys = PathBuf::from(std::env::var_os("SYSFS_PATH").unwrap());
    sys.join("class/infiniband").join(device)
}

/// Calls so far.
fn count(fabric: &Fabric, call: &str) -> u64 {
    fabric.run(&format!("count nic0 {call}")).parse().unwrap()
}

/// A device that returns under another name is found by its GUID, and has its former name in this
/// node and at its peers.
#[test]
fn device_with_another_name_is_found_by_its_guid() {
    on(RAILS, "returns::device_with_another_name_is_found_by_its_guid", async |fabric| {
        let nodes = Nodes::new(2, TransportChoice::Rdma).await;
        let segment = nodes.open(2).await;
        nodes.write(&segment, 1).await;
        fabric.run("die nic0");
        until("the loss is reported", || !nodes.user.unusable_devices().is_empty());
        std::fs::rename(listed("nic0"), listed("mlx5_7")).unwrap();
        fabric.run("rename nic0 mlx5_7");
        fabric.run("revive mlx5_7");
        until_reopened(&nodes.user, 1);
        nodes.until_used(&segment, "peer0").await;
        until("the NIC is usable", || nodes.user.unusable_devices().is_empty());
        fabric.run("die mlx5_7");
        until("the second loss is reported", || !nodes.user.unusable_devices().is_empty());
        let unusable = nodes.user.unusable_devices();
        assert!(unusable[0].to_string().contains("nic0"), "{unusable:?}");
        fabric.run("revive mlx5_7");
        until_reopened(&nodes.user, 2);
        nodes.close().await;
    });
}

/// A device returns with a driver that lets peers write to all registered memory. A node that has
/// served read-only memory does not use it, says why, and uses it once its driver is another one.
#[test]
fn device_with_an_exposing_driver_is_not_used_again() {
    on(RAILS, "returns::device_with_an_exposing_driver_is_not_used_again", async |fabric| {
        let nodes = Nodes::new(2, TransportChoice::Rdma).await;
        let segment = nodes.open(2).await;
        fabric.run("die nic0");
        until("the loss is reported", || !nodes.user.unusable_devices().is_empty());
        let (driver, sys) = (listed("nic0").join("device/driver"), listed("../.."));
        let former = std::fs::read_link(&driver).unwrap();
        let to = |target: PathBuf| {
            std::fs::remove_file(&driver).unwrap();
            std::os::unix::fs::symlink(target, &driver).unwrap();
        };
        let parameters = sys.join("module/erdma/parameters");
        std::fs::create_dir_all(&parameters).unwrap();
        std::fs::write(parameters.join("compat_mode"), "Y").unwrap();
        to(sys.join("bus/pci/drivers/erdma"));
        fabric.run("revive nic0");
        until("it is refused", || {
            let unusable = nodes.user.unusable_devices();
            unusable.iter().any(|error| error.to_string().contains("peers write to all"))
        });
        assert_eq!(nodes.user.unusable_devices()[0].side(), Side::Configuration);
        nodes.write(&segment, 1).await;
        assert_eq!(rdma(&nodes.user).devices_reopened, 0);
        to(former);
        until_reopened(&nodes.user, 1);
        nodes.until_used(&segment, "peer0").await;
        nodes.close().await;
    });
}

/// A device refuses memory after its return: it is not in use, and the other one carries
/// everything. A later attempt registers all memory with it.
#[test]
fn device_that_refuses_memory_is_opened_later() {
    on(RAILS, "returns::device_that_refuses_memory_is_opened_later", async |fabric| {
        let nodes = Nodes::new(2, TransportChoice::Rdma).await;
        let segment = nodes.open(2).await;
        let block = pattern(BYTES, 1);
        let prepared = nodes.user.prepare(&block.whole()).await.unwrap();
        fabric.run("die nic0");
        until("the loss is reported", || !nodes.user.unusable_devices().is_empty());
        // After the memory of its probes; and once more, without relaxed ordering.
        fabric.run(&format!("fail call nic0 ibv_reg_mr {ENOMEM} after 1 times 2"));
        // The next attempt waits, so that the error stays.
        fabric.run("hold call nic0 ibv_reg_mr");
        fabric.run("revive nic0");
        until("it is refused", || {
            let unusable = nodes.user.unusable_devices();
            unusable.first().is_some_and(|error| error.to_string().contains("ibv_reg_mr"))
        });
        let unusable = nodes.user.unusable_devices().remove(0);
        assert_eq!(unusable.stage(), Stage::Registration, "{unusable}");
        fabric.run("release call nic0 ibv_reg_mr");
        nodes.write(&segment, 2).await;
        until_reopened(&nodes.user, 1);
        nodes.until_used(&segment, "peer0").await;
        segment.write(&block.whole(), 0).timeout(PATIENCE).await.unwrap();
        assert!(nodes.has(&block));
        drop(prepared);
        nodes.close().await;
    });
}

/// The second of two devices refuses memory: nothing stays registered with the first.
#[test]
fn refused_registration_is_rolled_back() {
    on(RAILS, "returns::refused_registration_is_rolled_back", async |fabric| {
        let nodes = Nodes::new(2, TransportChoice::Rdma).await;
        let kept = |fabric: &Fabric| count(fabric, "ibv_reg_mr") - count(fabric, "ibv_dereg_mr");
        let before = kept(fabric);
        fabric.run(&format!("fail call nic1 ibv_reg_mr {ENOMEM}"));
        let block = Memory::zeroed(BYTES).unwrap();
        let error = nodes.user.prepare(&block.whole()).await.unwrap_err();
        assert_eq!((error.stage(), error.side()), (Stage::Registration, Side::Local), "{error}");
        assert!(error.to_string().contains("nic1"), "{error}");
        assert_eq!(kept(fabric), before, "nothing of it stays");
        let served = nodes.user.register("r").access(Access::READ).serve(block.whole());
        assert_eq!(served.err().map(|error| error.stage()), Some(Stage::Registration));
        assert_eq!((kept(fabric), block.holders()), (before, 1));
        fabric.run("pass");
        let _prepared = nodes.user.prepare(&block.whole()).await.unwrap();
        assert_eq!(kept(fabric), before + 1);
        nodes.close().await;
    });
}
