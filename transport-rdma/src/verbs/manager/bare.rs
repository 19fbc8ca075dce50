//! Identifiers on which every call of librdmacm can be tried, to learn a kernel's behaviour.

use super::channel;
use super::identifier::{Event, EventChannel, Identifier, Reads};
use crate::error::ManagerUnavailable;
use crate::verbs::objects::bare::BareQueuePair;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Outstanding reads and retries of a connection.
const READS: Reads = Reads { accepted: 1, begun: 1, retries: 6 };

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
        self.identifier.bind(address, |_| String::new()).map(|(_, _, port)| port)
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
