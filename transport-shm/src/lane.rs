//! One lane: its channel, the slices that wait for a copy, and the threads that copy.
//!
//! One lock guards the state. No byte is copied and the sink is called under none.

mod below;
mod withdrawn;

use crate::after::{After, driver_failed};
use crate::announcement::Announcement;
use crate::at_once::Copies;
use crate::channel::Channel;
use crate::hello;
use crate::map::{CopyError, Map};
use crate::reason::NoChannel;
use crate::transport::Shared;
use below::reroute_failed;
use handfast_core::sharing::{self, GrantId, Unshared, Wanted};
use handfast_core::transport::{Side, TransportError};
use handfast_core::wire::Body;
use handfast_core::{Lifecycle, NicPath, Pair};
use handfast_transport::{Completion, Direction, MemoryKind, Posting, Sent, Span, TransportKind};
use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Instant;
use tokio::sync::{oneshot, watch};
use withdrawn::Withdrawn;

/// Maximum bytes of one copy, after which a revocation or the end of the lane is noticed.
pub const PIECE_BYTES_MAX: usize = 1 << 20;
/// Maximum slices copied between two looks at the state.
pub(crate) const SLICES_AT_ONCE_MAX: usize = 32;
/// Maximum bytes that a thread copies for its own call; threads of the transport copy the rest.
pub const INLINE_BYTES_MAX: usize = 2 << 20;
/// Maximum slices that wait on a lane.
pub const SLICES_MAX: usize = 8_192;

/// State of the connection.
pub(crate) enum Link {
    /// There is none: not yet, not any more, or never, for a reason.
    Apart(NoChannel),
    /// The peer's answer is awaited, with the number that proves it.
    Dialled {
        socket: OwnedFd,
        answer: u64,
        report: oneshot::Sender<Result<(), NoChannel>>,
    },
    Up(Box<Channel>),
}

pub(crate) struct State {
    /// The pair of the local connect.
    pub(crate) armed: Option<Pair>,
    /// The time of the local connect.
    pub(crate) armed_at: Option<Instant>,
    /// The pair that the channel leads to.
    pub(crate) claimed: Option<Pair>,
    pub(crate) link: Link,
    queue: VecDeque<Begun>,
    /// Slices whose region the peer is asked for.
    waiting: Vec<Begun>,
    withdrawn: Withdrawn,
    /// A thread of the transport is to copy.
    is_scheduled: bool,
    /// Room for the copies of a batch at once.
    pub(crate) copies: Copies,
    pub(crate) retired: bool,
}

pub(crate) struct Lane {
    pub(crate) lifecycle: Lifecycle,
    pub(crate) peer: NicPath,
    /// Token of the socket in the hub; the next one is that of the peer's process.
    pub(crate) token: u64,
    pub(crate) announcement: Announcement,
    pub(crate) shared: Arc<Shared>,
    pub(crate) state: Mutex<State>,
    /// Path of the last slice.
    pub(crate) last: AtomicU8,
    /// Whether this node announced an address with the lane.
    has_address: AtomicBool,
    /// Whether it announced queue pairs.
    has_queue_pairs: AtomicBool,
    /// Whether the lane below is retired.
    pub(crate) is_retired_below: AtomicBool,
    /// Whether the channel holds nothing any more.
    pub(crate) apart: watch::Sender<bool>,
    /// A revocation was not answered in time, and no packet has come since.
    is_late: AtomicBool,
}

/// A slice, and its bytes that are copied.
struct Begun {
    posting: Posting,
    done: usize,
}

const NONE_YET: u8 = 0;
pub(crate) const SHARED: u8 = 1;
const OTHER: u8 = 2;

/// A piece of a slice, to copy.
struct Copy {
    posting: Posting,
    grant: GrantId,
    map: Arc<Map>,
    offset: u64,
    /// Bytes of the slice copied before, and in this piece.
    done: usize,
    length: usize,
}

