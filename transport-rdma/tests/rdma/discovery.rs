//! Devices found in trees like those the kernel makes.

use handfast_transport_rdma::{DEVICES_FOLDER, Gid, discover};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

#[test]
fn a_machine_without_rdma_support_has_no_devices() {
    let root = tempfile::tempdir().unwrap();
    assert_eq!(discover(root.path()).unwrap(), []);
    fs::create_dir_all(root.path().join(DEVICES_FOLDER)).unwrap();
    assert_eq!(discover(root.path()).unwrap(), []);
}

#[test]
fn a_device_is_told_with_its_driver_ports_and_the_addresses_that_are_set() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join(DEVICES_FOLDER).join("renamed0");
    put(&folder.join("ports/1/state"), "4: ACTIVE\n");
    put(&folder.join("ports/1/link_layer"), "Ethernet\n");
    put(&folder.join("ports/1/gids/0"), "fe80:0000:0000:0000:0202:02ff:fe02:0202\n");
    put(&folder.join("ports/1/gids/1"), "0000:0000:0000:0000:0000:0000:0000:0000\n");
    put(&folder.join("ports/1/gids/10"), "0000:0000:0000:0000:0000:ffff:0a00:0007\n");
    put(&folder.join("ports/1/gid_attrs/types/10"), "RoCE v2\n");
    put(&folder.join("ports/2/state"), "1: DOWN\n");
    fs::create_dir_all(root.path().join("sys/bus/pci/drivers/mlx5_core")).unwrap();
    fs::create_dir_all(folder.join("device")).unwrap();
    symlink("../../../../bus/pci/drivers/mlx5_core", folder.join("device/driver")).unwrap();

    let devices = discover(root.path()).unwrap();
    let [device] = devices.as_slice() else { panic!("{devices:?}") };
    assert_eq!((device.name.as_str(), device.driver.as_str()), ("renamed0", "mlx5_core"));
    let [first, second] = device.ports.as_slice() else { panic!("{device:?}") };
    assert!(first.is_active() && !second.is_active());
    assert_eq!(first.link_layer, "Ethernet");
    assert_eq!(first.gids.iter().map(|gid| gid.index).collect::<Vec<_>>(), [0, 10]);
    let text = "0000:0000:0000:0000:0000:ffff:0a00:0007".to_owned();
    assert_eq!(first.gids[1], Gid { index: 10, text, kind: "RoCE v2".into() });
}

#[test]
fn a_folder_that_is_none_is_an_error_that_names_it() {
    let root = tempfile::tempdir().unwrap();
    put(&root.path().join(DEVICES_FOLDER), "not a folder");
    let error = discover(root.path()).unwrap_err();
    assert!(error.to_string().contains(DEVICES_FOLDER), "{error}");
}

fn put(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}
