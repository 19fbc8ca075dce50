//! The address at which the connection manager of a NIC listens, and which peers dial.

use super::Manager;
use super::identifier::{EventChannel, Identifier, device_name};
use crate::error::{VerbsError, words_of};
use crate::verbs::context::Context;
use handfast_core::address::PORTS_OF_ERDMA;
use handfast_core::connection::Announcement;
use handfast_core::transport::Side;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Connect requests that wait at the listening identifier.
pub(super) const BACKLOG: i32 = 128;

/// The bit of a partition key that says full membership.
const FULL_MEMBER: u16 = 0x8000;

/// The end of an attempt to listen at an address.
pub(super) enum Listening {
    /// An identifier listens at the address, which is in a partition of this key, or in none for 0.
    Here(Identifier, SocketAddr, u16),
    /// The address is of another device.
    OfAnother,
    /// The connection manager did not bind the address: the value of errno.
    Refused(i32),
}

/// The error of a device that can listen at none of `count` addresses; `refused` is the last one that the
/// connection manager did not bind.
pub(super) fn nowhere(
    context: &Context,
    wanted: Option<IpAddr>,
    count: usize,
    refused: Option<(IpAddr, i32)>,
) -> VerbsError {
    let mut detail = match wanted {
        Some(ip) => format!(
            "{ip} is no address of the device's port; name an address of its network interface"
        ),
        None => format!(
            "none of the machine's {count} addresses is one of the device's port; give its network \
             interface an IP address"
        ),
    };
    if let Some((ip, code)) = refused {
        detail
            .push_str(&format!("; the connection manager does not bind {ip}: {}", words_of(code)));
    }
    let code = refused.map_or(0, |(_, code)| code);
    context.error(Side::Configuration, "rdma_bind_addr", code, detail)
}

/// The error of a port that was chosen, and that another listener has.
fn taken(context: &Context, call: &'static str, address: SocketAddr) -> VerbsError {
    let detail = format!(
        "{}; the connection manager does not listen at {address}: end the program that listens there, or choose \
         another port (--rdma-cm-port, RdmaOptions::connection_manager_port)",
        words_of(libc::EADDRINUSE)
    );
    context.error(Side::Configuration, call, libc::EADDRINUSE, detail)
}

/// The end of an attempt to listen at a port that was chosen, and that another listener has at this or every address.
fn listen_at_taken(
    context: &Context,
    channel: &Arc<EventChannel>,
    (system_name, port): (&str, u8),
    wanted: SocketAddr,
) -> Result<Listening, VerbsError> {
    let identifier =
        Identifier::new(channel, 0).map_err(|code| context.failed("rdma_create_id", code))?;
    match bind(context, &identifier, SocketAddr::new(wanted.ip(), 0)) {
        Ok((device, of_port, ..)) if device == system_name && of_port == port => {
            Err(taken(context, "rdma_bind_addr", wanted))
        }
        Ok(_) => Ok(Listening::OfAnother),
        Err(code) => Ok(Listening::Refused(code)),
    }
}

/// Listens at an address. A port of 0 is one that the kernel chooses.
pub(super) fn listen(
    context: &Arc<Context>,
    channel: &Arc<EventChannel>,
    (system_name, port): (&str, u8),
    wanted: SocketAddr,
) -> Result<Listening, VerbsError> {
    let failed = |call, code| context.failed(call, code);
    let (ip, is_chosen) = (wanted.ip(), wanted.port() != 0);
    let mut reserved = Vec::new();
    // Each of them is held, so that the kernel gives another one.
    while reserved.len() <= PORTS_OF_ERDMA.len() {
        let identifier =
            Identifier::new(channel, 0).map_err(|code| failed("rdma_create_id", code))?;
        let (device, of_port, given, partition) = match bind(context, &identifier, wanted) {
            Ok(bound) => bound,
            Err(libc::EADDRINUSE) if is_chosen => {
                return listen_at_taken(context, channel, (system_name, port), wanted);
            }
            // The address was this device's before.
            Err(_) if !reserved.is_empty() => break,
            Err(code) => return Ok(Listening::Refused(code)),
        };
        if device != system_name || of_port != port {
            return Ok(Listening::OfAnother);
        }
        if PORTS_OF_ERDMA.contains(&given) {
            reserved.push(identifier);
            continue;
        }
        let address = SocketAddr::new(ip, given);
        match identifier.listen(BACKLOG) {
            Ok(()) => return Ok(Listening::Here(identifier, address, partition)),
            Err(libc::EADDRINUSE) if is_chosen => {
                return Err(taken(context, "rdma_listen", address));
            }
            // Ports of the connection manager and of TCP are counted apart, and iWARP listens with TCP.
            Err(libc::EADDRINUSE) => reserved.push(identifier),
            Err(code) => {
                let detail = format!(
                    "{}; the connection manager does not listen at {address}: end programs that listen \
                     there, or name another address of the device",
                    words_of(code)
                );
                return Err(context.error(Side::Local, "rdma_listen", code, detail));
            }
        }
    }
    let (first, last) = (PORTS_OF_ERDMA.start(), PORTS_OF_ERDMA.end());
    let detail = format!(
        "the kernel gives no port that is free for TCP and none of {first} to {last}, which eRDMA \
         takes; widen net.ipv4.ip_local_port_range"
    );
    Err(context.error(Side::Configuration, "rdma_bind_addr", 0, detail))
}

