//! The simulated fabric, with devices of one profile.

use crate::arm::ArmError;
use crate::arm::{
    Change, Disturbance, Ended, Event, Kind, Outcome, Own, Place, Request, Side, Towards, VerbsArm,
    Wait,
};
use handfast_transport_sim::verbs::{
    Access, AddressVector, AsyncEvent, Attributes, Fabric, Gid, GidKind, Keys, Profile, QpState,
    Rebirth, Receive, SendKind, Status, VerbsError, WorkRequest,
};
use std::collections::BTreeMap;

/// Address of a side's first region, and the distance between regions.
const FIRST_ADDRESS: u64 = 0x0010_0000;
/// Maximum rounds of one wait, in each of which everything arrives or timers expire once; more than
/// the number of retries.
const ROUNDS_MAX: u32 = 40;
/// Index of the link-local address in the GID table when a device starts.
const LINK_LOCAL_PLACE: u8 = 0;
/// An empty index of the GID table.
const EMPTY_PLACE: u8 = 7;
/// The RoCE version of all connections.
const ROCE_VERSION: u8 = 2;
/// A host that does not exist.
const NOBODY: u16 = 99;

struct Region {
    keys: Keys,
    address: u64,
}

/// Two devices of a profile, connected by a switch.
pub struct Simulated {
    fabric: Fabric,
    pairs: BTreeMap<(Side, String), u32>,
    regions: BTreeMap<(Side, String), Region>,
    /// Number of regions created by each side.
    made: [u64; 2],
    held: [bool; 2],
    kinds: BTreeMap<u64, Kind>,
}

impl Simulated {
    /// Creates two devices of a profile in their initial state.
    pub fn new(profile: &'static Profile) -> Self {
        let mut fabric = Fabric::default();
        for side in Side::ALL {
            assert_eq!(fabric.add_nic(profile), nic(side), "hosts are numbered as sides are");
        }
        let (pairs, regions) = (BTreeMap::new(), BTreeMap::new());
        let (made, held) = ([0; 2], [false; 2]);
        Self { fabric, pairs, regions, made, held, kinds: BTreeMap::new() }
    }

    fn region(&self, side: Side, place: &Place) -> Outcome<(&Region, u64)> {
        let region = self.regions.get(&(side, place.region.clone()));
        let region = region.ok_or_else(|| ArmError(format!("no region {}", place.region)))?;
        Ok((region, region.address + place.at))
    }

    fn keys(&self, side: Side, region: &str) -> Outcome<Keys> {
        let known = self.regions.get(&(side, region.to_owned()));
        known.map(|region| region.keys).ok_or_else(|| ArmError(format!("no region {region}")))
    }

    /// Returns the index of the address, or an empty index if it is removed.
    fn own_place(&self, side: Side, own: Own) -> u8 {
        let is_ipv4 = |gid: &Option<Gid>| {
            gid.is_some_and(|gid| gid.kind == GidKind::Ipv4 && gid.version == ROCE_VERSION)
        };
        match own {
            Own::Ipv4 => {
                let found = self.fabric.nic(nic(side)).gids().iter().position(is_ipv4);
                let usual = self.fabric.nic(nic(side)).profile().gid_index.unwrap_or(1);
                found.and_then(|place| u8::try_from(place).ok()).unwrap_or(usual)
            }
            Own::LinkLocal => LINK_LOCAL_PLACE,
            Own::Empty => EMPTY_PLACE,
        }
    }

    fn attributes(&self, side: Side, change: &Change) -> Attributes {
        let address = change.address.map(|address| AddressVector {
            port: address.port,
            sgid_index: self.own_place(side, address.own),
            dgid: gid(side, address.to),
            is_global: address.is_global,
        });
        Attributes { address, ..change.attributes }
    }

    /// Delivers all packets that are not held; returns whether there were any.
    fn arrive(&mut self) -> bool {
        let mut any = false;
        while let Some(index) =
            self.fabric.packets().iter().position(|packet| !self.held[usize::from(packet.from)])
        {
            self.fabric.deliver(index);
            any = true;
        }
        any
    }

    /// Expires the timers of all waiting queue pairs once; returns whether there were any.
    fn expire(&mut self) -> bool {
        let mut any = false;
        for side in Side::ALL {
            let waiting: Vec<u32> = self.fabric.waiting(nic(side)).collect();
            any |= !waiting.is_empty();
            waiting.into_iter().for_each(|number| self.fabric.expire(nic(side), number));
        }
        any
    }
}

