//! Identifiers on which every call of librdmacm can be tried, to learn a kernel's behaviour.

use super::identifier::{Event, EventChannel, Identifier, Reads, interface_addresses, kinds};
use super::listening::BACKLOG;
use super::{ADDRESSES_MAX, Listening, channel, listen};
use crate::error::{ManagerUnavailable, VerbsError};
use crate::gid::GidKind;
use crate::verbs::objects::bare::{BareNic, BareQueuePair, PORT};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Outstanding reads and retries of a connection.
const READS: Reads = Reads { accepted: 1, begun: 1, retries: 6 };

/// Longest look for the address, and for the route.
const RESOLVE_MS: i32 = 1_500;
/// Between two looks at events.
const LOOK_AGAIN: Duration = Duration::from_micros(200);

/// An event channel of librdmacm.
pub struct BareManager {
    channel: Arc<EventChannel>,
    next: AtomicU64,
}

/// An identifier. Calls return the value of errno. Dropping it destroys it, and then gives its queue pair
/// back.
pub struct BareIdentifier {
    // Destroyed before the queue pair.
    identifier: Identifier,
    number: u64,
    pair: Option<Arc<BareQueuePair>>,
}

/// An event of an identifier.
pub struct BareManagerEvent {
    /// Its kind in rdma-core's numbers.
    pub kind: u32,
    /// Its status.
    pub status: i32,
    /// [`BareIdentifier::number`]; that of the listening one for a request.
    pub number: u64,
    /// The private data that came with it.
    pub data: Vec<u8>,
    /// The identifier of a request.
    pub request: Option<BareIdentifier>,
}

impl BareManager {
    /// Connect requests that wait at the listening identifier of a NIC.
    pub const BACKLOG: i32 = BACKLOG;

    /// Opens a channel.
    ///
    /// # Errors
    /// No library, or no connection manager in the kernel.
    pub fn open() -> Result<Self, ManagerUnavailable> {
        Ok(Self { channel: Arc::new(channel()?), next: AtomicU64::new(1) })
    }

    /// Creates an identifier.
    ///
    /// # Errors
    /// The value of errno.
    pub fn identifier(&self) -> Result<BareIdentifier, i32> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let identifier = Identifier::new(&self.channel, number)?;
        Ok(BareIdentifier { identifier, number, pair: None })
    }

    /// Takes and acknowledges the oldest event.
    ///
    /// # Errors
    /// The value of errno.
    pub fn event(&self) -> Result<Option<BareManagerEvent>, i32> {
        let Event { kind, status, number, data, request } = match self.channel.take() {
            Ok(event) => event,
            Err(libc::EAGAIN | libc::EINTR) => return Ok(None),
            Err(code) => return Err(code),
        };
        let request = request.map(|identifier| {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            identifier.set_number(number);
            BareIdentifier { identifier, number, pair: None }
        });
        Ok(Some(BareManagerEvent { kind, status, number, data, request }))
    }
}

impl BareManager {
    /// Listens at the first of the machine's addresses that is the device's; `None` without one.
    ///
    /// # Errors
    /// A failed call.
    pub(in crate::verbs) fn listen_on(
        &self,
        nic: &BareNic,
        name: &str,
    ) -> Result<Option<(BareIdentifier, SocketAddr)>, VerbsError> {
        let gids = nic.gids()?.into_iter().filter(|entry| entry.kind == GidKind::RoceV2);
        let known = gids.map(|entry| entry.address.to_canonical());
        for ip in known.chain(interface_addresses(ADDRESSES_MAX)) {
            let address = SocketAddr::new(ip, 0);
            let found = listen(nic.context(), &self.channel, (name, PORT), address)?;
            if let Listening::Here(identifier, address, _) = found {
                return Ok(Some((BareIdentifier { identifier, number: 0, pair: None }, address)));
            }
        }
        Ok(None)
    }

