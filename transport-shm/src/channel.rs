//! The connection of a lane to its peer, and the memory that crosses it.

use crate::after::After;
use crate::hub::Kept;
use crate::map::{Map, Process};
use crate::opened::{self, Opened};
use crate::sys;
use crate::wire::{self, PACKET_BYTES_MAX, Way};
use handfast_core::NodeName;
use handfast_core::sharing::{
    Allocation, Denial, Frame, GrantId, KeepRefusal, MAPS_MAX, Offered, Sharing, SharingOutput,
    Staged,
};
use handfast_transport::{
    Access, DeviceAllocation, MemoryError, MemoryKind, OpenDevice, Region, RegionTable, Requester,
    Span,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Maximum packets that wait for room in the socket, and the last two. A peer that asks and does not
/// read ends its channel.
pub const PACKETS_UNSENT_MAX: usize = 16_384;
/// Maximum descriptors that wait for room in the socket: further regions are denied.
pub const DESCRIPTORS_UNSENT_MAX: usize = 256;
/// Maximum packets handled at a time.
const PACKETS_PER_WAKE: usize = 64;

type Packet = ([u8; wire::FRAME_BYTES], Option<OwnedFd>);

/// Memory that the peer may access.
struct Granted {
    key: u64,
    span: Span,
}

/// A connected channel.
pub(crate) struct Channel {
    pub(crate) machine: Sharing,
    pub(crate) socket: OwnedFd,
    pub(crate) process: Arc<Process>,
    /// The peer's name.
    peer: NodeName,
    /// Opens memory of devices that is the peer's, where there is a driver.
    open_device: Option<OpenDevice>,
    /// Holds memory that the peer cannot close, under the lane's token.
    pub(crate) kept: Option<(u64, Kept)>,
    /// Keys that are denied since the peer's process keeps their regions, or as many as it may; [`MAPS_MAX`] at most.
    keeps_refused: BTreeSet<u64>,
    pub(crate) maps: BTreeMap<GrantId, Arc<Map>>,
    /// Memory that the peer may access, held until it has let it go.
    granted: BTreeMap<GrantId, Granted>,
    /// Parts of grants on their way out and in.
    leaving: BTreeMap<GrantId, (Way, Option<OwnedFd>)>,
    arrived: Option<(Way, Option<OwnedFd>)>,
    unsent: VecDeque<Packet>,
    /// Those of them that have a descriptor.
    descriptors_unsent: usize,
    /// A send failed for a reason that passes, without news when it has.
    retries: bool,
    /// The connection has ended: nothing more is received.
    pub(crate) has_hung_up: bool,
}

impl Channel {
    pub(crate) fn new(socket: OwnedFd, process: Process, peer: NodeName) -> Self {
        Self {
            machine: Sharing::new(),
            socket,
            process: Arc::new(process),
            peer,
            open_device: None,
            kept: None,
            keeps_refused: BTreeSet::new(),
            maps: BTreeMap::new(),
            granted: BTreeMap::new(),
            leaving: BTreeMap::new(),
            arrived: None,
            unsent: VecDeque::new(),
            descriptors_unsent: 0,
            retries: false,
            has_hung_up: false,
        }
    }

    /// The same channel, with a driver that opens memory of the peer's devices.
    pub(crate) fn opening(mut self, open_device: Option<OpenDevice>) -> Self {
        self.open_device = open_device;
        self
    }

    /// The same channel, for a lane whose memory `kept` holds where the peer cannot close it.
    pub(crate) fn holding(mut self, token: u64, kept: &Kept) -> Self {
        self.kept = Some((token, Arc::clone(kept)));
        self
    }

    /// Whether packets wait for room in the socket.
    pub(crate) fn awaits_room(&self) -> bool {
        !self.unsent.is_empty() && !self.retries
    }

    /// Whether packets wait for a later attempt.
    pub(crate) fn retries(&self) -> bool {
        !self.unsent.is_empty() && self.retries
    }

    /// Whether nothing more is sent or awaited.
    pub(crate) fn is_over(&self) -> bool {
        self.machine.is_over() && self.unsent.is_empty()
    }

    /// Handles packets that are there. Returns false at the end of the connection.
    pub(crate) fn receive(&mut self, regions: &RegionTable, after: &mut After) -> bool {
        let mut bytes = [0; PACKET_BYTES_MAX];
        for _ in 0..PACKETS_PER_WAKE {
            let received = match sys::receive(&self.socket, &mut bytes) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                // A peer that closed with packets unread reports itself before what it has sent.
                Err(_) => continue,
            };
            if received.length == 0 {
                self.has_hung_up = true;
                self.forget_unsent();
                self.machine.on_hung_up();
                self.drain(regions, after);
                return false;
            }
            match wire::decode(&bytes[..received.length]).filter(|_| !received.is_cut) {
                Some((frame, way)) => {
                    self.arrived = Some((way, received.passed));
                    self.machine.handle_frame(frame);
                    let answered = after.answered.len();
                    self.drain(regions, after);
                    // A denial that nobody has asked for is no answer.
                    if let Frame::Deny { key, denial: Denial::Staged(reason) } = frame
                        && after.answered[answered..].contains(&key)
                    {
                        after.staged.push((key, reason));
                    }
                }
                None => self.machine.close(),
            }
            self.drain(regions, after);
            self.arrived = None;
        }
        true
    }

    /// Sends packets that waited for room.
    pub(crate) fn send_waiting(&mut self) {
        self.retries = false;
        while let Some((packet, passed)) = self.unsent.front() {
            match sys::send(&self.socket, packet, passed.as_ref()) {
                Ok(()) => {
                    self.descriptors_unsent -= usize::from(passed.is_some());
                    self.unsent.pop_front();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if sys::is_transient(&error) => return self.retries = true,
                // The receiving side finds the end of the connection.
                Err(_) => return self.forget_unsent(),
            }
        }
    }

    /// Performs the outputs of the machine.
    pub(crate) fn drain(&mut self, regions: &RegionTable, after: &mut After) {
        while let Some(output) = self.machine.poll_output() {
            match output {
                SharingOutput::Send(frame) => {
                    if let Frame::Deny { key, denial: Denial::Full } = frame {
                        after.keeps_refused += u64::from(self.is_first_keep_refusal(key, regions));
                    }
                    self.send(&frame);
                }
                SharingOutput::Asked { key } => self.answer(key, regions, after),
                SharingOutput::Map { key, grant, offered } => {
                    self.map((key, grant), &offered, after);
                }
                SharingOutput::Answered { key } => after.answered.push(key),
                SharingOutput::Unmap { grant } => {
                    if self.maps.remove(&grant).is_some_and(|map| !Map::end(map)) {
                        self.note_kept(grant, after);
                    }
                }
                SharingOutput::Keep { grant } => self.hold(grant, after),
                // Dropped without a lock: it may end what lives with the block.
                SharingOutput::Release { grant } => {
                    after.released.extend(self.granted.remove(&grant).map(|it| it.span))
                }
                SharingOutput::Ended => after.has_ended = true,
            }
        }
    }

    fn note_kept(&mut self, grant: GrantId, after: &mut After) {
        tracing::warn!(
            grant = grant.0,
            peer = %self.peer,
            "memory of the peer stays open in this process until it ends: the driver does not close it"
        );
        after.kept += 1;
        self.machine.on_kept(grant);
    }

    /// Holds memory that the peer cannot close until its process ends. Without room the channel holds it,
    /// and memory of the host, which every process can unmap.
    fn hold(&mut self, grant: GrantId, after: &mut After) {
        let Some((token, kept)) = &self.kept else { return };
        if self.granted.get(&grant).is_none_or(|it| it.span.kind() == MemoryKind::Host) {
            return;
        }
        let Some(Granted { key, span }) = self.granted.remove(&grant) else { return };
        let of = (self.process.keeper(), key);
        let held = kept.lock().hold(*token, of, (span, Arc::clone(&self.process)));
        match held {
            Ok(()) => {
                tracing::warn!(
                    grant = grant.0,
                    peer = %self.peer,
                    "the peer cannot close memory of this process, which is kept until the peer's process ends"
                );
                after.held += 1;
                self.machine.on_moved(grant);
            }
            Err(((span, _), reason)) => {
                tracing::warn!(peer = %self.peer, %reason, "the peer keeps memory: this lane waits for its peer's end");
                after.keeps_refused += 1;
                self.granted.insert(grant, Granted { key, span });
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
                Err(error) if sys::is_transient(&error) => self.retries = true,
                // The receiving side finds the end of the connection.
                Err(_) => return,
            }
        }
        // At most one for each map: `Closed` would acknowledge a region that is not named before.
        let is_last = matches!(frame, Frame::Close | Frame::Closed | Frame::Kept { .. });
        if self.unsent.len() >= PACKETS_UNSENT_MAX && !is_last {
            if !self.machine.is_closing() {
                tracing::warn!(max = PACKETS_UNSENT_MAX, "the peer of a channel does not read");
                self.machine.close();
            }
            // `Closed` says all that is missing.
            return;
        }
        self.descriptors_unsent += usize::from(passed.is_some());
        self.unsent.push_back((packet, passed));
    }

    /// Drops what nobody will read.
    pub(crate) fn forget_unsent(&mut self) {
        self.unsent.clear();
        self.descriptors_unsent = 0;
    }

    /// Grants the region with a key, or says why not. The caller holds the lane's lock, so that the
    /// end of a registration comes before the look-up or finds the grant.
    fn answer(&mut self, key: u64, regions: &RegionTable, after: &mut After) {
        let (region, access) = match regions.whole(key, Requester::Peer(&self.peer)) {
            Ok(found) => found,
            // The lane below refuses what is not granted as it refuses an unknown key.
            Err(error) => {
                after.refused.push((key, error));
                return self.machine.deny(key, Denial::UnknownKey);
            }
        };
        if self.descriptors_unsent >= DESCRIPTORS_UNSENT_MAX {
            return self.machine.deny(key, Denial::Full);
        }
        let offered = Offered {
            address: region.address(),
            bytes: region.bytes(),
            readable: access.remote_read,
            writable: access.remote_write,
        };
        let (way, passed) = match region.span().kind() {
            MemoryKind::Host => match descriptor(&region, access) {
                Some(passed) => (Way::Descriptor, Some(passed)),
                None => (Way::Calls, None),
            },
            _ => {
                let staged = self.staged(&region, &offered);
                // Before the handle, which costs a call of the driver.
                if staged.is_none()
                    && let Some(reason) = self.keep_refusal(key)
                {
                    tracing::debug!(region = key, peer = %self.peer, %reason, "a region is not granted");
                    return self.machine.deny(key, Denial::Full);
                }
                match staged.map_or_else(|| handle(&region), Err) {
                    Ok(passed) => (Way::Handle, Some(passed)),
                    Err(reason) => {
                        tracing::debug!(region = key, %reason, "a region on a device is staged");
                        return self.machine.deny(key, Denial::Staged(reason));
                    }
                }
            }
        };
        if let Some(grant) = self.machine.grant(key, offered) {
            self.granted.insert(grant, Granted { key, span: region.span().clone() });
            self.leaving.insert(grant, (way, passed));
        }
    }

    /// The reason to grant the peer's process no region that it may keep.
    fn keep_refusal(&self, key: u64) -> Option<KeepRefusal> {
        let (_, kept) = self.kept.as_ref()?;
        kept.lock().admit(self.process.keeper(), key).err()
    }

    /// Whether a denied region is on a device, and denied since the peer's process may keep it; once for each key: a peer
    /// asks about it again and again. Past [`MAPS_MAX`] keys, more than a peer knows at once, none counts.
    fn is_first_keep_refusal(&mut self, key: u64, regions: &RegionTable) -> bool {
        let is_on_device = |region: Region| region.span().kind() != MemoryKind::Host;
        regions.region(key).is_some_and(is_on_device)
            && self.keep_refusal(key).is_some()
            && self.keeps_refused.len() < MAPS_MAX
            && self.keeps_refused.insert(key)
    }

    /// The reason to stage a region on a device, of those known without a call of its driver.
    fn staged(&self, region: &Region, offered: &Offered) -> Option<Staged> {
        let Some(DeviceAllocation { start, bytes }) = region.span().device_allocation() else {
            return Some(Staged::NotWhole);
        };
        self.machine.offer_handle(offered, &Allocation { start, bytes }).err()
    }

    fn map(&mut self, (key, grant): (u64, GrantId), offered: &Offered, after: &mut After) {
        let mut is_kept = false;
        let map = match self.arrived.take() {
            Some((Way::Descriptor, Some(passed))) => {
                Map::of_descriptor(passed, offered).map_err(|error| error.to_string())
            }
            Some((Way::Handle, Some(passed))) => {
                let opened = Opened::open(passed, offered, self.open_device);
                after.opened += u64::from(opened.as_ref().is_ok_and(|it| it.is_first));
                is_kept = opened.as_ref().is_err_and(|it| it.is_kept);
                after.staged.extend(opened.as_ref().err().map(|it| (key, it.reason)));
                opened.map(Map::Opened).map_err(|it| it.reason.to_string())
            }
            Some((Way::EarlierHandle, _)) => {
                after.staged.push((key, Staged::EarlierOwner));
                Err(Staged::EarlierOwner.to_string())
            }
            Some((Way::Calls, _)) => {
                let map = Map::by_calls(&self.process, offered);
                let is_untraced = map.as_ref().err().is_some_and(sys::is_forbidden);
                after.is_untraced |= is_untraced && !self.process.has_ended();
                map.map_err(|error| error.to_string())
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
        if is_kept {
            self.note_kept(grant, after);
        }
    }
}

/// The handle of a region on a device, in memory that the peer may read.
fn handle(region: &Region) -> Result<OwnedFd, Staged> {
    let failed = |error: MemoryError| {
        tracing::debug!(%error, "a region on a device has no handle");
        Staged::NoHandle
    };
    let handle = region.span().device_handle().map_err(failed)?.ok_or(Staged::NoHandle)?;
    opened::passed(&handle).map_err(failed)?.ok_or(Staged::NoHandle)
}

/// A descriptor of a region with a peer's rights; `None` if there is none with these alone: for a part of
/// a block, bytes that peers may only write, memory of another kind, or memory that was shared with
/// other rights before.
fn descriptor(region: &Region, access: Access) -> Option<OwnedFd> {
    let span = region.span();
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

#[cfg(test)]
mod tests {
    use super::*;
    use handfast_transport::{Grant, Grants, Memory, RegionError};

    const KEY: u64 = 3;

    /// A channel that has granted a region, and the peer's socket.
    fn granted() -> (Channel, OwnedFd, RegionTable, Memory) {
        let (ours, theirs) = sys::pair().unwrap();
        let (regions, memory) = (RegionTable::new(), Memory::shared(4096).unwrap());
        regions.register(memory.whole(), Access::READ_WRITE, KEY).unwrap();
        let mut channel = Channel::new(ours, Process::new(0, None), NodeName::new("peer").unwrap());
        say(&theirs, &Frame::Ask { key: KEY });
        assert!(channel.receive(&regions, &mut After::default()));
        assert_eq!(channel.machine.granted(), 1);
        (channel, theirs, regions, memory)
    }

    fn say(socket: &OwnedFd, frame: &Frame) {
        sys::send(socket, &wire::encode(frame, Way::Descriptor), None).unwrap();
    }

    /// A peer gets memory with its own rights, none without a right, and loses it with a change.
    #[test]
    fn peer_gets_memory_with_its_own_rights() {
        let (ours, theirs) = sys::pair().unwrap();
        let regions = RegionTable::new();
        let grants = |access, peers| {
            let mut grants = Grants::default();
            grants.add(Grant::new(access, peers).unwrap()).unwrap();
            grants
        };
        let memory = || Memory::shared(4096).unwrap().whole();
        regions.register(memory(), grants(Access::READ, "decode-*"), KEY).unwrap();
        regions.register(memory(), grants(Access::READ_WRITE, "other"), KEY + 1).unwrap();
        let name = NodeName::new("decode-1").unwrap();
        let mut channel = Channel::new(ours, Process::new(0, None), name);
        let mut ask = |key, regions: &RegionTable| {
            say(&theirs, &Frame::Ask { key });
            assert!(channel.receive(regions, &mut After::default()));
            let mut bytes = [0; PACKET_BYTES_MAX];
            let received = sys::receive(&theirs, &mut bytes).unwrap();
            wire::decode(&bytes[..received.length]).map(|(frame, _)| frame).unwrap()
        };
        let Frame::Grant { offered, .. } = ask(KEY, &regions) else { panic!("it may read") };
        assert!(offered.readable && !offered.writable);
        let denied = |key| Frame::Deny { key, denial: Denial::UnknownKey };
        assert_eq!(ask(KEY + 1, &regions), denied(KEY + 1));
        assert_eq!(ask(KEY + 2, &regions), denied(KEY + 2), "the same answer as for no region");
        regions.regrant(KEY + 1, grants(Access::WRITE, "decode-1")).unwrap();
        let Frame::Grant { offered, .. } = ask(KEY + 1, &regions) else { panic!("it may write") };
        assert!(offered.writable && !offered.readable);
    }

    /// A peer that asks for a million keys, among them that of memory which is granted to others, gets no
    /// memory: each has the answer of an unknown key and is reported, and the owner keeps nothing.
    #[test]
    fn million_keys_without_a_grant_give_no_memory() {
        const KEYS: u64 = 1_000_000;
        const AT_ONCE: u64 = 50;
        let (ours, theirs) = sys::pair().unwrap();
        let (regions, memory) = (RegionTable::new(), Memory::shared(4096).unwrap());
        let mut grants = Grants::default();
        grants.add(Grant::read_write("decode-*").unwrap()).unwrap();
        regions.register(memory.whole(), grants, KEY).unwrap();
        let holders = memory.holders();
        let name = NodeName::new("curious").unwrap();
        let mut channel = Channel::new(ours, Process::new(0, None), name);
        let mut bytes = [0; PACKET_BYTES_MAX];
        for first in (0..KEYS).step_by(AT_ONCE as usize) {
            // One of 101 is the right one.
            let keys = (first..first + AT_ONCE).map(|key| if key % 101 == 0 { KEY } else { key });
            keys.clone().for_each(|key| say(&theirs, &Frame::Ask { key }));
            let mut after = After::default();
            assert!(channel.receive(&regions, &mut after) && !after.has_ended);
            let of =
                |key| if key == KEY { RegionError::NotGranted } else { RegionError::UnknownKey };
            let refused: Vec<_> = keys.clone().map(|key| (key, of(key))).collect();
            assert_eq!(after.refused, refused, "the owner learns of each");
            for key in keys {
                let received = sys::receive(&theirs, &mut bytes).unwrap();
                let (answer, _) = wire::decode(&bytes[..received.length]).unwrap();
                assert_eq!(answer, Frame::Deny { key, denial: Denial::UnknownKey });
                assert!(received.passed.is_none(), "no descriptor comes along");
            }
        }
        assert_eq!((channel.machine.granted(), memory.holders()), (0, holders));
        assert!(channel.granted.is_empty() && channel.unsent.is_empty());
    }

    /// The last words of a peer count although it closed with packets unread, which the system
    /// reports first.
    #[test]
    fn last_words_survive_packets_in_flight() {
        let (mut channel, theirs, regions, memory) = granted();
        say(&theirs, &Frame::Close);
        say(&theirs, &Frame::Closed);
        drop(theirs);
        let mut after = After::default();
        assert!(!channel.receive(&regions, &mut after));
        assert!(after.has_ended && channel.is_over() && !channel.machine.is_unproven());
        drop(after);
        regions.unregister(KEY);
        assert_eq!(memory.holders(), 1);
    }

    /// A packet that is none ends the channel in order: the peer learns that nothing touches its
    /// memory, and what it says afterwards counts.
    #[test]
    fn unknown_packet_ends_the_channel_in_order() {
        let (mut channel, theirs, regions, _memory) = granted();
        sys::send(&theirs, b"unknown", None).unwrap();
        let mut after = After::default();
        assert!(channel.receive(&regions, &mut after));
        let mut said = Vec::new();
        let mut bytes = [0; PACKET_BYTES_MAX];
        while let Ok(received) = sys::receive(&theirs, &mut bytes) {
            said.extend(wire::decode(&bytes[..received.length]).map(|(frame, _)| frame));
        }
        assert_eq!(said[1..], [Frame::Close, Frame::Closed]);
        assert!(!after.has_ended, "the peer has not let the region go");
        say(&theirs, &Frame::Closed);
        assert!(channel.receive(&regions, &mut after));
        assert!(after.has_ended && channel.is_over());
    }

    /// A grant whose descriptor was lost is not mapped, and the channel goes on.
    #[test]
    fn lost_descriptor_is_no_map() {
        let (mut channel, theirs, regions, _memory) = granted();
        let wanted = handfast_core::sharing::Wanted {
            key: 9,
            address: 0,
            length: 1,
            direction: handfast_transport::Direction::Read,
        };
        let mut after = After::default();
        channel.machine.begin(&wanted);
        let offered = Offered { address: 0, bytes: 8, readable: true, writable: true };
        say(&theirs, &Frame::Grant { key: 9, grant: GrantId(1), offered });
        assert!(channel.receive(&regions, &mut after));
        assert_eq!(after.answered, [9]);
        let no = handfast_core::sharing::Unshared::NotMapped;
        let begun = channel.machine.begin(&wanted);
        assert_eq!(begun, handfast_core::sharing::Begun::Unshared(no));
        assert!(!channel.machine.is_closing());
    }

    /// A denial that nobody has asked for is neither counted nor reported.
    #[test]
    fn unasked_denial_is_not_reported() {
        let (mut channel, theirs, regions, _memory) = granted();
        let wanted = handfast_core::sharing::Wanted {
            key: 9,
            address: 0,
            length: 1,
            direction: handfast_transport::Direction::Read,
        };
        channel.machine.begin(&wanted);
        let mut after = After::default();
        for key in [8, 9, 9] {
            say(&theirs, &Frame::Deny { key, denial: Denial::Staged(Staged::NotWhole) });
        }
        assert!(channel.receive(&regions, &mut after));
        assert_eq!(after.staged, [(9, Staged::NotWhole)]);
    }

    /// A peer that asks and does not read keeps no more descriptors than the limit, and has them and
    /// the denials when it reads.
    #[test]
    fn unread_descriptors_have_their_limit() {
        let (mut channel, theirs, regions, memory) = granted();
        let mut after = After::default();
        let asked = DESCRIPTORS_UNSENT_MAX as u64 + 2_000;
        for key in (KEY + 1..).take(usize::try_from(asked).unwrap()) {
            regions.register(memory.whole(), Access::READ_WRITE, key).unwrap();
            channel.machine.handle_frame(Frame::Ask { key });
            channel.drain(&regions, &mut after);
        }
        assert_eq!(channel.descriptors_unsent, DESCRIPTORS_UNSENT_MAX);
        let held = channel.unsent.iter().filter(|(_, passed)| passed.is_some()).count();
        assert_eq!(held, DESCRIPTORS_UNSENT_MAX);
        let mut denied = 0;
        let mut bytes = [0; PACKET_BYTES_MAX];
        while !channel.unsent.is_empty() {
            while let Ok(received) = sys::receive(&theirs, &mut bytes) {
                let (frame, _) = wire::decode(&bytes[..received.length]).unwrap();
                let is_denial = matches!(frame, Frame::Deny { denial: Denial::Full, .. });
                denied += usize::from(is_denial);
            }
            channel.send_waiting();
        }
        assert_eq!(channel.descriptors_unsent, 0);
        assert!(denied > 0 && !channel.machine.is_closing());
    }

    /// A peer that asks and does not read ends its channel at the limit, and is owed the last words.
    #[test]
    fn unread_packets_have_their_limit() {
        let (mut channel, theirs, regions, _memory) = granted();
        let mut after = After::default();
        for key in 0..=PACKETS_UNSENT_MAX as u64 + 4_096 {
            channel.machine.deny(key, Denial::UnknownKey);
            channel.drain(&regions, &mut after);
        }
        assert!(channel.machine.is_closing());
        assert_eq!(channel.unsent.len(), PACKETS_UNSENT_MAX + 2);
        let (last, _) = channel.unsent.back().unwrap();
        assert_eq!(wire::decode(last).unwrap().0, Frame::Closed);
        drop(theirs);
    }
}