impl Manager {
    /// The error of a device that no longer has the address at which it listens. None while it has, and where the
    /// connection manager does not say. The table of GIDs does not say it on iWARP, which has no event of it either.
    pub(in crate::verbs) fn left(&self) -> Option<VerbsError> {
        let ip = self.address.ip();
        let is_there = match self.is_at(self.address) {
            Err(libc::EADDRNOTAVAIL | libc::ENODEV) => false,
            // The listening identifier has the port: with another one the device is named.
            Err(libc::EADDRINUSE) => self.is_at(SocketAddr::new(ip, 0)).unwrap_or(true),
            at => at.unwrap_or(true),
        };
        // A device that is gone is lost for that reason.
        if is_there || self.context.device_facts().is_err() {
            return None;
        }
        let detail = format!(
            "{ip}, the address at which the connection manager listens, has left the device's port; the \
             device has to be opened again"
        );
        Some(self.context.error(Side::Local, "rdma_bind_addr", 0, detail))
    }

    /// Rejects a peer's address that no identifier at this side's address can dial, nor be dialled from: a
    /// kernel refuses two families with `EINVAL`, on either side.
    ///
    /// # Errors
    /// The families differ.
    pub(super) fn check_family(&self, peer: IpAddr) -> Result<(), VerbsError> {
        let (own, peer) = (self.address.ip().to_canonical(), peer.to_canonical());
        if own.is_ipv6() == peer.is_ipv6() {
            return Ok(());
        }
        let detail = format!(
            "the connection manager listens at {peer} on the peer and at {own} here, addresses of different \
             families; name an address of one family on both sides (--gid, RdmaOptions::address)"
        );
        Err(self.context.error(Side::Configuration, "wire", 0, detail))
    }

    /// Rejects a peer's address in another partition of InfiniBand, whose interfaces do not hear a dial, and one in
    /// the same partition where neither side is a full member. Nothing is known of a peer of an earlier release, nor of
    /// one on Ethernet.
    ///
    /// # Errors
    /// No packet passes.
    pub(super) fn check_partition(&self, peer: &Announcement) -> Result<(), VerbsError> {
        let (Some(own), Some(of_peer)) = (self.partition, peer.partition) else { return Ok(()) };
        if (own ^ of_peer) & !FULL_MEMBER == 0 && (own | of_peer) & FULL_MEMBER != 0 {
            return Ok(());
        }
        let (ip, of_ip) = (self.address.ip(), peer.address.ip());
        let detail = format!(
            "the address {of_ip} of the peer is in the InfiniBand partition {of_peer:#06x}, and {ip} here in \
             {own:#06x}: no packet passes between them; name addresses of one partition on both sides, of which one \
             is a full member (--gid, RdmaOptions::address)"
        );
        Err(self.context.error(Side::Configuration, "wire", 0, detail))
    }

    /// Whether an address is that of the device's port. A port of 0 is one that the kernel chooses.
    ///
    /// # Errors
    /// The value of errno.
    fn is_at(&self, address: SocketAddr) -> Result<bool, i32> {
        let identifier = Identifier::new(&self.channel, 0)?;
        let (device, port, ..) = bind(&self.context, &identifier, address)?;
        Ok(device == self.system_name && port == self.port)
    }
}

/// Binds an identifier, and returns the name of its device, the port of the device, the port that was given and the key
/// of the partition.
#[allow(unsafe_code)]
fn bind(
    context: &Context,
    identifier: &Identifier,
    address: SocketAddr,
) -> Result<(String, u8, u16, u16), i32> {
    let verbs = context.verbs;
    // SAFETY: the device is that of an open context of librdmacm's.
    identifier.bind(address, |device| unsafe { device_name(verbs, device) })
}
