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

/// Discovery lists a device with its driver, ports and addresses.
#[test]
fn discovery_lists_driver_ports_and_addresses() {
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

/// A device as the kernel shows it: its driver, its numbers on the bus and its kind.
fn device(root: &Path, name: &str, driver: &str, numbers: (&str, &str), places: u32) {
    let folder = root.join(DEVICES_FOLDER).join(name);
    put(&folder.join("node_type"), "1: CA\n");
    for place in 0..places {
        put(&folder.join(format!("ports/1/gids/{place}")), "fe80::1\n");
    }
    put(&folder.join("device/vendor"), &format!("{}\n", numbers.0));
    put(&folder.join("device/device"), &format!("{}\n", numbers.1));
    fs::create_dir_all(root.join("sys/bus/pci/drivers").join(driver)).unwrap();
    let link = format!("../../../../bus/pci/drivers/{driver}");
    symlink(link, folder.join("device/driver")).unwrap();
}

fn profiles(root: &Path) -> Vec<(String, &'static str)> {
    let devices = discover(root).unwrap();
    devices.into_iter().map(|d| (d.name.clone(), d.recognise().profile.name)).collect()
}

#[test]
fn devices_are_recognised_whatever_their_names_are() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    device(root, "erdma_0", "mlx5_core", ("0x15b3", "0x101d"), 256);
    device(root, "mlx5_0", "erdma", ("0x1ded", "0x107f"), 16);
    device(root, "rxe0", "ice", ("0x8086", "0x1592"), 128);
    device(root, "rxe1", "efa", ("0x1d0f", "0xefa1"), 1);
    put(&root.join(DEVICES_FOLDER).join("roce0/node_type"), "1: CA\n");
    put(&root.join(DEVICES_FOLDER).join("roce0/parent"), "eth0\n");
    put(&root.join(DEVICES_FOLDER).join("roce0/ports/1/gids/0"), "fe80::1\n");
    let expected = [
        ("erdma_0", "mlx5"),
        ("mlx5_0", "erdma-rocev2"),
        ("roce0", "rxe"),
        ("rxe0", "irdma"),
        ("rxe1", "efa"),
    ];
    assert_eq!(profiles(root), expected.map(|(name, profile)| (name.to_owned(), profile)));
}

#[test]
fn the_mode_of_erdma_is_read_from_its_module_and_its_table() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    device(root, "a", "erdma", ("0x1ded", "0x107f"), 1);
    assert_eq!(profiles(root)[0].1, "erdma-standard");
    put(&root.join("sys/module/erdma/parameters/compat_mode"), "Y\n");
    assert_eq!(profiles(root)[0].1, "erdma-compat");
    put(&root.join("sys/module/erdma/parameters/compat_mode"), "N\n");
    assert_eq!(profiles(root)[0].1, "erdma-standard");
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
