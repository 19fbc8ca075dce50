//! NUMA nodes, NICs and accelerators, from `/sys`.

use super::location::Location;
use handfast_core::mooncake::{Nics, PriorityMatrix};
use handfast_transport_rdma::{Connecting, DEVICES_FOLDER, Device, DiscoveryError, discover};
use serde::Serialize;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Maximum PCI functions and NUMA nodes to read; servers have a few hundred functions.
pub const PCI_DEVICES_MAX: usize = 16_384;

/// Distance of memory on the same NUMA node, and the assumed one of another without firmware data
/// (ACPI specification, table SLIT: 10 is local; Linux falls back to 20).
const LOCAL_DISTANCE: u32 = 10;
const REMOTE_DISTANCE: u32 = 20;

/// PCI class codes, from the PCI Code and ID Assignment Specification: display controllers begin
/// with 03, processing accelerators with 12.
const CLASS_DISPLAY: u32 = 0x03;
const CLASS_ACCELERATOR: u32 = 0x12;

/// PCI vendors whose accelerators have a runtime that numbers them, and the name under which
/// Mooncake lists their memory.
const RUNTIMES: [(u32, &str); 2] = [(0x10de, "cuda"), (0x1002, "hip")];

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct NumaNode {
    /// Its number.
    pub number: u32,
    /// Its processors as the kernel lists them, such as `0-15,32-47`; empty if it has none.
    pub cpus: String,
    /// Distance to every node of [`Machine::nodes`], in their order; 10 is local.
    pub distances: Vec<u32>,
}

/// An RDMA device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Nic {
    /// Its name, such as `mlx5_0`.
    pub name: String,
    /// Its driver, such as `mlx5_core`; for a software device its profile, such as
    /// `rxe`.
    pub kind: String,
    /// Its NUMA node, if the kernel reports it.
    pub numa: Option<u32>,
    /// Its PCI address, or that of the network interface below a software device; empty if it has
    /// none.
    pub pci: String,
    /// Whether one of its ports is active.
    pub active: bool,
    /// The connection method of its queue pairs.
    pub connecting: NicConnecting,
    /// Every PCI address from the root of the machine to the device.
    #[serde(skip)]
    way: Vec<String>,
}

/// Connection method of the queue pairs of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "way", content = "why", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum NicConnecting {
    /// By numbers that nodes exchange, or through the connection manager with
    /// `RdmaOptions::connection_manager`.
    OutOfBand,
    /// Through the kernel's connection manager alone, for this reason.
    ConnectionManager(&'static str),
    /// Not for lanes, for this reason.
    Never(&'static str),
}

/// An accelerator with memory of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Gpu {
    /// The location of its memory, such as `cuda:0`. Numbered by PCI address, as in CUDA with
    /// `CUDA_DEVICE_ORDER=PCI_BUS_ID`. Integrated graphics of an AMD processor take a number too,
    /// as display functions of that vendor.
    pub location: String,
    /// Its PCI address.
    pub pci: String,
    /// Its NUMA node, if the kernel reports it.
    pub numa: Option<u32>,
    /// Every PCI address from the root of the machine to the device.
    #[serde(skip)]
    way: Vec<String>,
}

/// The parts of a machine that data paths depend on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Machine {
    /// NUMA nodes, by number; one if the kernel reports none.
    pub nodes: Vec<NumaNode>,
    /// RDMA devices, by name.
    pub nics: Vec<Nic>,
    /// Accelerators, by location.
    pub gpus: Vec<Gpu>,
}

