//! Connections of a NIC's queue pairs through the connection manager. `core::connection` decides; this
//! performs it on identifiers of librdmacm, on a thread of its own for events, requests and answers,
//! none of which waits for a peer, and on the threads of the steps for dials.
//!
//! An identifier ends before the queue pair that it connects is destroyed.

#[cfg_attr(
    not(feature = "bare"),
    allow(unreachable_pub, dead_code, reason = "public with `bare` alone")
)]
mod bare;
mod blame;
mod connecting;
mod events;
mod identifier;
mod listening;
mod reach;
mod reasons;
mod table;

use super::binding::manager_library;
use super::context::{Context, devices};
use super::nic::Shared;
use super::poller::waker;
use crate::error::{ManagerUnavailable, VerbsError};
use crate::profile::DeviceProfile;
#[cfg(feature = "bare")]
pub use bare::BareManagerEvent;
#[cfg_attr(not(feature = "bare"), allow(unreachable_pub, reason = "public with `bare` alone"))]
pub use bare::{BareIdentifier, BareManager};
use blame::{OWN_STEP, failed_dial, said_of_accept, said_of_peer};
use handfast_core::connection::{
    AnnounceError, AnnouncedLane, Announcement, Cause, ConnectionId, ConnectionOutput,
    LaneConnectError, LaneOutput, LaneProgress, PRIVATE_DATA_BYTES, Refusal, RequestId, Token,
};
use handfast_core::transport::Side;
use handfast_core::wire::ProbeByte;
use handfast_core::{Incarnation, Lifecycle};
use handfast_transport::{LimitReached, NicLimit, RemoteSpan};
use identifier::{EventChannel, Identifier, interface_addresses, random};
pub(super) use identifier::{Options, Reads, kinds};
use listening::{Listening, listen, nowhere};
use parking_lot::Mutex;
use reach::Reach;
use reasons::{code_and_reason, cure_of_rejection};
use std::fs::File;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use table::{DialStep, DialTimes, Entry, Stage, Table};
use tokio::sync::watch;

/// Longest time of a step that dials, from the look for the address to the answer of the first read: less
/// than the life cycle's limit of an operation.
pub(super) const DIAL_MAX: Duration = Duration::from_secs(4);
/// A lane waits for its peer's dial as often as long: the peer's step may begin later.
pub(crate) const AWAITED_DIALS: u32 = 2;
/// Longest wait for the address of a peer, and for the route to it.
const RESOLVE_MS: i32 = 1_500;
/// The longest wait for threads that post on a lane which has failed. They make no call that waits; a busy machine
/// may not run them for a while.
const POSTERS_WAIT_MAX: Duration = Duration::from_secs(5);
/// Addresses of the machine that are tried for the device.
const ADDRESSES_MAX: usize = 256;
/// Events that a closing NIC takes without a use of them: more than its identifiers have at once.
const EVENTS_LEFT_MAX: usize = 65_536;
/// Looks for the end of a removed device's listing, and their interval.
const LISTED_LOOKS: usize = 100;
const LISTED_INTERVAL: Duration = Duration::from_millis(5);

/// A call on an identifier, made without the lock of the table. A lane fails as `is_own` where this node, or
/// its device, has ended the connection.
enum Action {
    Resolve { id: ConnectionId, target: SocketAddr },
    Route { id: ConnectionId, identifier: Arc<Identifier> },
    Reach { id: ConnectionId, target: SocketAddr },
    Connect { id: ConnectionId, identifier: Arc<Identifier>, data: [u8; PRIVATE_DATA_BYTES] },
    Accept { id: ConnectionId, identifier: Arc<Identifier>, data: [u8; PRIVATE_DATA_BYTES] },
    Reject { identifier: Arc<Identifier>, data: Option<[u8; PRIVATE_DATA_BYTES]> },
    Disconnect { identifier: Arc<Identifier> },
    End { identifier: Arc<Identifier> },
    Open { lifecycle: Lifecycle },
    Fail { id: ConnectionId, error: VerbsError, is_own: bool },
}

