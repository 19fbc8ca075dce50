//! Stories of connections through the connection manager.

use super::{on, sites, until};
use crate::support::{BYTES, LANE, PATIENCE, Recorder, Site, Told, config, connect_lane, pattern};
use crate::transport::Node;
use handfast_core::connection::Announcement;
use handfast_core::transport::Side;
use handfast_core::wire::Body;
use handfast_core::{Incarnation, Lifecycle, NicPath, Pair};
use handfast_fabric_control::Fabric;
use handfast_transport::{Access, CompletionStatus, Direction, Endpoints, Memory, Sent};
use handfast_transport_rdma::{Nic, NicConfig, PartitionKey, VerbsError};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

/// The profiles whose queue pairs only the kernel connects.
pub(super) const MANAGED: [&str; 3] = ["erdma-standard", "siw", "iwarp"];
/// The same, and one whose writes complete once they are sent, as the kernel's soft-iWARP.
pub(crate) const EARLY: [&str; 4] = ["erdma-standard", "siw", "iwarp", "siw:completes_early"];
/// `errno` of a kernel that lacks a call, or memory, and of dials that end within the call.
const ENOSYS: i32 = 38;
const ENOMEM: i32 = 12;
const ECONNREFUSED: i32 = 111;
const EHOSTUNREACH: i32 = 113;
/// Connect requests that wait at the listening identifier of a NIC.
const BACKLOG: u64 = 128;

/// A lane before its connection: the side that dials and its announcement, then the other.
pub(crate) struct Meeting<'a> {
    pub(crate) dials: &'a Site,
    pub(crate) dials_body: Body,
    pub(crate) waits: &'a Site,
    pub(crate) waits_body: Body,
}

/// Two sites with this limit of a dial.
fn patient_sites(dial: Duration) -> (Site, Site) {
    let patient = |device| Site::new(NicConfig { dial, timeout_exponent: 20, ..config(device) });
    (patient("rxe0"), patient("rxe1"))
}

/// The announcement in a message.
pub(crate) fn announcement(body: &Body) -> Announcement {
    body.connection_manager.as_ref().expect("an announcement").parse().unwrap()
}

pub(crate) fn meeting<'a>(one: &'a Site, other: &'a Site, lane: Lifecycle) -> Meeting<'a> {
    let bodies = [one.nic.create(lane, &[1]).unwrap(), other.nic.create(lane, &[2]).unwrap()];
    let [mine, theirs] = bodies;
    if announcement(&mine).pair < announcement(&theirs).pair {
        Meeting { dials: one, dials_body: mine, waits: other, waits_body: theirs }
    } else {
        Meeting { dials: other, dials_body: theirs, waits: one, waits_body: mine }
    }
}

impl Meeting<'_> {
    /// The end of the dial, with the announcement of the other side.
    pub(crate) fn dial(&self, lane: Lifecycle, told: &Body) -> Result<(), VerbsError> {
        self.waits.nic.note_request(None, &self.dials_body);
        self.dials.nic.connect(lane, told)
    }

    pub(crate) fn retire(&self, lane: Lifecycle) {
        self.dials.nic.retire(lane).unwrap();
        self.waits.nic.retire(lane).unwrap();
    }
}

/// A body whose announcement is another one.
pub(crate) fn with(body: &Body, change: impl FnOnce(&mut Announcement)) -> Body {
    let mut changed = announcement(body);
    change(&mut changed);
    Body { connection_manager: Some(changed.to_string().into()), ..body.clone() }
}

