//! A NIC: one port of one device, its registrations and its lanes.

use super::context::{Context, mtu_number};
use super::counters::{Counts, NicCounters, count};
use super::lane::{Lane, LaneSetup, lock};
use super::listener::Listener;
use super::objects::{Channel, CompletionQueue, Domain, Numbers, Patience, Registration, Route};
use super::posting::{Completion, LaneSink, Posting, SliceEnd};
use crate::error::VerbsError;
use crate::gid::{ChosenGid, GidEntry, GidWanted, choose_gid, gid_text, parse_gid};
use handfast_core::Lifecycle;
use handfast_core::transport::Side;
use handfast_core::wire::{Body, QUEUE_PAIRS_MAX};
use handfast_memory::{Access, Span};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Most queue pairs of one lane: as many as a message may name.
pub const QUEUE_PAIRS_PER_LANE_MAX: usize = QUEUE_PAIRS_MAX;
/// Most requests that a queue pair may be configured to hold.
pub const DEPTH_MAX: u32 = 4096;
/// Most retries towards a silent peer. Seven is for ever on soft-RoCE.
pub const RETRY_COUNT_MAX: u8 = 6;
/// Packet sequence numbers have 24 bits.
const PSN_MAX: u32 = 0x00ff_ffff;
/// Queue-pair numbers have 24 bits.
const QUEUE_PAIR_NUMBER_MAX: u32 = 0x00ff_ffff;
/// The longest wait for an answer that devices know; 0 would be for ever.
const TIMEOUT_EXPONENT_MAX: u8 = 31;

/// How a NIC is set up.
#[derive(Clone, Debug)]
pub struct NicConfig {
    /// The device, by name.
    pub device: String,
    /// The port, counted from 1.
    pub port: u8,
    /// The address to be reached at.
    pub gid: GidWanted,
    /// Lanes that exist at once, from `bring_up` to the end of `retire`.
    pub lanes_max: usize,
    /// Requests outstanding on a queue pair; at least 1, at most [`DEPTH_MAX`].
    pub depth: u32,
    /// Cap on the path MTU, in bytes. The smaller of both sides' is used.
    pub mtu_max: u32,
    /// Cap on outstanding reads of a queue pair, each way; at least 1. The smaller of both sides'
    /// is used.
    pub rd_atomic_max: u8,
    /// A device waits 4.096 µs times two to the power of this for an answer, 1 to 31. Devices
    /// stretch it; time limits that matter are the caller's.
    pub timeout_exponent: u8,
    /// How often it asks again then; at most [`RETRY_COUNT_MAX`].
    pub retries: u8,
    /// What `retire` waits for, in all.
    pub drain: Duration,
}

impl NicConfig {
    /// The usual numbers: a silent peer is noticed after half a second on soft-RoCE.
    pub fn new(device: impl Into<String>) -> Self {
        Self {
            device: device.into(),
            port: 1,
            gid: GidWanted::Automatic,
            lanes_max: 1024,
            depth: 128,
            mtu_max: 4096,
            rd_atomic_max: 16,
            timeout_exponent: 14,
            retries: RETRY_COUNT_MAX,
            drain: Duration::from_secs(2),
        }
    }

    fn check(&self) -> Result<(), String> {
        let checks = [
            (self.depth >= 1 && self.depth <= DEPTH_MAX, "depth"),
            (mtu_number(self.mtu_max).is_some(), "mtu_max"),
            (self.rd_atomic_max >= 1, "rd_atomic_max"),
            ((1..=TIMEOUT_EXPONENT_MAX).contains(&self.timeout_exponent), "timeout_exponent"),
            (self.retries <= RETRY_COUNT_MAX, "retries"),
        ];
        let wrong = checks.iter().find(|(good, _)| !good);
        wrong.map_or(Ok(()), |(_, name)| Err(format!("the setting {name} is out of range")))
    }
}

/// What the NIC and its listening thread share.
pub(super) struct Shared {
    pub(super) context: Arc<Context>,
    pub(super) channel: Arc<Channel>,
    pub(super) lanes: Mutex<BTreeMap<u64, Arc<Lane>>>,
    pub(super) sink: Arc<dyn LaneSink>,
    pub(super) counts: Arc<Counts>,
}

impl Shared {
    pub(super) fn lane(&self, name: u64) -> Option<Arc<Lane>> {
        lock(&self.lanes).get(&name).cloned()
    }
}

/// One port of one device. Its calls may block as they say and want threads that may; none waits
/// for another's peer. Dropping it retires its lanes; registrations may outlive it.
pub struct Nic {
    // Dropped first: its thread uses what follows.
    listener: Option<Listener>,
    shared: Arc<Shared>,
    domain: Arc<Domain>,
    config: NicConfig,
    gid: ChosenGid,
    rd_atomic: u8,
    completions_max: u32,
}