/// The connection manager of a NIC.
pub(super) struct Manager {
    context: Arc<Context>,
    /// The device's name, without the port, and the port's number.
    system_name: String,
    port: u8,
    channel: Arc<EventChannel>,
    /// The address that peers dial.
    pub(super) address: SocketAddr,
    /// The key of the partition of that address, on InfiniBand.
    partition: Option<u16>,
    reads: Reads,
    /// Queue pairs that are announced at once, at most.
    connections_max: usize,
    /// Options of each connection: those that can be set.
    pub(super) options: Options,
    table: Mutex<Table>,
    stopped: AtomicBool,
    /// The kernel removes the device.
    removed: AtomicBool,
    wake: File,
    thread: Mutex<Option<JoinHandle<()>>>,
    listener: Identifier,
}

/// Loads librdmacm and opens a channel of its events.
fn channel() -> Result<EventChannel, ManagerUnavailable> {
    let library = manager_library()?;
    EventChannel::new(library).map_err(|code| ManagerUnavailable::NoChannel { code })
}

/// Whether the connection manager can be used.
pub(crate) fn connection_manager() -> Result<(), ManagerUnavailable> {
    channel().map(drop)
}

impl Manager {
    /// Listens at an address of the device: `wanted`, or the first of `known` and of the machine's
    /// that is the port's.
    pub(super) fn open(
        context: &Arc<Context>,
        (system_name, port): (&str, u8),
        ((wanted, wanted_port), known): ((Option<IpAddr>, u16), &[IpAddr]),
        (reads, (options, profile), connections_max): (
            Reads,
            ((Options, bool), &DeviceProfile),
            usize,
        ),
    ) -> Result<Self, VerbsError> {
        let channel = channel().map_err(|unavailable| {
            let (code, detail) = match &unavailable {
                ManagerUnavailable::Library(error) => (
                    0,
                    format!(
                        "{error}; the device connects through the connection manager: install \
                         librdmacm (Debian: librdmacm1, Red Hat: librdmacm)"
                    ),
                ),
                ManagerUnavailable::NoChannel { code } => (*code, unavailable.to_string()),
            };
            context.error(Side::Local, "rdma_create_event_channel", code, detail)
        })?;
        let channel = Arc::new(channel);
        let candidates: Vec<IpAddr> = match wanted {
            Some(wanted) => vec![wanted],
            None => known.iter().copied().chain(interface_addresses(ADDRESSES_MAX)).collect(),
        };
        let place = (system_name, port);
        let mut refused = None;
        let mut listening = candidates
            .iter()
            .map(|ip| SocketAddr::new(*ip, wanted_port))
            .filter_map(|wanted_at| match listen(context, &channel, place, wanted_at) {
                Ok(Listening::Here(listener, address, key)) => Some(Ok((listener, address, key))),
                Ok(Listening::OfAnother) => None,
                Ok(Listening::Refused(code)) => {
                    // An address of no device is expected among those of the machine.
                    if wanted.is_some() || code != libc::ENODEV {
                        refused = Some((wanted_at.ip(), code));
                    }
                    None
                }
                Err(error) => Some(Err(error)),
            });
        let found = listening.next().transpose()?;
        let (listener, address, key) =
            found.ok_or_else(|| nowhere(context, wanted, candidates.len(), refused))?;
        let options = settable(context, &listener, options)?;
        let wake = waker()
            .map_err(|error| context.failed("eventfd", error.raw_os_error().unwrap_or(0)))?;
        let incarnation = Incarnation(random());
        let is_infiniband = !context.port_facts(port)?.is_ethernet;
        let partition = Some(key).filter(|key| is_infiniband && *key != 0);
        tracing::debug!(device = context.device, %address, "the connection manager listens");
        Ok(Self {
            context: Arc::clone(context),
            system_name: system_name.to_owned(),
            port,
            channel,
            address,
            partition,
            reads,
            connections_max,
            options,
            table: Mutex::new(Table::new(incarnation, profile)),
            stopped: AtomicBool::new(false),
            removed: AtomicBool::new(false),
            wake,
            thread: Mutex::default(),
            listener,
        })
    }

