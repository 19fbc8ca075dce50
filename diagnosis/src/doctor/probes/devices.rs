//! The path from the PCI bus to device nodes that programs can open.

use crate::doctor::finding::seen;
use crate::doctor::observed::said;
use crate::doctor::{Context, Device, Finding, Library, Port, is_usable};
use crate::explain::explain;
use crate::ids;
use crate::problem::Severity;
use handfast_transport_rdma::ManagerUnavailable;
use std::fmt::Display;

pub(super) fn build(context: &mut Context<'_>) -> Vec<Finding> {
    let severity = context.without_rdma();
    match &context.request.verbs_library {
        Library::NotBuilt => vec![seen!(BUILD_FEATURE, severity)],
        Library::Missing(detail) => {
            // Most loaders name the library themselves.
            let name = if detail.contains("libibverbs") { "" } else { "libibverbs.so.1: " };
            vec![Finding::new(ids::PROV_MISSING, severity, format!("{name}{detail}"))]
        }
        Library::Devices(_) => Vec::new(),
    }
}

/// Openable nodes of devices that programs do not find.
pub(super) fn namespace(context: &mut Context<'_>) -> Vec<Finding> {
    let facts = context.facts;
    let nodes: Vec<_> =
        facts.nodes.iter().filter(|name| name.starts_with("uverbs")).cloned().collect();
    if !facts.devices.is_empty() || nodes.is_empty() {
        return Vec::new();
    }
    let nodes = nodes.join(", ");
    let id = match facts.is_exclusive {
        Some(true) => ids::NETNS_EXCLUSIVE,
        _ => ids::SYSFS_HIDDEN,
    };
    vec![Finding::seen(id, context.without_rdma(), &[("nodes", &nodes)])]
}

pub(super) fn cards(context: &mut Context<'_>) -> Vec<Finding> {
    let facts = context.facts;
    let cards = facts.cards.iter().filter(|card| !card.is_gpu);
    let mut findings = Vec::new();
    if facts.devices.is_empty() && cards.clone().count() == 0 {
        return vec![no_card(context)];
    }
    for card in cards {
        if card.errors > 0 {
            let (pci, errors) = (&card.address, card.errors);
            findings.push(seen!(HW_PCI_ERRORS, Severity::Risk, pci, errors));
        }
        let (current, max) = card.lanes;
        if current > 0 && current < max {
            let pci = &card.address;
            findings.push(seen!(PCIE_SLOW, Severity::Risk, pci, current, max));
        }
    }
    findings
}

/// Name prefixes of software devices, and the modules that create them.
const SOFT: [(&str, &str); 2] = [("rxe", "rdma_rxe"), ("siw", "siw")];

fn no_card(context: &Context<'_>) -> Finding {
    let facts = context.facts;
    if facts.is_pod {
        let observed =
            said!("this is a pod without an RDMA device", "这是一个 Pod,其中没有 RDMA 设备");
        return Finding::new(no_resource(context), context.without_rdma(), observed);
    }
    if facts.modules.contains("erdma") {
        return seen!(ERDMA_UNBOUND, context.without_rdma());
    }
    let wanted = context.request.devices.first().map_or("", String::as_str);
    let soft = SOFT.iter().find(|(start, _)| wanted.starts_with(start));
    if let Some((_, module)) = soft.filter(|(_, module)| !facts.modules.contains(*module)) {
        let observed = said!(
            "{wanted} is the name of a device without a card, and the module {module} is not loaded",
            "{wanted} 是无需网卡的设备名,而模块 {module} 没有加载"
        );
        let finding = Finding::new(ids::MOD_MISSING, context.without_rdma(), observed);
        return finding.with("module", *module);
    }
    let interfaces: Vec<_> =
        facts.interfaces.iter().filter(|interface| interface.name != "lo").collect();
    let names: Vec<_> = interfaces.iter().map(|interface| interface.name.as_str()).collect();
    let all = names.join(", ");
    if context.variable("CI").is_some() && context.without_rdma() != Severity::Fatal {
        return seen!(ENV_NO_RDMA_CI, Severity::Info, all).preventing();
    }
    let mut connected = interfaces.iter().filter(|known| known.is_up && known.has_carrier);
    let first = connected.next().or(interfaces.first()).map_or("NETDEV", |known| &known.name);
    let device = if wanted.starts_with("rxe") { wanted } else { "rxe0" };
    seen!(HW_PCI_ABSENT, context.without_rdma(), all, device, netdev = first)
}

/// The reason why a pod has no device: it did not request one, or the node of its device was not
/// passed in.
fn no_resource(context: &Context<'_>) -> crate::Id {
    let annotations = &context.facts.annotations;
    let is_given =
        annotations.contains("koordinator.sh/device-allocated") && annotations.contains("rdma");
    if is_given { ids::KOORD_GATE } else { ids::K8S_NO_RESOURCE }
}

