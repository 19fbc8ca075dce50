//! Devices behind libibverbs: the kernel's soft-RoCE in a guest of `cargo xtask guest`, or scripted ones.

use crate::arm::{
    ArmError, Change, Disturbance, Ended, Event, Kind, Outcome, Own, Place, Request, Side, Towards,
    VerbsArm, Wait,
};
use crate::network::{self, Network};
use crate::scripted::Switch;
use handfast_transport::Memory;
use handfast_transport_rdma::{
    BareAddress, BareAttributes, BareKind, BareNic, BareQueuePair, BareReceive, BareRegion,
    BareRequest, BareRights, GidEntry, GidKind,
};
use handfast_transport_sim::verbs::{Access, QpState};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::Ipv6Addr;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Entries of a completion queue, unless a scenario limits it.
const COMPLETIONS: u32 = 255;
/// An empty index of the GID table.
const EMPTY_PLACE: u8 = 7;
/// A link-local address of no host.
const LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);
/// Timeout of completions; the guest's processors are emulated and shared.
const ENDS_MAX: Duration = Duration::from_secs(5);
/// Maximum time of packets that the timers of a scenario do not delay.
const QUIET: Duration = Duration::from_millis(200);
/// Time from one end of the link to the other.
const ARRIVAL: Duration = Duration::from_millis(60);
/// Interval of polls.
const LOOK: Duration = Duration::from_millis(1);

struct Pair {
    number: u32,
    queue_pair: Option<BareQueuePair>,
}

struct Region {
    memory: Memory,
    keys: (u32, u32),
    registered: Option<BareRegion>,
}

struct End {
    nic: BareNic,
    pairs: BTreeMap<String, Pair>,
    regions: BTreeMap<String, Region>,
    /// The last known index of the IPv4 address.
    place: u8,
}

/// The path between the two devices.
enum Between {
    /// The guest's link. Dropping it reverts the disturbances.
    Link(Network),
    /// The scripted library.
    Switch(Switch),
}

/// Two devices behind libibverbs.
pub struct Kernel {
    // Closed before what is between them is as it was.
    ends: [Option<End>; 2],
    between: Between,
    began: Instant,
}

/// The running kernel's release, such as `6.1.0-56-amd64`.
///
/// # Errors
/// If the kernel does not report it.
pub fn release() -> Outcome<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/osrelease").map_err(failed)?;
    Ok(text.trim().to_owned())
}

impl Kernel {
    /// Opens rxe0 for side A and rxe1 for side B.
    ///
    /// # Errors
    /// If there are none, as outside of a guest.
    pub fn open() -> Outcome<Self> {
        Self::over(Between::Link(Network::default()))
    }

    /// Opens the scripted devices of this process, rxe0 for side A and rxe1 for side B.
    ///
    /// # Errors
    /// If the process has none.
    pub fn scripted() -> Outcome<Self> {
        Self::over(Between::Switch(Switch::new()?))
    }

    fn over(between: Between) -> Outcome<Self> {
        let ends = [Some(End::open(Side::A, COMPLETIONS)?), Some(End::open(Side::B, COMPLETIONS)?)];
        Ok(Self { ends, between, began: Instant::now() })
    }

    fn end(&mut self, side: Side) -> Outcome<&mut End> {
        self.ends[side as usize].as_mut().ok_or_else(|| failed("the device is not open"))
    }

    fn pair(&mut self, side: Side, name: &str) -> Outcome<&BareQueuePair> {
        let found = self.end(side)?.pairs.get(name).and_then(|pair| pair.queue_pair.as_ref());
        found.ok_or_else(|| failed(format!("no queue pair {name}")))
    }

    fn region(&mut self, side: Side, name: &str) -> Outcome<&Region> {
        let found = self.end(side)?.regions.get(name);
        found.ok_or_else(|| failed(format!("no region {name}")))
    }

    fn reopen(&mut self, side: Side, entries: u32) -> Outcome<()> {
        self.ends[side as usize] = Some(End::open(side, entries)?);
        Ok(())
    }

    /// Waits until the GID table shows a change of the side's IPv4 address: the kernel changes it later.
    fn wait_for_address(&mut self, side: Side, is_there: bool) -> Outcome<()> {
        let (began, wanted) = (Instant::now(), network::address(side));
        while began.elapsed() < ENDS_MAX {
            let entries = self.end(side)?.nic.gids().map_err(failed)?;
            if entries.iter().any(|entry| entry.address == wanted) == is_there {
                return Ok(());
            }
            sleep(LOOK);
        }
        Err(failed(
            "the GID table does not show the change of the address; look for the network device with `rdma link`",
        ))
    }

    /// Waits until a queue pair of the side is in ERR, for [`QUIET`] at most: the kernel reports a failed request
    /// before its queue pair changes.
    fn wait_for_error(&mut self, side: Side) -> Outcome<()> {
        let began = Instant::now();
        let has_failed = |pair: &Pair| {
            pair.queue_pair.as_ref().is_some_and(|it| it.state() == Ok(QpState::Err as u32))
        };
        while !self.end(side)?.pairs.values().any(has_failed) && began.elapsed() < QUIET {
            sleep(LOOK);
        }
        Ok(())
    }
}