    /// Announces the queue pairs of a new lane to a peer, by its name.
    pub(super) fn announce(
        &self,
        lifecycle: Lifecycle,
        numbers: &[u32],
        peer: Option<&str>,
    ) -> Result<Announcement, VerbsError> {
        let mut table = self.table.lock();
        let announced = table.entries.len();
        if announced + numbers.len() > self.connections_max {
            return Err(self.full(announced));
        }
        let own = (self.address, Token(random()));
        let announcement =
            table.machine.announce(lifecycle, numbers, peer, own).map_err(|error| match error {
                AnnounceError::Full => self.full(announced),
                AnnounceError::Announced => {
                    self.context.error(Side::Local, "bring_up", 0, error.to_string())
                }
            })?;
        for (place, _) in (0u16..).zip(numbers) {
            table.entries.insert(ConnectionId { lifecycle, place }, Entry::new(self.reads));
        }
        table.changes.insert(lifecycle, watch::Sender::new(0));
        Ok(Announcement { partition: self.partition, ..announcement })
    }

    /// The error of a lane whose queue pairs are more than can be announced.
    fn full(&self, announced: usize) -> VerbsError {
        let (in_use, max) = (announced as u64, self.connections_max as u64);
        let limit = LimitReached { limit: NicLimit::QueuePairs, in_use, max };
        let detail = format!("the limit of {max} queue pairs of the connection manager is reached");
        let error = self.context.error(Side::Local, "bring_up", 0, detail);
        VerbsError { limit: Some(limit), ..error }
    }

    /// Notes what a peer, by its name, announced in a request: its connect request may come before the
    /// lane is to connect.
    pub(super) fn note(&self, name: Option<&str>, peer: AnnouncedLane) {
        self.table.lock().machine.handle_announcement(name, peer);
    }

    /// Begins to connect a lane's queue pairs to those of a peer.
    ///
    /// # Errors
    /// The addresses are of different families or partitions; the lane is connected to another announcement, or is no
    /// more.
    pub(super) fn begin(
        &self,
        shared: &Shared,
        lifecycle: Lifecycle,
        peer: &AnnouncedLane,
    ) -> Result<(), VerbsError> {
        self.check_family(peer.announcement.address.ip())?;
        self.check_partition(&peer.announcement)?;
        let mut table = self.table.lock();
        table.machine.connect(lifecycle, peer).map_err(|error| {
            let (side, cure) = match error {
                LaneConnectError::Unknown => (Side::Local, ""),
                LaneConnectError::Bound => (Side::Peer, ""),
                LaneConnectError::Kinds => {
                    (Side::Configuration, "; use TCP, or devices of one kind")
                }
            };
            self.context.error(side, "wire", 0, format!("{error}{cure}"))
        })?;
        self.perform(shared, table);
        Ok(())
    }

    /// Prepares the lane of a connection.
    fn prepare(
        &self,
        shared: Option<&Shared>,
        table: &Table,
        lifecycle: Lifecycle,
    ) -> Result<(), VerbsError> {
        let lane = shared.and_then(|shared| shared.lane(lifecycle));
        let prepared = match (lane, table.machine.bound_to(lifecycle)) {
            (Some(lane), Some(peer)) => {
                let device = mapped(peer.announcement.address.ip());
                let span =
                    |byte: ProbeByte| RemoteSpan { key: byte.key.into(), address: byte.address };
                lane.await_connection(peer.queue_pairs.len(), device, peer.byte.map(span))
            }
            _ => Err("no lane has the lifecycle".to_owned()),
        };
        prepared.map_err(|detail| self.context.error(Side::Local, "wire", 0, detail))
    }

