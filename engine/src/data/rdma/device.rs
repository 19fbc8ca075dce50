//! Choice and opening of devices.

use super::watch::Watch;
use crate::data::transport::RdmaOptions;
use crate::error::{Cause, Error, Stage};
use crate::topology::{Location, Machine, Nics, PriorityMatrix};
use handfast_core::policy::RAILS_MAX;
use handfast_core::transport::{Side, TransportError};
use handfast_core::wire::REGION_LOCATION_BYTES_MAX;
use handfast_transport_rdma::{
    Connecting, Device, DeviceProfile, GidWanted, Identity, Nic, NicConfig, NicCounts, Port,
    VerbsError, availability, discover, gid_text, parse_gid, recognise, root,
};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

/// The outcome of opening devices.
pub(super) struct Opened {
    /// At least one.
    pub(super) nics: Vec<Nic>,
    /// The NIC distances, if there are several.
    pub(super) matrix: Option<PriorityMatrix>,
    /// Errors of the devices that cannot be used.
    pub(super) unusable: Vec<Error>,
    /// GUIDs of the NICs that have one of their own.
    pub(super) guids: BTreeMap<String, u64>,
}

/// Opens the requested devices, or all usable ones of the best kind. A device that cannot be used
/// is reported, and the others are used. Blocks for system calls.
pub(super) fn open(
    options: &RdmaOptions,
    listens_at: Option<IpAddr>,
    limits: (usize, u32),
    sink: &Arc<Watch>,
) -> Result<Opened, Error> {
    let known = availability()
        .map_err(|error| Error::local(Stage::Device, Cause::RdmaUnavailable(error)))?;
    check(options)?;
    check_names(options, &known)?;
    let listed = discover(&root()).unwrap_or_default();
    let open = |device: &String| {
        let profile = profile(&listed, device_of(device));
        Nic::open(config(device, profile, options, limits)?, sink.clone())
    };
    let (nics, failures) = if !options.devices.is_empty() {
        open_all(&options.devices, open)
    } else if let Some(address) = options.address {
        open_first(&ranked(known, &listed, options.port, Some(mapped(address))), open)
    } else {
        let ranked = ranked(known, &listed, options.port, listens_at.map(mapped));
        open_best(&groups(ranked, &listed, options.port), open)
    };
    if nics.is_empty() {
        return Err(none_works(failures));
    }
    let unusable: Vec<_> = failures.into_iter().map(of_device).collect();
    for error in &unusable {
        tracing::warn!(%error, "an RDMA device is not used");
    }
    let names: Vec<String> = nics.iter().map(|nic| nic.device().to_owned()).collect();
    let matrix = (nics.len() > 1).then(|| matrix(options, &names));
    let guids = names.into_iter();
    let guids = guids.filter_map(|name| Some((own_guid(&listed, device_of(&name))?, name)));
    let guids = guids.map(|(guid, name)| (name, guid)).collect();
    Ok(Opened { nics, matrix, unusable, guids })
}

/// Opens a lost device again, as it is found now: by its GUID, which it has under every name, else
/// by its name. Returns its present GUID too.
pub(super) fn reopen(
    (device, guids): (&str, &BTreeMap<String, u64>),
    options: &RdmaOptions,
    limits: (usize, u32),
    sink: &Arc<Watch>,
    counts: &NicCounts,
) -> Result<(Nic, Option<u64>), VerbsError> {
    let listed = discover(&root()).unwrap_or_default();
    let Some(name) = present_name(&listed, device, guids) else {
        let detail = "absent: its name is that of another device of this engine now".to_owned();
        return Err(failure(device, Side::Local, detail));
    };
    let renamed = (name != device).then(|| name.to_owned());
    if name != device_of(device) {
        tracing::info!(device, name, "the RDMA device has another name now");
    }
    let config = config(device, profile(&listed, name), options, limits)?;
    let guid = own_guid(&listed, name);
    let nic = Nic::open_again(NicConfig { renamed, ..config }, sink.clone(), counts)?;
    Ok((nic, guid))
}

/// The device and the port of a name such as `mlx5_0:2`; without a port in it, `port`.
fn on_port(name: &str, port: u8) -> (&str, u8) {
    let split = name.rsplit_once(':');
    let named = split.and_then(|(device, port)| Some((device, port.parse().ok()?)));
    named.filter(|(_, port)| *port > 0).unwrap_or((name, port))
}

/// The name of a device without a port.
fn device_of(name: &str) -> &str {
    on_port(name, 0).0
}

