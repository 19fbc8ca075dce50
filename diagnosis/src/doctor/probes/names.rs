//! The advertised name, and the listening port.

use crate::doctor::facts::{Tree, owner};
use crate::doctor::finding::seen;
use crate::doctor::observed::said;
use crate::doctor::{Context, Finding};
use crate::ids;
use crate::problem::Severity;
use handfast_core::address::{AddressError, PORTS_OF_ERDMA, host_and_port, with_port};
use libc::{EACCES, EADDRINUSE, EADDRNOTAVAIL};
use std::net::{IpAddr, SocketAddr};

/// Reports an invalid host or port.
pub(super) fn no_place(error: &AddressError) -> Finding {
    let observed = match error {
        AddressError::Port { text, port } => said!(
            "'{text}': '{port}' is not a port, a number from 0 to 65535",
            "“{text}”:“{port}”不是端口,端口是 0 到 65535 的数字"
        ),
        AddressError::Host(text) => said!(
            "'{text}' is not HOST or HOST:PORT; write IPv6 addresses before a port in brackets",
            "“{text}”不是 HOST 或 HOST:PORT;端口前的 IPv6 地址要加方括号"
        ),
        AddressError::NoPort(text) => {
            said!("'{text}' has no port; write HOST:PORT", "“{text}”没有端口:HOST:PORT")
        }
    };
    Finding::new(ids::CONFIG_INVALID, Severity::Fatal, observed)
}

/// Returns the addresses of a host: its own if it is an address, else those that it resolves to.
pub(super) fn addresses_of(context: &Context<'_>, host: &str) -> Result<Vec<IpAddr>, String> {
    match host.parse() {
        Ok(address) => Ok(vec![address]),
        Err(_) => context.outside.resolve(host),
    }
}

/// Returns an address of this host that peers can reach, preferably one of an RDMA device.
fn proposal(context: &Context<'_>) -> Option<IpAddr> {
    let gids =
        context.facts.devices.iter().flat_map(super::addresses::reachable).map(|gid| gid.ip());
    let own = gids.chain(context.facts.addresses.iter().copied());
    let is_link_local = |ip: &IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    own.into_iter().find(|ip| !ip.is_loopback() && !ip.is_unspecified() && !is_link_local(ip))
}

pub(super) fn name(context: &mut Context<'_>) -> Vec<Finding> {
    let request = context.request;
    let listen = request.listen.as_deref().map(with_port).transpose();
    let advertise = request.advertise.as_deref().map(host_and_port).transpose();
    let (listen, advertise) = match (listen, advertise) {
        (Ok(listen), Ok(advertise)) => (listen, advertise),
        (Err(error), _) | (_, Err(error)) => return vec![no_place(&error)],
    };
    let mut findings = Vec::new();
    let told = advertise.or(listen.map(|(host, port)| (host, Some(port))));
    if let Some((host, port)) = told {
        let port = port.or(listen.map(|(_, port)| port)).unwrap_or(7411);
        let severity = match (advertise, listen) {
            // A node that listens on loopback serves only this machine.
            (None, Some((host, _))) if is_loopback(host) => Severity::Info,
            _ => Severity::Fatal,
        };
        findings.extend(reachable_by_peers(context, host, port, severity));
    }
    if let Some((host, port)) = listen.filter(|_| findings.iter().all(|finding| !finding.prevents))
    {
        findings.extend(is_ours(context, host, port));
    }
    findings
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn reachable_by_peers(
    context: &Context<'_>,
    host: &str,
    port: u16,
    severity: Severity,
) -> Vec<Finding> {
    let proposed = proposal(context).map_or("ADDRESS".to_owned(), |ip| ip.to_string());
    let filled = |finding: Finding| {
        finding
            .with("address", format!("{proposed}:{port}"))
            .with("host", &*proposed)
            .with("name", host)
    };
    let is_any = host.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified());
    if is_loopback(host) || is_any {
        let observed = said!("the advertised host is {host}", "告知对端的是 {host}");
        return vec![filled(Finding::new(ids::NET_LOOPBACK, severity, observed))];
    }
    match addresses_of(context, host) {
        Err(error) => {
            let observed = format!("{host}: {error}");
            vec![filled(Finding::new(ids::NET_UNRESOLVED, Severity::Fatal, observed))]
        }
        Ok(found) if found.iter().all(IpAddr::is_loopback) => {
            let (fatal, found) = (Severity::Fatal, words(&found));
            vec![seen!(NET_RESOLVES_LOOPBACK, fatal, name = host, found, address = proposed)]
        }
        Ok(found) if found.len() > 1 => {
            let observed = format!("{host} = {}", words(&found));
            vec![filled(Finding::new(ids::NET_MULTI, Severity::Risk, observed))]
        }
        Ok(_) => Vec::new(),
    }
}

