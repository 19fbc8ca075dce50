//! A NIC: one port of one device, its registrations and its lanes.

use super::completions::{CompletionQueues, QueueLimits};
use super::config::NicConfig;
use super::context::Context;
use super::counters::{Counts, NicLoad};
use super::lane::{Lane, Probe, SCRATCH_BYTES};
use super::lanes::Lanes;
use super::objects::{Channel, Domain};
use super::poller::{Poller, waker};
use super::registration::{DeviceRegistration, RegisterOptions, Registration};
use super::sink::NicSink;
use crate::counters::NicCounters;
use crate::error::VerbsError;
use crate::gid::{ChosenGid, GidEntry, explained, usable_gids};
use crate::pairing::AddressBook;
use crate::profile::{Connecting, DeviceProfile, Recognised, recognise};
use handfast_core::Lifecycle;
use handfast_core::transfer::SliceId;
use handfast_core::transport::Side;
use handfast_transport::{Access, Completion, DataPath, Memory, Posting, RemoteSpan, Sent, Span};
use parking_lot::Mutex;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Maximum queue pairs created and destroyed by one [`Nic::skip_numbers`].
pub const NUMBERS_SKIPPED_MAX: u32 = 4_096;

/// State shared between the NIC and its poller thread.
pub(super) struct Shared {
    pub(super) context: Arc<Context>,
    pub(super) queues: Arc<CompletionQueues>,
    pub(super) lanes: Mutex<Lanes>,
    /// At least one lane exists.
    pub(super) has_lanes: AtomicBool,
    pub(super) stopped: AtomicBool,
    pub(super) sink: Arc<dyn NicSink>,
    pub(super) counts: Arc<Counts>,
    pub(super) profile: &'static DeviceProfile,
    pub(super) probe_patience: Duration,
    /// Local memory of probes.
    pub(super) scratch: Registration,
}

impl Shared {
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
/// for another's peer. Dropping it retires its lanes; registrations may outlive it.
pub struct Nic {
    // Dropped first: its thread uses what follows.
    pub(super) poller: Option<Poller>,
    pub(super) shared: Arc<Shared>,
    pub(super) domain: Arc<Domain>,
    pub(super) config: NicConfig,
    pub(super) gid: ChosenGid,
    pub(super) recognised: Recognised,
    pub(super) rd_atomic: u8,
    pub(super) book: Mutex<AddressBook>,
}

impl DataPath for Nic {
    fn post(&self, lane: Lifecycle, postings: &mut Vec<Posting>) {
        Self::post(self, lane, postings);
    }

