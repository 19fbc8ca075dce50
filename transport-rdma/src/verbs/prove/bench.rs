//! Two sites of which each has a device and memory, and pairs of queue pairs between them.

use super::ProvenDevice;
use super::steps::{RETRIES_MANY, TIMEOUT_LONG};
use crate::error::VerbsError;
use crate::gid::{GidEntry, GidWanted, choose_gid};
use crate::profile::recognise;
use crate::verbs::context::PortFacts;
use crate::verbs::manager::{BareIdentifier, BareManager, kinds};
use crate::verbs::objects::bare::{
    BareAddress, BareAttributes, BareCompletion, BareKind, BareNic, BareQueuePair, BareRegion,
    BareRequest, BareRights,
};
use handfast_core::transport::Side;
use handfast_transport::Memory;
use std::cell::{Cell, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Memory of a site: less than the lowest common limit of locked memory.
const MEMORY_BYTES: usize = 4 << 10;
/// Bytes of a write that is compared.
const COMPARED_BYTES: u32 = 64;
/// Their destination.
const TARGET: u64 = 2 << 10;
/// Depth of both queues' entries, of a queue pair and of a site.
pub(super) const DEPTH: u32 = 32;
const COMPLETIONS: u32 = 256;
/// Longest wait for the end of a connection, which some devices do not report.
const DISCONNECT_MAX: Duration = Duration::from_millis(500);
/// Between two looks at a completion queue or at events.
const LOOK_AGAIN: Duration = Duration::from_micros(50);
/// The time in which flushed work ends before its queue pair is destroyed.
const DRAIN_MAX: Duration = Duration::from_millis(200);
/// Code of the receiver-not-ready timer, 0.64 ms. Nothing is ever received.
const RECEIVER_NOT_READY_TIMER: u8 = 12;
/// States in rdma-core's numbers.
pub(super) mod state {
    pub(in super::super) const RESET: u32 = 0;
    pub(in super::super) const INIT: u32 = 1;
    pub(in super::super) const RTR: u32 = 2;
    pub(in super::super) const RTS: u32 = 3;
    pub(in super::super) const ERR: u32 = 6;
}

/// All rights that a peer may have.
pub(super) const ALL: BareRights =
    BareRights { local_write: true, remote_read: true, remote_write: true };

/// A device with memory.
pub(super) struct Site {
    pub(super) nic: BareNic,
    pub(super) memory: Memory,
    pub(super) region: BareRegion,
    pub(super) gids: Vec<GidEntry>,
    gid: GidEntry,
    port: PortFacts,
    name: String,
}

/// Two queue pairs that are connected with each other.
pub(super) struct Pair {
    /// Of the connection manager. They end before the queue pairs.
    identifiers: Option<[BareIdentifier; 2]>,
    pub(super) requester: Arc<BareQueuePair>,
    pub(super) responder: Arc<BareQueuePair>,
}

/// The connection manager, with a listener at the responder's address.
struct Dialling {
    _listener: BareIdentifier,
    manager: BareManager,
    own: IpAddr,
    target: SocketAddr,
}

/// Attributes of a connection of two queue pairs.
#[derive(Clone, Copy)]
pub(super) struct Wiring {
    pub(super) timeout: u8,
    pub(super) retries: u8,
    /// The first packet number that the requester sends.
    pub(super) sent_psn: u32,
    /// The first one that the responder expects.
    pub(super) expected_psn: u32,
    /// Path MTU, if not that of the port.
    pub(super) path_mtu: Option<u32>,
    /// Addresses, if not the usual ones.
    pub(super) gids: Option<[GidEntry; 2]>,
}

/// An arbitrary first packet number, in the middle of all.
pub(super) const PSN: u32 = 0x0040_0000;

impl Default for Wiring {
    fn default() -> Self {
        Self {
            timeout: TIMEOUT_LONG,
            retries: RETRIES_MANY,
            sent_psn: PSN,
            expected_psn: PSN,
            path_mtu: None,
            gids: None,
        }
    }
}

/// A step that a device refused.
#[derive(Clone, Debug)]
pub(super) struct Refused {
    pub(super) step: &'static str,
    pub(super) code: i32,
}

impl Refused {
    pub(super) fn words(&self) -> String {
        format!("{} failed: {}", self.step, crate::error::words_of(self.code))
    }
}

/// The end of a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    /// The post was refused.
    Refused(i32),
    /// It did not complete in time.
    Silent,
    Completed(BareCompletion),
}

