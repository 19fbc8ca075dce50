//! A tree of `/sys` that lists scripted devices, as the kernel would list devices of their profiles.

use handfast_fabric::{Gids, Listing};
use std::fs;
use std::io;
use std::net::Ipv6Addr;
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
    /// Value of the parameter `compat_mode` of the module erdma.
    compat_mode: &'static str,
}

const HARDWARE: Identity =
    Identity { driver: "", vendor: "", part: "", parent: "", node_type: "1: CA", compat_mode: "" };

fn identity(profile: &str) -> Identity {
    match profile {
        "rxe" => Identity { parent: "lo", ..HARDWARE },
        "mlx5" => Identity { driver: "mlx5_core", vendor: "0x15b3", part: "0x101d", ..HARDWARE },
        "irdma" => Identity { driver: "ice", vendor: "0x8086", part: "0x1592", ..HARDWARE },
        "erdma-standard" => Identity { compat_mode: "N", ..ERDMA },
        "erdma-compat" => Identity { compat_mode: "Y", ..ERDMA },
        "erdma-rocev2" => ERDMA,
        // In software, and named so by the kernel alone.
        "siw" => Identity { node_type: RNIC, ..HARDWARE },
        "iwarp" => Identity {
            driver: "i40e",
            vendor: "0x8086",
            part: "0x37d2",
            node_type: RNIC,
            ..HARDWARE
        },
        _ => Identity { driver: "scripted", vendor: "0x1b36", part: "0x0001", ..HARDWARE },
    }
}

/// The node type of iWARP.
const RNIC: &str = "4: RNIC";

const ERDMA: Identity = Identity { driver: "erdma", vendor: "0x1ded", part: "0x107f", ..HARDWARE };

/// Writes the tree below `root/sys`.
pub(crate) fn write(root: &Path, devices: &[Listing]) -> io::Result<()> {
    let sys = root.join("sys");
    fs::create_dir_all(sys.join("class/infiniband"))?;
    devices.iter().try_for_each(|device| write_device(&sys, device, &identity(&device.profile)))
}

fn write_port(port: &Path, gids: &Gids, is_infiniband: bool) -> io::Result<()> {
    fs::create_dir_all(port.join("gids"))?;
    fs::create_dir_all(port.join("gid_attrs/types"))?;
    fs::write(port.join("state"), "4: ACTIVE\n")?;
    let link_layer = if is_infiniband { "InfiniBand" } else { "Ethernet" };
    fs::write(port.join("link_layer"), link_layer)?;
    for (index, gid) in gids.iter().enumerate() {
        let (address, kind) = gid.unwrap_or((Ipv6Addr::UNSPECIFIED, ""));
        let words = address.segments().map(|word| format!("{word:04x}")).join(":");
        fs::write(port.join("gids").join(index.to_string()), words)?;
        fs::write(port.join("gid_attrs/types").join(index.to_string()), kind)?;
    }
    Ok(())
}

fn write_device(sys: &Path, device: &Listing, identity: &Identity) -> io::Result<()> {
    let folder = sys.join("class/infiniband").join(&device.name);
    fs::create_dir_all(folder.join("device"))?;
    fs::write(folder.join("node_type"), identity.node_type)?;
    let words = device
        .guid
        .to_be_bytes()
        .chunks(2)
        .map(|word| format!("{:02x}{:02x}", word[0], word[1]))
        .collect::<Vec<_>>();
    fs::write(folder.join("node_guid"), words.join(":"))?;
    for (at, gids) in device.ports.iter().enumerate() {
        write_port(&folder.join("ports").join((at + 1).to_string()), gids, device.is_infiniband)?;
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