    /// Makes the next calls of a lane's dials. Each may block until the peer's machine answers.
    ///
    /// # Errors
    /// A queue pair does not connect; the lane must be retired.
    pub(super) fn advance(
        &self,
        shared: &Shared,
        lifecycle: Lifecycle,
    ) -> Result<LaneProgress, VerbsError> {
        let actions = self.table.lock().next_calls(lifecycle);
        for action in actions {
            self.act(shared, action);
        }
        let mut table = self.table.lock();
        let progress = self.progress(&table, lifecycle)?;
        if progress == LaneProgress::Awaiting {
            table.machine.handle_wired(lifecycle);
        }
        Ok(progress)
    }

    fn progress(&self, table: &Table, lifecycle: Lifecycle) -> Result<LaneProgress, VerbsError> {
        if let Some(error) = table.error(lifecycle) {
            return Err(error);
        }
        let progress = table.machine.progress(lifecycle);
        progress.map_err(|cause| self.context.error(Side::Local, "wire", 0, cause.to_string()))
    }

    /// Notes that the step of a lane has ended well: failures are the lane's from now on.
    ///
    /// # Errors
    /// The lane has failed meanwhile.
    pub(super) fn on_wired(&self, lifecycle: Lifecycle) -> Result<(), VerbsError> {
        let mut table = self.table.lock();
        self.progress(&table, lifecycle)?;
        table.log_dial(lifecycle);
        table.machine.handle_wired(lifecycle);
        Ok(())
    }

    /// Whether this side dials a lane's queue pairs.
    fn has_dialled(&self, lifecycle: Lifecycle) -> bool {
        let first = ConnectionId { lifecycle, place: 0 };
        self.table.lock().entries.get(&first).is_some_and(|entry| entry.times.is_some())
    }

    /// Ends a lane that is not connected in time. Queue pairs without a counterpart are not to be.
    pub(super) fn on_overdue(&self, shared: &Shared, lifecycle: Lifecycle) {
        let mut table = self.table.lock();
        table.machine.handle_timeout(lifecycle);
        self.perform(shared, table);
    }

    /// Changes with every event of a lane; `None` without one.
    pub(super) fn changes(&self, lifecycle: Lifecycle) -> Option<watch::Receiver<u64>> {
        self.table.lock().changes.get(&lifecycle).map(watch::Sender::subscribe)
    }

    /// Disconnects a lane that is being retired.
    pub(super) fn retire(&self, shared: Option<&Shared>, lifecycle: Lifecycle) {
        let mut table = self.table.lock();
        table.machine.retire(lifecycle);
        self.perform_all(shared, table);
    }

    /// Ends the identifiers of a lane whose work has ended, before its queue pairs are destroyed.
    /// Returns false if a dial is still under way at the deadline.
    pub(super) fn end(&self, lifecycle: Lifecycle, deadline: Instant) -> bool {
        let identifiers = self.table.lock().identifiers(lifecycle);
        if !identifiers.iter().all(|identifier| identifier.is_free_by(deadline)) {
            return false;
        }
        let mut table = self.table.lock();
        table.machine.handle_drained(lifecycle);
        self.perform_all(None, table);
        true
    }

    /// Starts the thread of the events.
    pub(super) fn start(self: &Arc<Self>, shared: &Arc<Shared>) -> Result<(), VerbsError> {
        let (manager, of) = (Arc::clone(self), Arc::downgrade(shared));
        let builder = std::thread::Builder::new().name(format!("rdma-cm-{}", self.context.device));
        let thread = builder
            .spawn(move || manager.run(&of))
            .map_err(|error| self.context.failed("thread", error.raw_os_error().unwrap_or(0)))?;
        *self.thread.lock() = Some(thread);
        Ok(())
    }