    /// Connects two queue pairs in INIT, from an address to a listening one. Their identifiers end before
    /// them.
    ///
    /// # Errors
    /// The call or event that failed, and its code.
    pub(in crate::verbs) fn connect(
        &self,
        (own, target): (IpAddr, SocketAddr),
        (dialling, accepting): (&Arc<BareQueuePair>, &Arc<BareQueuePair>),
        deadline: Instant,
    ) -> Result<[BareIdentifier; 2], (&'static str, i32)> {
        let mut dial = self.identifier().map_err(|code| ("rdma_create_id", code))?;
        // Requests of earlier attempts may still come.
        let data = dial.number.to_ne_bytes();
        dial.resolve(own, target, RESOLVE_MS).map_err(|code| ("rdma_resolve_addr", code))?;
        let mut answer: Option<BareIdentifier> = None;
        let mut established = [false; 2];
        while established != [true; 2] {
            if Instant::now() >= deadline {
                return Err(("rdma_connect", libc::ETIMEDOUT));
            }
            let event = self.event().map_err(|code| ("rdma_get_cm_event", code))?;
            let Some(BareManagerEvent { kind, status, number, data: came, request }) = event else {
                thread::sleep(LOOK_AGAIN);
                continue;
            };
            if let Some(mut request) = request {
                if answer.is_none() && came.starts_with(&data) {
                    let accepted = request.accept(Arc::clone(accepting), &[]);
                    accepted.map_err(|code| ("rdma_accept", code))?;
                    answer = Some(request);
                }
                continue;
            }
            let is_dial = number == dial.number;
            if !is_dial && answer.as_ref().is_none_or(|answer| answer.number != number) {
                continue;
            }
            match kind {
                kinds::ADDRESS_RESOLVED => {
                    dial.resolve_route(RESOLVE_MS).map_err(|code| ("rdma_resolve_route", code))?
                }
                kinds::ROUTE_RESOLVED => dial
                    .connect(Arc::clone(dialling), &data)
                    .map_err(|code| ("rdma_connect", code))?,
                kinds::ESTABLISHED => established[usize::from(!is_dial)] = true,
                kinds::ADDRESS_ERROR | kinds::ROUTE_ERROR => {
                    return Err(("rdma_resolve_addr", status.saturating_abs()));
                }
                kinds::CONNECT_ERROR
                | kinds::UNREACHABLE
                | kinds::REJECTED
                | kinds::DISCONNECTED
                | kinds::DEVICE_REMOVAL => {
                    return Err(("rdma_connect", status.saturating_abs()));
                }
                _ => {}
            }
        }
        let answer = answer.ok_or(("rdma_accept", libc::ENOTCONN))?;
        Ok([dial, answer])
    }
}

impl BareIdentifier {
    /// The number of its events.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The queue pair of its first connect or accept.
    pub fn pair(&self) -> Option<Arc<BareQueuePair>> {
        self.pair.clone()
    }

    /// Binds to an address of a device, and returns the port.
    ///
    /// # Errors
    /// The value of errno.
    pub fn bind(&self, address: SocketAddr) -> Result<u16, i32> {
        self.identifier.bind(address, |_| String::new()).map(|(_, _, port, _)| port)
    }

    /// Listens.
    ///
    /// # Errors
    /// The value of errno.
    pub fn listen(&self, backlog: i32) -> Result<(), i32> {
        self.identifier.listen(backlog)
    }

    /// Looks for an address.
    ///
    /// # Errors
    /// The value of errno.
    pub fn resolve(&self, own: IpAddr, target: SocketAddr, patience_ms: i32) -> Result<(), i32> {
        self.identifier.resolve(own, target, patience_ms)
    }

    /// Looks for the route.
    ///
    /// # Errors
    /// The value of errno.
    pub fn resolve_route(&self, patience_ms: i32) -> Result<(), i32> {
        self.identifier.resolve_route(patience_ms)
    }

    /// Dials with a queue pair. May block until the peer's machine answers.
    ///
    /// # Errors
    /// The value of errno.
    pub fn connect(&mut self, pair: Arc<BareQueuePair>, data: &[u8]) -> Result<(), i32> {
        let pair = self.pair.insert(pair);
        self.identifier.connect(&pair.pair, data, READS)
    }

    /// Accepts with a queue pair.
    ///
    /// # Errors
    /// The value of errno.
    pub fn accept(&mut self, pair: Arc<BareQueuePair>, data: &[u8]) -> Result<(), i32> {
        let pair = self.pair.insert(pair);
        self.identifier.accept(&pair.pair, data, READS)
    }

    /// Rejects.
    ///
    /// # Errors
    /// The value of errno.
    pub fn reject(&self, data: &[u8]) -> Result<(), i32> {
        self.identifier.reject(Some(data).filter(|data| !data.is_empty()))
    }

    /// Disconnects.
    ///
    /// # Errors
    /// The value of errno.
    pub fn disconnect(&self) -> Result<(), i32> {
        self.identifier.disconnect()
    }
}