impl Nic {
    /// Opens a device, chooses an address of its port and starts to listen for completions and
    /// events. Blocks for system calls only.
    ///
    /// # Errors
    /// No library, no such device, a port that is not active or has no usable address, a setting
    /// out of range, or a call that failed.
    pub fn open(config: NicConfig, sink: Arc<dyn LaneSink>) -> Result<Self, VerbsError> {
        let context = Arc::new(Context::open(&config.device)?);
        let wrong = |detail: String| context.error(Side::Configuration, "open", 0, detail);
        config.check().map_err(wrong)?;
        let device = context.device_facts()?;
        let port = context.port_facts(config.port)?;
        if !port.is_active {
            let detail = format!("port {} is not active", config.port);
            return Err(context.error(Side::Local, "open", 0, detail));
        }
        if config.depth > device.queue_depth_max {
            let max = device.queue_depth_max;
            return Err(wrong(format!("the device's queues hold {max}, not {}", config.depth)));
        }
        let rd_atomic = device.rd_atomic_max.min(u32::from(config.rd_atomic_max));
        let rd_atomic = u8::try_from(rd_atomic).unwrap_or(u8::MAX);
        if rd_atomic == 0 {
            return Err(wrong("the device can hold no outstanding read".to_owned()));
        }
        let gid = choose_gid(&context.gids(config.port)?, config.gid)
            .map_err(|error| wrong(error.to_string()))?;
        tracing::debug!(device = config.device, gid = gid.why, "address chosen");
        let domain = Arc::new(Domain::new(Arc::clone(&context))?);
        let channel = Arc::new(Channel::new(Arc::clone(&context))?);
        let shared = Arc::new(Shared {
            context,
            channel,
            lanes: Mutex::default(),
            sink,
            counts: Arc::default(),
        });
        let listener = Some(Listener::start(Arc::clone(&shared))?);
        let completions_max = device.completions_max;
        Ok(Self { listener, shared, domain, config, gid, rd_atomic, completions_max })
    }

    /// The address peers reach us at, and why it was chosen.
    pub fn gid(&self) -> &ChosenGid {
        &self.gid
    }

    /// Pins memory and lets the NIC, and peers as far as `access` says, read and write it. Blocks
    /// for about a tenth of a second and more per gibibyte.
    ///
    /// # Errors
    /// What the device or the limit of locked memory refused.
    pub fn register(&self, span: Span, access: Access) -> Result<Registration, VerbsError> {
        Registration::new(Arc::clone(&self.domain), span, access)
    }

    /// Makes a lane of one queue pair for each of `psns`, in INIT, and says what to announce about
    /// it. `psns` are the first packet sequence numbers that we send with: 24 random bits each,
    /// fresh for every lane, since they are what keeps late packets of a former lane out.
    ///
    /// # Errors
    /// When the lifecycle exists, a limit is reached or a call failed; nothing is left of it.
    pub fn bring_up(&self, lifecycle: Lifecycle, psns: &[u32]) -> Result<Body, VerbsError> {
        let context = &self.shared.context;
        let refused = |detail: String| context.error(Side::Local, "bring_up", 0, detail);
        if psns.is_empty() || psns.len() > QUEUE_PAIRS_PER_LANE_MAX {
            let count = psns.len();
            return Err(refused(format!(
                "1 to {QUEUE_PAIRS_PER_LANE_MAX} queue pairs, not {count}"
            )));
        }
        if psns.iter().any(|psn| *psn > PSN_MAX) {
            return Err(refused("a packet sequence number has 24 bits".to_owned()));
        }
        let port = context.port_facts(self.config.port)?;
        // Held over the making of queue pairs, so that the limit holds: a call or two of system
        // time. The listening thread needs it to find lanes; no queue pair waits for a peer here.
        let mut lanes = lock(&self.shared.lanes);
        if lanes.contains_key(&lifecycle.0) {
            return Err(refused("the lifecycle exists".to_owned()));
        }
        if lanes.len() >= self.config.lanes_max {
            return Err(refused(format!(
                "the limit of {} lanes is reached",
                self.config.lanes_max
            )));
        }
        let pairs = u32::try_from(psns.len()).unwrap_or(u32::MAX);
        let entries = pairs.saturating_mul(self.config.depth);
        if entries > self.completions_max {
            let max = self.completions_max;
            return Err(refused(format!("completion queues hold {max}, not {entries}")));
        }
        let channel = Arc::clone(&self.shared.channel);
        let completions = Arc::new(CompletionQueue::new(channel, entries, lifecycle.0)?);
        let setup = LaneSetup {
            domain: Arc::clone(&self.domain),
            sink: Arc::clone(&self.shared.sink),
            counts: Arc::clone(&self.shared.counts),
            depth: self.config.depth,
            message_max: port.message_max,
            port: self.config.port,
        };
        let lane = Lane::new(lifecycle, psns, completions, setup)?;
        let body = Body {
            queue_pairs: lane.numbers.clone(),
            psns: psns.to_vec(),
            gid: gid_text(self.gid.entry.address),
            lid: u32::from(port.lid),
            mtu: port.mtu.min(self.config.mtu_max),
            rd_atomic: u32::from(self.rd_atomic),
            ..Body::default()
        };
        lanes.insert(lifecycle.0, Arc::new(lane));
        Ok(body)
    }