pub(super) fn modules(context: &mut Context<'_>) -> Vec<Finding> {
    let facts = context.facts;
    let missing = |name: &str| !facts.modules.contains(name);
    if !facts.devices.is_empty() {
        // A built-in module without parameters is not listed, but then it has created nodes.
        let has_nodes = facts.devices.iter().any(|device| !device.node.is_empty());
        if has_nodes || !missing("ib_uverbs") {
            return Vec::new();
        }
        let observed = said!(
            "the devices have no nodes for programs: ib_uverbs is not loaded",
            "有设备,但没有供程序使用的节点:ib_uverbs 没有加载"
        );
        let finding = Finding::new(ids::MOD_MISSING, context.without_rdma(), observed);
        return vec![finding.with("module", "ib_uverbs")];
    }
    let cards = facts.cards.iter().filter(|card| !card.is_gpu);
    let mut absent = cards.filter_map(|card| Some((card, card.module()?)));
    let Some((card, module)) = absent.find(|(_, module)| missing(module)) else {
        return Vec::new();
    };
    let said =
        context.outside.kernel_log().map(|log| explain(&log)).and_then(|explained| {
            explained.seen.into_iter().find(|seen| seen.id == ids::MOD_MISMATCH)
        });
    let (id, observed) = match said {
        Some(said) => (ids::MOD_MISMATCH, said.text.into()),
        None => {
            let driver = if card.driver.is_empty() { "-" } else { &card.driver };
            let text = said!(
                "{address} ({driver}): the module {module} is not loaded",
                "{address}({driver}):模块 {module} 没有加载",
                address = &card.address
            );
            (ids::MOD_MISSING, text)
        }
    };
    vec![Finding::new(id, context.without_rdma(), observed).with("module", module)]
}

/// The modules are loaded, but the cards have no RDMA devices.
pub(super) fn firmware(context: &mut Context<'_>) -> Vec<Finding> {
    let facts = context.facts;
    if !facts.devices.is_empty() {
        return Vec::new();
    }
    let cards = facts.cards.iter().filter(|card| !card.is_gpu && !card.has_rdma);
    let finding = |card: &crate::doctor::Card| {
        let id = match card.module() {
            Some("erdma") => ids::ERDMA_NETDEV_DOWN,
            _ => ids::FW_RDMA_OFF,
        };
        let interface = card.interfaces.first().map_or("NETDEV", String::as_str);
        let (pci, driver) = (&card.address, &card.driver);
        Finding::seen(
            id,
            context.without_rdma(),
            &[("pci", pci), ("driver", driver), ("netdev", &interface)],
        )
    };
    cards.map(finding).collect()
}

pub(super) fn names(context: &mut Context<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let facts = context.facts;
    let is_there = |name: &str| facts.devices.iter().any(|device| device.name == name);
    for name in context.request.devices.iter().filter(|name| !is_there(name)) {
        findings.push(unknown_name(context, name, "--device", context.without_rdma()));
    }
    // Other engines' lists of devices: `mlx5_0:1,mlx5_1`, with the prefix `=` or `^` for NCCL.
    for variable in ["NCCL_IB_HCA", "UCX_NET_DEVICES"] {
        let Some(value) = context.variable(variable) else { continue };
        if value.starts_with('^') || value == "all" {
            continue;
        }
        let names =
            value.trim_start_matches('=').split(',').filter_map(|name| name.split(':').next());
        let is_other = |name: &str| {
            facts.interfaces.iter().any(|interface| interface.name == name)
                || facts.devices.iter().any(|device| device.name.starts_with(name))
        };
        for name in names.filter(|name| !name.is_empty() && !is_other(name)) {
            findings.push(unknown_name(context, name, variable, Severity::Risk));
        }
    }
    if facts.has_koordlet {
        findings.extend(facts.devices.iter().filter_map(koordinator));
    }
    findings
}

fn unknown_name(context: &Context<'_>, name: &str, from: &str, severity: Severity) -> Finding {
    let devices = &context.facts.devices;
    let known: Vec<_> = devices.iter().map(|device| device.name.as_str()).collect();
    let (known, nearest) = (known.join(", "), nearest(name, devices).unwrap_or("DEVICE"));
    seen!(DEV_NAME, severity, from, name, known, nearest)
}

/// Returns the device with this network interface, a similar name, or the same number.
fn nearest<'a>(name: &str, devices: &'a [Device]) -> Option<&'a str> {
    const DISTANCE_MAX: usize = 2;
    let of_interface = |device: &&Device| device.ports.iter().any(|port| port.interface == name);
    let distance = |device: &Device| {
        strsim::damerau_levenshtein(&device.name.to_lowercase(), &name.to_lowercase())
    };
    let number =
        |text: &str| text.rsplit(|c: char| !c.is_ascii_digit()).next().unwrap_or("").to_owned();
    let near = devices.iter().filter(|device| distance(device) <= DISTANCE_MAX);
    let alike = devices
        .iter()
        .find(|device| !number(name).is_empty() && number(&device.name) == number(name));
    let found =
        devices.iter().find(of_interface).or_else(|| near.min_by_key(|device| distance(device)));
    found.or(alike).or(devices.first()).map(|device| device.name.as_str())
}