/// Waits until nothing but the listening identifiers is left. A side may come to the request of a dialler that has
/// given up.
pub(super) fn nothing_is_left(fabric: &Fabric) {
    let deadline = Instant::now() + PATIENCE;
    for device in ["rxe0", "rxe1"] {
        let list = || fabric.run(&format!("manager list {device}"));
        while !list().lines().all(|line| line.contains("listening")) {
            assert!(Instant::now() < deadline, "{device}: {}", list());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Both sides connect and move bytes over a lane of this number.
pub(crate) fn another_lane_works(one: &Site, other: &Site, lane: Lifecycle) {
    connect_lane(one, other, lane, 1);
    one.told.forget();
    one.nic.post(lane, &mut vec![one.posting(other, 0, Direction::Write, 0, 4096)]);
    assert_eq!(one.told.ends(1), [CompletionStatus::Done]);
    one.nic.retire(lane).unwrap();
    other.nic.retire(lane).unwrap();
}

/// Bytes move both ways over a lane that the connection manager connected, and nothing is left of it.
#[test]
fn bytes_move_through_the_connection_manager() {
    on(&MANAGED, "managed::bytes_move_through_the_connection_manager", |fabric| {
        let (one, other) = sites();
        connect_lane(&one, &other, LANE, 2);
        one.memory.copy_in(0, &pattern(1)).unwrap();
        one.post_all(&other, Direction::Write, 16);
        assert!(one.told.ends(16).iter().all(|end| *end == CompletionStatus::Done));
        assert_eq!(other.bytes(), pattern(1));
        one.told.forget();
        other.memory.copy_in(0, &vec![7; BYTES]).unwrap();
        one.post_all(&other, Direction::Read, 4);
        assert!(one.told.ends(4).iter().all(|end| *end == CompletionStatus::Done));
        assert_eq!(one.bytes(), vec![7; BYTES]);
        one.nic.retire(LANE).unwrap();
        other.nic.retire(LANE).unwrap();
        nothing_is_left(fabric);
    });
}

/// A write that the peer refuses is charged, and none of those before and behind it: also where the device has
/// completed it before it arrived and no completion reports the cause. Nothing is written by it.
#[test]
fn refused_write_alone_is_charged() {
    on(&EARLY, "managed::refused_write_alone_is_charged", |_| {
        let (one, other) = sites();
        for (lane, refused) in [(10, 0), (20, 2), (30, 3)] {
            charge_refused(&one, &other, (lane, 4, refused));
        }
        another_lane_works(&one, &other, LANE);
    });
}

/// Posts writes at once over lanes from this number on, of which the peer refuses one, until that one is charged.
pub(crate) fn charge_refused(one: &Site, other: &Site, (first, count, refused): (u64, u64, usize)) {
    let guarded = Memory::zeroed(4096).unwrap();
    let guarded_key = other.nic.register(guarded.whole(), Access::READ).unwrap();
    one.memory.copy_in(0, &pattern(7)).unwrap();
    let is_charged = |end: &CompletionStatus| {
        matches!(end, CompletionStatus::Failed(_) | CompletionStatus::Refused(_))
    };
    // The first lane may not tell which write it was.
    let charged = (first..first + 2).any(|lane| {
        let lane = Lifecycle(lane);
        connect_lane(one, other, lane, 2);
        one.told.forget();
        let slice = |number| {
            let mut posting = one.posting(other, number, Direction::Write, 0, 4096);
            if number == refused as u64 {
                posting.remote = guarded_key.remote_span();
            }
            posting
        };
        // As many at a time as the lane takes.
        let depth = usize::try_from(one.nic.lane_depth(lane).unwrap()).unwrap();
        for slices in (0..count).collect::<Vec<_>>().chunks(depth) {
            one.nic.post(lane, &mut slices.iter().map(|number| slice(*number)).collect());
            let ended = slices[0] as usize + slices.len();
            let is_over = |told: &Told| told.ends.len() >= ended || !told.failures.is_empty();
            one.told.wait("the end of slices", is_over);
        }
        // A driver may not complete what was posted after the failure.
        one.told.wait("the failure", |told| !told.failures.is_empty());
        one.nic.retire(lane).unwrap();
        other.nic.retire(lane).unwrap();
        let ends = one.told.ends(count as usize);
        assert_ne!(ends[refused], CompletionStatus::Done);
        let charged: Vec<_> = (0..ends.len()).filter(|it| is_charged(&ends[*it])).collect();
        assert!(charged.iter().all(|it| *it == refused), "{ends:?}");
        !charged.is_empty()
    });
    assert!(charged, "nobody is charged for write {refused}");
    let mut bytes = [1; 4096];
    guarded.copy_out(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 4096]);
}

/// Soft-RoCE and a NIC connect through the connection manager where an option says so.
#[test]
fn roce_connects_through_the_manager_when_forced() {
    on(&["rxe", "mlx5"], "managed::roce_connects_through_the_manager_when_forced", |_| {
        let forced = |device| Site::new(NicConfig { connection_manager: true, ..config(device) });
        let (one, other) = (forced("rxe0"), forced("rxe1"));
        another_lane_works(&one, &other, LANE);
        another_lane_works(&other, &one, Lifecycle(8));
    });
}

/// Both sides connect as many lanes at the same instant, one after another, and write over each.
pub(crate) fn connect_at_once(one: &Site, other: &Site, count: u64) {
    let start = Barrier::new(2);
    for lane in (0..count).map(Lifecycle) {
        let mine = one.nic.create(lane, &[1]).unwrap();
        let theirs = other.nic.create(lane, &[2]).unwrap();
        let wire = |site: &Site, peer| {
            start.wait();
            site.nic.connect(lane, peer).unwrap();
        };
        std::thread::scope(|scope| {
            scope.spawn(|| wire(one, &theirs));
            scope.spawn(|| wire(other, &mine));
        });
        for (from, to) in [(one, other), (other, one)] {
            from.nic.post(lane, &mut vec![from.posting(to, lane.0, Direction::Write, 0, 64)]);
            from.told.ends(lane.0 as usize + 1);
        }
        one.nic.retire(lane).unwrap();
        other.nic.retire(lane).unwrap();
    }
    for site in [one, other] {
        let ends = site.told.ends(usize::try_from(count).unwrap());
        assert!(ends.iter().all(|end| *end == CompletionStatus::Done));
    }
}

/// Both sides connect at the same instant, two hundred times.
#[test]
fn both_sides_connect_at_the_same_instant() {
    on(&MANAGED, "managed::both_sides_connect_at_the_same_instant", |fabric| {
        let (one, other) = sites();
        connect_at_once(&one, &other, 200);
        nothing_is_left(fabric);
    });
}

/// Posts of a side before the peer has dialled wait for the connection; those past the depth are given back.
#[test]
fn posts_wait_for_the_peers_dial() {
    on(&MANAGED, "managed::posts_wait_for_the_peers_dial", |_| {
        let (one, other) = sites();
        let met = meeting(&one, &other, LANE);
        met.waits.nic.connect(LANE, &met.dials_body).unwrap();
        let depth = NicConfig::new("any").depth as usize;
        let slice = |n| met.waits.posting(met.dials, n, Direction::Write, 64 * n as usize, 64);
        met.waits.nic.post(LANE, &mut (0..=depth as u64).map(slice).collect());
        let past = CompletionStatus::Released(Sent::None);
        assert_eq!(met.waits.told.ends(1), [past], "one past the depth");
        met.dials.nic.connect(LANE, &met.waits_body).unwrap();
        let ends = met.waits.told.ends(depth + 1);
        assert!(ends[..depth].iter().all(|end| *end == CompletionStatus::Done), "{ends:?}");
        met.retire(LANE);
        let lane = Lifecycle(8);
        let met = meeting(&one, &other, lane);
        met.waits.told.forget();
        met.waits.nic.connect(lane, &met.dials_body).unwrap();
        met.waits.nic.post(lane, &mut vec![slice(0)]);
        met.retire(lane);
        assert_eq!(
            met.waits.told.ends(1),
            [CompletionStatus::Released(Sent::None)],
            "of a retired lane"
        );
    });
}

/// A request with another token, or for a lane that has ended, is refused with the reason, and so is
/// one that the peer's kernel rejects. The next lane works.
#[test]
fn refused_requests_name_the_reason() {
    on(&MANAGED, "managed::refused_requests_name_the_reason", |fabric| {
        let (one, other) = sites();
        let met = meeting(&one, &other, LANE);
        let wrong = with(&met.waits_body, |it| it.token.0 ^= 1);
        let error = met.dial(LANE, &wrong).unwrap_err();
        assert_eq!((error.side, error.call), (Side::Peer, "rdma_connect"), "{error}");
        assert!(error.detail.contains("the token is not that of the queue pair"), "{error}");
        met.retire(LANE);
        let met = meeting(&one, &other, Lifecycle(8));
        met.waits.nic.retire(Lifecycle(8)).unwrap();
        let error = met.dial(Lifecycle(8), &met.waits_body).unwrap_err();
        assert!(error.detail.contains("the lifecycle has ended"), "{error}");
        met.retire(Lifecycle(8));
        let met = meeting(&one, &other, Lifecycle(9));
        let nobody = with(&met.waits_body, |it| it.address.set_port(9));
        let error = met.dial(Lifecycle(9), &nobody).unwrap_err();
        for part in ["rejected the connection", "nobody listens"] {
            assert!(error.detail.contains(part), "{error}");
        }
        met.retire(Lifecycle(9));
        another_lane_works(&one, &other, Lifecycle(10));
        nothing_is_left(fabric);
    });
}

/// An address that does not resolve, and a peer that is cut off, are not reached; the next lane to the
/// peer asks it to dial.
#[test]
fn unreached_peer_is_asked_to_dial() {
    on(&MANAGED, "managed::unreached_peer_is_asked_to_dial", |fabric| {
        let (one, other) = sites();
        let met = meeting(&one, &other, LANE);
        let nowhere = with(&met.waits_body, |it| it.address.set_ip([10, 9, 9, 9].into()));
        let error = met.dial(LANE, &nowhere).unwrap_err();
        assert_eq!(error.side, Side::Peer, "{error}");
        assert!(error.detail.contains("10.9.9.9"), "{error}");
        assert!(error.detail.contains("cannot be reached"), "{error}");
        met.retire(LANE);
        let peer = NicPath::parse("peer@nic").unwrap();
        for plan in ["rxe0", "rxe1"] {
            fabric.run(&format!("manager unreachable {plan}"));
        }
        let lane = Lifecycle(8);
        let mine = one.nic.create_for(&peer, lane, &[1]).unwrap();
        let theirs = other.nic.create_for(&peer, lane, &[2]).unwrap();
        let (dials, told) = match announcement(&mine).pair < announcement(&theirs).pair {
            true => (&one, &theirs),
            false => (&other, &mine),
        };
        let error = dials.nic.connect(lane, told).unwrap_err();
        assert!(error.detail.contains("the peer dials the next lane"), "{error}");
        one.nic.retire(lane).unwrap();
        other.nic.retire(lane).unwrap();
        let asking = dials.nic.create_for(&peer, Lifecycle(9), &[3]).unwrap();
        assert!(announcement(&asking).asks);
        // The plan of the side that did not dial is left.
        let waits = if std::ptr::eq(dials, &one) { &other } else { &one };
        let theirs = waits.nic.create_for(&peer, Lifecycle(9), &[4]).unwrap();
        dials.nic.connect(Lifecycle(9), &theirs).unwrap();
        let error = waits.nic.connect(Lifecycle(9), &asking).unwrap_err();
        assert!(error.detail.contains("cannot be reached"), "the asked side has dialled: {error}");
        one.nic.retire(Lifecycle(9)).unwrap();
        other.nic.retire(Lifecycle(9)).unwrap();
        // Both ask once, and the next lane asks nobody.
        let mine = dials.nic.create_for(&peer, Lifecycle(10), &[5]).unwrap();
        assert!(!announcement(&mine).asks, "a peer is asked once");
        dials.nic.retire(Lifecycle(10)).unwrap();
        nothing_is_left(fabric);
    });
}

/// An announcement of the same pair that another peer has sent is not taken for the peer's: neither when the
/// request comes before the connect, nor by the connect.
#[test]
fn announcement_of_another_peer_is_not_the_peers() {
    on(&MANAGED, "managed::announcement_of_another_peer_is_not_the_peers", |fabric| {
        let (one, other) = sites();
        let path = |text| NicPath::parse(text).unwrap();
        let (peer, stranger) = (path("peer@nic"), path("stranger@nic"));
        let bodies = |lane| {
            let mine = one.nic.create_for(&peer, lane, &[1]).unwrap();
            let theirs = other.nic.create_for(&peer, lane, &[2]).unwrap();
            match announcement(&mine).pair < announcement(&theirs).pair {
                true => (&one, mine, &other, theirs),
                false => (&other, theirs, &one, mine),
            }
        };
        let (dials, dialling, waits, told) = bodies(LANE);
        let forged = Body { queue_pairs: vec![77], ..dialling.clone() };
        waits.nic.note_request(Some(&peer), &dialling);
        waits.nic.note_request(Some(&stranger), &forged);
        dials.nic.connect(LANE, &told).unwrap();
        let error = waits.nic.connect(LANE, &forged).unwrap_err();
        assert!(error.detail.contains("connected to another announcement"), "{error}");
        waits.nic.connect(LANE, &dialling).unwrap();
        dials.nic.retire(LANE).unwrap();
        waits.nic.retire(LANE).unwrap();
        nothing_is_left(fabric);
    });
}

/// A request whose announcement cannot be connected to is not noted: its dial waits for the connect, which refuses
/// it by name.
#[test]
fn announcement_without_reads_is_not_accepted_early() {
    on(&MANAGED, "managed::announcement_without_reads_is_not_accepted_early", |fabric| {
        let dial = Duration::from_millis(200);
        let (one, other) = patient_sites(dial);
        let met = meeting(&one, &other, LANE);
        let useless = Body { rd_atomic: 0, ..met.dials_body.clone() };
        met.waits.nic.note_request(None, &useless);
        let error = met.dials.nic.connect(LANE, &met.waits_body).unwrap_err();
        assert!(error.detail.contains("not established in time"), "{error}");
        let error = met.waits.nic.connect(LANE, &useless).unwrap_err();
        assert!(error.detail.contains("accepts no outstanding read"), "{error}");
        met.retire(LANE);
        nothing_is_left(fabric);
    });
}

/// A lane whose peer never dials fails in bounded time, with the reason, and gives back what it keeps. One that
/// the peer has dialled does not.
#[test]
fn lane_that_nobody_dials_fails_in_time() {
    on(&MANAGED, "managed::lane_that_nobody_dials_fails_in_time", |_| {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let node =
                |device| Node::new(NicConfig { dial: Duration::from_millis(50), ..config(device) });
            let (one, other) = (node("rxe0"), node("rxe1"));
            let pair = |node| Pair { incarnation: Incarnation(node), lifecycle: LANE };
            let mine = one.try_create(LANE, "other@nic").await.unwrap();
            let theirs = other.try_create(LANE, "one@nic").await.unwrap();
            let (waits, told, another) = match announcement(&mine).pair < announcement(&theirs).pair
            {
                true => (&other, mine, &one),
                false => (&one, theirs, &other),
            };
            waits.transport.connect(pair(1), pair(2), told).await.unwrap();
            waits.write_over(LANE, another);
            waits.told.wait("the failure", |told| !told.failures.is_empty());
            let (lane, error) = waits.told.failures().remove(0);
            assert_eq!((lane, error.side), (LANE, Side::Peer), "{error}");
            assert!(error.detail.contains("not established in time"), "{error}");
            assert_eq!(waits.told.ends(1), [CompletionStatus::Released(Sent::None)]);
            for node in [&one, &other] {
                node.transport.retire(LANE).await.unwrap();
            }
        });
    });
}

