//! Objects on which every step can be tried, forbidden ones too, to learn a driver's behaviour.
//! Lanes never use them: measurements of a device do, and with the feature `bare` a program's own.
//!
//! The memory that a device touches is registered as a [`Span`] of a block without Rust references,
//! for as long as it is registered; keys and bounds are the device's to check. Any posted work is
//! therefore sound.

use super::super::binding::{
    ibv_access_flags, ibv_mr, ibv_post_send, ibv_send_flags, ibv_sge, ibv_wr_opcode, rdma_t,
};
#[cfg(feature = "bare")]
use super::super::binding::{ibv_post_recv, ibv_recv_wr};
use super::super::context::{PortFacts, mtu_number};
use super::super::events::{acknowledge, next_event};
use super::super::kept::keep;
use super::super::poller::never_block;
use super::super::work::WorkRequest;
use super::*;
use crate::gid::GidEntry;
use handfast_transport::{Direction, Span};

/// The port of a device that is used.
pub(in crate::verbs) const PORT: u8 = 1;

/// A device with one protection domain and one completion queue.
pub struct BareNic {
    domain: Arc<Domain>,
    queue: Arc<CompletionQueue>,
}

/// Rights, of a queue pair or of a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BareRights {
    /// The device may write for us.
    pub local_write: bool,
    /// The peer may read.
    pub remote_read: bool,
    /// The peer may write.
    pub remote_write: bool,
}

impl BareRights {
    fn flags(self) -> u32 {
        let bits = [
            (self.local_write, ibv_access_flags::IBV_ACCESS_LOCAL_WRITE),
            (self.remote_read, ibv_access_flags::IBV_ACCESS_REMOTE_READ),
            (self.remote_write, ibv_access_flags::IBV_ACCESS_REMOTE_WRITE),
        ];
        bits.iter().filter(|(given, _)| *given).fold(0, |flags, (_, flag)| flags | flag.0)
    }
}

/// Address of a queue pair's peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BareAddress {
    /// The port, counted from 1.
    pub port: u8,
    /// Index of our GID.
    pub own_gid_index: u8,
    /// The peer's GID.
    pub peer_gid: Ipv6Addr,
    /// The peer's LID; 0 on Ethernet.
    pub peer_lid: u16,
    /// Packets carry a GID.
    pub is_global: bool,
}

/// Attributes of `ibv_modify_qp`. Each `Some` sets its bit in the mask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BareAttributes {
    /// The requested state, in rdma-core's numbers: RESET is 0, ERR is 6.
    pub state: u32,
    /// The partition key's index.
    pub pkey_index: Option<u16>,
    /// The port.
    pub port: Option<u8>,
    /// Rights of the peer.
    pub rights: Option<BareRights>,
    /// Address of the peer.
    pub address: Option<BareAddress>,
    /// Bytes in a packet. A larger value than any MTU is passed as the number after the last.
    pub path_mtu: Option<u32>,
    /// The peer's queue-pair number.
    pub peer_number: Option<u32>,
    /// The first packet sequence number expected.
    pub receive_psn: Option<u32>,
    /// Reads of the peer that may be outstanding.
    pub max_dest_rd_atomic: Option<u8>,
    /// Code of the receiver-not-ready timer.
    pub min_rnr_timer: Option<u8>,
    /// Exponent of the ACK timeout.
    pub timeout: Option<u8>,
    /// Retry count.
    pub retries: Option<u8>,
    /// Retries after a receiver-not-ready NAK (`rnr_retry`).
    pub rnr_retries: Option<u8>,
    /// The first packet sequence number sent.
    pub send_psn: Option<u32>,
    /// Reads that may be outstanding.
    pub max_rd_atomic: Option<u8>,
}

/// Operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BareKind {
    /// Writes to the peer.
    Write,
    /// Reads from the peer.
    Read,
    /// Sends into a receive that the peer posted.
    #[cfg(feature = "bare")]
    Send,
}

