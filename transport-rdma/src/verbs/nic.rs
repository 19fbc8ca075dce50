//! A NIC: one port of one device, its registrations and its lanes.

use super::affinity::processors_near;
use super::completions::{CompletionQueues, PollerShared, QueueLimits, Shard};
use super::config::NicConfig;
use super::context::{Context, DeviceFacts};
use super::counters::{Counts, NicLoad};
use super::device_memory;
use super::domains::Domains;
use super::handle::Handle;
use super::kept::keep;
use super::lane::{Lane, Probe};
use super::lanes::Lanes;
use super::manager::{Manager, Reads, mapped};
use super::objects::{Channel, Domain, Place, RegionLimits, Undestroyed};
use super::poller::{Pollers, waker};
use super::pool::{Fresh, Pool};
use super::probing::Probing;
use super::registration::{RegisterOptions, Registration};
use super::sink::NicSink;
use crate::counters::NicCounters;
use crate::discovery::{discover_one, root};
use crate::error::VerbsError;
use crate::gid::{ChosenGid, GidEntry, GidKind, GidWanted, explained, usable_gids};
use crate::pairing::AddressBook;
use crate::profile::{Connecting, DeviceProfile, Recognised, SIW, recognise};
use crate::transport::CALLER_SPIN_MAX;
use handfast_core::Lifecycle;
use handfast_core::policy::TrustGroup;
use handfast_core::transfer::SliceId;
use handfast_core::transport::Side;
use handfast_core::visibility::Refusals;
use handfast_transport::{
    Access, Completion, DataPath, DeviceId, LaneHandle, Posting, RemoteSpan, Sent, Span,
};
use parking_lot::Mutex;
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Maximum queue pairs created and destroyed by one [`Nic::skip_numbers`].
pub const NUMBERS_SKIPPED_MAX: u32 = 4_096;

/// Longest wait of a caller for a probe or a drain.
const WAIT_MAX: Duration = Duration::from_secs(86_400);
/// Shortest wait for the flush of a lane's outstanding work.
const DRAIN_MIN: Duration = Duration::from_millis(10);

/// State shared between the NIC and its pollers.
pub(super) struct Shared {
    pub(super) context: Arc<Context>,
    pub(super) queues: Arc<CompletionQueues>,
    pub(super) lanes: Mutex<Lanes>,
    /// The number of the port.
    pub(super) port: u8,
    /// At least one lane exists.
    pub(super) has_lanes: AtomicBool,
    pub(super) stopped: AtomicBool,
    pub(super) sink: Arc<dyn NicSink>,
    pub(super) counts: Arc<Counts>,
    pub(super) profile: &'static DeviceProfile,
    pub(super) patience: Duration,
    /// Time of the device's loss.
    pub(super) lost_since: OnceLock<Instant>,
    /// The failure after which the NIC takes no lanes.
    pub(super) lost: OnceLock<VerbsError>,
    pub(super) probing: Arc<Mutex<Probing>>,
    /// Refusals of its peers that no completion reports.
    pub(super) refusals: Arc<Mutex<Refusals>>,
    /// The connection manager, where queue pairs connect through it.
    pub(super) manager: Option<Arc<Manager>>,
}

impl Shared {
    /// Fails the lanes of a completion queue, which takes no more.
    pub(super) fn fail_queue(&self, queue: &Shard, error: &VerbsError) {
        // First, as above.
        if queue.on_failed() {
            let is_of_queue = |fresh: &Fresh| fresh.reservation.shard.number == queue.number;
            self.lanes.lock().spoil(is_of_queue);
            let lanes = self.all_lanes();
            let of_queue = lanes.iter().filter(|lane| lane.shard.number == queue.number);
            of_queue.for_each(|lane| lane.fail_here(error.clone()));
        }
    }

    /// The error of a creation after the loss of the NIC.
    pub(super) fn not_lost(&self) -> Result<(), VerbsError> {
        let Some(VerbsError { call, code, detail, .. }) = self.lost.get() else { return Ok(()) };
        let detail = format!(
            "the NIC takes no lanes, since {call} failed: {detail}; it has to be opened again"
        );
        Err(self.context.error(Side::Local, "bring_up", *code, detail))
    }

