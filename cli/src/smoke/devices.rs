//! The devices of this machine, and which to use.

use super::Smoke;
use handfast::rdma::RdmaOptions;
use handfast_transport_rdma::{Connecting, Device, availability, discover};
use serde::Serialize;
use std::fmt;
use std::path::Path;

/// The facts about a device.
#[derive(Serialize)]
pub(super) struct DeviceFacts {
    name: String,
    /// Names the kind, and the mode where a kind has several.
    profile: &'static str,
    recognised_by: String,
    /// Why there are no lanes over it, if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<&'static str>,
    ports: Vec<PortFacts>,
}

#[derive(Serialize)]
struct PortFacts {
    number: u32,
    link_layer: String,
    state: String,
    gids: Vec<GidFacts>,
}

#[derive(Serialize)]
struct GidFacts {
    index: u32,
    gid: String,
    kind: String,
}

impl DeviceFacts {
    fn new(device: Device) -> Self {
        let recognised = device.recognise();
        let refused = match recognised.profile.connecting {
            Connecting::OutOfBand => None,
            Connecting::Never(why) => Some(why),
        };
        let ports = device.ports.into_iter().map(|port| PortFacts {
            number: port.number,
            link_layer: port.link_layer,
            state: port.state,
            gids: port
                .gids
                .into_iter()
                .map(|gid| GidFacts { index: gid.index, gid: gid.text, kind: gid.kind })
                .collect(),
        });
        Self {
            name: device.name,
            profile: recognised.profile.name,
            recognised_by: recognised.why,
            refused,
            ports: ports.collect(),
        }
    }

    /// Whether lanes are possible over its first port, which is the one that lanes use.
    fn is_usable(&self) -> bool {
        self.refused.is_none() && self.ports.first().is_some_and(|port| port.state == "ACTIVE")
    }

    fn is_like(&self, other: &Self) -> bool {
        let link = |device: &Self| device.ports.first().map(|port| port.link_layer.clone());
        self.profile == other.profile && link(self) == link(other)
    }
}

impl fmt::Display for DeviceFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {}: {} ({})", self.name, self.profile, self.recognised_by)?;
        if let Some(why) = self.refused {
            write!(f, "\n  no lanes: {why}")?;
        }
        for port in &self.ports {
            write!(f, "\n  port {}: {} {}", port.number, port.link_layer, port.state)?;
            for GidFacts { index, gid, kind } in &port.gids {
                write!(f, "\n    GID {index}: {gid} {kind}")?;
            }
        }
        Ok(())
    }
}

/// All devices that the kernel lists. The engine reports one that cannot be read.
pub(super) fn all() -> Vec<DeviceFacts> {
    let devices = discover(Path::new("/")).unwrap_or_else(|error| {
        tracing::warn!(%error, "devices cannot be listed");
        Vec::new()
    });
    devices.into_iter().map(DeviceFacts::new).collect()
}

/// The devices of the two nodes of a loopback: the given ones, or two devices of one kind, or one
/// device for both. If none looks usable, the engine reports why.
pub(super) fn choose(arguments: &Smoke, devices: &[DeviceFacts]) -> [RdmaOptions; 2] {
    let found = if arguments.device.is_empty() && arguments.gid.is_empty() {
        // A device that the library does not list, as without its driver, is left out.
        let known = availability().unwrap_or_default();
        let usable = |device: &&DeviceFacts| device.is_usable() && known.contains(&device.name);
        let first = devices.iter().find(usable);
        let alike = |first: &DeviceFacts| {
            let other = |device: &&DeviceFacts| device.name != first.name && device.is_like(first);
            devices.iter().filter(usable).find(other)
        };
        let both = first.into_iter().chain(first.and_then(alike));
        both.map(|device| device.name.clone()).collect()
    } else {
        arguments.device.clone()
    };
    [0, 1].map(|node| {
        RdmaOptions::default().with(|it| {
            it.devices = found.get(node).or(found.first()).cloned().into_iter().collect();
            it.address = arguments.gid.get(node).or(arguments.gid.first()).copied();
        })
    })
}
