//! Machines made of files, and scripted answers of the world.

use handfast_diagnosis::Severity;
use handfast_diagnosis::doctor::{
    AskFailure, Facts, Finding, LaneFailure, Library, Outcome, Outside, Report, Request, Wanted,
    examine,
};
use handfast_transport_rdma::ManagerUnavailable;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::symlink;
use std::path::Path;
use tempfile::TempDir;

/// The answer of an address to a request that begins with a text.
pub(crate) type Answer = (SocketAddr, &'static str, Result<Vec<u8>, AskFailure>);

/// The world of a scene.
#[derive(Default)]
pub(crate) struct World {
    pub(crate) names: BTreeMap<String, Vec<IpAddr>>,
    pub(crate) binds: BTreeMap<SocketAddr, i32>,
    pub(crate) opens: BTreeMap<String, i32>,
    pub(crate) answers: Vec<Answer>,
    /// The answers of addresses to requests that contain a text; they take precedence.
    pub(crate) bodies: Vec<(SocketAddr, &'static str, Vec<u8>)>,
    pub(crate) unix_s: u64,
    pub(crate) log: Option<String>,
    /// The failure of the connection manager.
    pub(crate) manager: Option<ManagerUnavailable>,
    pub(crate) asked_manager: Cell<bool>,
    pub(crate) asked: RefCell<Vec<SocketAddr>>,
    /// The longest datagram that passes; an address without an entry takes none.
    pub(crate) passes: BTreeMap<SocketAddr, usize>,
    /// Bytes in a second.
    pub(crate) rate: Option<u64>,
    pub(crate) loopback_mbps: u32,
    /// The failure of encryption.
    pub(crate) tls: Option<AskFailure>,
    pub(crate) lane: Option<Result<(), LaneFailure>>,
}

impl Outside for World {
    fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, String> {
        self.names.get(name).cloned().ok_or_else(|| "Name or service not known".to_owned())
    }

    fn bind(&self, address: SocketAddr) -> Result<(), i32> {
        self.binds.get(&address).map_or(Ok(()), |code| Err(*code))
    }

    fn open(&self, path: &str) -> Result<(), i32> {
        self.opens.get(path).map_or(Ok(()), |code| Err(*code))
    }

    fn connection_manager(&self) -> Result<(), ManagerUnavailable> {
        self.asked_manager.set(true);
        self.manager.clone().map_or(Ok(()), Err)
    }

    fn ask(
        &self,
        address: SocketAddr,
        encrypted: Option<&str>,
        request: &[u8],
        _: usize,
    ) -> Result<Vec<u8>, AskFailure> {
        if let Some(name) = encrypted {
            assert!(!name.is_empty() && !name.contains(':'), "{name} is no name of a host");
            self.tls.clone().map_or(Ok(()), Err)?;
        }
        self.asked.borrow_mut().push(address);
        let text = String::from_utf8_lossy(request);
        let by_part =
            self.bodies.iter().find(|(at, part, _)| *at == address && text.contains(part));
        if let Some((_, _, answer)) = by_part {
            return Ok(answer.clone());
        }
        let is_it =
            |(at, start, _): &&Answer| *at == address && request.starts_with(start.as_bytes());
        let answer = self.answers.iter().find(is_it).map(|(_, _, answer)| answer.clone());
        answer.unwrap_or(Err(AskFailure::Connect(111)))
    }

    fn pass(&self, address: SocketAddr, bytes: usize) -> Result<(), i32> {
        let longest = self.passes.get(&address);
        if longest.is_some_and(|longest| bytes <= *longest) { Ok(()) } else { Err(0) }
    }

    fn rate(&self, _: SocketAddr) -> Result<Option<u64>, AskFailure> {
        Ok(self.rate)
    }

    fn loopback_mbps(&self) -> u32 {
        self.loopback_mbps
    }

    fn lane(&self, _: SocketAddr) -> Option<Result<(), LaneFailure>> {
        self.lane.clone()
    }

    fn pause(&self, _: std::time::Duration) {}

    fn unix_s(&self) -> u64 {
        self.unix_s
    }

    fn kernel_log(&self) -> Option<String> {
        self.log.clone()
    }
}

/// A machine, and what is asked of the doctor.
pub(crate) struct Scene {
    root: TempDir,
    pub(crate) request: Request,
    pub(crate) world: World,
}

/// A NIC of a scene.
pub(crate) struct Nic<'a> {
    pub(crate) name: &'a str,
    pub(crate) interface: &'a str,
    pub(crate) ip: &'a str,
    pub(crate) card: &'a str,
}

pub(crate) const NIC: Nic<'_> =
    Nic { name: "mlx5_0", interface: "ens1f0", ip: "10.1.0.7", card: "0000:5e:00.0" };
pub(crate) const SECOND: Nic<'_> =
    Nic { name: "mlx5_1", interface: "ens1f1", ip: "10.1.1.7", card: "0000:5e:00.1" };

impl Scene {
    /// A machine without RDMA.
    pub(crate) fn empty() -> Self {
        let request = Request {
            wanted: Wanted::Rdma,
            host: "node-a".to_owned(),
            memory_bytes: 64 << 20,
            verbs_library: Library::Devices(Vec::new()),
            ..Request::default()
        };
        let mut scene =
            Self { root: tempfile::tempdir().unwrap(), request, world: World::default() };
        scene.request.root = scene.root.path().to_owned();
        scene.file("proc/sys/kernel/osrelease", "6.1.0");
        scene.limits("unlimited", 1_048_576, u64::MAX >> 23);
        scene.file(
            "proc/net/route",
            "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n",
        );
        scene.file("proc/net/fib_trie", "Main:\n     |-- 127.0.0.1\n        /32 host LOCAL\n");
        scene.interface("eth0", 1500);
        scene
    }

    /// A machine with one NIC that has all it needs.
    pub(crate) fn healthy() -> Self {
        let mut scene = Self::empty();
        scene.roce(&NIC);
        scene
    }

    /// With two.
    pub(crate) fn with_two() -> Self {
        let mut scene = Self::healthy();
        scene.roce(&SECOND);
        scene
    }

    pub(crate) fn path(&self, path: &str) -> std::path::PathBuf {
        self.root.path().join(path)
    }

    pub(crate) fn file(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub(crate) fn remove(&self, path: &str) {
        let path = self.path(path);
        if path.is_dir() && !path.is_symlink() {
            fs::remove_dir_all(path)
        } else {
            fs::remove_file(path)
        }
        .unwrap();
    }

    pub(crate) fn link(&self, path: &str, target: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(self.root.path().join(target), path).unwrap();
    }

    pub(crate) fn limits(&self, locked: &str, files: u64, capabilities: u64) {
        let limits = format!(
            "Limit                     Soft Limit           Hard Limit           Units\n\
             Max open files            1024                 {files}              files\n\
             Max locked memory         {locked}             {locked}             bytes\n"
        );
        self.file("proc/self/limits", &limits);
        self.file("proc/self/status", &format!("Name: x\nCapEff:\t{capabilities:016x}\n"));
    }

    pub(crate) fn interface(&self, name: &str, mtu: u32) {
        self.file(&format!("sys/class/net/{name}/mtu"), &mtu.to_string());
        self.file(&format!("sys/class/net/{name}/flags"), "0x1003\n");
        self.file(&format!("sys/class/net/{name}/carrier"), "1\n");
    }

    pub(crate) fn module(&self, name: &str) {
        self.file(&format!("sys/module/{name}/initstate"), "live");
    }

    /// A card on the bus, without an RDMA device.
    pub(crate) fn card(&self, address: &str, vendor: &str, part: &str, driver: &str) {
        let folder = format!("sys/bus/pci/devices/{address}");
        self.file(&format!("{folder}/vendor"), vendor);
        self.file(&format!("{folder}/device"), part);
        self.file(&format!("{folder}/class"), "0x020000");
        if !driver.is_empty() {
            self.link(&format!("{folder}/driver"), &format!("sys/bus/pci/drivers/{driver}"));
        }
    }

    /// An address of this machine, and the network behind it.
    pub(crate) fn address(&self, interface: &str, ip: &str) {
        let append = |path: &str, more: &str| {
            let before = fs::read_to_string(self.path(path)).unwrap_or_default();
            self.file(path, &(before + more));
        };
        append("proc/net/fib_trie", &format!("     |-- {ip}\n        /32 host LOCAL\n"));
        let ip: std::net::Ipv4Addr = ip.parse().unwrap();
        let network = u32::from_ne_bytes([ip.octets()[0], ip.octets()[1], ip.octets()[2], 0]);
        let mask = u32::from_ne_bytes([255, 255, 255, 0]);
        append(
            "proc/net/route",
            &format!("{interface} {network:08X} 00000000 0001 0 0 0 {mask:08X} 0 0 0\n"),
        );
    }

    /// A port's folder, by default that of the first NIC.
    pub(crate) fn port(name: &str) -> String {
        format!("sys/class/infiniband/{name}/ports/1")
    }

    pub(crate) fn gid(&self, device: &str, index: u32, text: &str, kind: &str, interface: &str) {
        let port = Self::port(device);
        self.file(&format!("{port}/gids/{index}"), text);
        self.file(&format!("{port}/gid_attrs/types/{index}"), kind);
        self.file(&format!("{port}/gid_attrs/ndevs/{index}"), interface);
    }

    /// A NIC over Ethernet in which nothing is wrong.
    pub(crate) fn roce(&mut self, nic: &Nic<'_>) {
        for module in ["ib_core", "ib_uverbs", "mlx5_core", "mlx5_ib"] {
            self.module(module);
        }
        self.card(nic.card, "0x15b3", "0x101d", "mlx5_core");
        self.file(&format!("sys/bus/pci/devices/{}/infiniband/{}/node", nic.card, nic.name), "");
        self.interface(nic.interface, 9000);
        self.file(&format!("sys/bus/pci/devices/{}/net/{}/mtu", nic.card, nic.interface), "9000");
        self.address(nic.interface, nic.ip);
        self.device(nic.name, nic.card, "1: CA", "Ethernet");
        let ip: std::net::Ipv4Addr = nic.ip.parse().unwrap();
        let [a, b, c, d] = ip.octets();
        let mapped = format!("0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}");
        let local = "fe80:0000:0000:0000:0000:00ff:fe00:0001";
        for (index, (text, kind)) in [
            (local, "IB/RoCE v1"),
            (local, "RoCE v2"),
            (&mapped, "IB/RoCE v1"),
            (&mapped, "RoCE v2"),
        ]
        .into_iter()
        .enumerate()
        {
            self.gid(nic.name, u32::try_from(index).unwrap(), text, kind, nic.interface);
        }
    }

    /// A device with an active port, a node and no addresses.
    pub(crate) fn device(&mut self, name: &str, card: &str, node_type: &str, layer: &str) {
        let folder = format!("sys/class/infiniband/{name}");
        let port = Self::port(name);
        self.file(&format!("{folder}/node_type"), node_type);
        self.link(&format!("{folder}/device"), &format!("sys/bus/pci/devices/{card}"));
        self.file(&format!("{port}/state"), "4: ACTIVE\n");
        self.file(&format!("{port}/phys_state"), "5: LinkUp\n");
        self.file(&format!("{port}/link_layer"), layer);
        self.file(&format!("{port}/lid"), if layer == "Ethernet" { "0x0" } else { "0x3" });
        self.file(&format!("{port}/pkeys/0"), "0xffff");
        fs::create_dir_all(self.path(&format!("{port}/gids"))).unwrap();
        let node = format!("uverbs{}", name.chars().last().unwrap());
        self.file(&format!("sys/class/infiniband_verbs/{node}/ibdev"), name);
        self.file(&format!("sys/class/infiniband_verbs/{node}/dev"), "231:192");
        self.file(&format!("dev/infiniband/{node}"), "");
        if let Library::Devices(names) = &mut self.request.verbs_library {
            names.push(name.to_owned());
        }
    }

    pub(crate) fn variable(&mut self, name: &str, value: &str) {
        self.request.environment.insert(name.to_owned(), value.to_owned());
    }

    pub(crate) fn listener(&self, address: &str, pid: Option<u32>) {
        let address: SocketAddr = address.parse().unwrap();
        let IpAddr::V4(ip) = address.ip() else { panic!("over IPv4") };
        let row = format!(
            "   0: {:08X}:{:04X} 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 4711 1 0\n",
            u32::from_ne_bytes(ip.octets()),
            address.port()
        );
        self.file("proc/net/tcp", &format!("  sl local_address rem_address st\n{row}"));
        if let Some(pid) = pid {
            fs::create_dir_all(self.path(&format!("proc/{pid}/fd"))).unwrap();
            symlink("socket:[4711]", self.path(&format!("proc/{pid}/fd/5"))).unwrap();
            self.file(&format!("proc/{pid}/comm"), "etcd\n");
        }
    }

    pub(crate) fn report(&self) -> Report {
        examine(&Facts::read(self.root.path()), &self.request, &self.world)
    }

    /// The findings above mere remarks.
    pub(crate) fn findings(&self) -> Vec<Finding> {
        let report = self.report();
        report.findings().filter(|finding| finding.severity != Severity::Info).cloned().collect()
    }

    /// Its one finding.
    #[track_caller]
    pub(crate) fn finding(&self, id: &str) -> Finding {
        let findings = self.findings();
        let ids: Vec<_> = findings.iter().map(|finding| finding.id.as_str()).collect();
        assert_eq!(ids, [id], "{findings:#?}");
        findings.into_iter().next().unwrap()
    }

    #[track_caller]
    pub(crate) fn is_healthy(&self) {
        assert_eq!(self.findings(), []);
    }

    /// The probes that were skipped, and because of what.
    pub(crate) fn skipped(&self) -> BTreeMap<&'static str, &'static str> {
        let report = self.report();
        let skipped = report.checks.iter().filter_map(|check| match check.outcome {
            Outcome::Skipped { because } => Some((check.name, because.as_str())),
            _ => None,
        });
        skipped.collect()
    }
}

pub(crate) fn root_of(scene: &Scene) -> &Path {
    scene.root.path()
}
