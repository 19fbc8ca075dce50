//! The fabric and its operations.

use super::attributes::Access;
use super::bytes::Bytes;
use super::errors::{Call, Errno, VerbsError};
use super::laws::{LAWS_MAX, Law};
use super::objects::{
    AsyncEvent, EVERY_DOMAIN, Gid, Keys, Packet, Queue, QueuePair, Receive, Region, WorkCompletion,
    WorkRequest,
};
use super::profile::{Completions, LateReceive, Numbers, Profile};
use super::rare::Rare;
use super::states::QpState;
use crate::copy::copied;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Default size of a NIC's completion queue in entries.
const COMPLETIONS_MAX: usize = 4_096;
/// The valid path MTUs, in bytes.
pub(super) const PATH_MTUS: [u32; 5] = [256, 512, 1_024, 2_048, 4_096];
/// Maximum header bytes of a packet on a link (rxe).
const HEADERS_MAX: u32 = 80;
/// Payload bytes of a packet before RTR sets them.
const MTU_BYTES: u32 = 1_024;
/// Maximum async events that a NIC keeps for its reader; the oldest are dropped.
const EVENTS_MAX: usize = 256;
/// The first key of memory that a device reaches for one request alone. No registration comes so far.
const LOCAL_KEYS_FROM: u32 = 0xffff_0000;

/// Effect of a restart on the numbers and keys of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rebirth {
    /// The process restarts: the device continues its numbering.
    GoesOn,
    /// The host or the driver restarts: numbers and keys restart too, so old ones recur.
    Anew,
}

/// One device with one port and one completion queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Nic {
    pub(super) profile: &'static Profile,
    pub(super) port_up: bool,
    pub(super) gids: Vec<Option<Gid>>,
    pub(super) queue_pairs: BTreeMap<u32, Box<QueuePair>>,
    pub(super) regions: BTreeMap<u32, Region>,
    pub(super) completions: VecDeque<WorkCompletion>,
    pub(super) completions_max: usize,
    pub(super) events: VecDeque<AsyncEvent>,
    next_number: u32,
    next_key: u32,
    /// Fails the next call of this kind.
    pub(super) injected: Option<(Call, Errno)>,
    pub(super) link: Rare<Link>,
    /// The NIC that registers the memory of this NIC's process, if another.
    memory_of: Rare<Option<usize>>,
}

/// The link of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Link {
    /// Maximum length of a packet in bytes.
    pub(super) mtu: u32,
}

impl Default for Link {
    fn default() -> Self {
        Self { mtu: 1_500 }
    }
}

impl Nic {
    /// Returns the existing queue pairs.
    pub fn queue_pairs(&self) -> impl Iterator<Item = (u32, &QueuePair)> {
        self.queue_pairs.iter().map(|(number, qp)| (*number, &**qp))
    }

    /// Returns the existing regions.
    pub fn regions(&self) -> impl Iterator<Item = &Region> {
        self.regions.values()
    }