/// A request that nobody answers ends in bounded time, by name.
#[test]
fn unanswered_request_times_out() {
    on(&MANAGED, "managed::unanswered_request_times_out", |fabric| {
        let (one, other) = sites();
        for device in ["rxe0", "rxe1"] {
            fabric.run(&format!("manager hold {device} CONNECT_REQUEST"));
        }
        let met = meeting(&one, &other, LANE);
        let begun = Instant::now();
        let error = met.dial(LANE, &met.waits_body).unwrap_err();
        assert!(error.detail.contains("not established in time"), "{error}");
        assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
        met.retire(LANE);
        for device in ["rxe0", "rxe1"] {
            fabric.run(&format!("manager release {device} CONNECT_REQUEST"));
        }
        another_lane_works(&one, &other, Lifecycle(8));
        nothing_is_left(fabric);
    });
}

/// A listener takes as many requests as its backlog says, and rejects one more.
#[test]
fn full_listener_rejects_one_request_more() {
    on(&MANAGED, "managed::full_listener_rejects_one_request_more", |fabric| {
        let (one, other) = patient_sites(PATIENCE);
        for device in ["rxe0", "rxe1"] {
            fabric.run(&format!("manager hold {device} CONNECT_REQUEST"));
        }
        let first = meeting(&one, &other, Lifecycle(0));
        let (dials, waits) = (first.dials, first.waits);
        first.retire(Lifecycle(0));
        let told = |lane: Lifecycle| {
            let mine = dials.nic.create(lane, &[1]).unwrap();
            // Each of another peer: of one few announcements are known.
            let peer = NicPath::parse(&format!("peer-{}@nic", lane.0)).unwrap();
            let theirs = waits.nic.create_for(&peer, lane, &[2]).unwrap();
            waits.nic.note_request(Some(&peer), &mine);
            theirs
        };
        std::thread::scope(|scope| {
            let lanes: Vec<_> =
                (1..=BACKLOG).map(Lifecycle).map(|lane| (lane, told(lane))).collect();
            let more = told(Lifecycle(BACKLOG + 1));
            let dial = |(lane, told)| scope.spawn(move || dials.nic.connect(lane, &told));
            let dialled: Vec<_> = lanes.into_iter().map(dial).collect();
            let device = if dials.nic.device() == "rxe0" { "rxe1" } else { "rxe0" };
            let waiting = |fabric: &Fabric| {
                let list = fabric.run(&format!("manager list {device}"));
                list.lines().filter(|line| line.contains("requested")).count() as u64
            };
            let begun = Instant::now();
            while waiting(fabric) < BACKLOG && begun.elapsed() < PATIENCE {
                std::thread::yield_now();
            }
            let error = dials.nic.connect(Lifecycle(BACKLOG + 1), &more).unwrap_err();
            assert!(error.detail.contains("more requests wait than it takes"), "{error}");
            fabric.run(&format!("manager release {device} CONNECT_REQUEST"));
            for dialled in dialled {
                dialled.join().unwrap().unwrap();
            }
        });
        for lane in (1..=BACKLOG + 1).map(Lifecycle) {
            dials.nic.retire(lane).unwrap();
            waits.nic.retire(lane).unwrap();
        }
        nothing_is_left(fabric);
    });
}