/// Checks the device as Koordinator's agent sees it.
fn koordinator(device: &Device) -> Option<Finding> {
    let is_known =
        device.name.strip_prefix("mlx").and_then(|rest| rest.split_once('_')).is_some_and(
            |(kind, number)| {
                let digits =
                    |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
                digits(kind) && digits(number)
            },
        );
    if !is_known {
        let finding = Finding::new(ids::KOORD_NAME, Severity::Degraded, device.name.clone());
        return Some(finding.of_device(&device.name).alone());
    }
    let down = device.ports.iter().find(|port| !port.is_active())?;
    device.ports.iter().find(|port| port.is_active())?;
    let observed = format!("{} port {}: {}", device.name, down.number, down.state);
    Some(
        Finding::new(ids::KOORD_HEALTH, Severity::Degraded, observed)
            .of_device(&device.name)
            .alone(),
    )
}

pub(super) fn kinds(context: &mut Context<'_>) -> Vec<Finding> {
    let finding = |device: &Device| {
        if device.refused.is_none() && !device.is_managed {
            return None;
        }
        let id = match device.profile.as_str() {
            "erdma-standard" => ids::ERDMA_STANDARD_MODE,
            "efa" => ids::EFA_NO_RC,
            _ => ids::IWARP_NO_OOB,
        };
        let places = device.ports.first().map_or(0, |port: &Port| port.places);
        let (name, why) = (&device.name, &device.recognised_by);
        let values: [(_, &dyn Display); 3] = [("device", name), ("why", why), ("places", &places)];
        if device.is_managed {
            // Its lanes go through the connection manager.
            return Some(Finding::seen(id, Severity::Risk, &values).of_device(name).alone());
        }
        Some(Finding::seen(id, context.without(name), &values).of_device(name))
    };
    context.devices().filter_map(finding).collect()
}

pub(super) fn nodes(context: &mut Context<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for device in context.devices().filter(|device| !device.node.is_empty()) {
        let path = format!("dev/infiniband/{}", device.node);
        let Err(code) = context.outside.open(&path) else { continue };
        let words = std::io::Error::from_raw_os_error(code);
        let id =
            if context.facts.is_pod && code == 2 { no_resource(context) } else { ids::DEV_NODE };
        let (major, minor) = device.node_numbers;
        let observed = format!("{}: /{path}: {words}", device.name);
        let finding = Finding::new(id, context.without(&device.name), observed);
        let finding = finding.of_device(&device.name).with("node", format!("/{path}"));
        findings.push(finding.with("major", major.to_string()).with("minor", minor.to_string()));
    }
    findings
}

pub(super) fn providers(context: &mut Context<'_>) -> Vec<Finding> {
    let Library::Devices(known) = &context.request.verbs_library else { return Vec::new() };
    let hidden = context.devices().filter(|device| !known.contains(&device.name));
    let finding = |device: &Device| {
        let listed = if known.is_empty() { "-".to_owned() } else { known.join(", ") };
        let name = &device.name;
        seen!(PROV_MISSING, context.without(name), device = name, listed).of_device(name)
    };
    hidden.map(finding).collect()
}

/// The library and the kernel's node by which queue pairs connect that do not connect out of band.
pub(super) fn connection_manager(context: &mut Context<'_>) -> Vec<Finding> {
    let managed: Vec<_> = context.devices().filter(|device| context.is_managed(device)).collect();
    if managed.is_empty() {
        return Vec::new();
    }
    let Err(why) = context.outside.connection_manager() else { return Vec::new() };
    // A device that connects out of band may take the place of the others.
    let is_other = |device: &Device| !context.is_managed(device) && is_usable(device);
    let severity = match context.devices().any(is_other) {
        true => Severity::Degraded,
        false => context.without_rdma(),
    };
    let finding = |device: &&Device| {
        let name = &device.name;
        let finding = seen!(CM_MISSING, severity, device = name, why).of_device(name);
        match &why {
            ManagerUnavailable::Library(_) => finding.cured_by(
                said!(
                    "Install librdmacm: librdmacm1 on Debian, part of rdma-core.",
                    "安装 librdmacm:Debian 上为 librdmacm1,属于 rdma-core。"
                ),
                "apt-get install -y librdmacm1".to_owned(),
            ),
            ManagerUnavailable::NoChannel { .. } => finding.cured_by(
                said!(
                    "Load rdma_ucm on the host, and pass /dev/infiniband/rdma_cm to the container.",
                    "在宿主机加载 rdma_ucm,并把 /dev/infiniband/rdma_cm 传入容器。"
                ),
                "modprobe rdma_ucm && ls -l /dev/infiniband/rdma_cm".to_owned(),
            ),
        }
    };
    managed.iter().map(finding).collect()
}