thread_local! {
    /// Whether this thread copies already, further up its stack.
    static COPIES: Cell<bool> = const { Cell::new(false) };
}

impl Lane {
    pub(crate) fn new(
        (lifecycle, peer): (Lifecycle, NicPath),
        token: u64,
        announcement: Announcement,
        shared: Arc<Shared>,
    ) -> Self {
        let state = State {
            armed: None,
            armed_at: None,
            claimed: None,
            link: Link::Apart(NoChannel::NotConnected),
            queue: VecDeque::new(),
            waiting: Vec::new(),
            withdrawn: Withdrawn::default(),
            is_scheduled: false,
            copies: Copies::default(),
            retired: false,
        };
        Self {
            lifecycle,
            peer,
            token,
            announcement,
            shared,
            is_retired_below: AtomicBool::new(false),
            state: Mutex::new(state),
            last: AtomicU8::new(NONE_YET),
            has_address: AtomicBool::new(false),
            has_queue_pairs: AtomicBool::new(false),
            apart: watch::Sender::new(true),
            is_late: AtomicBool::new(false),
        }
    }

    /// Returns the transport of the last slice, or of the next if there was none.
    pub(crate) fn transport_kind(&self) -> TransportKind {
        let is_shared = match self.last.load(Ordering::Relaxed) {
            NONE_YET => self.is_up(),
            last => last == SHARED,
        };
        match is_shared {
            true => TransportKind::Shm,
            false => self.shared.inner.transport_kind(self.lifecycle),
        }
    }

    /// Notes what this node announced with the lane.
    pub(crate) fn note_announced(&self, body: &Body) {
        self.has_address.store(!body.address.is_empty(), Ordering::Relaxed);
        self.has_queue_pairs.store(!body.queue_pairs.is_empty(), Ordering::Relaxed);
    }

    pub(crate) fn has_queue_pairs(&self) -> bool {
        self.has_queue_pairs.load(Ordering::Relaxed)
    }

    pub(crate) fn has_address(&self) -> bool {
        self.has_address.load(Ordering::Relaxed)
    }

    /// Whether the peer offered a channel before the local connect.
    pub(crate) fn was_offered(&self) -> bool {
        self.state.lock().armed.is_some()
    }

    pub(crate) fn is_retired(&self) -> bool {
        self.state.lock().retired
    }

    /// The error of a lane that has no channel and needs one.
    pub(crate) fn apart_error(&self) -> TransportError {
        let reason = match self.state.lock().link {
            Link::Apart(reason) => reason,
            Link::Dialled { .. } => NoChannel::NotConnected,
            Link::Up(_) => NoChannel::Ended,
        };
        let detail = format!("the lane shares no memory with the peer: {reason}");
        TransportError::new(Side::Peer, "share", detail)
    }

    /// Whether the last slices are copied: with a channel, and not sent over the lane below.
    pub(crate) fn is_copying(&self) -> bool {
        self.last.load(Ordering::Relaxed) != OTHER && self.is_up()
    }

    /// Notes that slices take the lane below.
    pub(crate) fn note_elsewhere(&self) {
        if self.last.load(Ordering::Relaxed) != OTHER {
            self.last.store(OTHER, Ordering::Relaxed);
        }
    }

    /// Whether slices are copied.
    pub(crate) fn is_up(&self) -> bool {
        let state = self.state.lock();
        matches!(&state.link, Link::Up(channel) if !channel.machine.is_closing())
    }

    /// Handles the local connect; the channel must lead to `remote`.
    pub(crate) fn arm(&self, remote: Pair) -> Result<(), TransportError> {
        let mut state = self.state.lock();
        if state.retired || state.armed.is_some() {
            let detail = "the lane is connected or retired";
            return Err(TransportError::new(Side::Local, "wire", detail));
        }
        (state.armed, state.armed_at) = (Some(remote), Some(Instant::now()));
        if state.claimed.is_some_and(|claimed| claimed != remote) {
            self.shared.counts.refused();
            self.part(&mut state, NoChannel::OtherPair);
        } else if let Link::Up(channel) = &state.link
            && let Err(reason) = self.shared.hub.watch(self.token, channel)
        {
            self.shared.counts.refused();
            self.part(&mut state, reason);
        }
        Ok(())
    }

