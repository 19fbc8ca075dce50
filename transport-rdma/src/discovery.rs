//! The RDMA devices of a machine, from `/sys/class/infiniband`.

use crate::profile::{Identity, Recognised, recognise};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The kernel's list of RDMA devices, below the root of the file system.
pub const DEVICES_FOLDER: &str = "sys/class/infiniband";
/// Parameter file of the kernel module `erdma`, below the root of the file system.
const ERDMA_COMPAT_MODE: &str = "sys/module/erdma/parameters/compat_mode";
/// Maximum devices, ports per device and GIDs per port to read. A port's GID table has at most
/// a few hundred entries on known devices; the bound keeps a broken listing from growing a report.
pub const ENTRIES_MAX: usize = 1_024;

/// An RDMA device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its name, such as `mlx5_0`. Says nothing of the hardware: users rename devices.
    pub name: String,
    /// The kernel driver bound to it, empty for software devices, which have none.
    pub driver: String,
    /// Its node GUID, which is that of the hardware; software devices have one of their interface.
    pub guid: Option<u64>,
    /// Its identity.
    pub identity: Identity,
    /// Its ports, by number.
    pub ports: Vec<Port>,
}

/// A port of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its number, counted from 1.
    pub number: u32,
    /// The logical state, such as `ACTIVE` or `DOWN`.
    pub state: String,
    /// `Ethernet` or `InfiniBand`.
    pub link_layer: String,
    /// Non-empty GIDs.
    pub gids: Vec<Gid>,
}

/// An address of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gid {
    /// Index in the port's GID table.
    pub index: u32,
    /// The address in the kernel's text form.
    pub text: String,
    /// GID type, such as `RoCE v2`; empty if the kernel does not report it.
    pub kind: String,
}

impl Device {
    /// Returns the profile of the device and the reason for its choice.
    pub fn recognise(&self) -> Recognised {
        recognise(&self.identity)
    }
}

/// A listing that could not be read.
#[derive(Debug, thiserror::Error)]
#[error("RDMA devices cannot be listed, reading {path} failed: {error}", path = .path.display())]
pub struct DiscoveryError {
    /// The unreadable path.
    pub path: PathBuf,
    /// The error.
    pub error: io::Error,
}

impl Port {
    /// Returns true if the port is active.
    pub fn is_active(&self) -> bool {
        self.state == "ACTIVE"
    }
}

/// Returns the root of this machine's files: the parent of `SYSFS_PATH`, which libibverbs reads too,
/// and else `/`.
pub fn root() -> PathBuf {
    let sys = std::env::var_os("SYSFS_PATH").map(PathBuf::from);
    sys.and_then(|sys| sys.parent().map(Path::to_owned)).unwrap_or_else(|| PathBuf::from("/"))
}

/// Lists the devices below `root`, by name. A machine without RDMA support has none.
///
/// # Errors
/// A folder that exists and cannot be read. A device that vanishes meanwhile is left out.
pub fn discover(root: &Path) -> Result<Vec<Device>, DiscoveryError> {
    let folder = root.join(DEVICES_FOLDER);
    let names = match entries(&folder) {
        Err(DiscoveryError { error, .. }) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(Vec::new());
        }
        names => names?,
    };
    Ok(names.into_iter().filter_map(|name| device(root, name)).collect())
}

/// Reads one device; `None` if it does not exist any more.
#[cfg(feature = "verbs")]
pub(crate) fn discover_one(root: &Path, name: &str) -> Option<Device> {
    device(root, name.to_owned())
}

fn device(root: &Path, name: String) -> Option<Device> {
    let folder = &root.join(DEVICES_FOLDER).join(&name);
    let mut numbers: Vec<u32> =
        entries(&folder.join("ports")).ok()?.iter().filter_map(|text| text.parse().ok()).collect();
    numbers.sort_unstable();
    let driver = fs::read_link(folder.join("device/driver")).ok();
    let driver = driver.as_deref().and_then(Path::file_name).and_then(|name| name.to_str());
    let driver = driver.unwrap_or_default().to_owned();
    let first_port = folder.join("ports").join(numbers.first().unwrap_or(&1).to_string());
    let compat_mode = read(&root.join(ERDMA_COMPAT_MODE));
    let identity = Identity {
        driver: driver.clone(),
        vendor: hexadecimal(&folder.join("device/vendor")),
        part: hexadecimal(&folder.join("device/device")),
        // The kernel writes `1: CA`.
        node_type: read(&folder.join("node_type"))
            .split_once(':')
            .and_then(|(number, _)| number.parse().ok())
            .unwrap_or(0),
        parent: read(&folder.join("parent")),
        gid_table_length: entries(&first_port.join("gids")).map_or(0, |names| names.len()),
        erdma_compat_mode: (!compat_mode.is_empty()).then(|| compat_mode == "Y"),
    };
    let ports = numbers.into_iter().map(|number| port(&folder.join("ports"), number)).collect();
    let guid = guid(&read(&folder.join("node_guid")));
    Some(Device { name, driver, guid, identity, ports })
}

/// A GUID that the kernel writes as `0200:00ff:fe00:0001`; none of zeroes.
fn guid(text: &str) -> Option<u64> {
    u64::from_str_radix(&text.replace(':', ""), 16).ok().filter(|guid| *guid != 0)
}

/// A number that the kernel writes as `0x15b3`.
fn hexadecimal(path: &Path) -> Option<u32> {
    u32::from_str_radix(read(path).strip_prefix("0x")?, 16).ok()
}

fn port(ports: &Path, number: u32) -> Port {
    let folder = ports.join(number.to_string());
    // The kernel writes `4: ACTIVE`.
    let state = read(&folder.join("state"));
    let state = state.split_once(": ").map_or(state.as_str(), |(_, word)| word).to_owned();
    let mut indices: Vec<u32> = entries(&folder.join("gids"))
        .unwrap_or_default()
        .iter()
        .filter_map(|text| text.parse().ok())
        .collect();
    indices.sort_unstable();
    let gids = indices.into_iter().filter_map(|index| gid(&folder, index)).collect();
    Port { number, state, link_layer: read(&folder.join("link_layer")), gids }
}

fn gid(port: &Path, index: u32) -> Option<Gid> {
    let text = read(&port.join("gids").join(index.to_string()));
    let set = text.chars().any(|c| c.is_ascii_hexdigit() && c != '0');
    let kind = read(&port.join("gid_attrs/types").join(index.to_string()));
    set.then_some(Gid { index, text, kind })
}

/// Reads one line; empty if unreadable, as is the type of an unset GID by design.
fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn entries(folder: &Path) -> Result<Vec<String>, DiscoveryError> {
    let failed = |error| DiscoveryError { path: folder.to_owned(), error };
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)?.take(ENTRIES_MAX) {
        names.extend(entry.map_err(failed)?.file_name().into_string().ok());
    }
    names.sort_unstable();
    Ok(names)
}