    /// The error of a creation on a NIC or a completion queue that failed meanwhile.
    pub(super) fn usable(&self, queue: &Shard) -> Result<(), VerbsError> {
        self.not_lost()?;
        if queue.has_failed() {
            let detail = "the completion queue failed during the creation; try it again";
            return Err(self.context.error(Side::Local, "bring_up", 0, detail));
        }
        Ok(())
    }

    pub(super) fn lane(&self, lifecycle: Lifecycle) -> Option<Arc<Lane>> {
        self.lanes.lock().by_lifecycle.get(&lifecycle.0).cloned()
    }

    /// Returns the lane of a work request's serial number.
    pub(super) fn lane_of(&self, serial: u32) -> Option<Arc<Lane>> {
        self.lanes.lock().by_serial.get(&serial).cloned()
    }

    pub(super) fn all_lanes(&self) -> Vec<Arc<Lane>> {
        self.lanes.lock().by_lifecycle.values().cloned().collect()
    }
}

/// One port of one device. Its calls may block as documented and need threads that may; none waits
/// for another's peer. Dropping it retires its lanes; registrations may outlive it. A lane that the
/// device does not let go then, and the memory of its slices, stay until the process ends.
pub struct Nic {
    // Dropped first: their threads use what follows.
    pub(super) pollers: Option<Pollers>,
    pub(super) shared: Arc<Shared>,
    pub(super) domains: Domains,
    pub(super) config: NicConfig,
    pub(super) place: Place,
    pub(super) pool: Arc<Pool>,
    lid: u16,
    pub(super) gid: ChosenGid,
    pub(super) recognised: Recognised,
    pub(super) rd_atomic: u8,
    pub(super) book: Mutex<AddressBook>,
}

impl DataPath for Nic {
    fn post(&self, lane: Lifecycle, postings: &mut Vec<Posting>) {
        Self::post(self, lane, postings);
    }

    fn withdraw(&self, lane: Lifecycle, slice: SliceId, _: handfast_core::Duration) {
        Self::withdraw(self, lane, slice);
    }
}

impl Nic {
    /// Opens a device, chooses an address of its port and starts polling for completions and
    /// events. Blocks for system calls only.
    ///
    /// # Errors
    /// No library, no such device, one that cannot have lanes, a port that is not active or has no
    /// usable address, a setting out of range, or a failed call.
    pub fn open(config: NicConfig, sink: Arc<dyn NicSink>) -> Result<Self, VerbsError> {
        let context = Arc::new(Context::open_as(config.system_name(), &config.device)?);
        Self::counting(context, config, sink, Arc::default())
    }

