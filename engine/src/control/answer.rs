//! Answers to the frames of the control channel.

use super::auth::{Caller, Keys, Member};
use super::frame::OwnedFrame;
use super::inbox::Inbox;
use super::legacy::{answered, received};
use super::listener::{Answer, Answerer};
use super::turns::{NoPlace, Turns};
use crate::command::{Command, Commands};
use crate::data::local::LocalRegion;
use crate::data::regions::{MissingKey, Reach, Regions};
use crate::data::transport::{Offer, Transport};
use crate::error::{Cause, Error};
use crate::observe::audit::AUDIT;
use crate::observe::counters::Counts;
use crate::path::nic_path;
use crate::time::Clock;
use handfast_core::auth::{AuthRefusal, Inbound, check_sealing};
use handfast_core::mooncake::{Notification, PROBE_ANSWER, SegmentDescriptor};
use handfast_core::policy::{Administrators, AuditPace, Grant, GrantError, Requester};
use handfast_core::wire::{
    Body, Checksum, DataPort, Descriptor, FrameKind, GRANTS_LISTED_MAX, GrantsAnswer,
    GrantsRefusal, GrantsRefusalReason, GrantsRequest, Message, MessageError, NodeDescriptor, Op,
    PlainMessage, Refusal, RefusalReason, RegionDescriptor, SegmentGrants,
};
use handfast_core::{Incarnation, Lifecycle, NodeName, Pair};
use handfast_transport::Direction;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{Mutex as AsyncMutex, oneshot};
use tokio::time::timeout;
use tracing::{info, warn};

/// Maximum concurrent checksums; each occupies a core while it reads its bytes.
const CHECKSUMS_MAX: usize = 1;
/// Maximum waiting checksum requests. Past it those of the key or certificate with the most are refused.
const CHECKSUMS_WAITING_MAX: usize = 32;

/// The turns of a node's checksums.
pub(crate) fn checksum_turns() -> Arc<Turns> {
    Turns::new(CHECKSUMS_MAX, CHECKSUMS_WAITING_MAX)
}

pub(crate) struct Answers {
    pub(crate) name: NodeName,
    pub(crate) incarnation: Incarnation,
    pub(crate) address: String,
    /// Transports announced to peers.
    pub(crate) offer: Offer,
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) regions: Arc<Regions>,
    pub(crate) making_keys: MakingKeys,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) commands: Commands,
    /// Turns to compute a checksum.
    pub(crate) checksums: Arc<Turns>,
    pub(crate) checksum_bytes_max: u64,
    pub(crate) counts: Arc<Counts>,
    /// The data port for Mooncake nodes.
    pub(crate) data_port: Option<DataPort>,
    /// Whether Mooncake nodes can reach memory, over that port or over RDMA.
    pub(crate) is_open: bool,
    /// The keys by which this node authenticates its peers, or none.
    pub(crate) keys: Arc<Keys>,
    /// The peers that may change grants.
    pub(crate) administrators: Administrators,
    /// Reports of refused messages.
    pub(crate) reports: Mutex<AuditPace>,
    /// Whether lanes over TCP are encrypted.
    pub(crate) seals: bool,
    /// Notifications of Mooncake nodes; absent without compatibility.
    pub(crate) inbox: Option<Inbox>,
}

/// The registration of memory for key groups.
pub(crate) struct MakingKeys {
    /// Held while memory is registered.
    turn: Arc<AsyncMutex<()>>,
    /// Longest wait of a look-up or a publication for that, shorter than a look-up's caller waits for the answer.
    wait_max: Duration,
    /// Whether the log says that the present registration takes longer.
    has_told: Arc<AtomicBool>,
}

impl MakingKeys {
    pub(crate) fn new(wait_max: Duration) -> Self {
        Self { turn: Arc::default(), wait_max, has_told: Arc::default() }
    }
}

impl Answers {
    /// Returns the segment descriptor of this node.
    pub(crate) fn describe(&self, regions: Vec<RegionDescriptor>) -> NodeDescriptor {
        NodeDescriptor {
            name: self.name.clone(),
            incarnation: self.incarnation,
            address: self.address.clone(),
            transports: self.offer.transports,
            devices: self.offer.devices.descriptors(),
            matrix: self.offer.matrix.as_deref().cloned(),
            regions,
            checksum: None,
            data_port: self.data_port.clone(),
            keep: false,
        }
    }