    /// Wires the lane towards the queue pairs that `peer` announced: RTR and RTS with the smaller
    /// MTU and number of outstanding reads of both. Happens once per lifecycle. The lane takes
    /// slices as soon as this returns, whether the peer has wired or not; what is posted before it
    /// has costs a whole time-out. Blocks for up to a second per queue pair where the kernel looks
    /// for the peer's address in vain.
    ///
    /// # Errors
    /// What kept the lane from being wired; it takes nothing and is to be retired.
    pub fn wire(&self, lifecycle: Lifecycle, peer: &Body) -> Result<(), VerbsError> {
        let context = &self.shared.context;
        let Some(lane) = self.shared.lane(lifecycle.0) else {
            return Err(context.error(Side::Local, "wire", 0, "no lane has the lifecycle"));
        };
        let unusable = |detail: String| context.error(Side::Peer, "wire", 0, detail);
        let numbers = announced(peer, lane.numbers.len()).map_err(unusable)?;
        let port = context.port_facts(self.config.port)?;
        let peer_gid = parse_gid(&peer.gid).map_err(|error| unusable(error.to_string()))?;
        let own = self.own_entry()?;
        let mtu = port.mtu.min(self.config.mtu_max).min(peer.mtu);
        let mtu_number = mtu_number(mtu)
            .ok_or_else(|| unusable(format!("a path MTU of {} bytes does not exist", peer.mtu)))?;
        let rd_atomic = u32::from(self.rd_atomic).min(peer.rd_atomic);
        let rd_atomic = u8::try_from(rd_atomic).unwrap_or(u8::MAX);
        if rd_atomic == 0 {
            // With none a read would never end, and one kernel does not survive it.
            return Err(unusable("the peer accepts no outstanding read".to_owned()));
        }
        let index = u8::try_from(own.index)
            .map_err(|_| context.error(Side::Local, "wire", 0, "the GID's index exceeds 255"))?;
        let route = Route {
            port: self.config.port,
            own_gid_index: index,
            peer_gid,
            peer_lid: u16::try_from(peer.lid).map_err(|_| unusable("LIDs have 16 bits".into()))?,
            is_global: port.is_ethernet || peer.lid == 0,
            mtu_number,
            rd_atomic,
        };
        let patience = Patience {
            timeout_exponent: self.config.timeout_exponent,
            retries: self.config.retries,
        };
        lane.wire(&route, &numbers, patience)
    }

    /// Our address as it stands in the port's table now: places move when addresses come and go.
    fn own_entry(&self) -> Result<GidEntry, VerbsError> {
        let wanted = &self.gid.entry;
        let entries = self.shared.context.gids(self.config.port)?;
        let same = |entry: &&GidEntry| entry.address == wanted.address && entry.kind == wanted.kind;
        let found = entries.iter().find(same).copied();
        found.ok_or_else(|| {
            let detail = format!("our address {} has left the port", wanted.address);
            self.shared.context.error(Side::Local, "wire", 0, detail)
        })
    }

    /// Posts slices on a lane and leaves `postings` empty. Waits for no completion. What cannot be
    /// taken ends at once, reported before this returns: `NotPosted` when the lane is gone, broken,
    /// not wired yet or full, `Refused` when it could never be posted.
    pub fn post(&self, lane: Lifecycle, postings: &mut Vec<Posting>) {
        if let Some(lane) = self.shared.lane(lane.0) {
            return lane.post(postings);
        }
        let not_posted =
            |posting: Posting| Completion { slice: posting.slice, end: SliceEnd::NotPosted };
        let mut ended: Vec<_> = postings.drain(..).map(not_posted).collect();
        if !ended.is_empty() {
            self.shared.sink.on_completions(lane, &mut ended);
        }
    }