/// Both sites, and the measurement under way.
pub(super) struct Bench {
    /// Queue pairs connect through it; otherwise out of band.
    dialling: Option<Dialling>,
    pub(super) sites: [Site; 2],
    names: Cell<u64>,
    deadline: Cell<Instant>,
    detail: RefCell<String>,
    /// The time after which a silent peer was given up.
    pub(super) silence: Cell<Option<Duration>>,
}

impl Site {
    fn open(name: &str) -> Result<Self, VerbsError> {
        let nic = BareNic::open(name, COMPLETIONS)?;
        let wrong = |call, detail: String| VerbsError {
            side: Side::Configuration,
            call,
            code: 0,
            device: name.to_owned(),
            detail,
            limit: None,
        };
        let port = nic.port()?;
        if !port.is_active {
            return Err(wrong("ibv_query_port", "the port is not active".to_owned()));
        }
        let gids = nic.gids()?;
        let gid = choose_gid(&gids, GidWanted::Automatic)
            .map_err(|error| wrong("ibv_query_gid_table", error.to_string()))?
            .entry;
        let memory =
            Memory::zeroed(MEMORY_BYTES).map_err(|error| wrong("mmap", error.to_string()))?;
        let region = nic.register(memory.whole(), ALL)?;
        Ok(Self { nic, memory, region, gids, gid, port, name: name.to_owned() })
    }

    fn device(&self) -> Result<ProvenDevice, VerbsError> {
        let found = crate::discovery::discover_one(&crate::discovery::root(), &self.name);
        let identity = found.map(|device| device.identity).unwrap_or_default();
        Ok(ProvenDevice {
            name: self.name.clone(),
            recognised: recognise(&identity),
            identity,
            firmware: self.nic.firmware()?,
            address: self.gid.to_string(),
            is_ethernet: self.port.is_ethernet,
        })
    }
}

impl Bench {
    pub(super) fn open([first, second]: [&str; 2]) -> Result<Self, VerbsError> {
        Ok(Self {
            dialling: None,
            sites: [Site::open(first)?, Site::open(second)?],
            names: Cell::new(0),
            deadline: Cell::new(Instant::now()),
            detail: RefCell::default(),
            silence: Cell::new(None),
        })
    }

    /// Connects queue pairs through the connection manager from now on.
    ///
    /// # Errors
    /// The reason why it cannot, in words.
    pub(super) fn dial(&mut self) -> Result<(), String> {
        let manager = BareManager::open().map_err(|error| error.to_string())?;
        let listening = |site: &Site| {
            let found = manager.listen_on(&site.nic, &site.name);
            let found = found.map_err(|error| error.to_string())?;
            found.ok_or_else(|| format!("no IP address of this machine is one of {}", site.name))
        };
        let [first, second] = &self.sites;
        let own = listening(first)?.1.ip();
        let (listener, target) = listening(second)?;
        self.dialling = Some(Dialling { _listener: listener, manager, own, target });
        Ok(())
    }

    /// Whether queue pairs connect through the connection manager.
    pub(super) fn is_dialling(&self) -> bool {
        self.dialling.is_some()
    }

    pub(super) fn devices(&self) -> Result<[ProvenDevice; 2], VerbsError> {
        let [first, second] = &self.sites;
        Ok([first.device()?, second.device()?])
    }

    /// Begins a measurement. What an earlier one left behind is dropped.
    pub(super) fn begin(&self, limit: Duration) {
        self.deadline.set(Instant::now() + limit);
        self.take_detail();
        for site in &self.sites {
            while let Ok(Some(_)) = site.nic.event() {}
            while let Ok(Some(_)) = site.nic.poll() {}
        }
    }

    /// The rest of the time of the measurement under way.
    pub(super) fn left(&self) -> Duration {
        self.deadline.get().saturating_duration_since(Instant::now())
    }

    /// Adds to the notes of the observation.
    pub(super) fn tell(&self, words: &str) {
        let mut detail = self.detail.borrow_mut();
        if !detail.is_empty() {
            detail.push_str("; ");
        }
        detail.push_str(words);
    }

    pub(super) fn take_detail(&self) -> String {
        self.detail.take()
    }

    /// The smaller path MTU of both ports, in bytes.
    pub(super) fn path_mtu(&self) -> u32 {
        self.sites[0].port.mtu.min(self.sites[1].port.mtu)
    }