    /// Takes no more requests, and ends those that wait. Lanes are ended before.
    pub(super) fn close(&self) {
        self.stopped.store(true, Ordering::Release);
        // The thread sees it with its next look.
        let _ = (&self.wake).write(&1u64.to_ne_bytes());
        let thread = self.thread.lock().take();
        if let Some(thread) = thread.filter(|it| it.thread().id() != std::thread::current().id()) {
            // A panic was printed where it happened.
            let _ = thread.join();
        }
        // The thread may have ended before the removal.
        if self.channel.take_rest(EVENTS_LEFT_MAX) {
            self.removed.store(true, Ordering::Release);
        }
        self.listener.end();
        let requests = std::mem::take(&mut self.table.lock().requests);
        drop(requests);
        if self.removed.load(Ordering::Acquire) {
            self.let_device_go();
        }
    }

    /// Ends librdmacm's own use of a removed device. Drivers that cannot take a device from its users wait
    /// with the removal until each has closed it, and librdmacm closes one with its next list of devices.
    fn let_device_go(&self) {
        let is_listed = || devices().is_ok_and(|names| names.contains(&self.system_name));
        for _ in 0..LISTED_LOOKS {
            if !is_listed() {
                break;
            }
            std::thread::sleep(LISTED_INTERVAL);
        }
        self.channel.close_unlisted();
    }

    fn perform(&self, shared: &Shared, table: parking_lot::MutexGuard<'_, Table>) {
        self.perform_all(Some(shared), table);
    }

    /// Performs the machine's outputs, without the lock of the table.
    fn perform_all(&self, shared: Option<&Shared>, mut table: parking_lot::MutexGuard<'_, Table>) {
        let mut actions = Vec::new();
        while let Some(output) = table.machine.poll_output() {
            self.on_output(shared, &mut table, output, &mut actions);
            table.wake(output.lifecycle());
        }
        drop(table);
        for action in actions {
            match shared {
                Some(shared) => self.act(shared, action),
                None => act_alone(action),
            }
        }
    }

    fn on_output(
        &self,
        shared: Option<&Shared>,
        table: &mut Table,
        output: LaneOutput,
        actions: &mut Vec<Action>,
    ) {
        match output {
            LaneOutput::Prepare { lifecycle } => match self.prepare(shared, table, lifecycle) {
                Ok(()) => {
                    table.bind(lifecycle);
                    table.machine.handle_prepared(lifecycle);
                }
                Err(error) => {
                    table.fail(lifecycle, &error);
                    table.machine.handle_unprepared(lifecycle);
                }
            },
            LaneOutput::Connection(output) => self.on_connection(table, output, actions),
            LaneOutput::Open { lifecycle } => actions.push(Action::Open { lifecycle }),
            LaneOutput::LaneFailed { id } => {
                let entry = table.entries.get(&id);
                if let Some((error, is_own)) =
                    entry.and_then(|entry| Some((entry.error.clone()?, entry.is_own)))
                {
                    actions.push(Action::Fail { id, error, is_own });
                }
            }
        }
    }