    /// Like [`Nic::open`], with an open device and its counters.
    pub(super) fn counting(
        context: Arc<Context>,
        config: NicConfig,
        sink: Arc<dyn NicSink>,
        counts: Arc<Counts>,
    ) -> Result<Self, VerbsError> {
        let wrong = |detail: String| context.error(Side::Configuration, "open", 0, detail);
        config.check().map_err(wrong)?;
        let config = with_gid_of_manager(&context, config)?;
        let recognised = recognised(config.system_name());
        let profile = recognised.profile;
        if let Connecting::Never(why) = profile.connecting {
            return Err(wrong(format!("{recognised}: {why}")));
        }
        let device = context.device_facts()?;
        let (place, lid) = place_of(&context, &config)?;
        if config.depth > device.queue_depth_max {
            let max = device.queue_depth_max;
            return Err(wrong(format!("the device's queues hold {max}, not {}", config.depth)));
        }
        let rd_atomic = device.rd_atomic_max.min(u32::from(config.rd_atomic_max));
        let rd_atomic = u8::try_from(rd_atomic).unwrap_or(u8::MAX);
        if rd_atomic == 0 {
            return Err(wrong("the device can hold no outstanding read".to_owned()));
        }
        let entries = context.gids(config.port)?;
        let usable = usable_gids(&entries, config.gid, profile)
            .map_err(|error| wrong(format!("{error} ({recognised})")))?;
        let gid = explained(usable[0], &entries, config.gid);
        let manager = manager(&context, &config, profile, (&usable, rd_atomic))?;
        tracing::debug!(device = config.device, gid = gid.why, profile = %recognised, "NIC opened");
        let domain = Domain::new(Arc::clone(&context), region_limits(&device, profile))?;
        let domains = Domains::new(domain, config.trust_groups, profile)?;
        let (pollers, woken) = pollers(&context, config.pollers)?;
        let limits = QueueLimits {
            entries: completion_entries(&config, profile).min(device.completions_max),
            entries_max: device.completions_max,
        };
        let queue_pairs_max = config.queue_pairs_max.min(device.queue_pairs_max);
        let shared = Arc::new(Shared {
            queues: Arc::new(CompletionQueues::new(pollers, limits)),
            lanes: Mutex::new(Lanes::new(config.lanes_max, queue_pairs_max)),
            port: config.port,
            has_lanes: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            sink,
            counts,
            profile,
            patience: patience(manager.as_deref(), &config, profile),
            lost_since: OnceLock::new(),
            lost: OnceLock::new(),
            probing: Arc::new(Mutex::new(Probing::new(!is_iwarp(profile)))),
            refusals: Arc::default(),
            manager,
            context,
        });
        let pollers = start_pollers(&shared, woken, &config)?;
        if let Some(manager) = &shared.manager {
            manager.start(&shared)?;
        }
        Ok(Self {
            pool: Arc::new(Pool::new(&config, &shared, &domains.first.domain, place)),
            pollers: Some(pollers),
            shared,
            domains,
            config,
            place,
            lid,
            gid,
            recognised,
            rd_atomic,
            book: Mutex::default(),
        })
    }

    /// The device, by name.
    pub fn device(&self) -> &str {
        &self.config.device
    }

    /// The device among the keys of memory, for the lanes of a trust group; `None` if the NIC was not
    /// opened for it.
    pub fn id_for(&self, group: TrustGroup) -> Option<DeviceId> {
        self.domains.of(group, "open").ok().map(|of_group| of_group.domain.id)
    }

    /// The device's profile, and the reason for its recognition.
    pub fn recognised(&self) -> &Recognised {
        &self.recognised
    }

    /// Longest time of a request without an answer or an error, see [`NicConfig::patience`].
    pub fn patience(&self) -> Duration {
        self.shared.patience
    }

    /// The side to blame for a longer silence: a device reports a silent peer by then, and TCP does not.
    pub(crate) fn silent_side(&self) -> Side {
        silent_side(is_iwarp(self.shared.profile))
    }

    /// Returns the address that was chosen at the NIC's opening, and the reason. Lanes announce it unless
    /// something is known of their peer; see [`Nic::create_for`].
    pub fn gid(&self) -> &ChosenGid {
        &self.gid
    }

    /// Returns the LID that the port had at the NIC's opening; 0 on Ethernet. The handshake announces the
    /// present one.
    pub fn lid(&self) -> u16 {
        self.lid
    }

    /// Returns the current addresses of the NIC, best first.
    ///
    /// # Errors
    /// No usable address, or a failed call.
    pub fn gids(&self) -> Result<Vec<GidEntry>, VerbsError> {
        let context = &self.shared.context;
        let entries = context.gids(self.config.port)?;
        usable_gids(&entries, self.config.gid, self.shared.profile).map_err(|error| {
            context.error(Side::Local, "ibv_query_gid_table", 0, error.to_string())
        })
    }

    /// Pins memory and lets the NIC, and peers within `access`, read and write it. Blocks for about
    /// a tenth of a second or more per gibibyte.
    ///
    /// # Errors
    /// More than [`Nic::region_bytes_max`], or the device or the limit of locked memory refuses.
    pub fn register(&self, span: Span, access: Access) -> Result<Registration, VerbsError> {
        self.register_with(span, access, RegisterOptions::default())
    }