/// A connection that ends fails its lane with the reason, whichever side ends it, and its slices end. A
/// dial that ends fails the connect.
#[test]
fn disconnect_ends_the_lane_in_each_state() {
    on(&MANAGED, "managed::disconnect_ends_the_lane_in_each_state", |fabric| {
        let (one, other) = sites();
        connect_lane(&one, &other, LANE, 1);
        let of = |list: &str| list.split_whitespace().next().unwrap_or_default().to_owned();
        let list = fabric.run("manager list rxe0");
        let connected = list.lines().find(|line| line.contains("connected"));
        let connected = of(connected.expect("a connection"));
        fabric.run(&format!("manager disconnect rxe0 {connected}"));
        for site in [&one, &other] {
            site.told.wait("the failure", |told| !told.failures.is_empty());
            let (lane, error) = &site.told.failures()[0];
            assert_eq!((*lane, error.side), (LANE, Side::Peer), "{error}");
            assert!(error.detail.contains("was disconnected"), "{error}");
            site.nic.retire(LANE).unwrap();
        }
        // The answer to the dial is held, and the connection ends meanwhile.
        let lane = Lifecycle(8);
        for device in ["rxe0", "rxe1"] {
            fabric.run(&format!("manager hold {device} ESTABLISHED"));
        }
        let met = meeting(&one, &other, lane);
        std::thread::scope(|scope| {
            let dialled = scope.spawn(|| met.dial(lane, &met.waits_body));
            let device = met.dials.nic.device();
            let dialling = || {
                let list = fabric.run(&format!("manager list {device}"));
                list.lines().find(|line| line.contains("dialling")).map(of)
            };
            let begun = Instant::now();
            let number = loop {
                if let Some(number) = dialling() {
                    break number;
                }
                assert!(begun.elapsed() < PATIENCE, "no dial");
                std::thread::yield_now();
            };
            fabric.run(&format!("manager disconnect {device} {number}"));
            let error = dialled.join().unwrap().unwrap_err();
            assert!(error.detail.contains("cannot be reached"), "{error}");
        });
        for device in ["rxe0", "rxe1"] {
            fabric.run(&format!("manager release {device} ESTABLISHED"));
        }
        met.retire(lane);
        another_lane_works(&one, &other, Lifecycle(9));
        nothing_is_left(fabric);
    });
}

