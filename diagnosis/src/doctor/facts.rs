//! The kernel's facts about a machine, read once from a root that tests choose.

mod kubelet;
mod network;
mod rdma;

pub use network::{Interface, Listener, Neighbour, Route};
pub(super) use network::{is_reached, owner, owners, way_to};
pub use rdma::{Device, Gid, Port};

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read;
use std::net::IpAddr;
use std::path::Path;

/// Maximum bytes read of one file of the kernel.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Maximum entries read of one folder.
const ENTRIES_MAX: usize = 4_096;

/// The facts about a machine that concern RDMA and the doctor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// The kernel's release.
    pub kernel: String,
    /// RDMA devices, by name.
    pub devices: Vec<Device>,
    /// Network interfaces, by name.
    pub interfaces: Vec<Interface>,
    /// Addresses of this network namespace.
    pub addresses: Vec<IpAddr>,
    /// Routes of the main table.
    pub routes: Vec<Route>,
    /// Neighbours over IPv4.
    pub neighbours: Vec<Neighbour>,
    /// Sockets that hold an address.
    pub listeners: Vec<Listener>,
    /// PCI functions that support RDMA, and GPUs.
    pub cards: Vec<Card>,
    /// Kernel modules that are loaded, or built in with parameters; and built-in modules of RDMA
    /// without parameters.
    pub modules: BTreeSet<String>,
    /// Nodes below `/dev/infiniband`.
    pub nodes: Vec<String>,
    /// Whether RDMA devices belong to single network namespaces; `None` if the kernel does not
    /// report it.
    pub is_exclusive: Option<bool>,
    /// Limits of this process.
    pub limits: Limits,
    /// Whether this is a pod of Kubernetes.
    pub is_pod: bool,
    /// The pod's annotations, if they are passed in.
    pub annotations: String,
    /// Whether Koordinator's agent runs on this host.
    pub has_koordlet: bool,
    /// Resources that device plugins have registered with this host's kubelet, with their number of
    /// devices; `None` without a kubelet.
    pub plugin_resources: Option<BTreeMap<String, usize>>,
}

/// A PCI function.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Card {
    /// Its PCI address, such as `0000:5e:00.0`.
    pub address: String,
    /// The vendor's id.
    pub vendor: u32,
    /// The device id.
    pub part: u32,
    /// The kernel driver bound to it; empty if none.
    pub driver: String,
    /// Whether it has RDMA devices.
    pub has_rdma: bool,
    /// Its network interfaces.
    pub interfaces: Vec<String>,
    /// Uncorrected errors of the bus.
    pub errors: u64,
    /// PCIe lanes, in use and maximum; 0 if unknown.
    pub lanes: (u32, u32),
    /// Whether it is a GPU.
    pub is_gpu: bool,
}

/// Limits and rights of this process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Memory that may be locked, in bytes; `None` for no limit.
    pub locked_bytes: Option<u64>,
    /// Maximum open files, after raising the limit.
    pub files: Option<u64>,
    /// Effective capabilities, by bit.
    pub capabilities: u64,
    /// RDMA objects in use and allowed, by control group and device, if bounded.
    pub rdma_objects: Vec<(String, u64, u64)>,
    /// Maximum memory mappings; 0 if unknown.
    pub mappings: u64,
    /// First and last port of outgoing connections; 0 if unknown.
    pub local_ports: (u16, u16),
    /// Whether the IOMMU translates addresses of devices.
    pub iommu_translates: bool,
    /// Whether kernel and GPU driver pass GPU memory on as dma-bufs.
    #[serde(default)]
    pub exports_gpu_memory: bool,
}

/// The first kernel whose RDMA core registers dma-bufs.
const DMABUF_KERNEL: (u32, u32) = (5, 12);

/// CAP_IPC_LOCK.
const CAPABILITY_LOCK: u64 = 1 << 14;

impl Limits {
    /// Whether memory may be locked without a limit.
    pub fn may_lock_anything(&self) -> bool {
        self.locked_bytes.is_none() || self.capabilities & CAPABILITY_LOCK != 0
    }
}