impl End {
    fn open(side: Side, entries: u32) -> Outcome<Self> {
        let nic = BareNic::open(&network::device(side), entries).map_err(failed)?;
        Ok(Self { nic, pairs: BTreeMap::new(), regions: BTreeMap::new(), place: 0 })
    }

    fn place(&mut self, side: Side, own: Own) -> Outcome<u8> {
        let entries = self.nic.gids().map_err(failed)?;
        let wanted = network::address(side);
        let found = match own {
            Own::Ipv4 => {
                let of_v2 = |entry: &&GidEntry| entry.kind == GidKind::RoceV2;
                entries.iter().filter(of_v2).find(|entry| entry.address == wanted)
            }
            Own::LinkLocal => entries.iter().find(|entry| entry.address.is_unicast_link_local()),
            Own::Empty => {
                let taken = entries.iter().any(|entry| entry.index == u32::from(EMPTY_PLACE));
                return if taken { Err(failed("the place is not empty")) } else { Ok(EMPTY_PLACE) };
            }
        };
        let place = found.and_then(|entry| u8::try_from(entry.index).ok());
        if own == Own::Ipv4 {
            self.place = place.unwrap_or(self.place);
            return Ok(self.place);
        }
        place.ok_or_else(|| failed("the port has no such address"))
    }
}

impl VerbsArm for Kernel {
    fn limit_completions(&mut self, side: Side, entries: u32) -> Outcome<()> {
        self.reopen(side, entries)
    }

    fn create(&mut self, side: Side, pair: &str, depths: (u32, u32)) -> Outcome<i32> {
        let end = self.end(side)?;
        Ok(match end.nic.queue_pair(depths.0, depths.1) {
            Ok(queue_pair) => {
                let number = queue_pair.number();
                let made = Pair { number, queue_pair: Some(queue_pair) };
                end.pairs.insert(pair.to_owned(), made);
                0
            }
            Err(error) => error.code,
        })
    }

    fn destroy(&mut self, side: Side, pair: &str) -> Outcome<i32> {
        let found = self.end(side)?.pairs.get_mut(pair).and_then(|pair| pair.queue_pair.take());
        let queue_pair = found.ok_or_else(|| failed(format!("no queue pair {pair}")))?;
        Ok(queue_pair.destroy().abs())
    }

    fn number(&mut self, side: Side, pair: &str) -> Outcome<u32> {
        let found = self.end(side)?.pairs.get(pair);
        found.map(|pair| pair.number).ok_or_else(|| failed(format!("no queue pair {pair}")))
    }

    fn modify(&mut self, side: Side, pair: &str, change: &Change) -> Outcome<i32> {
        let address = match change.address {
            None => None,
            Some(address) => Some(BareAddress {
                port: address.port,
                own_gid_index: self.end(side)?.place(side, address.own)?,
                peer_gid: match address.to {
                    Towards::Peer => network::address(side.peer()),
                    Towards::PeerLinkLocal => LINK_LOCAL,
                    Towards::Itself => network::address(side),
                    Towards::Nobody => network::nobody(),
                },
                peer_lid: 0,
                is_global: address.is_global,
            }),
        };
        let set = &change.attributes;
        let attributes = BareAttributes {
            state: set.state as u32,
            pkey_index: set.pkey_index,
            port: set.port,
            rights: set.access.map(rights),
            address,
            path_mtu: set.path_mtu,
            peer_number: set.dest_number,
            receive_psn: set.rq_psn,
            max_dest_rd_atomic: set.max_dest_rd_atomic,
            min_rnr_timer: set.min_rnr_timer,
            timeout: set.timeout,
            retries: set.retry_count,
            rnr_retries: set.rnr_retry,
            send_psn: set.sq_psn,
            max_rd_atomic: set.max_rd_atomic,
        };
        Ok(self.pair(side, pair)?.modify(&attributes).abs())
    }

    fn state(&mut self, side: Side, pair: &str) -> Outcome<QpState> {
        let number = self.pair(side, pair)?.state();
        let number = number.map_err(|code| failed(format!("a query returned {code}")))?;
        let state = QpState::ALL.get(number as usize);
        state.copied().ok_or_else(|| failed(format!("no state is {number}")))
    }

    fn register(&mut self, side: Side, region: &str, fill: u8, given: Access) -> Outcome<i32> {
        let memory = Memory::zeroed(Self::REGION_BYTES as usize).map_err(failed)?;
        memory.copy_in(0, &vec![fill; Self::REGION_BYTES as usize]).map_err(failed)?;
        let end = self.end(side)?;
        Ok(match end.nic.register(memory.whole(), rights(given)) {
            Ok(registered) => {
                let keys = registered.keys();
                let registered = Some(registered);
                end.regions.insert(region.to_owned(), Region { memory, keys, registered });
                0
            }
            Err(error) => error.code,
        })
    }

