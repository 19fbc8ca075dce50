//! Two devices behind librdmacm: the kernel's, or scripted ones.

use super::{ManagerArm, Told, trimmed};
use crate::arm::{ArmError, Outcome, Side};
use handfast_fabric_control::{Fabric, MANAGER_EVENTS};
use handfast_transport_rdma::{
    BareAttributes, BareIdentifier, BareManager, BareNic, BareQueuePair, BareRights,
};
use handfast_transport_sim::verbs::QpState;
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Longest wait for an event that comes. A kernel gives an attempt up after a minute.
const COMES_WITHIN: Duration = Duration::from_secs(100);
/// Time in which an event of the same host or link arrives.
const ARRIVAL: Duration = Duration::from_millis(200);
/// Interval of looks.
const LOOK: Duration = Duration::from_millis(1);
/// Longest look for an address and a route.
const RESOLVE_MS: i32 = 2_000;
/// Depth of a queue pair.
const DEPTH: u32 = 15;
const RIGHTS: BareRights = BareRights { local_write: true, remote_read: true, remote_write: true };

/// One side. Identifiers end before their channel and the device.
struct End {
    named: BTreeMap<String, BareIdentifier>,
    requests: VecDeque<(BareIdentifier, Vec<u8>)>,
    told: BTreeMap<u64, VecDeque<Told>>,
    manager: BareManager,
    nic: BareNic,
    address: IpAddr,
    port: u16,
}

impl End {
    fn open((device, address): (&str, IpAddr)) -> Outcome<Self> {
        Ok(Self {
            named: BTreeMap::new(),
            requests: VecDeque::new(),
            told: BTreeMap::new(),
            manager: BareManager::open().map_err(failed)?,
            nic: BareNic::open(device, DEPTH).map_err(failed)?,
            address,
            port: 1,
        })
    }

    fn named(&mut self, name: &str) -> Outcome<&mut BareIdentifier> {
        if !self.named.contains_key(name) {
            let made = self.manager.identifier();
            let made = made.map_err(|code| failed(format!("rdma_create_id: {code}")))?;
            self.named.insert(name.to_owned(), made);
        }
        self.known(name)
    }

    fn known(&mut self, name: &str) -> Outcome<&mut BareIdentifier> {
        self.named.get_mut(name).ok_or_else(|| failed(format!("no identifier {name}")))
    }

    /// A fresh queue pair in INIT.
    fn queue_pair(&self) -> Outcome<Arc<BareQueuePair>> {
        let pair = self.nic.queue_pair(DEPTH, DEPTH).map_err(failed)?;
        let init = BareAttributes {
            state: QpState::Init as u32,
            pkey_index: Some(0),
            port: Some(1),
            rights: Some(RIGHTS),
            ..BareAttributes::default()
        };
        match pair.modify(&init) {
            0 => Ok(Arc::new(pair)),
            code => Err(failed(format!("INIT: {code}"))),
        }
    }

    /// Takes the events that are there.
    fn take(&mut self) -> Outcome<()> {
        loop {
            let event = self.manager.event().map_err(|code| failed(format!("an event: {code}")))?;
            let Some(event) = event else { return Ok(()) };
            let data = trimmed(event.data);
            match event.request {
                Some(request) => self.requests.push_back((request, data)),
                None => {
                    let kind = MANAGER_EVENTS.get(event.kind as usize).copied();
                    let kind = kind.unwrap_or("OTHER");
                    let told = self.told.entry(event.number).or_default();
                    // Of a queue pair in timewait nothing else follows.
                    if kind != "TIMEWAIT_EXIT" {
                        told.push_back(Told { kind, data });
                    }
                }
            }
        }
    }

    fn wait<T>(&mut self, mut taken: impl FnMut(&mut Self) -> Option<T>) -> Outcome<Option<T>> {
        let deadline = Instant::now() + COMES_WITHIN;
        loop {
            self.take()?;
            if let Some(taken) = taken(self) {
                return Ok(Some(taken));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            sleep(LOOK);
        }
    }
}

/// Two devices and their connection manager.
pub struct ManagedKernel {
    ends: [End; 2],
}

impl ManagedKernel {
    /// Opens the device of each side, by its name and an address of it.
    ///
    /// # Errors
    /// Without such devices, or librdmacm.
    pub fn open([one, other]: [(&str, IpAddr); 2]) -> Outcome<Self> {
        Ok(Self { ends: [End::open(one)?, End::open(other)?] })
    }

