//! Choice and opening of devices.

use super::watch::Watch;
use crate::data::transport::RdmaOptions;
use crate::error::{Cause, Error, Stage};
use crate::topology::{Location, Machine, PriorityMatrix};
use handfast_core::policy::RAILS_MAX;
use handfast_core::transport::{Side, TransportError};
use handfast_core::wire::REGION_LOCATION_BYTES_MAX;
use handfast_transport_rdma::{
    GidWanted, Nic, NicConfig, VerbsError, availability, discover, gid_text, parse_gid,
};
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;
use std::sync::Arc;

/// Exponent of the ACK timeout: 4.096 µs × 2^16 = 268 ms. With the retries a device detects an
/// unresponsive peer after 1.3 s, or later if it stretches the timeout. With 67 ms
/// a slow device aborted reads that were still arriving, and some kernels reported such a read
/// as successful (docs/hardware.md).
const TIMEOUT_EXPONENT: u8 = 16;
const RETRIES: u8 = 4;

/// Opens the requested devices, or the best available; at least one. Returns the NIC distances too,
/// if there are several. Blocks for system calls.
pub(super) fn open(
    options: &RdmaOptions,
    listens_at: Option<IpAddr>,
    limits: (usize, u32),
    sink: &Arc<Watch>,
) -> Result<(Vec<Nic>, Option<PriorityMatrix>), Error> {
    let known = availability()
        .map_err(|error| Error::local(Stage::Device, Cause::RdmaUnavailable(error)))?;
    check(options)?;
    let wanted = options.address.map(mapped);
    if options.devices.is_empty() {
        let devices = by_address(known, wanted.or(listens_at.map(mapped)));
        return Ok((vec![open_first(devices, options, limits, sink)?], None));
    }
    let named = options.devices.iter();
    let opened = named.map(|device| open_first(vec![device.clone()], options, limits, sink));
    let opened = opened.collect::<Result<Vec<_>, _>>()?;
    let matrix = (opened.len() > 1).then(|| matrix(options));
    Ok((opened, matrix))
}

/// The configured or discovered matrix, restricted to the devices in use.
fn matrix(options: &RdmaOptions) -> PriorityMatrix {
    let found = || match Machine::discover(Path::new("/")) {
        Ok(machine) => machine.matrix(),
        Err(error) => {
            tracing::warn!(%error, "all devices are taken to be equally near");
            PriorityMatrix::default()
        }
    };
    options.matrix.clone().unwrap_or_else(found).of_nics(&options.devices)
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
    let twice = |(place, name): (usize, &String)| devices[..place].contains(name);
    if devices.iter().enumerate().any(twice) {
        return invalid("a device is named twice".into());
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

/// Opens the first usable device.
fn open_first(
    devices: Vec<String>,
    options: &RdmaOptions,
    (lanes_max, lane_depth): (usize, u32),
    sink: &Arc<Watch>,
) -> Result<Nic, Error> {
    let index = options.gid_index.map_or(GidWanted::Automatic, GidWanted::Index);
    let gid = options.address.map_or(index, |address| GidWanted::Address(mapped(address)));
    let mut first: Option<VerbsError> = None;
    for device in devices {
        let config = NicConfig {
            port: options.port,
            gid,
            mtu_max: options.mtu_bytes_max,
            traffic_class: options.traffic_class,
            service_level: options.service_level,
            lanes_max,
            depth: lane_depth,
            timeout_exponent: TIMEOUT_EXPONENT,
            retries: RETRIES,
            ..NicConfig::new(device)
        };
        match Nic::open(config, sink.clone()) {
            Ok(nic) => return Ok(nic),
            Err(error) => {
                tracing::debug!(%error, "an RDMA device cannot be used");
                first.get_or_insert(error);
            }
        }
    }
    Err(first.map_or_else(|| failed("there is no device".to_owned()), of_device))
}

/// Converts a device's error to an engine error.
pub(super) fn of_device(error: VerbsError) -> Error {
    Error::new(error.side, Stage::Device, TransportError::from(error))
}

pub(super) fn failed(detail: String) -> Error {
    Error::local(Stage::Device, TransportError::new(Side::Local, "open", detail))
}

/// Sorts devices: those with the address first, then those with an active port.
fn by_address(mut names: Vec<String>, address: Option<Ipv6Addr>) -> Vec<String> {
    let listed = discover(Path::new("/")).unwrap_or_default();
    let wanted = address.map(gid_text);
    let rank = |name: &String| {
        let ports = listed.iter().filter(|device| device.name == *name).flat_map(|d| &d.ports);
        let (mut has_address, mut active) = (false, false);
        for port in ports {
            active |= port.is_active();
            let texts = port.gids.iter().map(|gid| kernel_text(&gid.text));
            has_address |= wanted.is_some() && texts.into_iter().any(|text| text == wanted);
        }
        (!has_address, !active)
    };
    names.sort_by_cached_key(rank);
    names
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