    /// Takes a connection of `sender`, whose first packet proved it, and answers it: the peer uses the lane from
    /// then on. Fails without an answer if there is one whose place it does not take.
    pub(crate) fn attach(
        self: &Arc<Self>,
        channel: Channel,
        sender: Pair,
    ) -> Result<(), &'static str> {
        let mut state = self.state.lock();
        let is_other = state.armed.is_some_and(|armed| armed != sender);
        if state.retired || is_other || !self.displace(&mut state, sender) {
            return Err("the lane has a channel");
        }
        if self.connect_channel(&mut state, channel).is_err() {
            state.claimed = None;
            return Err("its end cannot be watched");
        }
        if let Link::Up(channel) = &state.link
            && hello::answer(&channel.socket, &self.announcement).is_err()
        {
            self.part(&mut state, NoChannel::NoHello);
            state.claimed = None;
            return Err("the peer has gone");
        }
        Ok(())
    }

    /// Takes a proven channel, unless the end of its process cannot be watched.
    fn connect_channel(
        self: &Arc<Self>,
        state: &mut State,
        channel: Channel,
    ) -> Result<(), NoChannel> {
        self.shared.hub.add(self);
        if state.armed.is_some()
            && let Err(reason) = self.shared.hub.watch(self.token, &channel)
        {
            self.shared.hub.release(&channel);
            self.part(state, reason);
            return Err(reason);
        }
        state.link = Link::Up(Box::new(channel));
        self.apart.send_replace(false);
        self.shared.counts.lane_up();
        Ok(())
    }

    /// Awaits the answer of the peer that this side has dialled.
    pub(crate) fn await_answer(
        self: &Arc<Self>,
        socket: OwnedFd,
        answer: u64,
        peer: Pair,
    ) -> Option<oneshot::Receiver<Result<(), NoChannel>>> {
        let mut state = self.state.lock();
        if state.retired || !self.displace(&mut state, peer) {
            return None;
        }
        let (report, reported) = oneshot::channel();
        self.shared.hub.add(self);
        self.shared.hub.watch_socket(self.token, &socket, false);
        state.link = Link::Dialled { socket, answer, report };
        Some(reported)
    }

    /// Gives an answer up that has not come.
    ///
    /// # Errors
    /// [`NoChannel::Late`], unless it has come meanwhile.
    pub(crate) fn give_answer_up(&self) -> Result<(), NoChannel> {
        let mut state = self.state.lock();
        if matches!(state.link, Link::Dialled { .. }) {
            self.part(&mut state, NoChannel::Late);
        }
        match state.link {
            Link::Up(_) => Ok(()),
            _ => Err(NoChannel::Late),
        }
    }

    /// Ends a connection that nothing was shared over.
    pub(crate) fn part(&self, state: &mut State, reason: NoChannel) {
        match &state.link {
            Link::Up(channel) => self.shared.hub.release(channel),
            Link::Dialled { socket, .. } => self.shared.hub.forget(socket),
            Link::Apart(_) => {}
        }
        state.link = Link::Apart(reason);
        self.shared.hub.remove(self.token);
        self.apart.send_replace(true);
    }

    /// Handles readiness of the socket.
    pub(crate) fn on_ready(self: &Arc<Self>, readable: bool, writable: bool) {
        let mut after = After::default();
        if readable && self.is_late.load(Ordering::Relaxed) {
            self.is_late.store(false, Ordering::Relaxed);
        }
        let mut state = self.state.lock();
        if readable && matches!(state.link, Link::Dialled { .. }) {
            self.take_answer(&mut state);
        } else if let Link::Up(channel) = &mut state.link {
            if writable {
                channel.send_waiting();
            }
            if readable && !channel.receive(&self.shared.regions, &mut after) {
                self.shared.hub.forget(&channel.socket);
                if channel.machine.is_unproven() {
                    tracing::warn!(
                        lane = self.lifecycle.0,
                        regions = channel.machine.granted(),
                        "the peer left without letting memory go: kept until its process ends"
                    );
                    self.shared.counts.unproven();
                }
            } else {
                self.shared.hub.watch_packets(self.token, channel);
            }
        }
        // This thread copies what was asked for.
        let is_mine = !after.answered.is_empty() && !state.is_scheduled;
        state.is_scheduled |= is_mine;
        self.settle(state, after);
        if is_mine {
            self.on_scheduled();
        }
        self.advance(PIECE_BYTES_MAX);
    }

    /// Reads the answer to the hello.
    fn take_answer(self: &Arc<Self>, state: &mut State) {
        let refused = Link::Apart(NoChannel::Refused);
        let Link::Dialled { socket, answer, report } = std::mem::replace(&mut state.link, refused)
        else {
            return;
        };
        match hello::read_answer(&socket, answer) {
            Ok(process) => {
                let channel = self.channel(socket, process);
                let connected = self.connect_channel(state, channel);
                let _ = report.send(connected);
            }
            Err(reason) => {
                self.shared.hub.forget(&socket);
                self.part(state, reason);
                let _ = report.send(Err(reason));
            }
        }
    }

    /// Handles the end of the peer's process. Devices below would find it at the next slice or probe.
    pub(crate) fn on_peer_dead(self: &Arc<Self>) {
        self.change(|channel, after| {
            channel.machine.on_peer_dead();
            channel.forget_unsent();
            after.fails = self.has_queue_pairs();
        });
    }

    /// Takes a region back from the peer.
    pub(crate) fn revoke(self: &Arc<Self>, key: u64) {
        self.change(|channel, _| channel.machine.revoke(key));
    }

    /// Whether a peer that answers may still touch the region with a key.
    pub(crate) fn awaits_revoked(&self, key: u64) -> bool {
        if self.is_late.load(Ordering::Relaxed) {
            return false;
        }
        let state = self.state.lock();
        matches!(&state.link, Link::Up(channel)
            if !channel.machine.is_closing() && channel.machine.holds(key))
    }

    /// Notes that a peer has not answered a revocation in time: the next ones do not wait for it.
    pub(crate) fn note_late(&self) {
        self.is_late.store(true, Ordering::Relaxed);
    }

    /// Begins the end of the lane: waiting slices come back, and no further ones are taken.
    pub(crate) fn close(self: &Arc<Self>) {
        if !self.shared.is_of_this_process() {
            return;
        }
        let mut after = After::default();
        let mut state = self.state.lock();
        state.retired = true;
        let waited = std::mem::take(&mut state.waiting);
        let ended = state.queue.drain(..).chain(waited);
        after.completions.extend(ended.map(|slice| slice.released()));
        match &mut state.link {
            Link::Up(channel) => {
                channel.machine.close();
                channel.drain(&self.shared.regions, &mut after);
                if self.shared.hub.watch(self.token, channel).is_err() {
                    tracing::warn!("the end of the peer's process cannot be watched");
                }
            }
            Link::Dialled { .. } => self.part(&mut state, NoChannel::Retired),
            Link::Apart(_) => {}
        }
        self.settle(state, after);
    }

    fn change(self: &Arc<Self>, change: impl FnOnce(&mut Channel, &mut After)) {
        if !self.shared.is_of_this_process() {
            return;
        }
        let mut after = After::default();
        let mut state = self.state.lock();
        if let Link::Up(channel) = &mut state.link {
            change(channel, &mut after);
            channel.drain(&self.shared.regions, &mut after);
        }
        self.settle(state, after);
    }

    /// Performs what follows a change.
    pub(crate) fn settle(
        self: &Arc<Self>,
        mut state: parking_lot::MutexGuard<'_, State>,
        mut after: After,
    ) {
        if !after.answered.is_empty() || after.has_ended {
            let waiting = std::mem::take(&mut state.waiting);
            for slice in waiting {
                // After the end it finds no channel, and takes the other path.
                match after.has_ended || after.answered.contains(&slice.posting.region_key()) {
                    true => state.queue.push_back(slice),
                    false => state.waiting.push(slice),
                }
            }
            after.wakes = !state.queue.is_empty();
        }
        after.fails &= !state.retired;
        let mut channel = None;
        if let Link::Up(up) = &state.link
            && up.is_over()
        {
            self.shared.hub.release(up);
            let over = Link::Apart(NoChannel::Ended);
            channel = Some(std::mem::replace(&mut state.link, over));
            self.shared.hub.remove(self.token);
        } else if let Link::Up(up) = &state.link
            && (up.awaits_room() || up.retries())
        {
            self.shared.hub.watch_packets(self.token, up);
        }
        if after.has_ended {
            after.wakes |= !state.queue.is_empty();
        }
        if after.wakes && !state.is_scheduled {
            state.is_scheduled = true;
            self.shared.copiers.add(self);
        }
        if !after.rerouted.is_empty() {
            state.withdrawn.hold();
        }
        drop(state);
        self.report_unshared(&after);
        drop((channel, after.released));
        if !after.completions.is_empty() {
            self.shared.sink.on_completions(self.lifecycle, &mut after.completions);
        }
        if !after.rerouted.is_empty() {
            self.post_below(&mut after.rerouted);
        }
        if after.fails {
            let error = after.failure.unwrap_or_else(|| self.apart_error());
            self.shared.sink.on_lane_failed(self.lifecycle, error);
        }
        // Last: the lane may be retired from now on.
        if after.has_ended {
            self.apart.send_replace(true);
        }
    }

    /// Queues the slices that are copied. Returns false, and leaves the others, if there are any; without
    /// a channel or room all of them.
    pub(crate) fn queue(&self, postings: &mut Vec<Posting>) -> bool {
        let mut state = self.state.lock();
        let is_up = matches!(&state.link, Link::Up(channel) if !channel.machine.is_closing());
        let held = state.queue.len() + state.waiting.len();
        let has_room = held + postings.len() <= SLICES_MAX;
        if !is_up || !has_room {
            return false;
        }
        if self.last.load(Ordering::Relaxed) == OTHER {
            self.last.store(SHARED, Ordering::Relaxed);
        }
        let copied = postings.extract_if(.., |posting| is_copied(posting));
        state.queue.extend(copied.map(|posting| Begun { posting, done: 0 }));
        postings.is_empty()
    }

    /// Copies waiting slices on this thread, up to a number of bytes; threads of the transport copy
    /// the rest. Returns whether it copied any.
    pub(crate) fn advance(self: &Arc<Self>, bytes_max: usize) -> bool {
        if COPIES.replace(true) {
            // Further up this thread's stack something is copied, perhaps for another lane.
            self.leave(None);
            return false;
        }
        let (mut left, mut copies, mut begun) = (bytes_max, Vec::new(), None);
        loop {
            let is_more = self.begin(&mut copies, begun.take());
            if copies.is_empty() {
                if !is_more {
                    break;
                }
                continue;
            }
            let copied: usize = copies.iter().map(|copy: &Copy| copy.length).sum();
            begun = self.perform(&mut copies);
            left = left.saturating_sub(copied);
            if left == 0 {
                self.leave(begun);
                break;
            }
        }
        COPIES.set(false);
        left < bytes_max
    }

    /// Leaves waiting slices to a thread of the transport, first the next piece of one.
    fn leave(self: &Arc<Self>, begun: Option<Begun>) {
        let mut after = After::default();
        let mut state = self.state.lock();
        if let Some(slice) = begun {
            match state.retired || state.withdrawn.take(slice.posting.slice).is_some() {
                true => after.completions.push(slice.released()),
                false => state.queue.push_front(slice),
            }
            state.withdrawn.let_go();
        }
        if !state.queue.is_empty() && !state.is_scheduled {
            state.is_scheduled = true;
            self.shared.copiers.add(self);
        }
        if after.has_effects() {
            self.settle(state, after);
        }
    }

    /// Notes that a thread of the transport copies.
    pub(crate) fn on_scheduled(&self) {
        self.state.lock().is_scheduled = false;
    }

    /// Begins copies, first the next piece of a slice. Returns whether slices may still wait.
    fn begin(self: &Arc<Self>, copies: &mut Vec<Copy>, mut begun: Option<Begun>) -> bool {
        let mut after = After::default();
        let mut state = self.state.lock();
        let State { link, queue, waiting, withdrawn, retired, .. } = &mut *state;
        if begun.is_some() {
            let is_withdrawn = |it: &mut Begun| withdrawn.take(it.posting.slice).is_some();
            after.completions.extend(begun.take_if(is_withdrawn).map(|slice| slice.released()));
            withdrawn.let_go();
        }
        let mut bytes = 0;
        while copies.len() < SLICES_AT_ONCE_MAX && bytes < PIECE_BYTES_MAX {
            let Some(slice) = begun.take().or_else(|| queue.pop_front()) else { break };
            let Link::Up(channel) = link else {
                match *retired {
                    true => after.completions.push(slice.released()),
                    false => self.reroute(slice, Unshared::Closing, &mut after),
                }
                continue;
            };
            let Begun { posting, done } = slice;
            let length = (posting.span.len() - done).min(PIECE_BYTES_MAX);
            if length < posting.span.len() && !copies.is_empty() {
                queue.push_front(Begun { posting, done });
                break;
            }
            let wanted = Wanted {
                key: posting.region_key(),
                address: posting.remote.address.saturating_add(done as u64),
                length: length as u64,
                direction: posting.direction,
            };
            match channel.machine.begin(&wanted) {
                sharing::Begun::Copy { grant, offset } => {
                    let map = Arc::clone(&channel.maps[&grant]);
                    copies.push(Copy { posting, grant, map, offset, done, length });
                    bytes += length;
                }
                sharing::Begun::Asked => waiting.push(Begun { posting, done }),
                sharing::Begun::Unshared(_) if *retired => {
                    after.completions.push(Begun { posting, done }.released());
                }
                sharing::Begun::Unshared(reason) => {
                    self.reroute(Begun { posting, done }, reason, &mut after);
                }
            }
            channel.drain(&self.shared.regions, &mut after);
        }
        let is_more = !queue.is_empty();
        if !copies.is_empty() {
            withdrawn.hold();
        }
        if copies.is_empty() || after.has_effects() {
            self.settle(state, after);
        }
        is_more
    }

    /// Copies what was begun, reports it, and returns a slice that has further pieces.
    fn perform(self: &Arc<Self>, copies: &mut Vec<Copy>) -> Option<Begun> {
        let mut after = After::default();
        let (mut more, mut bytes, mut across) = (None, 0, 0);
        let mut grants = Vec::with_capacity(copies.len());
        let mut failed = Vec::new();
        let mut ahead = copy_together(copies);
        for copy in copies.drain(..) {
            let Copy { posting, grant, map, offset, done, length } = copy;
            let before = ahead.min(length);
            ahead -= before;
            let result = match posting.span.slice(done, length) {
                Ok(_) if before == length => Ok(()),
                Ok(local) => map.copy(posting.direction, &local, offset),
                Err(error) => Err(CopyError::untouched(std::io::Error::other(error))),
            };
            across += if map.is_opened() && result.is_ok() { length as u64 } else { 0 };
            // Before the machine learns that the copy has ended: it may have it unmapped.
            drop(map);
            grants.push(grant);
            match result {
                Ok(()) if done + length < posting.span.len() => {
                    bytes += length as u64;
                    more = Some(Begun { posting, done: done + length });
                }
                Ok(()) => {
                    bytes += length as u64;
                    after.completions.push(Completion::done(posting.slice));
                }
                Err(CopyError::Local(error)) => {
                    after.completions.push(Completion::refused(posting.slice, error));
                }
                Err(CopyError::Driver(error)) => {
                    if posting.direction == Direction::Write {
                        after.fails_for(error.clone());
                    }
                    after.completions.push(driver_failed(&posting, error));
                }
                Err(CopyError::Remote { error, copied }) => {
                    tracing::debug!(%error, "a copy failed");
                    failed.push((Begun { posting, done: done + copied.max(before) }, error));
                }
            }
        }
        self.shared.counts.copied(after.completions.len() as u64, bytes);
        self.shared.counts.copied_across(across);
        if self.last.load(Ordering::Relaxed) != SHARED {
            self.last.store(SHARED, Ordering::Relaxed);
        }
        let mut state = self.state.lock();
        if let Link::Up(channel) = &mut state.link {
            for grant in grants {
                channel.machine.end(grant);
            }
            channel.drain(&self.shared.regions, &mut after);
        }
        for (slice, error) in failed {
            match state.retired || state.withdrawn.take(slice.posting.slice).is_some() {
                true => after.completions.push(slice.released()),
                false => reroute_failed(slice, &error, &mut after),
            }
        }
        if more.is_none() {
            state.withdrawn.let_go();
        }
        self.settle(state, after);
        more
    }

    /// Handles packets of the peer on a thread that waits for them.
    pub(crate) fn look(self: &Arc<Self>) {
        let mut after = After::default();
        let mut state = self.state.lock();
        let is_awaited = !state.waiting.is_empty();
        if let Link::Up(channel) = &mut state.link
            && is_awaited
        {
            // The hub finds the end of the connection as well.
            channel.receive(&self.shared.regions, &mut after);
        }
        if !after.answered.is_empty() {
            // This thread copies itself.
            state.is_scheduled = true;
        }
        let is_mine = !after.answered.is_empty();
        self.settle(state, after);
        if is_mine {
            self.on_scheduled();
            self.advance(INLINE_BYTES_MAX);
        }
    }
}