    /// Returns the descriptor for callers that do not speak the handfast protocol, and for stores. If
    /// Mooncake nodes are served, it lists only the regions reachable by address; with keys, none.
    pub(crate) fn describe_openly(&self) -> NodeDescriptor {
        if !self.keys.is_open() {
            return self.describe(Vec::new());
        }
        let reach = if self.is_open { Reach::ByAddress } else { Reach::ByKey };
        self.describe(self.regions.describe(reach, Requester::Anybody))
    }

    /// Registers what [`Answers::describe_openly`] lists with the RDMA devices, where keys are missing
    /// since permissions changed. Waits at most [`MakingKeys::wait_max`]; the regions notify of a change once later
    /// keys are there.
    pub(crate) async fn make_open_keys(&self) {
        if self.is_open && self.keys.is_open() {
            self.wait_for_keys(self.make_keys(Requester::Anybody)).await;
        }
    }

    /// Returns the descriptor for a Mooncake node, for the transport that it supports.
    fn describe_to(&self, asking: Option<SegmentDescriptor>) -> NodeDescriptor {
        let mut descriptor = self.describe_openly();
        if self.offer.transports.rdma && asking.is_some_and(|asking| asking.offers_rdma()) {
            descriptor.data_port = None;
        }
        descriptor
    }

    async fn connection(&self, text: &str, from: &Inbound) -> Option<String> {
        let message = match Message::decode(text) {
            Ok(message) => message,
            Err(MessageError::NoKey) if self.speaks_legacy() => {
                return self.legacy_connection(text).await;
            }
            Err(MessageError::NoKey) => {
                return descriptor_text("this node speaks only the handfast handshake".into());
            }
            Err(error) => {
                if let Some(unreported) = self.refused() {
                    warn!(%error, unreported, "handshake message refused");
                }
                return descriptor_text(error.to_string());
            }
        };
        if !from.admits(&message.from.node, message.sender.incarnation) {
            if let Some(unreported) = self.refused() {
                let (peer, named) = (from.peer(), &message.from);
                warn!(target: AUDIT, ?peer, %named, unreported, "a message in another's name refused");
            }
            let detail = "the message names another node than the one that proved its key";
            return Some(self.refusal(message, detail.to_owned()).encode());
        }
        let sealing = check_sealing(self.seals, message.body.is_sealed());
        if let (Op::Request, Err(mismatch)) = (message.op, sealing) {
            if let Some(unreported) = self.refused() {
                warn!(target: AUDIT, peer = %message.from, %mismatch, unreported, "a lane is refused");
            }
            let mut refusal = self.refusal(message, mismatch.of_peer().to_string());
            refusal.refusal.iter_mut().for_each(|it| it.reason = RefusalReason::Encryption);
            return Some(refusal.encode());
        }
        let (reply, answer) = oneshot::channel();
        self.commands.send(Command::CallReceived { message, reply });
        Some(answer.await.ok()?.encode())
    }

    /// Counts a refused message. Returns the number of those without a report since the last one, if
    /// this one is to be reported.
    fn refused(&self) -> Option<u64> {
        self.counts.update(|it| it.messages_refused += 1);
        self.reports.lock().handle_refusal(self.clock.now())
    }

    /// The refusal of a message whose sender lacks the permission.
    fn refusal(&self, request: Message, detail: String) -> Message {
        Message {
            op: Op::Refuse,
            from: request.from.seen_from(&nic_path(&self.name)),
            to: request.from,
            sender: Pair { incarnation: self.incarnation, lifecycle: Lifecycle(0) },
            echo: Some(request.sender),
            body: Body::default(),
            refusal: Some(Refusal { reason: RefusalReason::Protection, detail }),
        }
    }