    /// Ends the lane: nobody posts any more, ERR, what is in flight is flushed and reported, the
    /// queue pairs are destroyed. Blocks for [`NicConfig::drain`] at most, and a second more where a
    /// `wire` of the same lane is under way. When it returns `Ok`, every slice has ended and nothing
    /// of the lane touches memory. Idempotent. Not to be called from a [`LaneSink`].
    ///
    /// # Errors
    /// A call that failed. If the lane is still known, it is to be retired again.
    pub fn retire(&self, lifecycle: Lifecycle) -> Result<(), VerbsError> {
        let Some(lane) = self.shared.lane(lifecycle.0) else { return Ok(()) };
        let gone = lane.retire(Instant::now() + self.config.drain);
        if matches!(gone, Ok(false)) {
            let detail = "the lane is in use; it is to be retired again";
            return Err(self.shared.context.error(Side::Local, "retire", 0, detail));
        }
        if lock(&self.shared.lanes).remove(&lifecycle.0).is_some() {
            count(&self.shared.counts.lanes_retired);
        }
        gone.map(|_| ())
    }

    /// Lanes that exist.
    pub fn lanes(&self) -> usize {
        lock(&self.shared.lanes).len()
    }

    /// What happened so far.
    pub fn counters(&self) -> NicCounters {
        self.shared.counts.snapshot()
    }
}

impl Drop for Nic {
    fn drop(&mut self) {
        // The lanes stay in the table meanwhile: the listener finds what is flushed there.
        let lanes: Vec<_> = lock(&self.shared.lanes).values().cloned().collect();
        lanes.iter().for_each(|lane| lane.revoke());
        let deadline = Instant::now() + self.config.drain;
        for lane in lanes {
            if let Err(error) = lane.retire(deadline) {
                tracing::warn!(%error, lane = lane.lifecycle.0, "a lane was not retired cleanly");
            }
        }
        drop(self.listener.take());
        lock(&self.shared.lanes).clear();
    }
}

/// The queue pairs that a peer announced, as many as we have at most.
fn announced(peer: &Body, pairs: usize) -> Result<Vec<Numbers>, String> {
    if peer.queue_pairs.is_empty() {
        return Err("the peer announced no queue pair".to_owned());
    }
    if peer.psns.len() != peer.queue_pairs.len() {
        let (psns, numbers) = (peer.psns.len(), peer.queue_pairs.len());
        return Err(format!(
            "the peer announced {numbers} queue pairs and {psns} sequence numbers"
        ));
    }
    let numbers = peer.queue_pairs.iter().zip(&peer.psns).take(pairs);
    let numbers: Vec<_> =
        numbers.map(|(pair, psn)| Numbers { queue_pair: *pair, psn: *psn }).collect();
    let wide = |n: &&Numbers| n.queue_pair > QUEUE_PAIR_NUMBER_MAX || n.psn > PSN_MAX;
    match numbers.iter().find(wide) {
        Some(n) => Err(format!("{} or {} exceeds 24 bits", n.queue_pair, n.psn)),
        None => Ok(numbers),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_peer_announces_is_checked_before_a_device_sees_it() {
        let body = |queue_pairs: &[u32], psns: &[u32]| Body {
            queue_pairs: queue_pairs.to_vec(),
            psns: psns.to_vec(),
            ..Body::default()
        };
        assert_eq!(announced(&body(&[17, 18, 19], &[1, 2, 3]), 2).unwrap().len(), 2);
        assert_eq!(announced(&body(&[PSN_MAX], &[PSN_MAX]), 2).unwrap().len(), 1);
        for wrong in [
            body(&[], &[]),
            body(&[17], &[]),
            body(&[17], &[1, 2]),
            body(&[PSN_MAX + 1], &[1]),
            body(&[17], &[PSN_MAX + 1]),
        ] {
            assert!(announced(&wrong, 2).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn settings_are_taken_up_to_their_limits_and_no_further() {
        let with = |change: fn(&mut NicConfig)| {
            let mut config = NicConfig::new("any");
            change(&mut config);
            config.check()
        };
        assert_eq!(with(|_| ()), Ok(()));
        assert_eq!(with(|c| c.retries = RETRY_COUNT_MAX), Ok(()));
        assert!(with(|c| c.retries = RETRY_COUNT_MAX + 1).is_err());
        assert_eq!(with(|c| c.depth = DEPTH_MAX), Ok(()));
        assert!(with(|c| c.depth = DEPTH_MAX + 1).is_err());
        assert!(with(|c| c.depth = 0).is_err());
        assert!(with(|c| c.timeout_exponent = 0).is_err());
        assert!(with(|c| c.timeout_exponent = 32).is_err());
        assert!(with(|c| c.mtu_max = 255).is_err());
        assert!(with(|c| c.rd_atomic_max = 0).is_err());
    }
}