    fn on_connection(
        &self,
        table: &mut Table,
        output: ConnectionOutput,
        actions: &mut Vec<Action>,
    ) {
        match output {
            ConnectionOutput::Dial { id, data } => {
                if let Some(entry) = table.entries.get_mut(&id) {
                    entry.stage = Stage::Resolving;
                    entry.times = Some(DialTimes::new(Instant::now()));
                    entry.data = Some(data);
                    if let Some(target) = entry.target {
                        actions.push(Action::Resolve { id, target });
                    }
                }
            }
            ConnectionOutput::Accept { id, request, data } => {
                let (identifier, has_ended) = table.take_request(request);
                if let (Some(identifier), Some(entry)) = (identifier, table.entries.get_mut(&id)) {
                    entry.has_ended = has_ended;
                    entry.identifier = Some((request.0, Arc::clone(&identifier)));
                    table.numbers.insert(request.0, id);
                    actions.push(Action::Accept { id, identifier, data: data.encode() });
                }
            }
            ConnectionOutput::Reject { request, data } => {
                if let (Some(identifier), _) = table.take_request(request) {
                    let data = data.map(|data| data.encode());
                    actions.push(Action::Reject { identifier, data });
                }
            }
            ConnectionOutput::Failed { id, cause } => {
                let error = self.failure(table, id, cause);
                if let Some(entry) = table.entries.get_mut(&id) {
                    entry.stage = Stage::Over;
                    entry.reach = None;
                    entry.is_own = matches!(cause, Cause::Local | Cause::DeviceRemoved);
                    entry.error.get_or_insert(error);
                }
            }
            ConnectionOutput::Disconnect { id } => {
                let entry = table.entries.get(&id);
                if let Some((_, identifier)) = entry.and_then(|entry| entry.identifier.clone()) {
                    actions.push(Action::Disconnect { identifier });
                }
            }
            // The lane opens once all its queue pairs are connected; its work is drained by its
            // retirement.
            ConnectionOutput::Established { .. } | ConnectionOutput::Drain { .. } => {}
            ConnectionOutput::Destroy { id } => {
                if let Some(identifier) = table.remove(id) {
                    actions.push(Action::End { identifier });
                }
            }
        }
    }

    /// Makes a call. A failed one ends its connection.
    fn act(&self, shared: &Shared, action: Action) {
        let (id, result) = match action {
            Action::Resolve { id, target } => (id, self.resolve(id, target)),
            Action::Route { id, identifier } => (
                id,
                identifier.resolve_route(RESOLVE_MS).map_err(|code| ("rdma_resolve_route", code)),
            ),
            Action::Reach { id, target } => return self.reach(id, target),
            Action::Connect { id, identifier, data } => {
                let connected = self.on_queue_pair(shared, id, |pair, reads| {
                    identifier.connect(pair, &data, reads)
                });
                if let Err(code) = connected {
                    let target = self.table.lock().another_port(id, code);
                    if let Some(target) = target {
                        return self.act(shared, Action::Resolve { id, target });
                    }
                    self.note_taken_port(id, &identifier, code);
                }
                self.table.lock().on_dial_step(id, DialStep::Connect);
                (id, connected.map_err(|code| ("rdma_connect", code)))
            }
            Action::Accept { id, identifier, data } => {
                // The dialling side's traffic class is that of the connection.
                let options = Options { traffic_class: None, ..self.options };
                let set = identifier.set_options(options);
                let accepted = set.map_err(|code| ("rdma_set_option", code)).and_then(|()| {
                    let accepted = self.on_queue_pair(shared, id, |pair, reads| {
                        identifier.accept(pair, &data, reads)
                    });
                    accepted.map_err(|code| ("rdma_accept", code))
                });
                (id, accepted)
            }
            Action::Open { lifecycle } => {
                return shared.lane(lifecycle).into_iter().for_each(|lane| lane.open_connection());
            }
            Action::Fail { id, error, is_own } => {
                let Some(lane) = shared.lane(id.lifecycle) else { return };
                match is_own {
                    true => lane.fail_here(error),
                    false => lane.fail_by(usize::from(id.place), error),
                }
                // The disconnect behind it moves the queue pair to ERR, where nothing is to be posted.
                return lane.await_posters(Instant::now() + POSTERS_WAIT_MAX);
            }
            other => return act_alone(other),
        };
        if let Err(failed) = result {
            self.on_call_failed(shared, id, failed);
        }
    }