    /// Answers the RDMA handshake of a Mooncake node.
    async fn legacy_connection(&self, text: &str) -> Option<String> {
        let devices = self.offer.devices.descriptors();
        let (message, addressed) = match received(text, &nic_path(&self.name), &devices) {
            Ok(received) => received,
            Err(reason) => {
                self.counts.update(|it| it.messages_refused += 1);
                return Some(PlainMessage::rejection(&reason).encode());
            }
        };
        let (reply, answer) = oneshot::channel();
        self.commands.send(Command::PlainCallReceived { message, reply });
        Some(answered(answer.await.ok()?, addressed).encode())
    }

    /// Whether Mooncake nodes may call: none of them proves a key.
    fn speaks_legacy(&self) -> bool {
        self.inbox.is_some() && self.offer.transports.rdma && self.keys.is_open()
    }

    /// Keeps a notification if the inbox exists and is not full.
    fn notification(&self, text: &str) -> Option<String> {
        let inbox = self.inbox.as_ref()?;
        let kept = Notification::decode(text).is_ok_and(|notification| inbox.put(notification));
        let answer = match kept {
            true => Notification::accepted(),
            false => {
                self.counts.update(|it| it.notifications_rejected += 1);
                Notification::rejected()
            }
        };
        Some(answer.encode())
    }

    /// Registers memory with the RDMA devices for a requester whose key group has none yet. One
    /// caller at a time, so that the next one finds them.
    async fn make_keys(&self, requester: Requester<'_>) {
        let has_devices = self.offer.transports.rdma;
        if !has_devices || !self.regions.lacks_keys(requester, self.clock.now()) {
            return;
        }
        let turn = self.making_keys.turn.clone().lock_owned().await;
        let (transport, regions) = (self.transport.clone(), self.regions.clone());
        let (clock, has_told) = (self.clock.clone(), self.making_keys.has_told.clone());
        let changed = regions.changed.clone();
        let all = regions.missing_keys(requester, clock.now());
        let mut missing = Missing { keys: all, regions, clock };
        let (done, made) = oneshot::channel();
        tokio::task::spawn_blocking(move || {
            // Goes on after the caller has hung up, so the turn ends only with it.
            let _turn = turn;
            missing.keys.iter_mut().for_each(|key| key.evicted.clear());
            while let Some(key) = missing.keys.last() {
                let MissingKey { span, to, location, .. } = key;
                let registered = transport.register(span, *to, location.clone());
                let registered = registered.unwrap_or_else(|error| {
                    warn!(%error, "memory is not registered with the RDMA device for a peer");
                    None
                });
                missing.put(registered);
            }
            has_told.store(false, Ordering::Relaxed);
            if done.send(()).is_err() {
                // Nobody waited so long: what was published meanwhile lacks the keys.
                changed.notify_one();
            }
        });
        // Fails if it panics.
        let _ = made.await;
    }

    /// Waits for registrations at most [`MakingKeys::wait_max`]. They go on past it, and a later look-up
    /// has their keys: a device may take long for large memory, and a broken one for ever.
    async fn wait_for_keys(&self, made: impl Future<Output = ()>) {
        let making = &self.making_keys;
        let is_late = timeout(making.wait_max, made).await.is_err();
        if is_late && !making.has_told.swap(true, Ordering::Relaxed) {
            info!(
                waited = ?making.wait_max,
                "peers get descriptors without keys for RDMA: a device still registers the memory for them"
            );
        }
    }

    /// Lists or changes the grants of segments for an administrator.
    async fn administer(&self, request: GrantsRequest, from: &Inbound) -> GrantsAnswer {
        if !self.administrators.admits(from.requester()) {
            if let Some(unreported) = self.refused() {
                let peer = from.peer();
                warn!(target: AUDIT, ?peer, ?request, unreported, "no administrator");
            }
            let name = from.peer().map(|peer| format!("'{}'", peer.name));
            let detail = format!(
                "{} is no administrator of '{}'",
                name.unwrap_or_else(|| "a peer without a proven name".into()),
                self.name
            );
            return GrantsAnswer(Err(refusal(GrantsRefusalReason::NoAdministrator, detail)));
        }
        let (regions, asked) = (self.regions.clone(), request.clone());
        // A device may take its time to end a registration.
        let done = tokio::task::spawn_blocking(move || administered(&regions, asked)).await;
        let done = done
            .unwrap_or_else(|error| Err(refusal(GrantsRefusalReason::Other, error.to_string())));
        info!(target: "handfast::audit", peer = ?from.peer(), ?request, ?done, "administered");
        GrantsAnswer(done)
    }