/// An event that comes twice changes nothing.
#[test]
fn repeated_events_change_nothing() {
    on(&MANAGED, "managed::repeated_events_change_nothing", |fabric| {
        let (one, other) = sites();
        for device in ["rxe0", "rxe1"] {
            fabric.run(&format!("manager hold {device} ROUTE_RESOLVED"));
        }
        let met = meeting(&one, &other, LANE);
        std::thread::scope(|scope| {
            let dialled = scope.spawn(|| met.dial(LANE, &met.waits_body));
            let device = met.dials.nic.device();
            let begun = Instant::now();
            while fabric.execute(&format!("manager repeat {device} ROUTE_RESOLVED")).is_err() {
                assert!(begun.elapsed() < PATIENCE, "no route");
                std::thread::yield_now();
            }
            fabric.run(&format!("manager release {device} ROUTE_RESOLVED"));
            dialled.join().unwrap().unwrap();
        });
        met.retire(LANE);
        nothing_is_left(fabric);
    });
}

/// Sides that connect in different ways name the side, the reason and the cure.
#[test]
fn sides_without_a_common_way_say_so() {
    on(&["rxe"], "managed::sides_without_a_common_way_say_so", |_| {
        let one = Site::new(NicConfig { connection_manager: true, ..config("rxe0") });
        let other = Site::new(config("rxe1"));
        let mine = one.nic.create(LANE, &[1]).unwrap();
        let theirs = other.nic.create(LANE, &[2]).unwrap();
        for (site, told) in [(&one, &theirs), (&other, &mine)] {
            let error = site.nic.connect(LANE, told).unwrap_err();
            assert_eq!(error.side, Side::Configuration, "{error}");
            assert!(error.detail.contains("--rdma-cm"), "{error}");
            site.nic.retire(LANE).unwrap();
        }
    });
}