/// A listing that could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MachineError {
    /// The RDMA devices.
    #[error(transparent)]
    Nics(#[from] DiscoveryError),
    /// NUMA nodes or PCI functions.
    #[error("the machine's {what} cannot be listed, reading {path} failed: {error}", path = .path.display())]
    Listing {
        /// The objects to list.
        what: &'static str,
        /// The unreadable path.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
}

impl Machine {
    /// Reads the devices below `root`, which is `/` for this machine. A machine without RDMA
    /// devices or accelerators has none, which is no error.
    ///
    /// # Errors
    /// A folder that exists and cannot be read.
    pub fn discover(root: &Path) -> Result<Self, MachineError> {
        let nics = discover(root)?.iter().map(|device| nic(root, device)).collect();
        Ok(Self { nodes: nodes(root)?, nics, gpus: gpus(root)? })
    }

    /// Numbers the accelerators of a runtime as the runtime does, which may leave some out. `pci_addresses`
    /// are those of its devices, in their order; with none the numbers stay.
    #[must_use]
    pub fn numbered(mut self, runtime: &str, pci_addresses: &[String]) -> Self {
        if pci_addresses.is_empty() {
            return self;
        }
        let is_of = |gpu: &Gpu| runtime_of(gpu) == runtime;
        let (mut known, mut gpus): (Vec<Gpu>, Vec<Gpu>) = self.gpus.into_iter().partition(is_of);
        let place = |gpu: &Gpu| pci_addresses.iter().position(|address| *address == gpu.pci);
        known.retain(|gpu| place(gpu).is_some());
        known.sort_by_key(|gpu| place(gpu));
        for mut gpu in known {
            gpu.location = format!("{runtime}:{}", place(&gpu).unwrap_or_default());
            gpus.push(gpu);
        }
        gpus.sort_by(|one, other| runtime_of(one).cmp(runtime_of(other)));
        self.gpus = gpus;
        self
    }

    /// Returns the preferred NICs for memory at each location: those on the same NUMA node; for an
    /// accelerator, those of them with the shortest PCI path, or of all NICs if none is on its
    /// node. The others follow, near ones first. NICs without an active port are omitted.
    pub fn matrix(&self) -> PriorityMatrix {
        let mut matrix = PriorityMatrix::default();
        for node in &self.nodes {
            let near = |nic: &Nic| nic.numa == Some(node.number) || self.is_single();
            let nics = self.ranked(near, |nic| self.distance(Some(node.number), nic.numa));
            matrix.insert(&Location::Numa(node.number).to_string(), nics);
        }
        for gpu in &self.gpus {
            let beside: Vec<&Nic> = self.active().filter(|nic| gpu.is_beside(nic)).collect();
            let all: Vec<&Nic> = self.active().collect();
            let candidates = if beside.is_empty() { &all } else { &beside };
            let least = candidates.iter().map(|nic| steps(&gpu.way, &nic.way)).min();
            let near = |nic: &Nic| {
                candidates.iter().any(|candidate| candidate.name == nic.name)
                    && Some(steps(&gpu.way, &nic.way)) == least
            };
            let far = |nic: &Nic| (self.distance(gpu.numa, nic.numa), steps(&gpu.way, &nic.way));
            matrix.insert(&gpu.location, self.ranked(near, far));
        }
        matrix
    }

    fn ranked<K: Ord>(&self, near: impl Fn(&Nic) -> bool, far: impl Fn(&Nic) -> K) -> Nics {
        let (preferred, mut others): (Vec<&Nic>, Vec<&Nic>) =
            self.active().partition(|nic| near(nic));
        others.sort_by_key(|nic| far(nic));
        let names = |nics: Vec<&Nic>| nics.into_iter().map(|nic| nic.name.clone()).collect();
        Nics { preferred: names(preferred), available: names(others) }
    }

    fn active(&self) -> impl Iterator<Item = &Nic> {
        self.nics.iter().filter(|nic| nic.active)
    }

    /// Returns whether there is a single NUMA node.
    fn is_single(&self) -> bool {
        self.nodes.len() == 1
    }

    /// Returns the distance between NUMA nodes; for an unknown node that of a remote one.
    fn distance(&self, from: Option<u32>, to: Option<u32>) -> u32 {
        let place = |number| self.nodes.iter().position(|node| Some(node.number) == number);
        let known = place(from).zip(place(to));
        let told = known.and_then(|(from, to)| self.nodes[from].distances.get(to).copied());
        told.unwrap_or(REMOTE_DISTANCE)
    }
}

impl Gpu {
    fn is_beside(&self, nic: &Nic) -> bool {
        self.numa.is_some() && nic.numa == self.numa
    }
}

fn runtime_of(gpu: &Gpu) -> &str {
    gpu.location.split(':').next().unwrap_or_default()
}

/// Returns the number of PCI links between two devices, up to their common switch or root and down
/// again. Without a common one the path leads through processors; it counts as the longest.
fn steps(one: &[String], other: &[String]) -> usize {
    match one.iter().zip(other).take_while(|(one, other)| one == other).count() {
        0 => usize::MAX,
        shared => one.len() + other.len() - 2 * shared,
    }
}

fn nodes(root: &Path) -> Result<Vec<NumaNode>, MachineError> {
    let folder = root.join("sys/devices/system/node");
    let names = listed(&folder, "NUMA nodes")?;
    let mut numbers: Vec<u32> =
        names.iter().filter_map(|name| name.strip_prefix("node")?.parse().ok()).collect();
    numbers.sort_unstable();
    if numbers.is_empty() {
        let single = NumaNode { number: 0, cpus: String::new(), distances: vec![LOCAL_DISTANCE] };
        return Ok(vec![single]);
    }
    let node = |number: &u32| {
        let folder = folder.join(format!("node{number}"));
        let distances = read(&folder.join("distance"));
        let distances: Vec<u32> =
            distances.split_whitespace().filter_map(|text| text.parse().ok()).collect();
        let guess = |to: &u32| if to == number { LOCAL_DISTANCE } else { REMOTE_DISTANCE };
        let told = distances.len() == numbers.len();
        NumaNode {
            number: *number,
            cpus: read(&folder.join("cpulist")),
            distances: if told { distances } else { numbers.iter().map(guess).collect() },
        }
    };
    Ok(numbers.iter().map(node).collect())
}

fn nic(root: &Path, device: &Device) -> Nic {
    let folder = root.join(DEVICES_FOLDER).join(&device.name).join("device");
    // A software device has no PCI function; the interface below it may have one.
    let parent = root.join("sys/class/net").join(&device.identity.parent).join("device");
    let below = !device.identity.parent.is_empty() && !folder.exists();
    let folder = if below { parent } else { folder };
    let way = way(&folder);
    let profile = device.recognise().profile;
    Nic {
        name: device.name.clone(),
        kind: match device.driver.as_str() {
            "" => profile.name.to_owned(),
            driver => driver.to_owned(),
        },
        numa: numa(&folder),
        pci: way.last().cloned().unwrap_or_default(),
        active: device.ports.iter().any(handfast_transport_rdma::Port::is_active),
        connecting: match profile.connecting {
            Connecting::OutOfBand => NicConnecting::OutOfBand,
            Connecting::Manager(why) => NicConnecting::ConnectionManager(why),
            Connecting::Never(why) => NicConnecting::Never(why),
        },
        way,
    }
}

fn gpus(root: &Path) -> Result<Vec<Gpu>, MachineError> {
    let folder = root.join("sys/bus/pci/devices");
    let mut next = [0u32; RUNTIMES.len()];
    let mut gpus = Vec::new();
    for address in listed(&folder, "PCI functions")? {
        let function = folder.join(&address);
        let class = hexadecimal(&function.join("class")).unwrap_or(0) >> 16;
        let vendor = hexadecimal(&function.join("vendor"));
        let runtime = RUNTIMES.iter().position(|(known, _)| Some(*known) == vendor);
        let (Some(runtime), CLASS_DISPLAY | CLASS_ACCELERATOR) = (runtime, class) else {
            continue;
        };
        let location = format!("{}:{}", RUNTIMES[runtime].1, next[runtime]);
        next[runtime] += 1;
        let (numa, way) = (numa(&function), way(&function));
        gpus.push((runtime, Gpu { location, numa, way, pci: address }));
    }
    // By runtime, and within one by number, which is the order of their addresses.
    gpus.sort_by_key(|(runtime, _)| RUNTIMES[*runtime].1);
    Ok(gpus.into_iter().map(|(_, gpu)| gpu).collect())
}

/// Returns the PCI addresses on the path to a device, from the root of the machine.
fn way(device: &Path) -> Vec<String> {
    let Ok(path) = fs::canonicalize(device) else { return Vec::new() };
    let names = path.components().filter_map(|part| part.as_os_str().to_str());
    // The root of a bus is called `pci0000:3a`, a function `0000:3b:00.0`.
    let is_pci = |name: &&str| {
        name.starts_with("pci") && name.contains(':') || name.matches(':').count() == 2
    };
    names.filter(is_pci).map(str::to_owned).collect()
}

/// Reads a device's NUMA node; the kernel writes -1 if it is unknown.
fn numa(device: &Path) -> Option<u32> {
    read(&device.join("numa_node")).parse().ok()
}

fn hexadecimal(path: &Path) -> Option<u32> {
    u32::from_str_radix(read(path).strip_prefix("0x")?, 16).ok()
}

/// Reads one line; empty if there is none.
fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// Returns the names in a folder, sorted; none if the folder does not exist.
fn listed(folder: &Path, what: &'static str) -> Result<Vec<String>, MachineError> {
    let failed = |error| MachineError::Listing { what, path: folder.to_owned(), error };
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut names = Vec::new();
    for entry in entries {
        if names.len() >= PCI_DEVICES_MAX {
            tracing::warn!(what, limit = PCI_DEVICES_MAX, "the entries past the limit are ignored");
            break;
        }
        names.extend(entry.map_err(failed)?.file_name().into_string().ok());
    }
    names.sort_unstable();
    Ok(names)
}