    async fn metadata(&self, text: &str, from: Caller<'_>) -> Answer {
        if let Some(request) = GrantsRequest::decode(text) {
            let answer = match request {
                Ok(request) => self.administer(request, from.inbound).await,
                Err(error) => {
                    GrantsAnswer(Err(refusal(GrantsRefusalReason::Other, error.to_string())))
                }
            };
            return Answer { text: answer.encode(), keep: false };
        }
        let asked = NodeDescriptor::decode(text);
        // A Mooncake node asks with its own descriptor, which has neither a handfast key nor a
        // checksum request.
        let mut descriptor = match asked {
            Ok(_) => {
                let requester = from.inbound.requester();
                self.wait_for_keys(self.make_keys(requester)).await;
                self.describe(self.regions.describe(Reach::ByKey, requester))
            }
            Err(_) => {
                self.make_open_keys().await;
                self.describe_to(SegmentDescriptor::decode(text).ok())
            }
        };
        let asked = asked.ok();
        descriptor.keep = asked.as_ref().is_some_and(|asked| asked.keep);
        let question = asked.and_then(|asked| asked.checksum);
        if let Some(question) = question {
            let (requester, member) = (from.inbound.requester(), from.member());
            let answer = self.checksum(&question, requester, member).await;
            descriptor.checksum = Some(Checksum { answer: Some(answer), ..question });
        }
        Answer { text: descriptor.encode(), keep: descriptor.keep }
    }

    /// Computes a checksum for a requester that may read the bytes, in the turn of its key or certificate.
    ///
    /// # Errors
    /// The refusal.
    pub(crate) async fn checksum(
        &self,
        question: &Checksum,
        requester: Requester<'_>,
        member: Option<Member>,
    ) -> Result<u32, String> {
        if question.bytes > self.checksum_bytes_max {
            let max = self.checksum_bytes_max;
            return Err(format!("{} bytes exceed the limit of {max} per checksum", question.bytes));
        }
        let Checksum { key, address, bytes, .. } = *question;
        let look_up = || {
            let span = self.regions.table.lookup(key, (address, bytes), Direction::Read, requester);
            span.map_err(|error| error.to_string())
        };
        look_up()?;
        let turn = self.checksums.take(member).await.map_err(|NoPlace| {
            format!("{CHECKSUMS_WAITING_MAX} checksums are pending; try again later")
        })?;
        // The right may have ended meanwhile.
        let span = look_up()?;
        let sum = tokio::task::spawn_blocking(move || {
            // Continues after the caller has hung up, so the turn ends only then.
            let _turn = turn;
            span.memory().crc32c(span.offset(), span.len()).map_err(|error| error.to_string())
        });
        sum.await.unwrap_or_else(|error| Err(error.to_string()))
    }
}

fn refusal(reason: GrantsRefusalReason, detail: String) -> GrantsRefusal {
    GrantsRefusal { reason, detail }
}

