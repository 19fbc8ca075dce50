//! Ports, addresses and MTU of devices.

use crate::doctor::facts::Gid;
use crate::doctor::finding::seen;
use crate::doctor::observed::said;
use crate::doctor::{Context, Device, Finding, Observed, Port};
use crate::ids;
use crate::language::Language;
use crate::problem::Severity;
use std::net::IpAddr;

pub(super) fn ports(context: &mut Context<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (device, port) in context.ports() {
        findings.extend(not_active(context, device, port));
        if port.is_active() && port.is_infiniband() && port.partition & 0x8000 == 0 {
            let (severity, key) =
                (context.without(&device.name), format!("{:#06x}", port.partition));
            let finding = seen!(IB_PKEY, severity, device = device.name, port = port.number, key);
            findings.push(finding.of_device(&device.name));
        }
        if port.errors > 0 {
            let (name, number) = (&device.name, port.number);
            let (risk, errors) = (Severity::Risk, port.errors);
            let finding = seen!(LINK_ERRORS, risk, device = name, port = number, errors);
            findings.push(finding.of_device(name));
        }
    }
    findings.extend(wrong_number(context));
    let layers = |infiniband: bool| {
        let of_layer = context.ports().filter(|(_, port)| port.is_infiniband() == infiniband);
        of_layer.map(|(device, _)| device.name.as_str()).collect::<Vec<_>>().join(", ")
    };
    let (infiniband, ethernet) = (layers(true), layers(false));
    if !infiniband.is_empty() && !ethernet.is_empty() {
        let observed = format!("InfiniBand: {infiniband}; Ethernet: {ethernet}");
        findings.push(Finding::new(ids::LINK_LAYER, Severity::Risk, observed));
    }
    findings
}

/// Ports of RDMA devices are counted from 1; a TCP port in this place is a misunderstanding.
fn wrong_number(context: &Context<'_>) -> Option<Finding> {
    let value = context.variable("MC_IB_PORT")?;
    let number = value.parse::<u32>().unwrap_or(0);
    let lacks = |device: &&Device| device.ports.iter().all(|port| port.number != number);
    let device = context.devices().find(lacks)?;
    let (name, last) = (&device.name, device.ports.len());
    let finding = seen!(PORT_NUMBER, Severity::Risk, value, device = name, last);
    Some(finding.of_device(name))
}

fn not_active(context: &Context<'_>, device: &Device, port: &Port) -> Option<Finding> {
    let has_no_lid = port.is_infiniband() && port.lid == 0;
    if port.is_active() && !has_no_lid {
        return None;
    }
    let others = context.facts.devices.iter().filter(|other| other.name != device.name);
    let active = others.filter(|other| other.ports.first().is_some_and(Port::is_active));
    let active = active.map(|other| other.name.as_str()).collect::<Vec<_>>().join(", ");
    let interface = context.facts.interface(&port.interface);
    let state = |language: Language| {
        let Some(interface) = interface else { return String::new() };
        let (name, up, carrier) = (&interface.name, interface.is_up, interface.has_carrier);
        let up = if up {
            language.pick("up", "已启用")
        } else {
            language.pick("set down", "已停用")
        };
        let carrier = if carrier { "" } else { language.pick(", no carrier", ",无载波") };
        format!("{}{name}{}{up}{carrier}", language.pick(", ", ","), language.pick(" is ", " "))
    };
    let (name, number) = (&device.name, port.number);
    let (english, chinese) = (state(Language::English), state(Language::Chinese));
    let observed = Observed::new(
        format!(
            "{name} port {number}: {} ({}){english}; active: {}",
            port.state,
            port.physical,
            if active.is_empty() { "no other" } else { &active },
        ),
        format!(
            "{name} 端口 {number}:{}({}){chinese};可用的有:{}",
            port.state,
            port.physical,
            if active.is_empty() { "没有其他" } else { &active },
        ),
    );
    let waits_for_manager =
        port.is_infiniband() && (port.state == "INIT" || port.physical == "LinkUp");
    let id = if waits_for_manager { ids::IB_NO_SM } else { ids::PORT_DOWN };
    let netdev = if port.interface.is_empty() { "NETDEV" } else { &port.interface };
    let finding = Finding::new(id, context.without(&device.name), observed);
    Some(finding.of_device(&device.name).with("netdev", netdev))
}

pub(super) fn gids(context: &mut Context<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    // The connection manager takes the addresses of the network interface.
    let needs_gid = |(device, port): &(&Device, &Port)| !port.is_infiniband() && !device.is_managed;
    for (device, port) in context.ports().filter(needs_gid) {
        findings.extend(no_address(context, device, port));
    }
    for (device, port) in context.ports().filter(|(device, _)| device.is_managed) {
        findings.extend(nowhere_to_listen(context, device, port));
    }
    if let Some(wanted) = context.request.gid
        && findings.is_empty()
        && !context.devices().any(|device| has(device, wanted))
    {
        let all: Vec<_> = context.devices().map(choices).collect();
        let observed = said!(
            "--gid {wanted} is on no device; there are: {all}",
            "没有设备具有 --gid {wanted};现有:{all}",
            all = all.join("; ")
        );
        findings.push(Finding::new(ids::GID_ZERO, context.without_rdma(), observed));
    }
    findings.extend(fixed_indexes(context));
    findings
}

/// Whether the first port of a device has an address; of one that connects through the connection manager
/// alone the interface has it. An unknown one may.
fn has(device: &Device, wanted: IpAddr) -> bool {
    let Some(port) = device.ports.first() else { return false };
    if device.is_managed {
        return port.addresses.as_ref().is_none_or(|addresses| addresses.contains(&wanted));
    }
    port.gids.iter().any(|gid| gid.ip() == wanted && gid.is_usable())
}