    /// Returns its profile.
    pub fn profile(&self) -> &'static Profile {
        self.profile
    }

    /// Returns the present path MTU of its port, in bytes: the largest whose packets, with their
    /// headers, fit the link.
    pub fn active_mtu(&self) -> u32 {
        let fits = |mtu: &u32| mtu + HEADERS_MAX <= self.link.0.mtu;
        PATH_MTUS.into_iter().rev().find(fits).unwrap_or(PATH_MTUS[0])
    }

    /// Whether its port is up.
    pub fn is_up(&self) -> bool {
        self.port_up
    }

    /// Returns its GID table.
    pub fn gids(&self) -> &[Option<Gid>] {
        &self.gids
    }

    /// Completions not yet polled.
    pub fn completions(&self) -> impl Iterator<Item = &WorkCompletion> {
        self.completions.iter()
    }

    pub(super) fn raise(&mut self, event: AsyncEvent) {
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    /// Queues a completion, or loses it if the queue is full.
    pub(super) fn complete(&mut self, completion: WorkCompletion) {
        if self.completions.len() >= self.completions_max {
            self.raise(AsyncEvent::CompletionQueueError);
        } else {
            self.completions.push_back(completion);
        }
    }

    fn take_number(&mut self) -> Option<u32> {
        let taken = |number: &u32| !self.queue_pairs.contains_key(number);
        let number = match self.profile.numbers {
            Numbers::SmallestFree { first } => (first..).find(taken),
            Numbers::Fresh { .. } => Some(self.next_number),
            Numbers::Cycling { first, count } => {
                let at = self.next_number - first;
                (0..count).map(|step| first + (at + step) % count).find(taken)
            }
        }?;
        self.next_number = match self.profile.numbers {
            Numbers::Cycling { first, count } => first + (number - first + 1) % count,
            Numbers::SmallestFree { .. } | Numbers::Fresh { .. } => number + 1,
        };
        Some(number)
    }

    fn take_keys(&mut self) -> Keys {
        let index = self.next_key;
        self.next_key += 1;
        let varied = index.wrapping_mul(0x9e37_79b9) >> 24;
        let byte = if self.profile.key_byte_varies { varied } else { 0 };
        let rkey = index << 8 | byte;
        let lkey = if self.profile.one_key { rkey } else { rkey | 1 << 31 };
        Keys { lkey, rkey }
    }

    fn start(&mut self) {
        self.next_number = self.profile.numbers.first();
        self.next_key = 1;
    }
}

/// NICs, and the packets between them.
#[derive(Debug, Default, PartialEq, Eq, Hash)]
pub struct Fabric {
    nics: Vec<Arc<Nic>>,
    /// Packets in flight, in the order they were sent.
    packets: Vec<Packet>,
    /// Cut paths, by source and destination: no packet arrives over them.
    cuts: Vec<(usize, usize)>,
    broken_laws: Vec<Law>,
}

copied!(Fabric { shared: ; lists: nics; rest: packets, cuts, broken_laws });

impl Fabric {
    /// Adds a NIC; its index is also the host that its GIDs lead to.
    pub fn add_nic(&mut self, profile: &'static Profile) -> usize {
        let host = self.nics.len() as u16;
        let gid = |&(kind, version)| Some(Gid { kind, host, version });
        let mut gids: Vec<Option<Gid>> = profile.gids.iter().map(gid).collect();
        gids.resize(profile.gid_table_length, None);
        let mut nic = Nic {
            profile,
            port_up: true,
            gids,
            queue_pairs: BTreeMap::new(),
            regions: BTreeMap::new(),
            completions: VecDeque::new(),
            completions_max: COMPLETIONS_MAX,
            events: VecDeque::new(),
            next_number: 0,
            next_key: 0,
            injected: None,
            link: Rare::default(),
            memory_of: Rare::default(),
        };
        nic.start();
        self.nics.push(Arc::new(nic));
        self.nics.len() - 1
    }

    /// Returns a NIC.
    pub fn nic(&self, nic: usize) -> &Nic {
        &self.nics[nic]
    }

    pub(super) fn nic_mut(&mut self, nic: usize) -> &mut Nic {
        Arc::make_mut(&mut self.nics[nic])
    }

    /// Returns a queue pair.
    pub fn queue_pair(&self, nic: usize, number: u32) -> Option<&QueuePair> {
        self.nics[nic].queue_pairs.get(&number).map(|qp| &**qp)
    }

    pub(super) fn queue_pair_mut(&mut self, nic: usize, number: u32) -> Option<&mut QueuePair> {
        self.nic_mut(nic).queue_pairs.get_mut(&number).map(|qp| &mut **qp)
    }

    /// Makes the next call of this kind fail.
    pub fn inject(&mut self, nic: usize, call: Call, errno: Errno) {
        self.nic_mut(nic).injected = Some((call, errno));
    }