/// A failure to open a device again.
pub(super) fn failure(device: &str, side: Side, detail: String) -> VerbsError {
    VerbsError { side, call: "reopen", code: 0, device: device.to_owned(), detail, limit: None }
}

/// The GUID of a device, unless others have it too, as software devices over one interface do.
fn own_guid(listed: &[Device], name: &str) -> Option<u64> {
    let guid = listed.iter().find(|known| known.name == name)?.guid?;
    let count = listed.iter().filter(|known| known.guid == Some(guid)).count();
    (count == 1).then_some(guid)
}

/// The present name of a device, without a port: that of its GUID, unless several devices have it, else
/// its own name. `None` if another one of the known devices has that name now.
fn present_name<'a>(
    listed: &'a [Device],
    device: &'a str,
    guids: &BTreeMap<String, u64>,
) -> Option<&'a str> {
    let guid = guids.get(device).copied();
    let mut of_guid = listed.iter().filter(|known| guid.is_some() && known.guid == guid);
    match (of_guid.next(), of_guid.next()) {
        (Some(found), None) => Some(&found.name),
        _ => {
            let name = device_of(device);
            let has_name = own_guid(listed, name).filter(|found| Some(*found) != guid);
            let is_known = |found| guids.values().any(|known| *known == found);
            (!has_name.is_some_and(is_known)).then_some(name)
        }
    }
}

/// Opens each device.
fn open_all<T>(
    devices: &[String],
    open: impl Fn(&String) -> Result<T, VerbsError>,
) -> (Vec<T>, Vec<VerbsError>) {
    let (mut opened, mut failures) = (Vec::new(), Vec::new());
    for device in devices {
        match open(device) {
            Ok(nic) => opened.push(nic),
            Err(error) => failures.push(error),
        }
    }
    (opened, failures)
}

/// Opens the first device that works, for an option that fits a single one: the failures of the
/// others are expected.
fn open_first<T>(
    devices: &[String],
    open: impl Fn(&String) -> Result<T, VerbsError>,
) -> (Vec<T>, Vec<VerbsError>) {
    let mut failures = Vec::new();
    for device in devices {
        match open(device) {
            Ok(nic) => return (vec![nic], Vec::new()),
            Err(error) => {
                tracing::debug!(%error, "an RDMA device cannot be used");
                failures.push(error);
            }
        }
    }
    (Vec::new(), failures)
}

/// Opens the devices of the first group with one that works.
fn open_best<T>(
    groups: &[Vec<String>],
    open: impl Fn(&String) -> Result<T, VerbsError>,
) -> (Vec<T>, Vec<VerbsError>) {
    let mut failures = Vec::new();
    for group in groups {
        let (opened, failed) = open_all(group, &open);
        failures.extend(failed);
        if !opened.is_empty() {
            return (opened, failures);
        }
    }
    (Vec::new(), failures)
}

/// The configured or discovered matrix, restricted to the devices in use.
fn matrix(options: &RdmaOptions, devices: &[String]) -> PriorityMatrix {
    let found = || match Machine::discover(&root()) {
        Ok(machine) => machine.numbered("cuda", &cuda_devices()).matrix(),
        Err(error) => {
            tracing::warn!(%error, "all devices are taken to be equally near");
            PriorityMatrix::default()
        }
    };
    with_ports(&options.matrix.clone().unwrap_or_else(found), devices).of_nics(devices)
}

/// Adds the named ports of each device of a location that has none of them: they are as near.
fn with_ports(matrix: &PriorityMatrix, names: &[String]) -> PriorityMatrix {
    let row = |(location, nics): (&str, &Nics)| {
        let listed = |name: &String| nics.preferred.contains(name) || nics.available.contains(name);
        let ports = |device: &String| -> Vec<String> {
            let its = names.iter().filter(|name| !listed(name) && device_of(name) == device);
            std::iter::once(device).chain(its).cloned().collect()
        };
        let preferred = nics.preferred.iter().flat_map(ports).collect();
        let available = nics.available.iter().flat_map(ports).collect();
        (location.to_owned(), Nics { preferred, available })
    };
    matrix.locations().map(row).collect()
}

/// The PCI addresses of the CUDA devices of this process, by their numbers; none before CUDA has started.
fn cuda_devices() -> Vec<String> {
    let driver = handfast_memory_cuda::Driver::loaded().ok().flatten();
    driver.map(|driver| driver.pci_addresses()).unwrap_or_default()
}