/// Reports a device that connects through the connection manager alone and has no address to listen at.
fn nowhere_to_listen(context: &Context<'_>, device: &Device, port: &Port) -> Option<Finding> {
    port.addresses.as_ref().filter(|addresses| addresses.is_empty())?;
    let (name, netdev) = (&device.name, &port.interface);
    let observed = said!(
        "{name} connects through the connection manager, and {netdev} has no address at which it could listen",
        "{name} 经连接管理器建立连接,而 {netdev} 没有可供监听的地址"
    );
    let finding = Finding::new(ids::IP_MISSING, context.without(name), observed).of_device(name);
    Some(finding.with("netdev", &**netdev).with("address", "ADDRESS/PREFIX"))
}

/// The addresses of a device that `--gid` may name.
fn choices(device: &Device) -> String {
    let addresses = device.ports.first().and_then(|port| port.addresses.as_ref());
    let Some(addresses) = addresses.filter(|_| device.is_managed) else { return table(device) };
    let addresses: Vec<_> = addresses.iter().map(IpAddr::to_string).collect();
    format!("{}: {}", device.name, addresses.join(", "))
}

fn table(device: &Device) -> String {
    let gids = device.ports.first().into_iter().flat_map(|port| &port.gids);
    let entries: Vec<_> =
        gids.map(|gid| format!("{} {} {}", gid.index, gid.ip(), gid.kind)).collect();
    let entries = if entries.is_empty() { "-".to_owned() } else { entries.join(", ") };
    format!("{}: {entries}", device.name)
}

/// The reason why a RoCE port cannot be reached, or only from its own network.
fn no_address(context: &Context<'_>, device: &Device, port: &Port) -> Option<Finding> {
    let usable = || port.gids.iter().filter(|gid| gid.is_usable());
    if usable().any(|gid| !gid.is_link_local()) && !only_ipv6_on_erdma(device, port) {
        return None;
    }
    let known = context.facts.interface(&port.interface).is_some();
    let severity = context.without(&device.name);
    let (id, severity) = if only_ipv6_on_erdma(device, port) {
        (ids::ERDMA_COMPAT_GID, severity)
    } else if usable().next().is_some() {
        // Lanes within one network work.
        (ids::IP_MISSING, Severity::Degraded)
    } else if !port.gids.is_empty() && port.gids.iter().all(|gid| gid.kind.contains("v1")) {
        (ids::GID_TYPE, severity)
    } else if context.facts.is_pod && !known {
        (ids::K8S_NETNS, severity)
    } else {
        (ids::GID_ZERO, severity)
    };
    let netdev = if port.interface.is_empty() { "NETDEV" } else { &port.interface };
    let finding = Finding::new(id, severity, format!("{} ({netdev})", table(device)));
    Some(finding.of_device(&device.name).with("netdev", netdev).with("address", "ADDRESS/PREFIX"))
}

fn only_ipv6_on_erdma(device: &Device, port: &Port) -> bool {
    let has_ipv4 = port.gids.iter().any(|gid| gid.is_usable() && gid.ip().is_ipv4());
    device.profile == "erdma-compat" && !has_ipv4
}

/// GID indexes configured for other engines.
fn fixed_indexes(context: &Context<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for variable in ["MC_GID_INDEX", "NCCL_IB_GID_INDEX", "UCX_IB_GID_INDEX"] {
        let Some(index) = context.variable(variable).and_then(|value| value.parse::<u32>().ok())
        else {
            continue;
        };
        for (device, port) in context.ports().filter(|(_, port)| !port.gids.is_empty()) {
            let entry = port.gids.iter().find(|gid| gid.index == index);
            let id = match entry {
                None => ids::GID_INDEX_RANGE,
                Some(gid) if gid.kind.contains("v1") => ids::GID_TYPE,
                Some(gid) if gid.is_link_local() => ids::GID_LINKLOCAL,
                Some(_) => continue,
            };
            let observed = format!("{variable}={index}; {}", table(device));
            let finding = Finding::new(id, Severity::Risk, observed);
            findings.push(finding.of_device(&device.name).with("variable", variable));
        }
    }
    findings
}

pub(super) fn mtu(context: &mut Context<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let ports = || context.ports().filter(|(_, port)| port.mtu > 0);
    let fixed = context.variable("MC_MTU").and_then(|value| value.parse::<u32>().ok());
    for (device, port) in ports() {
        if let Some(fixed) = fixed.filter(|fixed| *fixed > port.mtu) {
            let (name, mtu, netdev) = (&device.name, port.mtu, &port.interface);
            let risk = Severity::Risk;
            let finding = seen!(MTU_OVER_ACTIVE, risk, fixed, device = name, mtu, netdev);
            findings.push(finding.of_device(name));
        }
    }
    let of = |name: &str| context.facts.interface(name).map_or(0, |known| known.mtu);
    let largest = ports().map(|(_, port)| of(&port.interface)).max().unwrap_or(0);
    let smaller = ports().find(|(_, port)| of(&port.interface) < largest);
    if let Some((_, small)) = smaller {
        let all: Vec<_> = ports()
            .map(|(device, port)| {
                format!("{} ({}) {}", port.interface, device.name, of(&port.interface))
            })
            .collect();
        let finding = Finding::new(ids::MTU_MISMATCH, Severity::Risk, all.join(", "));
        findings.push(finding.with("netdev", &*small.interface).with("mtu", largest.to_string()));
    }
    findings
}

/// The addresses of a device that peers in other networks can reach.
pub(super) fn reachable(device: &Device) -> Vec<&Gid> {
    let gids =
        device.ports.iter().take(1).filter(|port| port.is_active()).flat_map(|port| &port.gids);
    gids.filter(|gid| gid.is_usable() && !gid.is_link_local()).collect()
}