impl VerbsArm for Simulated {
    fn limit_completions(&mut self, side: Side, entries: u32) -> Outcome<()> {
        let entries = usize::try_from(entries).unwrap_or(usize::MAX);
        self.fabric.limit_completions(nic(side), entries);
        Ok(())
    }

    fn create(&mut self, side: Side, pair: &str, depths: (u32, u32)) -> Outcome<i32> {
        Ok(match self.fabric.create_queue_pair(nic(side), depths.0, depths.1) {
            Ok(number) => {
                self.pairs.insert((side, pair.to_owned()), number);
                0
            }
            Err(error) => error.code.abs(),
        })
    }

    fn destroy(&mut self, side: Side, pair: &str) -> Outcome<i32> {
        let number = self.number(side, pair)?;
        Ok(code(self.fabric.destroy_queue_pair(nic(side), number)))
    }

    fn number(&mut self, side: Side, pair: &str) -> Outcome<u32> {
        let known = self.pairs.get(&(side, pair.to_owned()));
        known.copied().ok_or_else(|| ArmError(format!("no queue pair {pair}")))
    }

    fn modify(&mut self, side: Side, pair: &str, change: &Change) -> Outcome<i32> {
        let number = self.number(side, pair)?;
        let attributes = self.attributes(side, change);
        Ok(code(self.fabric.modify(nic(side), number, &attributes)))
    }

    fn state(&mut self, side: Side, pair: &str) -> Outcome<QpState> {
        let number = self.number(side, pair)?;
        let found = self.fabric.queue_pair(nic(side), number);
        Ok(found.ok_or_else(|| ArmError(format!("{pair} is gone")))?.state())
    }

    fn register(&mut self, side: Side, region: &str, fill: u8, rights: Access) -> Outcome<i32> {
        let bytes = u64::from(Self::REGION_BYTES);
        let address = FIRST_ADDRESS + self.made[nic(side)] * 2 * bytes;
        let content = vec![fill; Self::REGION_BYTES as usize];
        Ok(match self.fabric.register(nic(side), address, content, rights) {
            Ok(keys) => {
                self.made[nic(side)] += 1;
                self.regions.insert((side, region.to_owned()), Region { keys, address });
                0
            }
            Err(error) => error.code.abs(),
        })
    }

    fn deregister(&mut self, side: Side, region: &str) -> Outcome<i32> {
        let keys = self.keys(side, region)?;
        Ok(code(self.fabric.deregister(nic(side), keys)))
    }

    fn post(&mut self, side: Side, pair: &str, request: &Request) -> Outcome<i32> {
        let number = self.number(side, pair)?;
        let (remote, address) = self.region(side.peer(), &request.remote)?;
        let rkey = request.remote.key.of(remote.keys.rkey);
        let kind = match request.kind {
            Kind::Write => SendKind::Write { rkey, address },
            Kind::Read => SendKind::Read { rkey, address },
            Kind::Send => SendKind::Send,
            Kind::Receive => return Err(ArmError("a receive is no request".to_owned())),
        };
        let (own, local) = self.region(side, &request.local)?;
        let work = WorkRequest {
            wr_id: request.id,
            kind,
            lkey: request.local.key.of(own.keys.lkey),
            local,
            length: request.length,
            signalled: request.signalled,
        };
        self.kinds.insert(request.id, request.kind);
        Ok(code(self.fabric.post_send(nic(side), number, work)))
    }

    fn post_receive(
        &mut self,
        side: Side,
        pair: &str,
        id: u64,
        place: &Place,
        length: u32,
    ) -> Outcome<i32> {
        let number = self.number(side, pair)?;
        let (own, local) = self.region(side, place)?;
        let lkey = place.key.of(own.keys.lkey);
        self.kinds.insert(id, Kind::Receive);
        let receive = Receive { wr_id: id, lkey, local, length };
        Ok(code(self.fabric.post_receive(nic(side), number, receive)))
    }

    fn poll(&mut self, side: Side) -> Outcome<Option<Ended>> {
        // The fabric's completions contain their queue and no opcode.
        let ended = self.fabric.poll(nic(side)).map(|completion| Ended {
            id: completion.wr_id,
            status: status(completion.status),
            kind: (completion.status == Status::Success)
                .then(|| self.kinds.get(&completion.wr_id).copied())
                .flatten(),
        });
        Ok(ended)
    }