/// A device that is removed fails its lanes, and the other side's by the end of their connections.
#[test]
fn removed_device_ends_its_connections() {
    on(&MANAGED, "managed::removed_device_ends_its_connections", |fabric| {
        let (one, other) = sites();
        connect_lane(&one, &other, LANE, 2);
        fabric.run("die rxe0");
        one.told.wait("the failure", |told| !told.failures.is_empty());
        one.nic.retire(LANE).unwrap();
        assert!(one.nic.lost().is_some());
        other.nic.retire(LANE).unwrap();
        until(fabric, "laws", "");
    });
}

/// The line of a device's connection.
pub(crate) fn connection(fabric: &Fabric, device: &str) -> String {
    let list = fabric.run(&format!("manager list {device}"));
    let line = list.lines().find(|line| line.contains("connected"));
    line.expect("a connection").to_owned()
}

/// Connections of RoCE have the timeout and the dialling side's traffic class of the options. Without a choice a
/// kernel that refuses them is asked for none, and lanes are given the time of its own timeout.
#[test]
fn options_are_set_on_connections() {
    on(&["rxe"], "managed::options_are_set_on_connections", |fabric| {
        let forced = |device| NicConfig { connection_manager: true, ..config(device) };
        let set = |device| NicConfig { traffic_class: 104, timeout_exponent: 19, ..forced(device) };
        let (one, other) = (Site::new(set("rxe0")), Site::new(set("rxe1")));
        connect_lane(&one, &other, LANE, 1);
        let lines = ["rxe0", "rxe1"].map(|device| connection(fabric, device));
        assert!(lines.iter().all(|line| line.contains(" timeout 19")), "{lines:?}");
        let classes = lines.iter().filter(|line| line.contains(" class 104")).count();
        assert_eq!(classes, 1, "that of the side that has dialled: {lines:?}");
        one.nic.retire(LANE).unwrap();
        other.nic.retire(LANE).unwrap();
        let profile = *one.nic.recognised().profile;
        drop((one, other));
        fabric.run(&format!("fail call rxe0 rdma_set_option {ENOSYS}"));
        let error = Nic::open(set("rxe0"), Arc::new(Recorder::default())).err().unwrap();
        assert_eq!((error.side, error.call), (Side::Configuration, "rdma_set_option"), "{error}");
        let unset = |device| NicConfig {
            timeout_exponent: profile.timeout_exponent,
            retries: 1,
            ..forced(device)
        };
        let one = Site::new(unset("rxe0"));
        assert!(one.nic.patience() > unset("rxe0").patience(&profile), "{:?}", one.nic.patience());
        let other = Site::new(unset("rxe1"));
        another_lane_works(&one, &other, Lifecycle(8));
        drop((one, other));
        fabric.run("pass");
    });
}