    pub(super) fn check_injected(&mut self, nic: usize, call: Call) -> Result<(), VerbsError> {
        match self.nics[nic].injected {
            Some((injected, errno)) if injected == call => {
                self.nic_mut(nic).injected = None;
                Err(VerbsError::new(call, errno))
            }
            _ => Ok(()),
        }
    }

    /// Creates a queue pair in the first protection domain and returns its number.
    pub fn create_queue_pair(
        &mut self,
        nic: usize,
        send_depth: u32,
        receive_depth: u32,
    ) -> Result<u32, VerbsError> {
        self.create_queue_pair_in(nic, 0, send_depth, receive_depth)
    }

    /// Like [`Fabric::create_queue_pair`], in a protection domain of the NIC.
    pub fn create_queue_pair_in(
        &mut self,
        nic: usize,
        domain: u32,
        send_depth: u32,
        receive_depth: u32,
    ) -> Result<u32, VerbsError> {
        let call = Call::CreateQueuePair;
        self.check_injected(nic, call)?;
        let profile = self.nics[nic].profile;
        if profile.needs_depth && (send_depth == 0 || receive_depth == 0) {
            return Err(VerbsError::new(call, Errno::Einval));
        }
        let full = VerbsError::new(call, Errno::Enomem);
        let nic = self.nic_mut(nic);
        if nic.queue_pairs.len() as u32 >= profile.queue_pairs_max {
            return Err(full);
        }
        let number = nic.take_number().ok_or(full)?;
        let made = new_queue_pair(profile, send_depth, receive_depth);
        let made = QueuePair { domain: Rare(domain), ..made };
        nic.queue_pairs.insert(number, Box::new(made));
        Ok(number)
    }

    /// Destroys a queue pair. Outstanding work is dropped without a completion.
    pub fn destroy_queue_pair(&mut self, nic: usize, number: u32) -> Result<(), VerbsError> {
        let call = Call::DestroyQueuePair;
        self.check_injected(nic, call)?;
        let owner = self.nic_mut(nic);
        let Some(gone) = owner.queue_pairs.remove(&number) else {
            return Err(VerbsError::new(call, Errno::Einval));
        };
        if owner.profile.completions_at_destroy == Completions::Removed {
            owner.completions.retain(|completion| completion.number != number);
        }
        // No drain can wait for work that the device dropped.
        let pieces = gone.unsettled - gone.lost.min(gone.unsettled);
        if pieces > 0 {
            self.note(Law::DroppedWork { nic, number, pieces });
        }
        Ok(())
    }

    /// Registers memory at an address in the first protection domain, with its content.
    pub fn register(
        &mut self,
        nic: usize,
        address: u64,
        bytes: impl Into<Bytes>,
        access: Access,
    ) -> Result<Keys, VerbsError> {
        self.register_in(nic, 0, address, bytes, access)
    }

    /// Like [`Fabric::register`], in a protection domain of the NIC: queue pairs of others may not
    /// name the memory, nor may their peers.
    pub fn register_in(
        &mut self,
        nic: usize,
        domain: u32,
        address: u64,
        bytes: impl Into<Bytes>,
        access: Access,
    ) -> Result<Keys, VerbsError> {
        let call = Call::Register;
        self.check_injected(nic, call)?;
        if access.remote_write && !access.local_write {
            return Err(VerbsError::new(call, Errno::Einval));
        }
        let nic = self.nic_mut(nic);
        let registered = nic.regions.range(..LOCAL_KEYS_FROM).count();
        if registered as u32 >= nic.profile.regions_max {
            return Err(VerbsError::new(call, nic.profile.regions_full));
        }
        let keys = nic.take_keys();
        let bytes = bytes.into();
        let domain = Rare(domain);
        nic.regions.insert(keys.rkey, Region { keys, address, bytes, access, domain });
        Ok(keys)
    }

