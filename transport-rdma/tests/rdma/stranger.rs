//! A program at the address of a peer that accepts its dials without being the peer: on scripted devices and on a kernel's.

use crate::scripted::managed::{another_lane_works, meeting, with};
use crate::support::{PATIENCE, Site};
use handfast_core::Lifecycle;
use handfast_core::connection::{Announcement, Content, PrivateData, Token};
use handfast_core::transport::Side;
use handfast_core::wire::Body;
use handfast_fabric_control::{MANAGER_EVENTS, is_scripted};
use handfast_transport_rdma::{
    BareAttributes, BareIdentifier, BareManager, BareNic, BareQueuePair, BareRights, VerbsError,
};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Entries of a completion queue: on libsiw as many as cover the offset whose queue pair it refuses.
const KERNEL_COMPLETIONS: u32 = 18_433;
const SCRIPTED_COMPLETIONS: u32 = 64;
/// Depth of a bare queue pair.
const DEPTH: u32 = 15;
/// Interval of looks.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// The answer of a stranger to the announcements of the side that dials and of the one that waits.
pub(crate) type Answer = fn(&Body, &Body) -> Vec<u8>;

/// Answers that are not the peer's: with another token, as another lifecycle, as it was asked, and without private data.
pub(crate) const ANSWERS: [Answer; 4] = [
    |dials, waits| changed(dials, waits, |it| it.token = Token(it.token.0 ^ 1)),
    |dials, waits| changed(dials, waits, |it| it.receiver = Lifecycle(it.receiver.0 + 1)),
    |dials, waits| changed(dials, waits, |it| it.content = Content::Request),
    |_, _| Vec::new(),
];

/// A program accepts a dial and answers with each of [`ANSWERS`]. Each fails the dial as not the peer's, the stranger is
/// disconnected, and the next lane works.
pub(crate) fn answers_are_not_the_peers(one: &Site, other: &Site) {
    for (lane, answer) in (20..).map(Lifecycle).zip(ANSWERS) {
        refused(one, other, lane, answer);
    }
    another_lane_works(one, other, Lifecycle(30));
}

/// A fresh queue pair in INIT.
pub(crate) fn initialised(nic: &BareNic) -> BareQueuePair {
    let pair = nic.queue_pair(DEPTH, DEPTH).unwrap();
    let rights = BareRights { local_write: true, remote_read: true, remote_write: true };
    let init = BareAttributes {
        state: 1,
        pkey_index: Some(0),
        port: Some(1),
        rights: Some(rights),
        ..BareAttributes::default()
    };
    assert_eq!(pair.modify(&init), 0);
    pair
}

/// A dial to a stranger that answers so.
fn refused(one: &Site, other: &Site, lane: Lifecycle, answer: Answer) {
    let met = meeting(one, other, lane);
    let stranger = Stranger::new(met.waits, &met.waits_body);
    let told = with(&met.waits_body, |it| it.address.set_port(stranger.port));
    let error = std::thread::scope(|scope| {
        let dialled = scope.spawn(|| met.dials.nic.connect(lane, &told).unwrap_err());
        let accepted = stranger.accept(&answer(&met.dials_body, &met.waits_body));
        let error = dialled.join().unwrap();
        met.dials.nic.retire(lane).unwrap();
        stranger.until("DISCONNECTED");
        drop(accepted);
        error
    });
    assert_is_unproven(&error);
    met.waits.nic.retire(lane).unwrap();
}

pub(crate) fn assert_is_unproven(error: &VerbsError) {
    assert_eq!((error.side, error.call), (Side::Peer, "rdma_connect"), "{error}");
    assert!(error.detail.contains("the answer to the connection is not the peer's"), "{error}");
}

/// The answer of the peer itself, changed.
fn changed(dials: &Body, waits: &Body, change: impl FnOnce(&mut PrivateData)) -> Vec<u8> {
    let mut answer = answer_of(dials, waits);
    change(&mut answer);
    answer.encode().to_vec()
}

/// The answer of the peer itself.
fn answer_of(dials: &Body, waits: &Body) -> PrivateData {
    let of = |body: &Body| -> Announcement {
        body.connection_manager.as_ref().expect("an announcement").parse().unwrap()
    };
    let (receiver, sender) = (of(dials), of(waits));
    PrivateData {
        content: Content::Accept,
        place: 0,
        token: receiver.token(0),
        sender: sender.pair,
        receiver: receiver.pair.lifecycle,
        number: waits.queue_pairs[0],
    }
}

/// A listener at the address of a site.
pub(crate) struct Stranger {
    manager: BareManager,
    nic: BareNic,
    pub(crate) port: u16,
    _listener: BareIdentifier,
}

impl Stranger {
    pub(crate) fn new(site: &Site, body: &Body) -> Self {
        let mut address = None;
        with(body, |it| address = Some(it.address.ip()));
        let manager = BareManager::open().unwrap();
        let listener = manager.identifier().unwrap();
        let port = listener.bind((address.unwrap(), 0).into()).unwrap();
        listener.listen(BareManager::BACKLOG).unwrap();
        let completions = if is_scripted() { SCRIPTED_COMPLETIONS } else { KERNEL_COMPLETIONS };
        let nic = BareNic::open(site.nic.device(), completions).unwrap();
        Self { manager, nic, port, _listener: listener }
    }

    /// Accepts the next request with this answer.
    pub(crate) fn accept(&self, answer: &[u8]) -> BareIdentifier {
        let deadline = Instant::now() + PATIENCE;
        let mut request = loop {
            assert!(Instant::now() < deadline, "no request");
            match self.manager.event().unwrap().and_then(|event| event.request) {
                Some(request) => break request,
                None => sleep(LOOK_AGAIN),
            }
        };
        request.accept(Arc::new(initialised(&self.nic)), answer).unwrap();
        request
    }

    /// Takes events until one of this kind.
    pub(crate) fn until(&self, kind: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            assert!(Instant::now() < deadline, "no {kind}");
            match self.manager.event().unwrap() {
                Some(event) if MANAGER_EVENTS[event.kind as usize] == kind => return,
                Some(_) => {}
                None => sleep(LOOK_AGAIN),
            }
        }
    }
}