/// A NIC listens at none of the ports that the driver erdma takes, in whichever order the kernel gives them, and says
/// so where it gives no other.
#[test]
fn ports_of_erdma_are_left_out() {
    on(&MANAGED, "managed::ports_of_erdma_are_left_out", |fabric| {
        fabric.run("manager ports rxe0 30608 30624");
        let one = Site::new(config("rxe0"));
        let body = one.nic.create(LANE, &[1]).unwrap();
        assert_eq!(announcement(&body).address.port(), 30_624);
        one.nic.retire(LANE).unwrap();
        drop(one);
        fabric.run("manager ports rxe0 30608 30623");
        let error = Nic::open(config("rxe0"), Arc::new(Recorder::default())).err().unwrap();
        assert_eq!((error.side, error.call), (Side::Configuration, "rdma_bind_addr"), "{error}");
        for part in ["30608 to 30623", "ip_local_port_range"] {
            assert!(error.detail.contains(part), "{error}");
        }
        assert_eq!(fabric.run("manager list rxe0"), "");
        fabric.run("manager ports rxe0 30600 30607");
        nothing_is_left(fabric);
    });
}

/// Settings that the connection manager chooses itself are refused by name.
#[test]
fn settings_of_the_connection_manager_are_refused() {
    on(
        &["erdma-standard", "rxe"],
        "managed::settings_of_the_connection_manager_are_refused",
        |_| {
            let forced = NicConfig { connection_manager: true, ..config("rxe0") };
            let cases = [
                ("service_level", NicConfig { service_level: 3, ..forced.clone() }),
                ("mtu_max", NicConfig { mtu_max: 1024, ..forced.clone() }),
                (
                    "partition_key",
                    NicConfig { partition_key: PartitionKey::Value(0xffff), ..forced },
                ),
            ];
            for (name, config) in cases {
                let error = Nic::open(config, Arc::new(Recorder::default())).err().unwrap();
                assert_eq!(error.side, Side::Configuration, "{error}");
                assert!(error.detail.contains(name), "{error}");
            }
        },
    );
}

/// Tries of a device that writes to a silent peer.
pub(crate) fn tries_of(fabric: &Fabric, lane: Lifecycle, config: impl Fn(&str) -> NicConfig) -> u8 {
    let (one, other) = (Site::new(config("rxe0")), Site::new(config("rxe1")));
    connect_lane(&one, &other, lane, 1);
    fabric.run("cut rxe0 rxe1");
    one.nic.post(lane, &mut vec![one.posting(&other, 0, Direction::Write, 0, 64)]);
    let mut tries = 0;
    while fabric.run("expire rxe0 all") == "1" {
        tries += 1;
    }
    one.told.wait("the failure", |told| !told.failures.is_empty());
    fabric.run("mend rxe0 rxe1");
    one.nic.retire(lane).unwrap();
    other.nic.retire(lane).unwrap();
    tries
}