/// Checks that the options name devices of this machine.
fn check_names(options: &RdmaOptions, known: &[String]) -> Result<(), Error> {
    let is_known = |name: &String| known.iter().any(|known| *known == device_of(name));
    if let Some(missing) = options.devices.iter().find(|name| !is_known(name)) {
        return Err(of_device(VerbsError {
            side: Side::Configuration,
            call: "ibv_get_device_list",
            code: 0,
            device: missing.clone(),
            detail: format!("there is no such device; there are: {}", known.join(", ")),
            limit: None,
        }));
    }
    for (location, nics) in options.matrix.iter().flat_map(PriorityMatrix::locations) {
        let mut named = nics.preferred.iter().chain(&nics.available);
        if let Some(missing) = named.find(|name| !is_known(name)) {
            let text = format!(
                "the NIC priority matrix names '{missing}' for {location}, and this machine has no \
                 such device; it has: {}; `handfast topology --matrix` prints its matrix",
                known.join(", ")
            );
            return Err(Error::local(Stage::Configuration, Cause::Invalid(text)));
        }
    }
    Ok(())
}

/// Checks the options that need no device.
fn check(options: &RdmaOptions) -> Result<(), Error> {
    let invalid = |text| Err(Error::local(Stage::Configuration, Cause::Invalid(text)));
    let devices = &options.devices;
    if devices.len() > RAILS_MAX {
        return invalid(format!("at most {RAILS_MAX} devices can be used, not {}", devices.len()));
    }
    if devices.len() > 1 && options.address.is_some() {
        return invalid("an address belongs to one device, and several are named".into());
    }
    for (location, _) in options.matrix.iter().flat_map(PriorityMatrix::locations) {
        let known = location.parse::<Location>().map_err(|error| error.to_string());
        if let Err(text) = known.and_then(|_| check_place(location)) {
            return invalid(format!("the NIC priority matrix: {text}"));
        }
    }
    let twice = |(at, name): (usize, &String)| {
        let is_it = |other: &String| on_port(other, options.port) == on_port(name, options.port);
        devices[..at].iter().any(is_it)
    };
    if devices.iter().enumerate().any(twice) {
        return invalid("a device is named twice, with the same port".into());
    }
    Ok(())
}

/// Checks that a location can be announced to peers.
fn check_place(location: &str) -> Result<(), String> {
    match location.len() {
        ..=REGION_LOCATION_BYTES_MAX => Ok(()),
        _ => Err(format!("a location has more than {REGION_LOCATION_BYTES_MAX} bytes")),
    }
}

/// The profile of a device; `strict` for one that the kernel does not list.
fn profile(listed: &[Device], name: &str) -> &'static DeviceProfile {
    let device = listed.iter().find(|device| device.name == name);
    device.map_or_else(|| recognise(&Identity::default()), Device::recognise).profile
}

/// Refuses the timers of RoCE on a device of iWARP.
fn check_timers(
    device: &str,
    profile: &DeviceProfile,
    options: &RdmaOptions,
) -> Result<(), VerbsError> {
    let has_timers = !matches!(profile.connecting, Connecting::Manager(_));
    let chosen = [
        options.timeout_exponent.map(|_| "timeout_exponent (--ack-timeout)"),
        options.retries.map(|_| "retries (--retry-count)"),
    ];
    let chosen: Vec<_> = chosen.into_iter().flatten().collect();
    if has_timers || chosen.is_empty() {
        return Ok(());
    }
    let detail = format!(
        "on an iWARP device ({}) TCP retransmits, which has no such timers: leave out {}, or name \
         another device",
        profile.name,
        chosen.join(" and ")
    );
    let device = device.to_owned();
    let (side, call) = (Side::Configuration, "open");
    Err(VerbsError { side, call, code: 0, device, detail, limit: None })
}