    /// An error of the first device.
    pub(super) fn error(&self, refused: &Refused) -> VerbsError {
        VerbsError {
            side: Side::Local,
            call: refused.step,
            code: refused.code,
            device: self.sites[0].name.clone(),
            detail: crate::error::words_of(refused.code),
            limit: None,
        }
    }

    /// Creates a queue pair at a site.
    pub(super) fn queue_pair(&self, site: usize) -> Result<BareQueuePair, Refused> {
        let created = self.sites[site].nic.queue_pair(DEPTH, 1);
        created.map_err(|error| Refused { step: "ibv_create_qp", code: error.code })
    }

    /// Creates two queue pairs and connects them.
    pub(super) fn pair(&self, wiring: &Wiring) -> Result<Pair, Refused> {
        let [requester, responder] = [self.queue_pair(0)?, self.queue_pair(1)?].map(Arc::new);
        if let Some(Dialling { manager, own, target, .. }) = &self.dialling {
            initialise(&requester)?;
            initialise(&responder)?;
            let both = (&requester, &responder);
            let connected = manager.connect((*own, *target), both, self.deadline.get());
            let identifiers = connected.map_err(|(step, code)| Refused { step, code })?;
            return Ok(Pair { identifiers: Some(identifiers), requester, responder });
        }
        let pair = Pair { identifiers: None, requester, responder };
        self.connect(1, &pair.responder, pair.requester.number(), wiring)?;
        self.connect(0, &pair.requester, pair.responder.number(), wiring)?;
        Ok(pair)
    }

    /// Connects the queue pair of a site.
    pub(super) fn connect(
        &self,
        site: usize,
        queue_pair: &BareQueuePair,
        peer_number: u32,
        wiring: &Wiring,
    ) -> Result<(), Refused> {
        let gids = wiring.gids.unwrap_or([self.sites[0].gid, self.sites[1].gid]);
        let (own, peer) = (gids[site], gids[1 - site]);
        initialise(queue_pair)?;
        // Only the requester's direction has numbers of its own choice.
        let (receive_psn, send_psn) =
            if site == 0 { (PSN, wiring.sent_psn) } else { (wiring.expected_psn, PSN) };
        let rtr = BareAttributes {
            state: state::RTR,
            address: Some(BareAddress {
                port: 1,
                own_gid_index: u8::try_from(own.index).unwrap_or(u8::MAX),
                peer_gid: peer.address,
                peer_lid: self.sites[1 - site].port.lid,
                is_global: true,
            }),
            path_mtu: Some(wiring.path_mtu.unwrap_or(self.path_mtu())),
            peer_number: Some(peer_number),
            receive_psn: Some(receive_psn),
            max_dest_rd_atomic: Some(1),
            min_rnr_timer: Some(RECEIVER_NOT_READY_TIMER),
            ..BareAttributes::default()
        };
        done("ibv_modify_qp(RTR)", queue_pair.modify(&rtr))?;
        let rts = BareAttributes {
            state: state::RTS,
            timeout: Some(wiring.timeout),
            retries: Some(wiring.retries),
            rnr_retries: Some(1),
            send_psn: Some(send_psn),
            max_rd_atomic: Some(1),
            ..BareAttributes::default()
        };
        done("ibv_modify_qp(RTS)", queue_pair.modify(&rts))
    }

    /// A request of the requester for as many bytes, from the first ones of its memory to the
    /// responder's target.
    pub(super) fn request(&self, kind: BareKind, length: u32) -> BareRequest {
        self.names.set(self.names.get() + 1);
        let [own, peer] = &self.sites;
        BareRequest {
            name: self.names.get(),
            kind,
            address: own.memory.address(),
            length,
            local_key: own.region.keys().0,
            remote_address: peer.memory.address() + TARGET,
            remote_key: peer.region.keys().1,
            signalled: true,
        }
    }

    /// Posts a request and waits for its end, until the measurement's limit at most.
    pub(super) fn end_of(
        &self,
        queue_pair: &BareQueuePair,
        request: &BareRequest,
        wait: Duration,
    ) -> Result<End, String> {
        let returned = queue_pair.post(request);
        if returned != 0 {
            return Ok(End::Refused(returned.saturating_abs()));
        }
        let until = self.deadline.get().min(Instant::now() + wait);
        loop {
            match self.sites[0].nic.poll().map_err(|error| error.to_string())? {
                Some(completion) if completion.name == request.name => {
                    return Ok(End::Completed(completion));
                }
                Some(_) => {}
                None if Instant::now() >= until => return Ok(End::Silent),
                None => thread::sleep(LOOK_AGAIN),
            }
        }
    }