fn words(addresses: &[IpAddr]) -> String {
    addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ")
}

fn is_ours(context: &Context<'_>, host: &str, port: u16) -> Option<Finding> {
    let found = addresses_of(context, host).ok()?;
    let own = &context.facts.addresses;
    let is_own = |ip: &IpAddr| ip.is_unspecified() || ip.is_loopback() || own.contains(ip);
    if found.iter().any(is_own) {
        return None;
    }
    let observed = said!(
        "{found} is not one of {own}",
        "{found} 不在 {own} 之中",
        found = words(&found),
        own = words(own)
    );
    let proposed =
        proposal(context).map_or("ADDRESS".to_owned(), |ip| SocketAddr::new(ip, port).to_string());
    let finding = Finding::new(ids::NET_NOT_LOCAL, Severity::Fatal, observed);
    Some(finding.with("address", proposed).with("advertise", host))
}

pub(super) fn listen(context: &mut Context<'_>) -> Vec<Finding> {
    let Some(Ok((host, port))) = context.request.listen.as_deref().map(with_port) else {
        return Vec::new();
    };
    let Some(ip) = addresses_of(context, host).ok().and_then(|found| found.first().copied()) else {
        return Vec::new();
    };
    let address = SocketAddr::new(ip, port);
    let Err(code) = context.outside.bind(address) else {
        // The driver takes it with the next start in compat mode.
        let severity = is_reserved(context, port).then_some(Severity::Risk);
        return severity.map(|severity| reserved(address, severity)).into_iter().collect();
    };
    vec![match code {
        EADDRINUSE => in_use(context, address),
        EADDRNOTAVAIL => {
            let observed = said!(
                "{address} is not an address of this network namespace",
                "{address} 不是此网络命名空间的地址"
            );
            Finding::new(ids::NET_NOT_LOCAL, Severity::Fatal, observed).with("advertise", host)
        }
        EACCES => {
            let observed = said!(
                "{address}: this user may not listen on ports below 1024",
                "{address}:当前用户不能监听 1024 以下的端口"
            );
            Finding::new(ids::CONFIG_INVALID, Severity::Fatal, observed)
        }
        code => {
            let words = std::io::Error::from_raw_os_error(code);
            Finding::new(ids::PORT_IN_USE, Severity::Fatal, format!("{address}: {words}"))
        }
    }]
}

/// Whether a port is one that the driver erdma holds in compat mode, and the driver is loaded.
fn is_reserved(context: &Context<'_>, port: u16) -> bool {
    PORTS_OF_ERDMA.contains(&port) && context.facts.modules.contains("erdma")
}

fn reserved(address: SocketAddr, severity: Severity) -> Finding {
    let other = past_reserved(address);
    seen!(PORT_RESERVED_ERDMA, severity, address, other)
}

/// The address with a port past those of a driver that holds 16.
fn past_reserved(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), address.port().wrapping_add(16).max(1_024))
}

fn in_use(context: &Context<'_>, address: SocketAddr) -> Finding {
    let facts = context.facts;
    let holds = |listener: &&crate::doctor::Listener| {
        let (ip, port) = (listener.address.ip(), listener.address.port());
        port == address.port()
            && (ip == address.ip() || ip.is_unspecified() || address.ip().is_unspecified())
    };
    let holder = facts.listeners.iter().find(holds);
    let Some(holder) = holder else {
        if is_reserved(context, address.port()) {
            return reserved(address, Severity::Fatal);
        }
        let observed = said!(
            "{address}: no listener is visible; a connection may hold it",
            "{address}:看不到监听者,可能被某个连接占用"
        );
        return Finding::new(ids::PORT_IN_USE, Severity::Fatal, observed);
    };
    let owner = owner(&Tree(&context.request.root), holder.inode);
    let address = holder.address;
    let (pid, observed) = match &owner {
        Some((pid, name)) => {
            let observed = said!(
                "{name}, process {pid}, listens on {address}",
                "{address} 由 {name}(进程 {pid})监听"
            );
            (pid.to_string(), observed)
        }
        None => {
            let observed =
                said!("an invisible process listens on {address}", "{address} 由看不到的进程监听");
            ("PID".to_owned(), observed)
        }
    };
    Finding::new(ids::PORT_IN_USE, Severity::Fatal, observed).with("pid", pid)
}
