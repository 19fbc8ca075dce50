//! A tree of `/sys` that lists scripted devices, as the kernel would list devices of their profiles.

use std::fs;
use std::io;
use std::path::Path;

/// The identity of a profile's devices.
struct Identity {
    /// The kernel driver; none for software devices.
    driver: &'static str,
    vendor: &'static str,
    part: &'static str,
    /// The network interface below a software device.
    parent: &'static str,
    node_type: &'static str,
    gid_table_length: usize,
    /// Value of the parameter `compat_mode` of the module erdma.
    compat_mode: &'static str,
}

const HARDWARE: Identity = Identity {
    driver: "",
    vendor: "",
    part: "",
    parent: "",
    node_type: "1: CA",
    gid_table_length: 16,
    compat_mode: "",
};

fn identity(profile: &str) -> Identity {
    match profile {
        "rxe" => Identity { parent: "lo", ..HARDWARE },
        "mlx5" => Identity { driver: "mlx5_core", vendor: "0x15b3", part: "0x101d", ..HARDWARE },
        "irdma" => Identity { driver: "ice", vendor: "0x8086", part: "0x1592", ..HARDWARE },
        "erdma-standard" => Identity { gid_table_length: 1, compat_mode: "N", ..ERDMA },
        "erdma-compat" => Identity { compat_mode: "Y", ..ERDMA },
        "erdma-rocev2" => ERDMA,
        _ => Identity { driver: "scripted", vendor: "0x1b36", part: "0x0001", ..HARDWARE },
    }
}

const ERDMA: Identity = Identity { driver: "erdma", vendor: "0x1ded", part: "0x107f", ..HARDWARE };

/// Writes the tree below `root/sys`.
pub(crate) fn write(root: &Path, devices: &str) -> io::Result<()> {
    let sys = root.join("sys");
    fs::create_dir_all(sys.join("class/infiniband"))?;
    for device in devices.split(',').filter(|device| !device.is_empty()) {
        let (name, kind) = device.split_once('=').unwrap_or((device, ""));
        let mut words = kind.split(':');
        let profile = words.next().unwrap_or_default();
        let link_layer =
            if words.any(|word| word == "infiniband") { "InfiniBand" } else { "Ethernet" };
        write_device(&sys, name, &identity(profile), link_layer)?;
    }
    Ok(())
}

fn write_device(sys: &Path, name: &str, identity: &Identity, link_layer: &str) -> io::Result<()> {
    let folder = sys.join("class/infiniband").join(name);
    let port = folder.join("ports/1");
    fs::create_dir_all(port.join("gids"))?;
    fs::create_dir_all(port.join("gid_attrs/types"))?;
    fs::create_dir_all(folder.join("device"))?;
    fs::write(folder.join("node_type"), identity.node_type)?;
    fs::write(port.join("state"), "4: ACTIVE\n")?;
    fs::write(port.join("link_layer"), link_layer)?;
    let unset = "0000:0000:0000:0000:0000:0000:0000:0000\n";
    for index in 0..identity.gid_table_length {
        fs::write(port.join("gids").join(index.to_string()), unset)?;
    }
    for (file, text) in [
        ("parent", identity.parent),
        ("device/vendor", identity.vendor),
        ("device/device", identity.part),
    ] {
        if !text.is_empty() {
            fs::write(folder.join(file), text)?;
        }
    }
    if !identity.driver.is_empty() {
        let drivers = sys.join("bus/pci/drivers").join(identity.driver);
        fs::create_dir_all(&drivers)?;
        std::os::unix::fs::symlink(&drivers, folder.join("device/driver"))?;
    }
    if !identity.compat_mode.is_empty() {
        let parameters = sys.join("module/erdma/parameters");
        fs::create_dir_all(&parameters)?;
        fs::write(parameters.join("compat_mode"), identity.compat_mode)?;
    }
    Ok(())
}