    /// Writes bytes and returns whether they arrived, with the end of the write.
    pub(super) fn moves(
        &self,
        queue_pair: &BareQueuePair,
        wait: Duration,
    ) -> Result<(bool, End), String> {
        let request = self.request(BareKind::Write, COMPARED_BYTES);
        let target = usize::try_from(TARGET).unwrap_or(0);
        // Never zero, which the target is filled with.
        let mark = u8::try_from(request.name % 255).unwrap_or(0) + 1;
        let mut seen = [0; COMPARED_BYTES as usize];
        let sent = [mark; COMPARED_BYTES as usize];
        let failed = |error: handfast_transport::MemoryError| error.to_string();
        self.sites[1].memory.copy_in(target, &seen).map_err(failed)?;
        self.sites[0].memory.copy_in(0, &sent).map_err(failed)?;
        let mut end = self.end_of(queue_pair, &request, wait)?;
        if self.is_dialling() && matches!(end, End::Completed(write) if write.status == 0) {
            // iWARP: a write has arrived once a read behind it is answered.
            end = self.end_of(queue_pair, &self.request(BareKind::Read, 1), wait)?;
        }
        self.sites[1].memory.copy_out(target, &mut seen).map_err(failed)?;
        Ok((seen == sent, end))
    }

    /// Waits for an event of a queue pair in error at either site, and returns its kind.
    pub(super) fn error_event(&self, wait: Duration) -> Result<Option<u32>, String> {
        /// `IBV_EVENT_QP_FATAL`, `_QP_REQ_ERR` and `_QP_ACCESS_ERR`.
        const OF_ERRORS: std::ops::RangeInclusive<u32> = 1..=3;
        let until = self.deadline.get().min(Instant::now() + wait);
        loop {
            for site in &self.sites {
                match site.nic.event().map_err(|error| error.to_string())? {
                    Some(kind) if OF_ERRORS.contains(&kind) => return Ok(Some(kind)),
                    _ => {}
                }
            }
            if Instant::now() >= until {
                return Ok(None);
            }
            thread::sleep(LOOK_AGAIN);
        }
    }

    /// Waits until the connection manager reports the end of the requester's connection, whose request failed: on iWARP
    /// the queue pair takes requests for a moment after that completion.
    pub(super) fn await_disconnect(&self, pair: &Pair) -> Result<(), String> {
        let (Some(Dialling { manager, .. }), Some([requester, _])) =
            (&self.dialling, &pair.identifiers)
        else {
            return Ok(());
        };
        let end = (kinds::DISCONNECTED, requester.number());
        let until = self.deadline.get().min(Instant::now() + DISCONNECT_MAX);
        while Instant::now() < until {
            match manager.event() {
                Ok(Some(event)) if (event.kind, event.number) == end => return Ok(()),
                Ok(Some(_)) => {}
                Ok(None) => thread::sleep(LOOK_AGAIN),
                Err(code) => return Err(format!("rdma_get_cm_event returned {code}")),
            }
        }
        Ok(())
    }

    /// Ends a queue pair with work in flight as lanes do: ERR, drain, destroy.
    pub(super) fn end(&self, queue_pair: Arc<BareQueuePair>) {
        let failed = BareAttributes { state: state::ERR, ..BareAttributes::default() };
        if queue_pair.modify(&failed) == 0 {
            let until = Instant::now() + DRAIN_MAX;
            while Instant::now() < until && !matches!(self.sites[0].nic.poll(), Ok(Some(_))) {
                thread::sleep(LOOK_AGAIN);
            }
        }
        drop(queue_pair);
    }
}

fn done(step: &'static str, returned: i32) -> Result<(), Refused> {
    match returned {
        0 => Ok(()),
        code => Err(Refused { step, code: code.saturating_abs() }),
    }
}

/// Moves a fresh queue pair to INIT.
fn initialise(queue_pair: &BareQueuePair) -> Result<(), Refused> {
    let init = BareAttributes {
        state: state::INIT,
        pkey_index: Some(0),
        port: Some(1),
        rights: Some(ALL),
        ..BareAttributes::default()
    };
    done("ibv_modify_qp(INIT)", queue_pair.modify(&init))
}