    /// Adds memory at address 0 for one request: inline data, or the pieces of a list. It is no
    /// registration, and peers do not know the key. Returns `None` if every such key is in use.
    pub fn add_local(&mut self, nic: usize, bytes: Bytes, access: Access) -> Option<Keys> {
        let nic = self.nic_mut(nic);
        let is_free = |key: &u32| !nic.regions.contains_key(key);
        let key = (LOCAL_KEYS_FROM..=u32::MAX).rev().find(is_free)?;
        let keys = Keys { lkey: key, rkey: key };
        let domain = Rare(EVERY_DOMAIN);
        nic.regions.insert(key, Region { keys, address: 0, bytes, access, domain });
        Some(keys)
    }

    /// Removes memory of one request.
    pub fn remove_local(&mut self, nic: usize, keys: Keys) {
        self.nic_mut(nic).regions.remove(&keys.rkey);
    }

    /// Makes the memory registered at `owner` accessible through `nic` too, with the same keys: two
    /// NICs of one process.
    pub fn share_memory(&mut self, nic: usize, owner: usize) {
        self.nic_mut(nic).memory_of = Rare(Some(owner).filter(|owner| *owner != nic));
    }

    /// Returns the NIC at which the memory accessible through one is registered.
    pub(super) fn memory_of(&self, nic: usize) -> usize {
        self.nic(nic).memory_of.0.unwrap_or(nic)
    }

    /// Ends a registration, even with work in flight.
    pub fn deregister(&mut self, nic: usize, keys: Keys) -> Result<(), VerbsError> {
        let call = Call::Deregister;
        self.check_injected(nic, call)?;
        match self.nic_mut(nic).regions.remove(&keys.rkey) {
            Some(_) => Ok(()),
            None => Err(VerbsError::new(call, Errno::Einval)),
        }
    }

    /// Returns the bytes of a region, if the fabric holds them.
    pub fn memory(&self, nic: usize, keys: Keys) -> Option<&[u8]> {
        match &self.nics[nic].regions.get(&keys.rkey)?.bytes {
            Bytes::Held(bytes) => Some(bytes.as_slice()),
            Bytes::Mapped(_) => None,
        }
    }

    /// Returns the bytes of a region for changes by its process, if the fabric holds them.
    pub fn memory_mut(&mut self, nic: usize, keys: Keys) -> Option<&mut Vec<u8>> {
        match &mut self.nic_mut(nic).regions.get_mut(&keys.rkey)?.bytes {
            Bytes::Held(bytes) => Some(Arc::make_mut(bytes)),
            Bytes::Mapped(_) => None,
        }
    }

    /// Takes the oldest completion.
    pub fn poll(&mut self, nic: usize) -> Option<WorkCompletion> {
        let nic = self.nic_mut(nic);
        let completion = nic.completions.pop_front()?;
        if let Some(qp) = nic.queue_pairs.get_mut(&completion.number) {
            qp.unsettled = qp.unsettled.saturating_sub(1);
        }
        Some(completion)
    }

    /// Takes the completions of one queue pair, oldest first, as a drain does.
    pub fn poll_queue_pair(&mut self, nic: usize, number: u32) -> Vec<WorkCompletion> {
        let nic = self.nic_mut(nic);
        let of = |completion: &WorkCompletion| completion.number == number;
        let taken: Vec<WorkCompletion> = nic.completions.iter().copied().filter(of).collect();
        nic.completions.retain(|completion| !of(completion));
        if let Some(qp) = nic.queue_pairs.get_mut(&number) {
            qp.unsettled = qp.unsettled.saturating_sub(taken.len() as u32);
        }
        taken
    }

    /// Whether outstanding work on a NIC reads or writes local addresses of the range.
    pub fn holds(&self, nic: usize, range: &std::ops::Range<u64>) -> bool {
        let within = |request: &WorkRequest| {
            request.local < range.end && range.start < request.local + u64::from(request.length)
        };
        self.nic(nic).queue_pairs().any(|(_, qp)| {
            let sent = qp.sent.iter().map(|sent| &sent.request);
            sent.chain(&qp.held).chain(&qp.early).any(within)
        })
    }