/// A request to post, checked only by the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BareRequest {
    /// Returned in the completion.
    pub name: u64,
    /// The operation.
    pub kind: BareKind,
    /// Our address.
    pub address: u64,
    /// Bytes; with none the request has no piece of memory.
    pub length: u32,
    /// Our key.
    pub local_key: u32,
    /// The peer's address.
    pub remote_address: u64,
    /// The peer's key.
    pub remote_key: u32,
    /// Whether a success is reported; failures always are.
    pub signalled: bool,
}

/// Requests that one call posts, again and again.
#[cfg(feature = "bare")]
pub struct BareChain {
    requests: Vec<WorkRequest>,
}

#[cfg(feature = "bare")]
impl BareChain {
    /// Signalled writes.
    pub fn writes(requests: &[BareRequest]) -> Self {
        let requests = requests.iter().map(|request| {
            let (addr, length, lkey) = (request.address, request.length, request.local_key);
            let remote = rdma_t { remote_addr: request.remote_address, rkey: request.remote_key };
            WorkRequest::new(Direction::Write, ibv_sge { addr, length, lkey }, remote, request.name)
        });
        Self { requests: requests.collect() }
    }
}

/// A receive to post.
#[cfg(feature = "bare")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BareReceive {
    /// Returned in the completion.
    pub name: u64,
    /// Our address.
    pub address: u64,
    /// Length of the buffer, in bytes.
    pub length: u32,
    /// Our key.
    pub local_key: u32,
}

/// The completion of a request or a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BareCompletion {
    /// The name it was posted under.
    pub name: u64,
    /// Status in rdma-core's numbers; 0 is success.
    pub status: u32,
    /// The driver's own code of a failure.
    pub vendor: u32,
    /// Operation in rdma-core's numbers; meaningful after success alone.
    pub opcode: u32,
    /// Its queue pair.
    pub number: u32,
}

impl BareNic {
    /// Opens a device, with a completion queue of at least `completions` entries.
    ///
    /// # Errors
    /// No such device, or a failed call.
    pub fn open(device: &str, completions: u32) -> Result<Self, VerbsError> {
        let context = Arc::new(Context::open(device)?);
        never_block(context.event_descriptor())
            .map_err(|error| context.failed("fcntl", error.raw_os_error().unwrap_or(0)))?;
        let facts = context.device_facts()?;
        let (regions_max, bytes_max) = (facts.regions_max, facts.region_bytes_max);
        let limits = RegionLimits { regions_max, bytes_max };
        let channel = Arc::new(Channel::new(Arc::clone(&context))?);
        let queue = Arc::new(CompletionQueue::new(channel, 0, completions, 0)?);
        let domain = Arc::new(Domain::new(context, limits)?);
        Ok(Self { domain, queue })
    }

    /// The set entries of the port's GID table.
    ///
    /// # Errors
    /// A failed call.
    pub fn gids(&self) -> Result<Vec<GidEntry>, VerbsError> {
        self.domain.context.gids(PORT)
    }

    /// The open device.
    pub(in crate::verbs) fn context(&self) -> &Arc<Context> {
        &self.domain.context
    }

    /// The device's firmware, in its own words.
    pub(in crate::verbs) fn firmware(&self) -> Result<String, VerbsError> {
        self.domain.context.firmware()
    }

    /// The port's present facts.
    pub(in crate::verbs) fn port(&self) -> Result<PortFacts, VerbsError> {
        self.domain.context.port_facts(PORT)
    }

    /// The port's present path MTU, in bytes.
    ///
    /// # Errors
    /// A failed call.
    #[cfg(feature = "bare")]
    pub fn mtu(&self) -> Result<u32, VerbsError> {
        Ok(self.domain.context.port_facts(PORT)?.mtu)
    }