/// Lists or changes the grants of segments; the answer has those that are in force then.
fn administered(regions: &Regions, request: GrantsRequest) -> Result<SegmentGrants, GrantsRefusal> {
    let changed = |segment: String, grants: Result<Vec<Grant>, Error>| match grants {
        Ok(grants) => Ok(SegmentGrants::from([(segment, grants)])),
        Err(error) => {
            let reason = match error.cause() {
                Cause::Grant(GrantError::Full) => GrantsRefusalReason::Limit,
                _ => GrantsRefusalReason::Other,
            };
            let detail = format!("the grants of '{segment}' are not changed: {error}");
            Err(refusal(reason, detail))
        }
    };
    let no_segment = |name: &str| {
        let detail = format!("the node serves no segment '{name}'");
        refusal(GrantsRefusalReason::NoSegment, detail)
    };
    match request {
        GrantsRequest::Add { segment, .. } | GrantsRequest::Revoke { segment, .. }
            if regions.grants_of(Some(&segment)).is_empty() =>
        {
            Err(no_segment(&segment))
        }
        GrantsRequest::List { segment } => {
            let all = regions.grants_of(segment.as_deref());
            match (segment, all.values().map(Vec::len).sum::<usize>()) {
                (Some(segment), _) if all.is_empty() => Err(no_segment(&segment)),
                (_, ..=GRANTS_LISTED_MAX) => Ok(all),
                (_, many) => {
                    let detail = format!(
                        "there are {many} grants, and an answer has at most {GRANTS_LISTED_MAX}: \
                         name a segment"
                    );
                    Err(refusal(GrantsRefusalReason::Limit, detail))
                }
            }
        }
        GrantsRequest::Add { segment, grant } => {
            let grants = regions.regrant_named(&segment, |grants| grants.add(grant));
            changed(segment, grants)
        }
        GrantsRequest::Revoke { segment, grant } => {
            let mut left = None;
            let grants = regions.regrant_named(&segment, |grants| {
                let before: Vec<_> = grants.iter().collect();
                grants.revoke(&grant);
                left = grants.overlapping(&grant).filter(|_| grants.iter().eq(before));
                Ok(())
            });
            match (grants, left) {
                // A repeated revocation changes nothing either, and leaves nobody the access.
                (Ok(_), Some(left)) => {
                    let detail = format!(
                        "the grants of '{segment}' are not changed: '{}' has no {}, and {left} stays",
                        grant.peers(),
                        grant.access()
                    );
                    Err(refusal(GrantsRefusalReason::Other, detail))
                }
                (grants, _) => changed(segment, grants),
            }
        }
    }
}

/// Registrations to make. Those that are left when it is dropped have failed.
struct Missing {
    keys: Vec<MissingKey>,
    regions: Arc<Regions>,
    clock: Arc<dyn Clock>,
}

impl Missing {
    /// Takes what came of the last one.
    fn put(&mut self, registered: Option<Arc<LocalRegion>>) {
        if let Some(key) = self.keys.pop() {
            self.regions.put_key(&key, registered, self.clock.now());
        }
    }
}

impl Drop for Missing {
    fn drop(&mut self) {
        while !self.keys.is_empty() {
            self.put(None);
        }
    }
}

fn descriptor_text(reply_msg: String) -> Option<String> {
    Some(Descriptor { reply_msg, ..Descriptor::default() }.encode())
}

impl Answerer for Answers {
    fn keys(&self) -> &Keys {
        &self.keys
    }

    fn refuse_plain(&self, frame: &OwnedFrame) -> Option<String> {
        let reason = format!("this node refuses plain peers: {}", AuthRefusal::Plain);
        match (frame.kind, Message::decode(&frame.text)) {
            (FrameKind::Connection, Ok(message)) => Some(self.refusal(message, reason).encode()),
            (FrameKind::Connection | FrameKind::Untyped, _) => descriptor_text(reason),
            (FrameKind::Metadata, _) => Some(NodeDescriptor::locked(&reason)),
            (FrameKind::Notify, _) => Some(Notification::rejected().encode()),
            (FrameKind::Probe, _) => None,
        }
    }

    async fn answer(&self, frame: OwnedFrame, from: Caller<'_>) -> Option<Answer> {
        let answer = match frame.kind {
            FrameKind::Connection => self.connection(&frame.text, from.inbound).await,
            // The oldest releases write no type.
            FrameKind::Untyped if self.inbox.is_some() => {
                self.connection(&frame.text, from.inbound).await
            }
            FrameKind::Metadata => return Some(self.metadata(&frame.text, from).await),
            FrameKind::Probe => Some(PROBE_ANSWER.to_owned()),
            FrameKind::Notify => self.notification(&frame.text),
            FrameKind::Untyped => None,
        };
        if answer.is_none() && matches!(frame.kind, FrameKind::Notify | FrameKind::Untyped) {
            warn!(kind = ?frame.kind, "unsupported frame kind");
            self.counts.update(|it| it.frames_refused += 1);
        }
        answer.map(Answer::last)
    }
}

#[cfg(test)]
mod tests;