    /// Like [`Nic::register`], with options.
    ///
    /// # Errors
    /// As [`Nic::register`].
    pub fn register_with(
        &self,
        span: Span,
        access: Access,
        options: RegisterOptions,
    ) -> Result<Registration, VerbsError> {
        let max = self.region_bytes_max();
        if span.len() as u64 > max {
            let detail = format!(
                "{} bytes in one registration; the limit of this device is {max} bytes: register, \
                 or serve, the memory in parts of at most that",
                span.len()
            );
            return Err(self.shared.context.error(Side::Configuration, "ibv_reg_mr", 0, detail));
        }
        let granted = granted(access, &span, self.shared.profile);
        let of_group = self.domains.of(options.trust_group, "ibv_reg_mr")?;
        let domain = Arc::clone(&of_group.domain);
        let made = Registration::new(domain, span, access, granted, options);
        made.inspect_err(|error| self.shared.suspect(error))
    }

    /// Maximum bytes of one registration: the device's limit, or that of its profile.
    pub fn region_bytes_max(&self) -> u64 {
        self.domains.first.domain.region_limits().bytes_max
    }

    /// Returns whether the memory of accelerators can be registered by a dma-buf.
    pub fn offers_dmabuf(&self) -> bool {
        device_memory::offers_dmabuf(&self.domains.first.domain)
    }