/// Copies slices of one region together, from the first on, and returns how many bytes.
fn copy_together(copies: &[Copy]) -> usize {
    let Some(first) = copies.first() else { return 0 };
    let direction = first.posting.direction;
    let is_alike = |it: &&Copy| it.grant == first.grant && it.posting.direction == direction;
    first.map.copy_together(direction, copies.iter().take_while(is_alike).map(Copy::piece))
}

impl Copy {
    /// The local bytes of the piece, and where they are in the region.
    fn piece(&self) -> (&Span, Range<usize>, u64) {
        (&self.posting.span, self.done..self.done + self.length, self.offset)
    }
}

/// Whether a slice is copied: an accelerator's bytes that a device of the lane below has registered are
/// left to it, and nothing is read into memory that is not writable.
pub(crate) fn is_copied(posting: &Posting) -> bool {
    let can_read = posting.direction == Direction::Write || posting.span.is_writable();
    let is_of_device = posting.span.kind() != MemoryKind::Host && posting.memory.is_some();
    can_read && !is_of_device
}

impl Begun {
    /// Whether bytes of it are in the peer's memory.
    fn has_written(&self) -> bool {
        self.done > 0 && self.posting.direction == Direction::Write
    }

    /// Its completion, given back as it is.
    fn released(&self) -> Completion {
        let sent = if self.done == 0 { Sent::None } else { Sent::Partly };
        Completion::released(self.posting.slice, sent)
    }
}
