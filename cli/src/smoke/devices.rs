//! The devices of this machine, and their choice.

use super::Smoke;
use handfast::rdma::RdmaOptions;
use handfast_diagnosis::doctor::{Device, Facts, Gid, Port};
use handfast_transport_rdma::availability;

/// Returns all devices listed by the kernel, with the way in which their queue pairs connect under the
/// options. The engine reports unreadable ones.
pub(super) fn all(options: &RdmaOptions) -> Vec<Device> {
    let mut devices = Facts::read(&handfast_transport_rdma::root()).devices;
    for device in devices.iter_mut().filter(|device| device.refused.is_none()) {
        device.is_managed |= options.connection_manager;
    }
    devices
}

/// Describes a device for people.
pub(super) fn words(device: &Device) -> String {
    let Device { name, profile, recognised_by, refused, is_managed, ports, .. } = device;
    let mut text = format!("device {name}: {profile} ({recognised_by})");
    if let Some(why) = refused {
        text += &format!("\n  no lanes: {why}");
    }
    if *is_managed {
        text += "\n  connects through the connection manager (librdmacm)";
    }
    for port in ports {
        text += &format!("\n  port {}: {} {}", port.number, port.link_layer, port.state);
        for Gid { index, address, kind } in &port.gids {
            text += &format!("\n    GID {index}: {address} {kind}");
        }
    }
    text
}

/// Whether lanes are possible over its first port, the only one that lanes use.
fn is_usable(device: &Device) -> bool {
    device.refused.is_none() && device.ports.first().is_some_and(Port::is_active)
}

fn is_like(one: &Device, other: &Device) -> bool {
    let link = |device: &Device| device.ports.first().map(|port| port.link_layer.clone());
    one.profile == other.profile && link(one) == link(other)
}

/// Returns the devices of the two nodes of a loopback: the given ones, or two devices of one kind,
/// or one device for both. If none looks usable, the engine reports the reason.
pub(super) fn choose(arguments: &Smoke, devices: &[Device]) -> [RdmaOptions; 2] {
    let found = if arguments.device.is_empty() && arguments.gid.is_empty() {
        // A device that the library does not list, such as one without its driver, is skipped.
        let known = availability().unwrap_or_default();
        let usable = |device: &&Device| is_usable(device) && known.contains(&device.name);
        let first = devices.iter().find(usable);
        let alike = |first: &Device| {
            let other = |device: &&Device| device.name != first.name && is_like(device, first);
            devices.iter().filter(usable).find(other)
        };
        let both = first.into_iter().chain(first.and_then(alike));
        both.map(|device| device.name.clone()).collect()
    } else {
        arguments.device.clone()
    };
    [0, 1].map(|node| {
        arguments.base.clone().with(|it| {
            it.devices = found.get(node).or(found.first()).cloned().into_iter().collect();
            it.address = arguments.gid.get(node).or(arguments.gid.first()).copied();
        })
    })
}