    /// Creates and destroys queue pairs, so that the next numbers differ from those of an earlier
    /// incarnation; those of the pool are destroyed too. Blocks for a system call or two each.
    ///
    /// # Errors
    /// More than [`NUMBERS_SKIPPED_MAX`], or a call that failed.
    pub fn skip_numbers(&self, count: u32) -> Result<(), VerbsError> {
        if count > NUMBERS_SKIPPED_MAX {
            let detail = format!("{count} numbers to skip; the limit is {NUMBERS_SKIPPED_MAX}");
            return Err(self.shared.context.error(Side::Local, "skip_numbers", 0, detail));
        }
        // A queue pair that is created for the pool meanwhile has one of the numbers.
        let _paused = self.pool.pause();
        self.shared.empty_pool();
        let reservation = self.shared.queues.reserve(1)?;
        for _ in 0..count {
            if let Err(kept) = self.queue_pair(&reservation)?.destroy() {
                let Undestroyed { pair, error } = *kept;
                // It was of no lane.
                let fresh = Fresh { queue_pairs: vec![pair], reservation, serial: 0 };
                self.shared.lanes.lock().keep(fresh);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Posts slices on a lane and leaves `postings` empty. Waits for no completion. A slice that cannot be
    /// posted ends at once, reported before this returns: `Released` with [`Sent::None`] when the lane
    /// is gone, broken, not connected yet or full, `Refused` when it could never be posted. A lane to a peer
    /// that has refused early writes keeps slices that its queue pairs do not take yet.
    pub fn post(&self, lane: Lifecycle, postings: &mut Vec<Posting>) {
        if let Some(lane) = self.shared.lane(lane) {
            return lane.post(postings);
        }
        let released = |posting: Posting| Completion::released(posting.slice, Sent::None);
        let mut ended: Vec<_> = postings.drain(..).map(released).collect();
        if !ended.is_empty() {
            self.shared.sink.on_completions(lane, &mut ended);
        }
    }

    /// Gives a slice back that its lane keeps and the device does not have: `Released` with [`Sent::None`],
    /// reported before this returns. Returns false for others: a queue pair gives nothing back, so a slice
    /// that the device has ends by itself or with its lane.
    pub fn withdraw(&self, lane: Lifecycle, slice: SliceId) -> bool {
        self.shared.lane(lane).is_some_and(|lane| lane.withdraw(slice))
    }

    /// Returns a handle of a lane, which does not keep it; `None` if there is no such lane.
    pub fn handle(&self, lane: Lifecycle) -> Option<Arc<dyn LaneHandle>> {
        let lane = self.shared.lane(lane)?;
        let (lane, shared) = (Arc::downgrade(&lane), Arc::downgrade(&self.shared));
        let spin = self.config.polling.spin().min(CALLER_SPIN_MAX);
        Some(Arc::new(Handle { lane, shared, spin }))
    }

    /// Reads over each queue pair of a connected lane, and waits until all have answered: a byte of
    /// `remote`, or nothing at all, which needs no key; or the byte that the peer announced, if the
    /// devices refused an empty read before. The peer may still be connecting; the device
    /// tries for as long as [`NicConfig::retries`] says. Blocks for `patience` at most.
    ///
    /// Some devices also answer for an earlier pairing, see
    /// [`DeviceProfile::drops_stale_reads`].
    ///
    /// # Errors
    /// An error of a queue pair, which breaks the lane, or a timeout, also of a probe that was under way
    /// before; the lane is not connected in time, or full, or [`Nic::can_probe`] is false.
    pub fn probe(
        &self,
        lifecycle: Lifecycle,
        remote: Option<RemoteSpan>,
        patience: Duration,
    ) -> Result<(), VerbsError> {
        let lane = self.known(lifecycle, "prove")?;
        let probe = remote.map_or(Probe::Announced, Probe::Byte);
        lane.probe(probe, after(patience))
    }

    /// Returns whether there is a read by which the lane can be probed: its devices refused neither
    /// an empty one nor one of a byte that the peer announced. True if there is no such lane.
    pub fn can_probe(&self, lifecycle: Lifecycle) -> bool {
        self.shared.lane(lifecycle).is_none_or(|lane| lane.can_probe())
    }

    /// Closes the lane to further posts; work in flight goes on, and so does the peer's.
    pub fn revoke(&self, lifecycle: Lifecycle) {
        if let Some(lane) = self.shared.lane(lifecycle) {
            lane.revoke();
        }
    }

    /// Waits until nothing that was posted on the lane is in flight or unreported, for `patience`
    /// at most, and says whether that is so. The lane should be revoked before. Not to be called
    /// from a [`NicSink`].
    pub fn drain(&self, lifecycle: Lifecycle, patience: Duration) -> bool {
        let lane = self.shared.lane(lifecycle);
        lane.is_none_or(|lane| lane.drain(after(patience)))
    }

    /// Cuts the lane off from its peer at once: no further posts, and its queue pairs go to ERR,
    /// where they accept nothing. Work in flight is flushed and reported. Does not wait; retire the
    /// lane afterwards.
    ///
    /// # Errors
    /// A failed call.
    pub fn cut(&self, lifecycle: Lifecycle) -> Result<(), VerbsError> {
        self.shared.lane(lifecycle).map_or(Ok(()), |lane| lane.cut())
    }

    /// Ends the lane: no further posts, ERR, work in flight is flushed and reported, the queue
    /// pairs are destroyed. Blocks for at most [`NicConfig::drain`], and a second more during a
    /// connect of the same lane. After `Ok` every slice has ended and nothing of the lane touches
    /// memory. A queue pair in ERR whose work has completed, and whose driver must not destroy it again
    /// after a failure ([`DeviceProfile::destroys_once`](crate::DeviceProfile::destroys_once)), is left to
    /// the kernel until the device is closed, and counts in the limits. Idempotent. Not to be called from
    /// a [`NicSink`].
    ///
    /// # Errors
    /// The lane is in use, or the device did not destroy a queue pair of it. The lane is still known,
    /// and holds its slices with their memory, as many queue pairs as before in every limit, and the
    /// reserved completions: retire it again. The number of attempts is the caller's.
    pub fn retire(&self, lifecycle: Lifecycle) -> Result<(), VerbsError> {
        let Some(lane) = self.shared.lane(lifecycle) else { return Ok(()) };
        let lost = self.shared.lost_since.get().copied();
        let lost = lost.into_iter().chain(lane.shard.failed_since()).min();
        let deadline = retirement(Instant::now(), self.config.drain, lost);
        if !(lane.retire(deadline)? && lane.is_reported(deadline)) {
            let detail = "the lane is in use; retire it again";
            return Err(self.shared.context.error(Side::Local, "retire", 0, detail));
        }
        let kept = lane.kept_pairs();
        let mut lanes = self.shared.lanes.lock();
        if lanes.remove(&lane, kept) {
            self.shared.counts.lock().lanes_retired += 1;
        }
        self.shared.has_lanes.store(lanes.len() > 0, Ordering::Relaxed);
        Ok(())
    }

    /// Whether queue pairs connect through the connection manager.
    pub fn uses_connection_manager(&self) -> bool {
        self.shared.manager.is_some()
    }

    /// Queue pairs of a lane, unless the peer has fewer.
    pub fn queue_pairs_per_lane(&self) -> usize {
        self.config.queue_pairs_per_lane
    }

    /// Returns whether a lane sends what is posted. The side that accepts through the connection manager
    /// may have returned from [`connect`](Self::connect) before: it sends with the event of the connection.
    pub fn is_open(&self, lifecycle: Lifecycle) -> bool {
        self.shared.lane(lifecycle).is_some_and(|lane| lane.is_open())
    }

    /// Slices that a connected lane takes at once: the depth of a queue pair, or that of all on a
    /// device that is not slower for it.
    pub fn lane_depth(&self, lifecycle: Lifecycle) -> Option<u32> {
        let lane = self.shared.lane(lifecycle)?;
        Some(self.config.lane_depth(self.shared.profile, lane.connected_pairs()))
    }

    /// Returns the number of lanes.
    pub fn lanes(&self) -> usize {
        self.shared.lanes.lock().len()
    }

    /// Completions of a lane so far; 0 for one that does not exist.
    pub fn completions(&self, lane: Lifecycle) -> u64 {
        self.shared.lane(lane).map_or(0, |lane| lane.completions())
    }

    /// Returns whether the device holds a slice without a reported completion. Scans all work in flight
    /// on the lane.
    pub fn holds(&self, lane: Lifecycle, slice: SliceId) -> bool {
        self.shared.lane(lane).is_some_and(|lane| lane.holds(slice))
    }

    /// The failure after which the NIC takes no lanes, if there was one: the device is lost, or its
    /// events or completions cannot be read. It has to be opened again.
    pub fn lost(&self) -> Option<&VerbsError> {
        self.shared.lost.get()
    }

    /// Counters since the NIC was opened.
    pub fn counters(&self) -> NicCounters {
        *self.shared.counts.lock()
    }

    /// Use of each limit, for the decision to create a lane or to evict one.
    pub fn load(&self) -> NicLoad {
        let (completion_entries, completion_entries_made) = self.shared.queues.load();
        let (regions, regions_max) = self.domains.first.domain.regions();
        let lanes = self.shared.lanes.lock();
        let (queue_pairs, queue_pairs_max) = lanes.queue_pairs();
        let (pooled_lanes, queue_pairs_pooled) = lanes.pool();
        NicLoad {
            lanes: lanes.len(),
            lanes_max: self.config.lanes_max,
            queue_pairs: queue_pairs - queue_pairs_pooled,
            queue_pairs_max,
            pooled_lanes,
            queue_pairs_pooled,
            completion_entries,
            completion_entries_made,
            regions,
            regions_max,
        }
    }

    pub(super) fn known(
        &self,
        lifecycle: Lifecycle,
        call: &'static str,
    ) -> Result<Arc<Lane>, VerbsError> {
        let missing =
            || self.shared.context.error(Side::Local, call, 0, "no lane has the lifecycle");
        self.shared.lane(lifecycle).ok_or_else(missing)
    }
}

/// Returns the port and partition of the NIC's lanes, and the port's LID.
fn place_of(context: &Context, config: &NicConfig) -> Result<(Place, u16), VerbsError> {
    let port = context.port_facts(config.port)?;
    if !port.is_active {
        let detail = format!("port {} is not active", config.port);
        return Err(context.error(Side::Local, "open", 0, detail));
    }
    let (number, keys) = (config.port, port.partition_keys);
    let key_index = context.partition_index(number, keys, config.partition_key)?;
    Ok((Place { port: number, key_index }, port.lid))
}

/// Whether only the kernel connects queue pairs of a device.
pub(super) fn is_iwarp(profile: &DeviceProfile) -> bool {
    matches!(profile.connecting, Connecting::Manager(_))
}

/// The side to blame for a request without an answer or an error in time.
pub(super) fn silent_side(is_iwarp: bool) -> Side {
    if is_iwarp { Side::Peer } else { Side::Local }
}

/// Time in which a slice of a silent peer must end.
fn patience(manager: Option<&Manager>, config: &NicConfig, profile: &DeviceProfile) -> Duration {
    match manager {
        Some(manager) if manager.options.timeout_exponent.is_none() && !is_iwarp(profile) => {
            config.patience_of_manager(profile)
        }
        _ => config.patience(profile),
    }
}

/// On InfiniBand the address of the connection manager is that of a network interface, and none of the port's GIDs.
fn with_gid_of_manager(context: &Context, config: NicConfig) -> Result<NicConfig, VerbsError> {
    let address = config.manager_address.filter(|_| config.connection_manager);
    let is_address = address.is_some_and(|ip| config.gid == GidWanted::Address(mapped(ip)));
    if !is_address || context.port_facts(config.port)?.is_ethernet {
        return Ok(config);
    }
    Ok(NicConfig { gid: GidWanted::Automatic, ..config })
}

/// The connection manager of a NIC whose queue pairs connect through it.
fn manager(
    context: &Arc<Context>,
    config: &NicConfig,
    profile: &DeviceProfile,
    (usable, rd_atomic): (&[GidEntry], u8),
) -> Result<Option<Arc<Manager>>, VerbsError> {
    if !is_iwarp(profile) && !config.connection_manager {
        return Ok(None);
    }
    let refused = config.refused_by_manager(profile);
    if !refused.is_empty() {
        let detail = format!(
            "queue pairs connect through the connection manager, which chooses {} itself; leave that out, \
             and name the address of the device in the place of an index",
            refused.join(", ")
        );
        return Err(context.error(Side::Configuration, "open", 0, detail));
    }
    let addresses = usable.iter().filter(|entry| entry.kind == GidKind::RoceV2);
    let addresses: Vec<IpAddr> = addresses.map(|entry| entry.address.to_canonical()).collect();
    let place = (config.system_name(), config.port);
    let reads = Reads { accepted: rd_atomic, begun: rd_atomic, retries: config.retries };
    let options = (config.manager_options(profile), profile);
    let settings = (reads, options, config.connections_max);
    let wanted = (config.manager_address, config.manager_port);
    let manager = Manager::open(context, place, (wanted, &addresses), settings)?;
    Ok(Some(Arc::new(manager)))
}

/// Entries of a completion queue, unless one lane needs more. libsiw takes a mapping at an offset of 0x90000 for none,
/// and refuses the queue pair that gets it: there the first queue is long enough to cover the offset.
fn completion_entries(config: &NicConfig, profile: &DeviceProfile) -> u32 {
    const BYTES_EACH: u32 = 32;
    const COVERING: u32 = 0x9_0000 / BYTES_EACH + 1;
    let least = if profile.name == SIW.name { COVERING } else { 0 };
    config.completion_entries.max(least)
}

/// The state that the pollers share with other threads, and the descriptors that wake them.
fn pollers(
    context: &Arc<Context>,
    count: usize,
) -> Result<(Vec<Arc<PollerShared>>, Vec<File>), VerbsError> {
    let system = |error: io::Error| context.failed("eventfd", error.raw_os_error().unwrap_or(0));
    let poller = |number| {
        let channel = Channel::new(Arc::clone(context))?;
        let woken = waker().map_err(system)?;
        let wake = woken.try_clone().map_err(system)?;
        Ok((Arc::new(PollerShared::new(number, channel, wake)), woken))
    };
    (0..count).map(poller).collect()
}

fn start_pollers(
    shared: &Arc<Shared>,
    woken: Vec<File>,
    config: &NicConfig,
) -> Result<Pollers, VerbsError> {
    let near = config.places_thread.then(|| processors_near(&root(), config.system_name()));
    let near = near.flatten().unwrap_or_default();
    Pollers::start(shared, woken, config.polling, config.idle_probe, &near)
}

pub(super) fn recognised(device: &str) -> Recognised {
    let found = discover_one(&root(), device);
    found.map_or_else(|| recognise(&Default::default()), |device| device.recognise())
}

fn region_limits(device: &DeviceFacts, profile: &DeviceProfile) -> RegionLimits {
    let bytes_max = region_bytes_max(device.region_bytes_max, profile);
    RegionLimits { regions_max: device.regions_max, bytes_max }
}

/// Returns the smaller limit of a device and its profile; a device without one says 0.
fn region_bytes_max(of_device: u64, profile: &DeviceProfile) -> u64 {
    let of_device = if of_device == 0 { u64::MAX } else { of_device };
    profile.region_bytes_max.map_or(of_device, |max| max.min(of_device))
}

/// The rights that a registration gives, where `access` is permitted to peers. Memory of this side
/// alone may be that of a read.
pub(super) fn granted(access: Access, span: &Span, profile: &DeviceProfile) -> Access {
    let is_local = !access.remote_read && !access.remote_write;
    let is_sink = is_local && span.is_writable() && profile.read_sink_needs_remote_write;
    Access { remote_write: access.remote_write || is_sink, ..access }
}

/// The time after a wait of the caller's; longer ones than [`WAIT_MAX`] are as long as that.
fn after(patience: Duration) -> Instant {
    Instant::now() + patience.min(WAIT_MAX)
}

/// The time by which a lane is retired: `drain` from now, or from the loss of the device or the
/// failure of the completion queue, so that all lanes of it together take no longer than one.
fn retirement(now: Instant, drain: Duration, lost: Option<Instant>) -> Instant {
    match lost {
        Some(lost) => (lost + drain).max(now + DRAIN_MIN),
        None => now + drain,
    }
}

impl Drop for Nic {
    fn drop(&mut self) {
        // The lanes stay in the table meanwhile: the pollers find what is flushed there.
        let lanes = self.shared.all_lanes();
        lanes.iter().for_each(|lane| lane.revoke());
        let deadline = Instant::now() + self.config.drain;
        for lane in lanes {
            let retired = lane.retire(deadline);
            if !matches!(retired, Ok(true)) {
                tracing::error!(?retired, lane = lane.lifecycle.0, "the lane is kept for ever");
                // The device may still touch the memory of its slices.
                keep(lane);
            }
        }
        if let Some(manager) = &self.shared.manager {
            manager.close();
        }
        self.pool.close();
        drop(self.pollers.take());
        // Here and not with the last holder of the table, such as an application's thread that polls:
        // it never waits for a device. Queue pairs that stay were never connected and touch no memory.
        let left = self.shared.lanes.lock().clear();
        drop(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{ERDMA_COMPAT, STRICT};
    use handfast_transport::Memory;

    /// eRDMA says that a registration may have any size, and refuses one past 2 GiB.
    #[test]
    fn region_limit_is_the_smaller_of_device_and_profile() {
        assert_eq!(region_bytes_max(1 << 40, &STRICT), 1 << 40);
        assert_eq!(region_bytes_max(0, &STRICT), u64::MAX, "a device that says nothing");
        assert_eq!(region_bytes_max(u64::MAX, &ERDMA_COMPAT), (2 << 30) - 4096);
        assert_eq!(region_bytes_max(1 << 20, &ERDMA_COMPAT), 1 << 20);
    }

    /// Only where the device needs it do local registrations have a right of peers.
    #[test]
    fn local_memory_gets_remote_writes_where_reads_need_them() {
        let (nobody, read) = (Access { remote_read: false, remote_write: false }, Access::READ);
        let span = Memory::zeroed(8).unwrap().whole();
        assert_eq!(granted(nobody, &span, &STRICT), nobody);
        assert!(granted(nobody, &span, &ERDMA_COMPAT).remote_write);
        for profile in [&STRICT, &ERDMA_COMPAT] {
            assert_eq!(granted(read, &span, profile), read, "peers get what was permitted");
            assert_eq!(granted(Access::READ_WRITE, &span, profile), Access::READ_WRITE);
        }
    }

    /// A wait without an end is one of a day.
    #[test]
    fn endless_wait_is_a_long_one() {
        let earliest = Instant::now() + WAIT_MAX;
        assert!(after(Duration::MAX) >= earliest && after(Duration::ZERO) < earliest);
    }

    /// A thousand lanes of a lost device do not wait one after the other.
    #[test]
    fn lanes_of_a_lost_device_share_a_deadline() {
        let (lost, drain) = (Instant::now(), Duration::from_secs(2));
        let at = |millis| lost + Duration::from_millis(millis);
        assert_eq!(retirement(at(5), drain, None), at(2_005));
        assert_eq!(retirement(at(5), drain, Some(lost)), at(2_000));
        assert_eq!(retirement(at(9_000), drain, Some(lost)), at(9_000) + DRAIN_MIN);
    }
}