    /// Creates a queue pair, in RESET.
    ///
    /// # Errors
    /// A failed call.
    pub fn queue_pair(
        &self,
        send_depth: u32,
        receive_depth: u32,
    ) -> Result<BareQueuePair, VerbsError> {
        let (domain, queue) = (Arc::clone(&self.domain), Arc::clone(&self.queue));
        QueuePair::created(domain, queue, [send_depth, receive_depth], Owner::Nobody)
            .map(|pair| BareQueuePair { pair })
    }

    /// Registers memory with any rights.
    ///
    /// # Errors
    /// A failed call.
    pub fn register(&self, span: Span, rights: BareRights) -> Result<BareRegion, VerbsError> {
        let domain = Arc::clone(&self.domain);
        let flags = rights.flags().cast_signed();
        let refused = |detail| domain.context.error(Side::Local, "ibv_reg_mr", 0, detail);
        let start = span.host_ptr().ok_or_else(|| refused("the bytes are not the host's"))?.cast();
        // SAFETY: the domain lives; the bytes are mapped while the span is held, which is until the
        // registration has ended. The device touches them as a peer does: through no reference.
        let raw =
            unsafe { (domain.context.verbs.ibv_reg_mr)(domain.raw, start, span.len(), flags) };
        let code = errno();
        if raw.is_null() {
            return Err(domain.refused("ibv_reg_mr", code));
        }
        Ok(BareRegion { domain, raw, span })
    }

    /// Takes the oldest completion.
    ///
    /// # Errors
    /// A failed call.
    pub fn poll(&self) -> Result<Option<BareCompletion>, VerbsError> {
        let mut entry = MaybeUninit::<ibv_wc>::uninit();
        let polled = self.queue.polled.lock();
        // SAFETY: the queue lives while `self` does; the call writes at most one entry. No queue pair
        // of the queue is freed meanwhile, since its destruction holds the same lock.
        let count = unsafe { ibv_poll_cq(self.queue.raw, 1, entry.as_mut_ptr()) };
        drop(polled);
        match count {
            0 => Ok(None),
            1 => {
                // SAFETY: one entry was written; of a failed one the opcode may be any number.
                let entry = unsafe { entry.assume_init_ref() };
                Ok(Some(BareCompletion {
                    name: entry.wr_id,
                    status: entry.status,
                    vendor: entry.vendor_err,
                    opcode: entry.opcode,
                    number: entry.qp_num,
                }))
            }
            code => Err(self.domain.context.failed("ibv_poll_cq", code.saturating_abs())),
        }
    }

    /// Takes completions, at most 32, and returns their number.
    ///
    /// # Errors
    /// A failed call, or a request that failed.
    #[cfg(feature = "bare")]
    pub fn take_successes(&self) -> Result<usize, VerbsError> {
        let mut failed = None;
        let count = self.queue.poll::<32>(|entry| {
            if entry.status != 0 {
                failed = Some(entry.status);
            }
        })?;
        match failed {
            None => Ok(count),
            Some(status) => {
                let code = i32::try_from(status).unwrap_or(i32::MAX);
                Err(self.domain.context.failed("completion", code))
            }
        }
    }

    /// Takes the oldest asynchronous event, in rdma-core's numbers.
    ///
    /// # Errors
    /// A failed call; an empty queue is none.
    pub fn event(&self) -> Result<Option<u32>, VerbsError> {
        let context = &self.domain.context;
        match next_event(context) {
            Ok(event) => {
                let kind = event.kind;
                acknowledge(context, event);
                Ok(Some(kind))
            }
            Err(libc::EAGAIN) => Ok(None),
            Err(code) => Err(context.failed("ibv_get_async_event", code)),
        }
    }
}

/// Registered memory, with any rights. Dropping it ends the registration.
pub struct BareRegion {
    domain: Arc<Domain>,
    raw: *mut ibv_mr,
    span: Span,
}