impl Facts {
    /// Returns the network interface of that name.
    pub fn interface(&self, name: &str) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| interface.name == name)
    }

    /// Reads the facts below `root`. Unreadable files count as absent.
    pub fn read(root: &Path) -> Self {
        let tree = Tree(root);
        let interfaces = network::interfaces(&tree);
        let (addresses, routes) = (network::addresses(&tree), network::routes(&tree));
        let connected = network::connected_routes(&tree);
        let devices = rdma::devices(&tree, &interfaces, (&addresses, &connected));
        Self {
            kernel: tree.line("proc/sys/kernel/osrelease"),
            devices,
            interfaces,
            addresses,
            routes,
            neighbours: network::neighbours(&tree),
            listeners: network::listeners(&tree),
            cards: cards(&tree),
            modules: modules(&tree),
            nodes: tree.names("dev/infiniband"),
            is_exclusive: match &*tree.line("sys/module/ib_core/parameters/netns_mode") {
                "Y" => Some(false),
                "N" => Some(true),
                _ => None,
            },
            limits: limits(&tree),
            is_pod: tree.exists("var/run/secrets/kubernetes.io")
                || tree.exists("run/secrets/kubernetes.io"),
            annotations: tree.text("etc/podinfo/annotations"),
            has_koordlet: tree.exists("var/run/koordlet"),
            plugin_resources: kubelet::resources(&tree),
        }
    }
}

fn modules(tree: &Tree<'_>) -> BTreeSet<String> {
    let mut modules: BTreeSet<_> = tree.names("sys/module").into_iter().collect();
    let release = tree.line("proc/sys/kernel/osrelease");
    let built_in = tree.text(&format!("lib/modules/{release}/modules.builtin"));
    let of_rdma = built_in.lines().filter(|path| path.contains("/infiniband/"));
    let names = of_rdma.filter_map(|path| path.rsplit('/').next()?.strip_suffix(".ko"));
    modules.extend(names.map(|name| name.replace('-', "_")));
    modules
}

/// Files below a root.
pub(super) struct Tree<'a>(pub(super) &'a Path);

impl Tree<'_> {
    /// Returns the file's text, bounded; empty if it cannot be read.
    pub(super) fn text(&self, path: &str) -> String {
        let mut bytes = Vec::new();
        let read = File::open(self.0.join(path))
            .and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut bytes));
        match read {
            Ok(_) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(_) => String::new(),
        }
    }

    pub(super) fn line(&self, path: &str) -> String {
        self.text(path).trim().to_owned()
    }

    /// Returns a number in the kernel's notation, decimal or with `0x`; 0 if there is none.
    pub(super) fn number(&self, path: &str) -> u64 {
        let line = self.line(path);
        match line.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).unwrap_or(0),
            None => line.parse().unwrap_or(0),
        }
    }

    /// Returns the names in a folder, sorted.
    pub(super) fn names(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.0.join(path)).into_iter().flatten().take(ENTRIES_MAX);
        let name =
            |entry: std::io::Result<fs::DirEntry>| entry.ok()?.file_name().into_string().ok();
        let mut names: Vec<_> = entries.filter_map(name).collect();
        names.sort_unstable();
        names
    }

    pub(super) fn exists(&self, path: &str) -> bool {
        self.0.join(path).exists()
    }

    /// Returns the last component of a link's target.
    pub(super) fn link(&self, path: &str) -> String {
        let target = fs::read_link(self.0.join(path)).unwrap_or_default();
        target.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned()
    }
}

/// Vendors of RDMA hardware, and the module that creates their RDMA devices.
const MAKERS: [(u32, &str); 8] = [
    (0x15b3, "mlx5_ib"),
    (0x1ded, "erdma"),
    (0x1d0f, "efa"),
    (0x8086, "irdma"),
    (0x14e4, "bnxt_re"),
    (0x1077, "qedr"),
    (0x19e5, "hns_roce_hw_v2"),
    (0x1dd8, "ionic_rdma"),
];
/// Device ids of vendors that make much other hardware.
const PARTS: [(u32, &[u32]); 3] = [
    (0x1ded, &[0x107f]),
    (0x1d0f, &[0xefa0, 0xefa1, 0xefa2, 0xefa3]),
    // E810, E823, E822, X722 families.
    (
        0x8086,
        &[0x1591, 0x1592, 0x1593, 0x159b, 0x188a, 0x1890, 0x37d0, 0x37d1, 0x37d2, 0x1452, 0x1889],
    ),
];
const MAKER_NVIDIA_GPU: u32 = 0x10de;
/// Network controllers, of any kind.
const CLASS_NETWORK: u64 = 0x02;
const CLASS_DISPLAY: u64 = 0x03;

impl Card {
    /// Returns the module that creates RDMA devices of the function.
    pub fn module(&self) -> Option<&'static str> {
        MAKERS.iter().find(|(vendor, _)| *vendor == self.vendor).map(|(_, module)| *module)
    }
}