    /// Limits a NIC's completion queue; excess completions are lost.
    pub fn limit_completions(&mut self, nic: usize, completions_max: usize) {
        self.nic_mut(nic).completions_max = completions_max;
    }

    /// Takes the oldest event of a device.
    pub fn next_event(&mut self, nic: usize) -> Option<AsyncEvent> {
        if self.nics[nic].events.is_empty() {
            return None;
        }
        self.nic_mut(nic).events.pop_front()
    }

    /// Takes all packets in flight, in the order they were sent, for [`put`](Self::put).
    pub fn take_packets(&mut self) -> Vec<Packet> {
        std::mem::take(&mut self.packets)
    }

    /// Lets a packet arrive.
    pub fn put(&mut self, packet: Packet) {
        self.arrive(packet);
    }

    /// Packets in flight, in the order they were sent.
    pub fn packets(&self) -> &[Packet] {
        &self.packets
    }

    pub(super) fn send(&mut self, packet: Packet) {
        self.packets.push(packet);
    }

    /// Delivers any packet in flight; all others are then late.
    pub fn deliver(&mut self, index: usize) {
        let packet = self.packets.remove(index);
        self.arrive(packet);
    }

    /// Delivers a packet and keeps a copy of it in flight.
    pub fn duplicate(&mut self, index: usize) {
        let packet = self.packets[index].clone();
        self.arrive(packet);
    }

    /// Loses a packet.
    pub fn lose(&mut self, index: usize) {
        self.packets.remove(index);
    }

    fn arrive(&mut self, packet: Packet) {
        let (from, to) = (usize::from(packet.from), usize::from(packet.to));
        if self.reaches(from, to) {
            self.receive(packet);
        }
    }

    /// Delivers packets in order until none is in flight.
    pub fn run(&mut self) {
        while !self.packets.is_empty() {
            self.deliver(0);
        }
    }

    /// Whether packets of one NIC arrive at another.
    pub fn reaches(&self, from: usize, to: usize) -> bool {
        let up = |nic: usize| self.nics.get(nic).is_some_and(|nic| nic.port_up);
        up(from) && up(to) && !self.cuts.contains(&(from, to))
    }

    /// Whether the source address of a queue pair exists, as far as its driver checks.
    pub fn has_own_address(&self, nic: usize, number: u32) -> bool {
        let owner = &self.nics[nic];
        let own = owner.queue_pairs.get(&number).and_then(|qp| qp.kept.0.own);
        own.is_none_or(|own| owner.gids.contains(&Some(own)))
    }

    /// Whether the path from one NIC to another is cut.
    pub fn is_cut(&self, from: usize, to: usize) -> bool {
        self.cuts.contains(&(from, to))
    }

    /// Cuts the path from one NIC to another, in one direction.
    pub fn cut(&mut self, from: usize, to: usize) {
        if !self.cuts.contains(&(from, to)) {
            self.cuts.push((from, to));
        }
    }

    /// Restores the path.
    pub fn mend(&mut self, from: usize, to: usize) {
        self.cuts.retain(|cut| *cut != (from, to));
    }

    /// Sets the state of a port.
    pub fn set_port(&mut self, nic: usize, up: bool) {
        let nic = self.nic_mut(nic);
        if nic.port_up == up {
            return;
        }
        nic.port_up = up;
        let event = if up { AsyncEvent::PortActive } else { AsyncEvent::PortError };
        nic.raise(event);
        if up && nic.profile.port_active_twice {
            nic.raise(event);
        }
    }

    /// Sets the maximum packet length of a port's link in bytes. Queue pairs are not notified.
    pub fn set_link_mtu(&mut self, nic: usize, bytes: u32) {
        self.nic_mut(nic).link.0.mtu = bytes;
    }