    fn event(&mut self, side: Side) -> Outcome<Option<Event>> {
        Ok(self.fabric.next_event(nic(side)).map(|event| match event {
            AsyncEvent::PortError => Event::PortError,
            AsyncEvent::PortActive => Event::PortActive,
            AsyncEvent::GidChange => Event::GidChange,
            AsyncEvent::QueuePairFatal(_) => Event::QueuePairFatal,
            AsyncEvent::CompletionQueueError => Event::CompletionQueueError,
        }))
    }

    fn bytes(&mut self, side: Side, region: &str, at: usize, length: usize) -> Outcome<Vec<u8>> {
        let keys = self.keys(side, region)?;
        let memory = self.fabric.memory(nic(side), keys);
        let bytes = memory.and_then(|bytes| bytes.get(at..at + length));
        bytes.map(<[u8]>::to_vec).ok_or_else(|| ArmError(format!("no such bytes of {region}")))
    }

    fn fill(&mut self, side: Side, region: &str, at: usize, bytes: &[u8]) -> Outcome<()> {
        let keys = self.keys(side, region)?;
        let memory = self.fabric.memory_mut(nic(side), keys);
        let place = memory.and_then(|memory| memory.get_mut(at..at + bytes.len()));
        let place = place.ok_or_else(|| ArmError(format!("no such bytes of {region}")))?;
        place.copy_from_slice(bytes);
        Ok(())
    }

    fn port_mtu(&mut self, side: Side) -> Outcome<u32> {
        Ok(self.fabric.nic(nic(side)).active_mtu())
    }

    fn disturb(&mut self, side: Side, disturbance: Disturbance) -> Outcome<()> {
        let (own, peer) = (nic(side), nic(side.peer()));
        match disturbance {
            Disturbance::Cut => self.fabric.cut(own, peer),
            Disturbance::Mend => self.fabric.mend(own, peer),
            Disturbance::Hold => self.held[own] = true,
            Disturbance::Release => {
                self.held[own] = false;
                self.arrive();
            }
            Disturbance::LinkDown => self.fabric.set_port(own, false),
            Disturbance::LinkUp => self.fabric.set_port(own, true),
            Disturbance::AddressLeaves => {
                let place = self.own_place(side, Own::Ipv4);
                self.fabric.remove_gid(own, usize::from(place));
            }
            Disturbance::AddressReturns => {
                let place = self.fabric.add_gid(own, gid(side.peer(), Towards::Peer));
                place.ok_or_else(|| ArmError("the table is full".to_owned()))?;
            }
            Disturbance::LinkMtu(bytes) => self.fabric.set_link_mtu(own, bytes),
        }
        Ok(())
    }

    fn restart(&mut self, side: Side) -> Outcome<()> {
        self.fabric.crash(nic(side), Rebirth::Anew);
        self.regions.retain(|(owner, _), _| *owner != side);
        Ok(())
    }

    fn go_on(&mut self, wait: Wait, round: u32) -> Outcome<bool> {
        let timers = wait != Wait::Arrival;
        Ok(round < ROUNDS_MAX && (self.arrive() || (timers && self.expire())))
    }
}

fn nic(side: Side) -> usize {
    side as usize
}

/// Returns the address that a side connects to.
fn gid(side: Side, to: Towards) -> Gid {
    let (kind, host) = match to {
        Towards::Peer => (GidKind::Ipv4, nic(side.peer()) as u16),
        Towards::PeerLinkLocal => (GidKind::LinkLocal, nic(side.peer()) as u16),
        Towards::Itself => (GidKind::Ipv4, nic(side) as u16),
        Towards::Nobody => (GidKind::Ipv4, NOBODY),
    };
    Gid { kind, host, version: ROCE_VERSION }
}

fn code(result: Result<(), VerbsError>) -> i32 {
    result.map_or_else(|error| error.code.abs(), |()| 0)
}

/// Converts a status to the number of rdma-core.
fn status(status: Status) -> u32 {
    match status {
        Status::Success => 0,
        Status::LocalLength => 1,
        Status::LocalQueuePair => 2,
        Status::LocalProtection => 4,
        Status::Flushed => 5,
        Status::LocalAccess => 8,
        Status::RemoteInvalid => 9,
        Status::RemoteAccess => 10,
        Status::RemoteOperation => 11,
        Status::RetryExceeded => 12,
        Status::RnrExceeded => 13,
        Status::General => 21,
    }
}