    /// Ends the connection of a call that failed, and loses the NIC if the call did not find this side's own
    /// address any more.
    fn on_call_failed(&self, shared: &Shared, id: ConnectionId, (call, code): (&'static str, i32)) {
        let may_have_left =
            call == "rdma_resolve_addr" && [libc::EADDRNOTAVAIL, libc::ENODEV].contains(&code);
        let left = if may_have_left { self.left() } else { None };
        let mut table = self.table.lock();
        let has_ended = table.entries.get(&id).is_some_and(|entry| entry.has_ended);
        let cause = match call {
            "rdma_accept" => said_of_accept(code, has_ended),
            _ => said_of_peer(call, code),
        };
        let cause = cause.filter(|_| left.is_none());
        if let Some(entry) = table.entries.get_mut(&id) {
            match cause {
                // The error of the failure names the peer's address.
                Some(_) => entry.status = code,
                None => {
                    let target = entry.target.filter(|_| entry.times.is_some());
                    let error =
                        || failed_dial(&self.context, (call, code), self.address.ip(), target);
                    let error = left.clone().unwrap_or_else(error);
                    entry.error.get_or_insert(error);
                }
            }
        }
        table.machine.handle_failed(id, cause.unwrap_or(Cause::Local));
        self.perform(shared, table);
        if let Some(error) = left {
            shared.lose(error);
        }
    }

    /// The error of an event that reports the failure of a call on this side.
    fn failed_here(&self, call: &'static str, status: i32) -> VerbsError {
        match status {
            OWN_STEP => {
                let detail =
                    "a step of librdmacm on this side failed, for a reason that it does not give";
                self.context.error(Side::Local, call, 0, detail)
            }
            status => self.context.failed(call, status.saturating_abs()),
        }
    }

    fn resolve(&self, id: ConnectionId, target: SocketAddr) -> Result<(), (&'static str, i32)> {
        let number = self.table.lock().next_number();
        let identifier = Identifier::new(&self.channel, number);
        let identifier = Arc::new(identifier.map_err(|code| ("rdma_create_id", code))?);
        {
            let mut table = self.table.lock();
            // It may be retired by now.
            let Some(entry) = table.entries.get_mut(&id) else { return Ok(()) };
            entry.identifier = Some((number, Arc::clone(&identifier)));
            table.numbers.insert(number, id);
        }
        identifier.set_options(self.options).map_err(|code| ("rdma_set_option", code))?;
        let resolved = identifier.resolve(self.address.ip(), target, RESOLVE_MS);
        resolved.map_err(|code| ("rdma_resolve_addr", code))
    }

    /// Begins the test connection of a dial. One that fails at once is the dial's to report.
    fn reach(&self, id: ConnectionId, target: SocketAddr) {
        let begun = Reach::begin(self.address.ip(), target);
        let mut table = self.table.lock();
        // It may have failed by now.
        let entry = table.entries.get_mut(&id).filter(|entry| entry.stage == Stage::Reaching);
        let Some(entry) = entry else { return };
        match begun {
            Ok(reach) => entry.reach = Some(reach),
            Err(_) => {
                entry.stage = Stage::Reached;
                table.wake(Some(id.lifecycle));
            }
        }
        drop(table);
        // The thread of the events waits for its answer.
        let _ = (&self.wake).write(&1u64.to_ne_bytes());
    }

    /// Calls with the queue pair of a connection.
    fn on_queue_pair(
        &self,
        shared: &Shared,
        id: ConnectionId,
        call: impl FnOnce(&super::objects::QueuePair, Reads) -> Result<(), i32>,
    ) -> Result<(), i32> {
        let reads = self.table.lock().entries.get(&id).map(|entry| entry.reads);
        let (Some(lane), Some(reads)) = (shared.lane(id.lifecycle), reads) else {
            return Err(libc::ENODEV);
        };
        lane.with_queue_pair(id.place, |pair| call(pair, reads)).unwrap_or(Err(libc::ENODEV))
    }

    /// The error of a connection that failed.
    fn failure(&self, table: &Table, id: ConnectionId, cause: Cause) -> VerbsError {
        let entry = table.entries.get(&id);
        let target = entry.and_then(|entry| entry.target);
        let target = target.map_or_else(|| "the peer".to_owned(), |target| target.to_string());
        let status = entry.map_or(0, |entry| entry.status);
        let (code, reason) = code_and_reason(cause, status);
        let (side, call, cure) = match cause {
            Cause::Refused(Refusal::Version) => {
                (Side::Peer, "rdma_connect", "run one release of handfast on both sides")
            }
            Cause::Refused(_) => (Side::Peer, "rdma_connect", "another lane follows on demand"),
            Cause::Rejected => (Side::Peer, "rdma_connect", cure_of_rejection(status)),
            Cause::Unreachable => (
                Side::Peer,
                "rdma_connect",
                "check the route and the firewall between both RDMA interfaces; the peer dials the \
                 next lane",
            ),
            // It may pass: the next lane asks nobody.
            Cause::NeitherReaches => (
                Side::Peer,
                "rdma_connect",
                "put both RDMA interfaces into networks that reach each other",
            ),
            Cause::Itself => (Side::Configuration, "rdma_connect", "open a lane to another node"),
            Cause::Unproven => (Side::Peer, "rdma_connect", "another program listens there"),
            Cause::TimedOut => (
                Side::Peer,
                "rdma_connect",
                "the peer did not answer; check the firewall between both RDMA interfaces",
            ),
            Cause::Disconnected => (Side::Peer, "connection", "the peer, or its device, ended it"),
            Cause::DeviceRemoved => {
                (Side::Local, "connection", "the device has to be opened again")
            }
            Cause::Local => (Side::Local, "wire", "another lane follows on demand"),
        };
        let partition = self.partition.filter(|_| cause == Cause::Unreachable);
        let partition = partition.map_or_else(String::new, |key| {
            format!("; both addresses have to be in one InfiniBand partition, here {key:#06x}")
        });
        let detail = format!("{target}: {cause}; {cure}{reason}{partition}");
        self.context.error(side, call, code, detail)
    }

    /// Handles a connect request, with an identifier of its own.
    fn on_request(&self, shared: &Shared, identifier: Identifier, bytes: &[u8]) {
        let mut table = self.table.lock();
        let number = table.next_number();
        identifier.set_number(number);
        table.requests.insert(RequestId(number), Arc::new(identifier));
        table.machine.handle_request(RequestId(number), bytes);
        self.perform(shared, table);
    }
}

/// The options that can be set, as a listening identifier shows. `are_chosen`: they differ from the
/// defaults.
///
/// # Errors
/// An option that was chosen cannot be set.
fn settable(
    context: &Context,
    listener: &Identifier,
    (options, are_chosen): (Options, bool),
) -> Result<Options, VerbsError> {
    match listener.set_options(options) {
        Ok(()) => Ok(options),
        Err(_) if !are_chosen => Ok(Options::default()),
        Err(code) => {
            let detail = "this librdmacm, or the kernel, sets neither traffic class nor ACK timeout; \
                          leave out traffic_class and timeout_exponent (MC_IB_TC, --ack-timeout)";
            Err(context.error(Side::Configuration, "rdma_set_option", code, detail.to_owned()))
        }
    }
}

/// Makes a call that needs no lane.
fn act_alone(action: Action) {
    match action {
        Action::Reject { identifier, data } => {
            // The request may be gone.
            let _ = identifier.reject(data.as_ref().map(|data| &data[..]));
            identifier.end();
        }
        Action::Disconnect { identifier } => {
            // It may have ended by itself. After a failure, as during another call, the end of the identifier
            // disconnects.
            if let Err(code) = identifier.disconnect() {
                tracing::debug!(code, "rdma_disconnect failed");
            }
        }
        Action::End { identifier } => identifier.end(),
        _ => {}
    }
}

pub(super) fn mapped(ip: IpAddr) -> std::net::Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}