    /// Removes an entry of the GID table. Queue pairs that use it are not notified. Returns false if
    /// the table has no such entry.
    pub fn remove_gid(&mut self, nic: usize, index: usize) -> bool {
        let nic = self.nic_mut(nic);
        let Some(entry @ Some(_)) = nic.gids.get_mut(index) else { return false };
        *entry = None;
        nic.raise(AsyncEvent::GidChange);
        true
    }

    /// Sets an empty entry. Returns false if the table has no such empty entry.
    pub fn set_gid(&mut self, nic: usize, index: usize, gid: Gid) -> bool {
        let nic = self.nic_mut(nic);
        let Some(entry @ None) = nic.gids.get_mut(index) else { return false };
        *entry = Some(gid);
        nic.raise(AsyncEvent::GidChange);
        true
    }

    /// Adds an entry at the first free index, and returns the index.
    pub fn add_gid(&mut self, nic: usize, gid: Gid) -> Option<usize> {
        let nic = self.nic_mut(nic);
        let index = nic.gids.iter().position(Option::is_none)?;
        nic.gids[index] = Some(gid);
        nic.raise(AsyncEvent::GidChange);
        Some(index)
    }

    /// Ends the process of a NIC with its queue pairs, regions, completions and events. Sent
    /// packets stay in flight.
    pub fn crash(&mut self, nic: usize, rebirth: Rebirth) {
        let nic = self.nic_mut(nic);
        nic.queue_pairs.clear();
        nic.regions.clear();
        nic.completions.clear();
        nic.events.clear();
        nic.injected = None;
        if rebirth == Rebirth::Anew {
            nic.start();
        }
    }

    pub(super) fn note(&mut self, law: Law) {
        if self.broken_laws.len() < LAWS_MAX {
            self.broken_laws.push(law);
        } else if let Some(Law::Dropped { laws }) = self.broken_laws.last_mut() {
            *laws += 1;
        } else {
            self.broken_laws.push(Law::Dropped { laws: 1 });
        }
    }

    /// Returns the laws broken since the last call; the last of them counts those past the limit.
    pub fn take_broken_laws(&mut self) -> Vec<Law> {
        std::mem::take(&mut self.broken_laws)
    }

    /// Posts a receive.
    pub fn post_receive(
        &mut self,
        nic: usize,
        number: u32,
        receive: Receive,
    ) -> Result<(), VerbsError> {
        let call = Call::PostReceive;
        self.check_injected(nic, call)?;
        let profile = self.nics[nic].profile;
        let refused = |errno| VerbsError::new(call, errno).negative(profile.negative_data_codes);
        let owner = self.nic_mut(nic);
        let Some(qp) = owner.queue_pairs.get_mut(&number) else {
            return Err(refused(Errno::Einval));
        };
        if let (QpState::Reset, Some(errno)) = (qp.state, profile.receive_in_reset) {
            return Err(refused(errno));
        }
        if let (QpState::Err, Some(errno)) = (qp.asked, profile.post_after_own_error) {
            return Err(refused(errno));
        }
        if qp.receives.len() as u32 >= qp.receive_depth {
            return Err(refused(Errno::Enomem));
        }
        qp.unsettled += 1;
        if qp.state == QpState::Err && profile.late_receive == LateReceive::AsSends {
            self.end_late(nic, number, receive.wr_id, Queue::Receive);
        } else {
            qp.receives.push_back(receive);
        }
        Ok(())
    }
}

fn new_queue_pair(profile: &Profile, send_depth: u32, receive_depth: u32) -> QueuePair {
    QueuePair {
        state: profile.fresh,
        access: Access::ALL,
        path_mtu: MTU_BYTES,
        send_depth,
        receive_depth,
        max_rd_atomic: 16,
        max_dest_rd_atomic: 16,
        ..QueuePair::default()
    }
}
