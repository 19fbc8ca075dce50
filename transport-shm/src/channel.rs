//! The connection of a lane to its peer, and the memory that crosses it.

use crate::lane::After;
use crate::map::{Map, Process};
use crate::sys;
use crate::wire::{self, PACKET_BYTES_MAX, Way};
use handfast_core::sharing::{Denial, Frame, GrantId, Offered, Sharing, SharingOutput};
use handfast_transport::{Region, RegionTable, Span};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Maximum packets that wait for room in the socket. A peer that asks and does not read is cut off.
pub(crate) const PACKETS_UNSENT_MAX: usize = 16_384;
/// Maximum packets handled at a time.
const PACKETS_PER_WAKE: usize = 64;

type Packet = ([u8; wire::FRAME_BYTES], Option<OwnedFd>);

/// A connected channel.
pub(crate) struct Channel {
    pub(crate) machine: Sharing,
    pub(crate) socket: OwnedFd,
    pub(crate) process: Arc<Process>,
    pub(crate) maps: BTreeMap<GrantId, Arc<Map>>,
    /// Memory that the peer may access, held until it has let it go.
    granted: BTreeMap<GrantId, Span>,
    /// Parts of grants on their way out and in.
    leaving: BTreeMap<GrantId, (Way, Option<OwnedFd>)>,
    arrived: Option<(Way, Option<OwnedFd>)>,
    unsent: VecDeque<Packet>,
}

impl Channel {
    pub(crate) fn new(socket: OwnedFd, process: Process) -> Self {
        Self {
            machine: Sharing::new(),
            socket,
            process: Arc::new(process),
            maps: BTreeMap::new(),
            granted: BTreeMap::new(),
            leaving: BTreeMap::new(),
            arrived: None,
            unsent: VecDeque::new(),
        }
    }

    /// A channel over a connection that was accepted.
    pub(crate) fn new_of(socket: OwnedFd) -> Self {
        let process = crate::hello::process(&socket);
        Self::new(socket, process)
    }

    /// Whether packets wait for room in the socket.
    pub(crate) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Handles packets that are there. Returns false at the end of the connection.
    pub(crate) fn receive(&mut self, regions: &RegionTable, after: &mut After) -> bool {
        let mut bytes = [0; PACKET_BYTES_MAX];
        for _ in 0..PACKETS_PER_WAKE {
            let (length, passed) = match sys::receive(&self.socket, &mut bytes) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => (0, None),
            };
            let Some((frame, way)) = wire::decode(&bytes[..length]) else {
                self.machine.on_hung_up();
                self.drain(regions, after);
                return false;
            };
            self.arrived = Some((way, passed));
            self.machine.handle_frame(frame);
            self.drain(regions, after);
            self.arrived = None;
        }
        true
    }

    /// Sends packets that waited for room.
    pub(crate) fn send_waiting(&mut self) {
        while let Some((packet, passed)) = self.unsent.front() {
            match sys::send(&self.socket, packet, passed.as_ref()) {
                Ok(()) => drop(self.unsent.pop_front()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // The receiving side finds the end of the connection.
                Err(_) => return self.unsent.clear(),
            }
        }
    }

    /// Performs the outputs of the machine.
    pub(crate) fn drain(&mut self, regions: &RegionTable, after: &mut After) {
        while let Some(output) = self.machine.poll_output() {
            match output {
                SharingOutput::Send(frame) => self.send(&frame),
                SharingOutput::Asked { key } => self.answer(key, regions),
                SharingOutput::Map { grant, offered, .. } => self.map(grant, &offered),
                SharingOutput::Answered { key } => after.answered.push(key),
                SharingOutput::Unmap { grant } => drop(self.maps.remove(&grant)),
                // Dropped without a lock: it may end what lives with the block.
                SharingOutput::Release { grant } => {
                    after.released.extend(self.granted.remove(&grant))
                }
                SharingOutput::Ended => after.has_ended = true,
            }
        }
    }

    fn send(&mut self, frame: &Frame) {
        let (way, passed) = match frame {
            Frame::Grant { grant, .. } => self.leaving.remove(grant).unwrap_or((Way::Calls, None)),
            _ => (Way::Descriptor, None),
        };
        let packet = wire::encode(frame, way);
        if self.unsent.is_empty() {
            match sys::send(&self.socket, &packet, passed.as_ref()) {
                Ok(()) => return,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // The receiving side finds the end of the connection.
                Err(_) => return,
            }
        }
        if self.unsent.len() >= PACKETS_UNSENT_MAX {
            tracing::warn!(max = PACKETS_UNSENT_MAX, "the peer of a channel does not read");
            self.machine.on_hung_up();
            return self.unsent.clear();
        }
        self.unsent.push_back((packet, passed));
    }

    /// Grants the region with a key, or says why not. The caller holds the lane's lock, so that the
    /// end of a registration comes before the look-up or finds the grant.
    fn answer(&mut self, key: u64, regions: &RegionTable) {
        let Some(region) = regions.region(key) else {
            return self.machine.deny(key, Denial::UnknownKey);
        };
        let (way, passed) = match descriptor(&region) {
            Some(passed) => (Way::Descriptor, Some(passed)),
            None => (Way::Calls, None),
        };
        let access = region.access();
        let offered = Offered {
            address: region.address(),
            bytes: region.bytes(),
            readable: access.remote_read,
            writable: access.remote_write,
        };
        if let Some(grant) = self.machine.grant(key, offered) {
            self.granted.insert(grant, region.span().clone());
            self.leaving.insert(grant, (way, passed));
        }
    }

    fn map(&mut self, grant: GrantId, offered: &Offered) {
        let map = match self.arrived.take() {
            Some((Way::Descriptor, Some(passed))) => {
                Map::of_descriptor(passed, offered).map_err(|error| error.to_string())
            }
            Some((Way::Calls, _)) => {
                Map::by_calls(&self.process, offered).map_err(|error| error.to_string())
            }
            _ => Err("the grant came without a descriptor".to_owned()),
        };
        let mapped = match map {
            Ok(map) => {
                self.maps.insert(grant, Arc::new(map));
                true
            }
            Err(error) => {
                tracing::debug!(grant = grant.0, error, "a region of the peer is not shared");
                false
            }
        };
        self.machine.on_mapped(grant, mapped);
    }
}

/// A descriptor with the rights of a region; `None` if there is none with these alone: for a part of
/// a block, bytes that peers may only write, memory of another kind, or memory that was shared with
/// other rights before.
fn descriptor(region: &Region) -> Option<OwnedFd> {
    let (span, access) = (region.span(), region.access());
    let is_whole = span.offset() == 0 && span.len() == span.memory().len();
    if !is_whole || !access.remote_read {
        return None;
    }
    match span.memory().descriptor(access.remote_write) {
        Ok(descriptor) => descriptor,
        Err(error) => {
            tracing::debug!(%error, "a region is not shared by descriptor");
            None
        }
    }
}