fn cards(tree: &Tree<'_>) -> Vec<Card> {
    const BUS: &str = "sys/bus/pci/devices";
    let card = |address: String| {
        let folder = format!("{BUS}/{address}");
        let number = |name: &str| tree.number(&format!("{folder}/{name}"));
        let vendor = u32::try_from(number("vendor")).ok()?;
        let part = u32::try_from(number("device")).ok()?;
        let class = number("class") >> 16;
        let is_gpu = vendor == MAKER_NVIDIA_GPU && class == CLASS_DISPLAY;
        let is_maker = MAKERS.iter().any(|(maker, _)| *maker == vendor);
        let parts = PARTS.iter().find(|(maker, _)| *maker == vendor);
        let is_part = parts.is_none_or(|(_, parts)| parts.contains(&part));
        // eRDMA and EFA functions are network controllers as well.
        let is_rdma = is_maker && is_part && class == CLASS_NETWORK;
        let errors = |name: &str| total_errors(&tree.text(&format!("{folder}/{name}")));
        let lanes = |name: &str| u32::try_from(number(name)).unwrap_or(0);
        (is_gpu || is_rdma).then(|| Card {
            driver: tree.link(&format!("{folder}/driver")),
            has_rdma: !tree.names(&format!("{folder}/infiniband")).is_empty(),
            interfaces: tree.names(&format!("{folder}/net")),
            errors: errors("aer_dev_fatal") + errors("aer_dev_nonfatal"),
            lanes: (lanes("current_link_width"), lanes("max_link_width")),
            vendor,
            part,
            is_gpu,
            address,
        })
    };
    tree.names(BUS).into_iter().filter_map(card).collect()
}

/// Returns the total that ends the kernel's list of errors by kind.
fn total_errors(text: &str) -> u64 {
    let total = text.lines().find_map(|line| line.strip_prefix("TOTAL_ERR_"));
    total.and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
}

/// NVIDIA's open kernel modules alone export memory.
fn exports_gpu_memory(tree: &Tree<'_>) -> bool {
    let release = tree.line("proc/sys/kernel/osrelease");
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    let kernel = numbers.next().zip(numbers.next());
    kernel.is_some_and(|kernel| kernel >= DMABUF_KERNEL)
        && tree.text("proc/driver/nvidia/version").contains("Open Kernel Module")
}

fn limits(tree: &Tree<'_>) -> Limits {
    let text = tree.text("proc/self/limits");
    let of = |name: &str, column: usize| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().nth(column)?.parse::<u64>().ok()
    };
    let status = tree.text("proc/self/status");
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let ports = tree.line("proc/sys/net/ipv4/ip_local_port_range");
    let mut ports = ports.split_whitespace().map(|text| text.parse().unwrap_or(0));
    let types = tree.names("sys/kernel/iommu_groups");
    let translates = |group: &String| {
        tree.line(&format!("sys/kernel/iommu_groups/{group}/type")).starts_with("DMA")
    };
    Limits {
        locked_bytes: of("Max locked memory", 0),
        files: of("Max open files", 1),
        capabilities: capabilities
            .and_then(|text| u64::from_str_radix(text.trim(), 16).ok())
            .unwrap_or(0),
        rdma_objects: rdma_objects(tree),
        mappings: tree.number("proc/sys/vm/max_map_count"),
        local_ports: (ports.next().unwrap_or(0), ports.next().unwrap_or(0)),
        exports_gpu_memory: exports_gpu_memory(tree),
        iommu_translates: types.iter().any(translates)
            && !tree.text("proc/cmdline").contains("iommu=pt"),
    }
}

/// Returns the objects of this control group and of all its ancestors.
fn rdma_objects(tree: &Tree<'_>) -> Vec<(String, u64, u64)> {
    let own = tree.text("proc/self/cgroup");
    let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or("").to_owned();
    let mut found = Vec::new();
    let mut group = own.as_str();
    loop {
        let folder = format!("sys/fs/cgroup/{group}");
        let current = tree.text(&format!("{folder}/rdma.current"));
        for line in tree.text(&format!("{folder}/rdma.max")).lines() {
            let Some((device, limits)) = line.split_once(' ') else { continue };
            let of_device =
                |line: &'_ str| line.split_once(' ').is_some_and(|(of, _)| of == device);
            let used = current.lines().find(|line| of_device(line)).unwrap_or("");
            for kind in ["hca_object=", "hca_handle="] {
                let value = |text: &str| {
                    let word = text.split_whitespace().find_map(|word| word.strip_prefix(kind))?;
                    word.parse::<u64>().ok()
                };
                if let Some(max) = value(limits) {
                    found.push((format!("{folder} {device}"), value(used).unwrap_or(0), max));
                }
            }
        }
        let Some(above) =
            group.rfind('/').map(|at| &group[..at]).or((!group.is_empty()).then_some(""))
        else {
            return found;
        };
        group = above;
    }
}