/// A silent peer is tried as often as the options say, so that a device of RoCE ends a slice within the time that is
/// given to it.
#[test]
fn silent_peer_is_tried_as_often_as_configured() {
    on(&["rxe"], "managed::silent_peer_is_tried_as_often_as_configured", |fabric| {
        fabric.run("timers off");
        for (lane, retries) in [(LANE, 1), (Lifecycle(8), 3)] {
            let few =
                |device: &str| NicConfig { retries, connection_manager: true, ..config(device) };
            assert_eq!(tries_of(fabric, lane, few), retries + 1);
        }
        fabric.run("timers on");
    });
}

/// A dial that ends within its call blames the peer where the code does, and only then the next lane asks it to
/// dial.
#[test]
fn dials_that_end_within_the_call_blame_whom_they_name() {
    on(&MANAGED, "managed::dials_that_end_within_the_call_blame_whom_they_name", |fabric| {
        let (one, other) = sites();
        let peer = NicPath::parse("peer@nic").unwrap();
        let cases = [
            (ECONNREFUSED, Side::Peer, "rejected the connection", false),
            (EHOSTUNREACH, Side::Peer, "cannot be reached", true),
            (ENOMEM, Side::Local, "", false),
        ];
        for (lane, (code, side, words, asks)) in (10..).step_by(10).zip(cases) {
            let bodies = |lane| {
                let mine = one.nic.create_for(&peer, Lifecycle(lane), &[1]).unwrap();
                let theirs = other.nic.create_for(&peer, Lifecycle(lane), &[2]).unwrap();
                (mine, theirs)
            };
            let retire = |lane| {
                [&one, &other].iter().for_each(|site| site.nic.retire(Lifecycle(lane)).unwrap());
            };
            let (mine, theirs) = bodies(lane);
            let (dials, told) = match announcement(&mine).pair < announcement(&theirs).pair {
                true => (&one, theirs),
                false => (&other, mine),
            };
            let device = dials.nic.device();
            fabric.run(&format!("fail call {device} rdma_connect {code} times 1"));
            let error = dials.nic.connect(Lifecycle(lane), &told).unwrap_err();
            assert_eq!(error.side, side, "{error}");
            assert!(error.detail.contains(words), "{error}");
            retire(lane);
            let (mine, theirs) = bodies(lane + 1);
            let next = if std::ptr::eq(dials, &one) { mine } else { theirs };
            assert_eq!(announcement(&next).asks, asks, "{code}");
            retire(lane + 1);
        }
        nothing_is_left(fabric);
    });
}

/// A local failure of the accept is the waiting lane's own, also before its connect, and does not ask the peer to
/// dial.
#[test]
fn failed_accept_is_this_sides_own() {
    on(&MANAGED, "managed::failed_accept_is_this_sides_own", |fabric| {
        for is_early in [false, true] {
            let (one, other) = patient_sites(Duration::from_secs(1));
            let peer = NicPath::parse("peer@nic").unwrap();
            let mine = one.nic.create_for(&peer, LANE, &[1]).unwrap();
            let theirs = other.nic.create_for(&peer, LANE, &[2]).unwrap();
            let (dials, told, waits, dialled) =
                match announcement(&mine).pair < announcement(&theirs).pair {
                    true => (&one, theirs, &other, mine),
                    false => (&other, mine, &one, theirs),
                };
            match is_early {
                true => waits.nic.note_request(Some(&peer), &dialled),
                false => waits.nic.connect(LANE, &dialled).unwrap(),
            }
            fabric.run(&format!("fail call {} rdma_accept {ENOMEM} times 1", waits.nic.device()));
            dials.nic.connect(LANE, &told).unwrap_err();
            waits.told.wait("the failure", |told| !told.failures.is_empty());
            let (lane, error) = waits.told.failures().remove(0);
            assert_eq!(
                (lane, error.side, &*error.call),
                (LANE, Side::Local, "rdma_accept"),
                "{error}"
            );
            for site in [&one, &other] {
                site.nic.retire(LANE).unwrap();
            }
            let next = waits.nic.create_for(&peer, Lifecycle(8), &[3]).unwrap();
            assert!(!announcement(&next).asks);
            waits.nic.retire(Lifecycle(8)).unwrap();
            nothing_is_left(fabric);
        }
    });
}