/// The configuration of a device: the options, and the defaults of its profile.
///
/// # Errors
/// An option that the device does not have.
fn config(
    device: &str,
    profile: &DeviceProfile,
    options: &RdmaOptions,
    (lanes_max, lane_depth): (usize, u32),
) -> Result<NicConfig, VerbsError> {
    check_timers(device, profile, options)?;
    let index = options.gid_index.map_or(GidWanted::Automatic, GidWanted::Index);
    let default = NicConfig::of_profile(device, profile);
    let (name, port) = on_port(device, options.port);
    let is_managed = matches!(profile.connecting, Connecting::Manager(_));
    let named = options.address.filter(|_| !is_managed);
    Ok(NicConfig {
        renamed: (name != device).then(|| name.to_owned()),
        port,
        // The only GID of an iWARP device is its MAC address.
        gid: named.map_or(index, |address| GidWanted::Address(mapped(address))),
        connection_manager: options.connection_manager,
        manager_address: options.address,
        manager_port: options.connection_manager_port,
        partition_key: options.partition_key,
        mtu_max: options.mtu_bytes_max,
        traffic_class: options.traffic_class,
        service_level: options.service_level,
        lanes_max,
        depth: lane_depth,
        timeout_exponent: options.timeout_exponent.unwrap_or(default.timeout_exponent),
        retries: options.retries.unwrap_or(default.retries),
        polling: options.polling.unwrap_or(default.polling),
        pollers: options.pollers,
        queue_pairs_per_lane: options.queue_pairs.unwrap_or(default.queue_pairs_per_lane),
        places_thread: options.places_threads,
        pooled_lanes: options.pooled_lanes,
        trust_groups: options.trust_groups.count(),
        ..default
    })
}

/// The error of a node without a usable device: that of the first, and the words of the others.
fn none_works(failures: Vec<VerbsError>) -> Error {
    let mut failures = failures.into_iter();
    let Some(first) = failures.next() else { return failed("there is no device".to_owned()) };
    let detail = failures.fold(first.detail.clone(), |text, next| format!("{text}; {next}"));
    of_device(VerbsError { detail, ..first })
}

/// Converts a device's error to an engine error.
pub(super) fn of_device(error: VerbsError) -> Error {
    Error::new(error.side, Stage::Device, TransportError::from(error))
}

pub(super) fn failed(detail: String) -> Error {
    Error::local(Stage::Device, TransportError::new(Side::Local, "open", detail))
}

/// Rank of a device; the least is the best.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    is_refused: bool,
    is_down: bool,
    is_software: bool,
    lacks_address: bool,
}

/// Sorts devices: those that can have lanes first, then those with an active port, hardware, and
/// the one with the address.
fn ranked(
    mut names: Vec<String>,
    listed: &[Device],
    port: u8,
    address: Option<Ipv6Addr>,
) -> Vec<String> {
    let wanted = address.map(gid_text);
    let rank = |name: &String| {
        let device = listed.iter().find(|device| device.name == *name);
        let port = device.and_then(|device| used_port(device, port));
        let has_address = port.is_some_and(|port| {
            let texts = port.gids.iter().map(|gid| kernel_text(&gid.text));
            wanted.is_some() && texts.into_iter().any(|text| text == wanted)
        });
        Rank {
            is_refused: device.is_some_and(is_refused),
            is_down: !port.is_some_and(Port::is_active),
            is_software: device.is_some_and(is_software),
            lacks_address: !has_address,
        }
    };
    names.sort_by_cached_key(rank);
    names
}

/// Groups ranked devices that can be used together, at most [`RAILS_MAX`] of each kind: bytes are
/// striped over all of a group, so hardware does not wait for software, nor InfiniBand for
/// Ethernet, and a peer connects to all of them in the same way.
fn groups(ranked: Vec<String>, listed: &[Device], port: u8) -> Vec<Vec<String>> {
    let kind = |name: &String| {
        let device = listed.iter().find(|device| device.name == *name)?;
        let link_layer = used_port(device, port).map(|port| port.link_layer.clone());
        Some((connecting(device), is_software(device), link_layer))
    };
    let mut groups: Vec<Vec<String>> = Vec::new();
    for name in ranked {
        let alike = groups.iter_mut().find(|group| kind(&group[0]) == kind(&name));
        match alike {
            Some(group) if group.len() >= RAILS_MAX => {
                tracing::info!(device = name, "not used: {RAILS_MAX} devices are in use");
            }
            Some(group) => group.push(name),
            None => groups.push(vec![name]),
        }
    }
    groups
}

fn used_port(device: &Device, port: u8) -> Option<&Port> {
    device.ports.iter().find(|known| known.number == u32::from(port))
}

fn is_refused(device: &Device) -> bool {
    matches!(connecting(device), Connecting::Never(_))
}

fn connecting(device: &Device) -> Connecting {
    device.recognise().profile.connecting
}

fn is_software(device: &Device) -> bool {
    !device.identity.parent.is_empty()
}

/// Converts a GID from the kernel's text form, eight groups of four digits, to that of messages.
fn kernel_text(text: &str) -> Option<String> {
    text.parse::<Ipv6Addr>().ok().map(gid_text).or_else(|| parse_gid(text).ok().map(gid_text))
}

fn mapped(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

#[cfg(test)]
mod tests;