    fn end_of(&mut self, side: Side) -> &mut End {
        &mut self.ends[side as usize]
    }
}

impl ManagerArm for ManagedKernel {
    fn listen(&mut self, side: Side, name: &str, backlog: i32) -> Outcome<i32> {
        let end = self.end_of(side);
        let address = SocketAddr::new(end.address, 0);
        let listener = end.named(name)?;
        let bound = listener.bind(address);
        let listened = bound.and_then(|port| listener.listen(backlog).map(|()| port));
        Ok(match listened {
            Ok(port) => {
                end.port = port;
                0
            }
            Err(code) => code,
        })
    }

    fn resolve(&mut self, side: Side, name: &str, is_nobody: bool) -> Outcome<i32> {
        let peer = self.end_of(side.peer());
        let target = SocketAddr::new(peer.address, peer.port);
        let target = if is_nobody { SocketAddr::new(nobody(target.ip()), 1) } else { target };
        let end = self.end_of(side);
        let own = end.address;
        Ok(code(end.named(name)?.resolve(own, target, RESOLVE_MS)))
    }

    fn route(&mut self, side: Side, name: &str) -> Outcome<i32> {
        Ok(code(self.end_of(side).named(name)?.resolve_route(RESOLVE_MS)))
    }

    fn connect(&mut self, side: Side, name: &str, data: &[u8]) -> Outcome<i32> {
        let end = self.end_of(side);
        let pair = end.named(name)?.pair();
        let pair = pair.map_or_else(|| end.queue_pair(), Ok)?;
        Ok(code(end.known(name)?.connect(pair, data)))
    }

    fn accept(&mut self, side: Side, name: &str, data: &[u8]) -> Outcome<i32> {
        let end = self.end_of(side);
        let pair = end.known(name)?.pair();
        let pair = pair.map_or_else(|| end.queue_pair(), Ok)?;
        Ok(code(end.known(name)?.accept(pair, data)))
    }

    fn reject(&mut self, side: Side, name: &str, data: &[u8]) -> Outcome<i32> {
        Ok(code(self.end_of(side).known(name)?.reject(data)))
    }

    fn disconnect(&mut self, side: Side, name: &str) -> Outcome<i32> {
        Ok(code(self.end_of(side).known(name)?.disconnect()))
    }

    fn end(&mut self, side: Side, name: &str) -> Outcome<i32> {
        let ended = self.end_of(side).named.remove(name);
        ended.map(|_| 0).ok_or_else(|| failed(format!("no identifier {name}")))
    }

    fn request(&mut self, side: Side, name: &str) -> Outcome<Option<Vec<u8>>> {
        let end = self.end_of(side);
        let request = end.wait(|end| end.requests.pop_front())?;
        Ok(request.map(|(request, data)| {
            end.named.insert(name.to_owned(), request);
            data
        }))
    }

    fn event(&mut self, side: Side, name: &str) -> Outcome<Option<Told>> {
        let end = self.end_of(side);
        let number = end.known(name)?.number();
        end.wait(|end| end.told.get_mut(&number)?.pop_front())
    }

    fn state(&mut self, side: Side, name: &str) -> Outcome<QpState> {
        let pair = self.end_of(side).known(name)?.pair();
        let pair = pair.ok_or_else(|| failed(format!("{name} has no queue pair")))?;
        let number = pair.state().map_err(|code| failed(format!("a query returned {code}")))?;
        let state = QpState::ALL.get(number as usize);
        state.copied().ok_or_else(|| failed(format!("no state is {number}")))
    }

    fn cut(&mut self, is_cut: bool) -> Outcome<()> {
        let fabric = Fabric::find().map_err(|_| failed("only scripted devices are cut apart"))?;
        let word = if is_cut { "cut" } else { "mend" };
        for (from, to) in [("rxe0", "rxe1"), ("rxe1", "rxe0")] {
            fabric.execute(&format!("{word} {from} {to}")).map_err(failed)?;
        }
        Ok(())
    }

    fn settle(&mut self) -> Outcome<()> {
        sleep(ARRIVAL);
        Ok(())
    }
}

/// An address of the network that no host has.
fn nobody(of: IpAddr) -> IpAddr {
    match of {
        IpAddr::V4(address) => {
            let [one, two, three, _] = address.octets();
            [one, two, three, 78].into()
        }
        address => address,
    }
}

fn code(result: Result<(), i32>) -> i32 {
    result.err().unwrap_or(0)
}

fn failed(cause: impl std::fmt::Display) -> ArmError {
    ArmError(cause.to_string())
}