impl Drop for BareRegion {
    fn drop(&mut self) {
        if !self.raw.is_null() && self.end() != 0 {
            let device = &self.domain.context.device;
            tracing::warn!(device, "ibv_dereg_mr failed: its memory is kept for ever");
        }
    }
}

impl BareRegion {
    /// The memory.
    #[cfg(feature = "bare")]
    pub fn span(&self) -> &Span {
        &self.span
    }

    /// The key for our own posts, and the one for the peer's.
    pub fn keys(&self) -> (u32, u32) {
        // SAFETY: the region lives while `self` does, and its keys never change.
        unsafe { ((*self.raw).lkey, (*self.raw).rkey) }
    }

    /// Deregisters the region, even with work in flight, and returns the call's result.
    pub fn deregister(mut self) -> i32 {
        self.end()
    }

    fn end(&mut self) -> i32 {
        let raw = std::mem::replace(&mut self.raw, ptr::null_mut());
        // SAFETY: it was made by us, and with the pointer taken out this is the only end of it.
        let returned = unsafe { (self.domain.context.verbs.ibv_dereg_mr)(raw) };
        if returned != 0 {
            // The device may still reach it.
            keep(self.span.clone());
        }
        returned
    }
}

/// A queue pair without checks. Calls return the library's result: 0 or an error number of either
/// sign.
pub struct BareQueuePair {
    pub(in crate::verbs) pair: QueuePair,
}

impl BareQueuePair {
    /// Its number.
    pub fn number(&self) -> u32 {
        self.pair.number()
    }

    /// Asks for a state. May block for a second.
    pub fn modify(&self, wanted: &BareAttributes) -> i32 {
        let (mut attributes, mask) = filled(wanted);
        // SAFETY: the queue pair lives while `self` does; the call reads the attributes in the mask.
        unsafe {
            let modify = self.pair.domain.context.verbs.ibv_modify_qp;
            modify(self.pair.raw, &raw mut attributes, mask.0.cast_signed())
        }
    }

    /// Its state in rdma-core's numbers.
    ///
    /// # Errors
    /// The call's result.
    pub fn state(&self) -> Result<u32, i32> {
        let mut attributes = no_attributes();
        let mut rest = MaybeUninit::<ibv_qp_init_attr>::zeroed();
        let mask = Mask::IBV_QP_STATE.0.cast_signed();
        // SAFETY: the queue pair lives while `self` does; the call fills both structures.
        let returned = unsafe {
            let query = self.pair.domain.context.verbs.ibv_query_qp;
            query(self.pair.raw, &raw mut attributes, mask, rest.as_mut_ptr())
        };
        if returned == 0 { Ok(attributes.qp_state) } else { Err(returned) }
    }

    /// Posts a request.
    pub fn post(&self, request: &BareRequest) -> i32 {
        let piece =
            ibv_sge { addr: request.address, length: request.length, lkey: request.local_key };
        let remote = rdma_t { remote_addr: request.remote_address, rkey: request.remote_key };
        let work = WorkRequest::new(Direction::Write, piece, remote, request.name);
        let WorkRequest { request: mut work, mut piece } = work;
        work.opcode = match request.kind {
            BareKind::Write => ibv_wr_opcode::IBV_WR_RDMA_WRITE,
            BareKind::Read => ibv_wr_opcode::IBV_WR_RDMA_READ,
            #[cfg(feature = "bare")]
            BareKind::Send => ibv_wr_opcode::IBV_WR_SEND,
        };
        work.send_flags = if request.signalled { ibv_send_flags::IBV_SEND_SIGNALED.0 } else { 0 };
        work.sg_list = &raw mut piece;
        work.num_sge = i32::from(request.length > 0);
        let mut refused = ptr::null_mut();
        // SAFETY: the queue pair lives while `self` does, and the request and its piece through the
        // call, which copies them. The device checks the piece against what is registered.
        unsafe { ibv_post_send(self.pair.raw, &raw mut work, &raw mut refused) }
    }