    /// Does nothing: a queue pair gives nothing back, so a slice ends by itself or with its lane.
    fn withdraw(&self, _lane: Lifecycle, _slice: SliceId) {}
}

impl Nic {
    /// Opens a device, chooses an address of its port and starts polling for completions and
    /// events. Blocks for system calls only.
    ///
    /// # Errors
    /// No library, no such device, one that cannot have lanes, a port that is not active or has no
    /// usable address, a setting out of range, or a failed call.
    pub fn open(config: NicConfig, sink: Arc<dyn NicSink>) -> Result<Self, VerbsError> {
        let context = Arc::new(Context::open(&config.device)?);
        let wrong = |detail: String| context.error(Side::Configuration, "open", 0, detail);
        config.check().map_err(wrong)?;
        let recognised = recognised(&config.device);
        let profile = recognised.profile;
        if let Connecting::Never(why) = profile.connecting {
            return Err(wrong(format!("{recognised}: {why}")));
        }
        let device = context.device_facts()?;
        if !context.port_facts(config.port)?.is_active {
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
        let entries = context.gids(config.port)?;
        let usable = usable_gids(&entries, config.gid, profile)
            .map_err(|error| wrong(format!("{error} ({recognised})")))?;
        let gid = explained(usable[0], &entries, config.gid);
        tracing::debug!(device = config.device, gid = gid.why, profile = %recognised, "NIC opened");
        let domain = Arc::new(Domain::new(Arc::clone(&context), device.regions_max)?);
        let channel = Arc::new(Channel::new(Arc::clone(&context))?);
        let system =
            |error: &std::io::Error| context.failed("eventfd", error.raw_os_error().unwrap_or(0));
        let woken = waker().map_err(|error| system(&error))?;
        let wake = woken.try_clone().map_err(|error| system(&error))?;
        let limits = QueueLimits {
            entries: config.completion_entries.min(device.completions_max),
            entries_max: device.completions_max,
        };
        let queue_pairs_max = config.queue_pairs_max.min(device.queue_pairs_max);
        let shared = Arc::new(Shared {
            queues: Arc::new(CompletionQueues::new(channel, limits, wake)),
            lanes: Mutex::new(Lanes::new(config.lanes_max, queue_pairs_max)),
            has_lanes: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            sink,
            counts: Arc::default(),
            profile,
            probe_patience: config.probe_patience(profile),
            scratch: scratch(&domain)?,
            context,
        });
        let poller = Poller::start(Arc::clone(&shared), woken, config.polling, config.idle_probe)?;
        let (poller, book) = (Some(poller), Mutex::default());
        Ok(Self { poller, shared, domain, config, gid, recognised, rd_atomic, book })
    }

    /// The device, by name.
    pub fn device(&self) -> &str {
        &self.config.device
    }

    /// The device's profile, and the reason for its recognition.
    pub fn recognised(&self) -> &Recognised {
        &self.recognised
    }

    /// Returns the address that was chosen at the NIC's opening, and the reason. Lanes announce it unless
    /// something is known of their peer; see [`Nic::create_for`].
    pub fn gid(&self) -> &ChosenGid {
        &self.gid
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
    /// The device or the limit of locked memory refuses.
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
        Registration::new(Arc::clone(&self.domain), span, access, options)
    }

    /// Returns whether memory of other devices can be registered.
    pub fn offers_dmabuf(&self) -> bool {
        DeviceRegistration::is_offered(&self.domain)
    }

    /// Lets peers read and write `bytes` of another device's memory, from `offset` of `dmabuf`,
    /// under addresses from `address`.
    ///
    /// # Errors
    /// The device does not offer it, or refuses this memory.
    pub fn register_dmabuf(
        &self,
        dmabuf: BorrowedFd<'_>,
        offset: u64,
        bytes: u64,
        address: u64,
        access: Access,
    ) -> Result<DeviceRegistration, VerbsError> {
        let domain = Arc::clone(&self.domain);
        DeviceRegistration::new(domain, dmabuf, offset, bytes, address, access)
    }

    /// Creates and destroys queue pairs, so that the next numbers differ from those of an earlier
    /// incarnation. Blocks for a system call or two each.
    ///
    /// # Errors
    /// More than [`NUMBERS_SKIPPED_MAX`], or a call that failed.
    pub fn skip_numbers(&self, count: u32) -> Result<(), VerbsError> {
        if count > NUMBERS_SKIPPED_MAX {
            let detail = format!("{count} numbers to skip; the limit is {NUMBERS_SKIPPED_MAX}");
            return Err(self.shared.context.error(Side::Local, "skip_numbers", 0, detail));
        }
        let reservation = self.shared.queues.reserve(1)?;
        for _ in 0..count {
            self.queue_pair(&reservation)?.destroy()?;
        }
        Ok(())
    }

    /// Posts slices on a lane and leaves `postings` empty. Waits for no completion. A slice that cannot be
    /// posted ends at once, reported before this returns: `Released` with [`Sent::None`] when the lane
    /// is gone, broken, not connected yet or full, `Refused` when it could never be posted.
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

    /// Reads over each queue pair of a connected lane, and waits until all have answered: a byte of
    /// `remote`, or nothing at all, which needs no key. The peer may still be connecting; the device
    /// tries for as long as [`NicConfig::retries`] says. Blocks for `patience` at most.
    ///
    /// Some devices also answer for an earlier pairing, see
    /// [`DeviceProfile::drops_stale_reads`].
    ///
    /// # Errors
    /// An error of a queue pair, which breaks the lane, or a timeout; the
    /// lane is not connected, full, or being probed already.
    pub fn probe(
        &self,
        lifecycle: Lifecycle,
        remote: Option<RemoteSpan>,
        patience: Duration,
    ) -> Result<(), VerbsError> {
        let lane = self.known(lifecycle, "prove")?;
        let probe = remote.map_or(Probe::Nothing, Probe::Byte);
        lane.probe(probe, &self.shared.scratch, Instant::now() + patience)
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
        lane.is_none_or(|lane| lane.drain(Instant::now() + patience))
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
    /// memory. Idempotent. Not to be called from a [`NicSink`].
    ///
    /// # Errors
    /// A failed call. If the lane is still known, retire it again.
    pub fn retire(&self, lifecycle: Lifecycle) -> Result<(), VerbsError> {
        let Some(lane) = self.shared.lane(lifecycle) else { return Ok(()) };
        let gone = lane.retire(Instant::now() + self.config.drain);
        if matches!(gone, Ok(false)) {
            let detail = "the lane is in use; retire it again";
            return Err(self.shared.context.error(Side::Local, "retire", 0, detail));
        }
        let mut lanes = self.shared.lanes.lock();
        if lanes.remove(&lane) {
            self.shared.counts.lock().lanes_retired += 1;
        }
        self.shared.has_lanes.store(lanes.len() > 0, Ordering::Relaxed);
        gone.map(|_| ())
    }

    /// Returns the number of lanes.
    pub fn lanes(&self) -> usize {
        self.shared.lanes.lock().len()
    }

    /// Returns whether the device holds a slice without a reported completion. Scans all work in flight
    /// on the lane.
    pub fn holds(&self, lane: Lifecycle, slice: SliceId) -> bool {
        self.shared.lane(lane).is_some_and(|lane| lane.holds(slice))
    }

    /// Counters since the NIC was opened.
    pub fn counters(&self) -> NicCounters {
        *self.shared.counts.lock()
    }

    /// Use of each limit, for the decision to create a lane or to evict one.
    pub fn load(&self) -> NicLoad {
        let (completion_entries, completion_entries_made) = self.shared.queues.load();
        let (regions, regions_max) = self.domain.regions();
        let lanes = self.shared.lanes.lock();
        let (queue_pairs, queue_pairs_max) = lanes.queue_pairs();
        NicLoad {
            lanes: lanes.len(),
            lanes_max: self.config.lanes_max,
            queue_pairs,
            queue_pairs_max,
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

pub(super) fn recognised(device: &str) -> Recognised {
    let found = crate::discovery::discover_one(&crate::discovery::root(), device);
    found.map_or_else(|| recognise(&Default::default()), |device| device.recognise())
}

fn scratch(domain: &Arc<Domain>) -> Result<Registration, VerbsError> {
    let context = &domain.context;
    let memory = Memory::zeroed(SCRATCH_BYTES)
        .map_err(|error| context.error(Side::Local, "open", 0, error.to_string()))?;
    let nobody = Access { remote_read: false, remote_write: false };
    let options = RegisterOptions::default();
    Registration::new(Arc::clone(domain), memory.whole(), nobody, options)
}

impl Drop for Nic {
    fn drop(&mut self) {
        // The lanes stay in the table meanwhile: the poller finds what is flushed there.
        let lanes = self.shared.all_lanes();
        lanes.iter().for_each(|lane| lane.revoke());
        let deadline = Instant::now() + self.config.drain;
        for lane in lanes {
            if let Err(error) = lane.retire(deadline) {
                tracing::warn!(%error, lane = lane.lifecycle.0, "a lane was not retired cleanly");
            }
        }
        drop(self.poller.take());
        self.shared.lanes.lock().clear();
    }
}