    fn deregister(&mut self, side: Side, region: &str) -> Outcome<i32> {
        let found = self.end(side)?.regions.get_mut(region);
        let registered = found.and_then(|region| region.registered.take());
        let registered = registered.ok_or_else(|| failed(format!("no region {region}")))?;
        Ok(registered.deregister().abs())
    }

    fn post(&mut self, side: Side, pair: &str, request: &Request) -> Outcome<i32> {
        let remote = self.region(side.peer(), &request.remote.region)?;
        let remote_key = request.remote.key.of(remote.keys.1);
        let remote_address = remote.memory.address() + request.remote.at;
        let local = self.region(side, &request.local.region)?;
        let work = BareRequest {
            name: request.id,
            kind: match request.kind {
                Kind::Write => BareKind::Write,
                Kind::Read => BareKind::Read,
                Kind::Send => BareKind::Send,
                Kind::Receive => return Err(failed("a receive is no request")),
            },
            address: local.memory.address() + request.local.at,
            length: request.length,
            local_key: request.local.key.of(local.keys.0),
            remote_address,
            remote_key,
            signalled: request.signalled,
        };
        Ok(self.pair(side, pair)?.post(&work).abs())
    }

    fn post_receive(
        &mut self,
        side: Side,
        pair: &str,
        id: u64,
        place: &Place,
        length: u32,
    ) -> Outcome<i32> {
        let local = self.region(side, &place.region)?;
        let address = local.memory.address() + place.at;
        let local_key = place.key.of(local.keys.0);
        let receive = BareReceive { name: id, address, length, local_key };
        Ok(self.pair(side, pair)?.post_receive(&receive).abs())
    }

    fn poll(&mut self, side: Side) -> Outcome<Option<Ended>> {
        let completion = self.end(side)?.nic.poll().map_err(failed)?;
        if completion.as_ref().is_some_and(|it| it.status != 0)
            && matches!(self.between, Between::Link(_))
        {
            self.wait_for_error(side)?;
        }
        Ok(completion.map(|completion| Ended {
            id: completion.name,
            status: completion.status,
            kind: (completion.status == 0).then(|| kind(completion.opcode)).flatten(),
        }))
    }

    fn event(&mut self, side: Side) -> Outcome<Option<Event>> {
        let event = self.end(side)?.nic.event().map_err(failed)?;
        Ok(event.map(|kind| match kind {
            0 => Event::CompletionQueueError,
            1 => Event::QueuePairFatal,
            9 => Event::PortActive,
            10 => Event::PortError,
            18 => Event::GidChange,
            other => Event::Other(other),
        }))
    }

    fn bytes(&mut self, side: Side, region: &str, at: usize, length: usize) -> Outcome<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.region(side, region)?.memory.copy_out(at, &mut bytes).map_err(failed)?;
        Ok(bytes)
    }

    fn fill(&mut self, side: Side, region: &str, at: usize, bytes: &[u8]) -> Outcome<()> {
        self.region(side, region)?.memory.copy_in(at, bytes).map_err(failed)
    }

    fn port_mtu(&mut self, side: Side) -> Outcome<u32> {
        self.end(side)?.nic.mtu().map_err(failed)
    }

    fn disturb(&mut self, side: Side, disturbance: Disturbance) -> Outcome<()> {
        match &mut self.between {
            Between::Link(network) => {
                network.disturb(side, disturbance)?;
                match disturbance {
                    Disturbance::AddressLeaves => self.wait_for_address(side, false),
                    Disturbance::AddressReturns => self.wait_for_address(side, true),
                    _ => Ok(()),
                }
            }
            Between::Switch(switch) => {
                let place = self.ends[side as usize].as_mut().map(|end| end.place(side, Own::Ipv4));
                switch.disturb(side, disturbance, place.transpose()?.unwrap_or(1))
            }
        }
    }

    fn restart(&mut self, side: Side) -> Outcome<()> {
        // The kernel keeps a device as long as a process has it open.
        self.ends[side as usize] = None;
        match &mut self.between {
            Between::Link(_) => Network::restart(side)?,
            Between::Switch(switch) => switch.restart(side)?,
        }
        self.reopen(side, COMPLETIONS)
    }

    fn go_on(&mut self, wait: Wait, round: u32) -> Outcome<bool> {
        if let Between::Switch(switch) = &mut self.between {
            return switch.go_on(wait, round);
        }
        if round == 0 {
            self.began = Instant::now();
        }
        let patience = match wait {
            Wait::Ends => ENDS_MAX,
            Wait::Quiet => QUIET,
            Wait::Arrival => ARRIVAL,
        };
        sleep(LOOK);
        Ok(self.began.elapsed() < patience)
    }
}

fn rights(rights: Access) -> BareRights {
    let Access { local_write, remote_read, remote_write } = rights;
    BareRights { local_write, remote_read, remote_write }
}

fn kind(opcode: u32) -> Option<Kind> {
    match opcode {
        0 => Some(Kind::Send),
        1 => Some(Kind::Write),
        2 => Some(Kind::Read),
        128 => Some(Kind::Receive),
        _ => None,
    }
}

fn failed(error: impl Display) -> ArmError {
    ArmError(error.to_string())
}