    /// Posts a chain.
    ///
    /// # Errors
    /// A failed call.
    #[cfg(feature = "bare")]
    pub fn post_chain(&self, chain: &mut BareChain) -> Result<(), VerbsError> {
        self.pair.post(&mut chain.requests)
    }

    /// Posts a receive.
    #[cfg(feature = "bare")]
    pub fn post_receive(&self, receive: &BareReceive) -> i32 {
        let mut piece =
            ibv_sge { addr: receive.address, length: receive.length, lkey: receive.local_key };
        let mut work = ibv_recv_wr {
            wr_id: receive.name,
            next: ptr::null_mut(),
            sg_list: &raw mut piece,
            num_sge: i32::from(receive.length > 0),
        };
        let mut refused = ptr::null_mut();
        // SAFETY: as above.
        unsafe { ibv_post_recv(self.pair.raw, &raw mut work, &raw mut refused) }
    }

    /// Destroys it, even with work outstanding, and returns the call's result.
    pub fn destroy(self) -> i32 {
        self.pair.destroy().map_or_else(|kept| kept.error.code, |()| 0)
    }
}

/// The attributes as the library reads them, and the mask of those that are given.
fn filled(wanted: &BareAttributes) -> (ibv_qp_attr, Mask) {
    let mut attributes = no_attributes();
    let mut mask = Mask::IBV_QP_STATE;
    attributes.qp_state = wanted.state;
    macro_rules! given {
        ($($option:ident as $value:ident: $bit:ident => $($field:ident = $to:expr),+;)*) => {
            $(if let Some($value) = wanted.$option {
                $(attributes.$field = $to;)+
                mask |= Mask::$bit;
            })*
        };
    }
    given! {
        pkey_index as index: IBV_QP_PKEY_INDEX => pkey_index = index;
        port as port: IBV_QP_PORT => port_num = port;
        rights as rights: IBV_QP_ACCESS_FLAGS => qp_access_flags = rights.flags();
        address as address: IBV_QP_AV => ah_attr = ibv_ah_attr {
            grh: ibv_global_route {
                dgid: ibv_gid { raw: address.peer_gid.octets() },
                flow_label: 0,
                sgid_index: address.own_gid_index,
                hop_limit: HOP_LIMIT,
                traffic_class: 0,
            },
            dlid: address.peer_lid,
            sl: 0,
            src_path_bits: 0,
            static_rate: 0,
            is_global: u8::from(address.is_global),
            port_num: address.port,
        };
        path_mtu as bytes: IBV_QP_PATH_MTU => path_mtu = path_mtu_number(bytes);
        peer_number as number: IBV_QP_DEST_QPN => dest_qp_num = number;
        receive_psn as psn: IBV_QP_RQ_PSN => rq_psn = psn;
        max_dest_rd_atomic as reads: IBV_QP_MAX_DEST_RD_ATOMIC => max_dest_rd_atomic = reads;
        min_rnr_timer as code: IBV_QP_MIN_RNR_TIMER => min_rnr_timer = code;
        timeout as code: IBV_QP_TIMEOUT => timeout = code;
        retries as count: IBV_QP_RETRY_CNT => retry_cnt = count;
        rnr_retries as count: IBV_QP_RNR_RETRY => rnr_retry = count;
        send_psn as psn: IBV_QP_SQ_PSN => sq_psn = psn;
        max_rd_atomic as reads: IBV_QP_MAX_QP_RD_ATOMIC => max_rd_atomic = reads;
    }
    (attributes, mask)
}

/// Largest path MTU there is, in bytes.
const MTU_MAX: u32 = 4096;
/// The library's number after that of the largest path MTU.
const MTU_NUMBER_TOO_LARGE: u32 = 6;

fn path_mtu_number(bytes: u32) -> u32 {
    if bytes > MTU_MAX { MTU_NUMBER_TOO_LARGE } else { mtu_number(bytes).unwrap_or(0) }
}
