//! Lanes through the connection managers of two kernels, soft-iWARP's or soft-RoCE's, and a wire in between: each
//! of two guests runs these stories with `--test-threads=1` (`cargo xtask guest --hosts 2`). Those of `connections`
//! are the same on one kernel.

use crate::connections::{AT_ONCE, LOOK_AGAIN, NOBODY, NOWHERE, SLICES, managed};
#[cfg(feature = "bare")]
use crate::connections::{DIAL, DIALS, FullListener, KEPT, dials_end_by_name, is_soft_iwarp};
use crate::meeting::{Other, host};
use crate::scripted::managed::{announcement, with};
#[cfg(feature = "bare")]
use crate::stranger::{ANSWERS, Stranger, assert_is_unproven};
use crate::support::{BYTES, LANE, PATIENCE, Site, Told, pattern, psns};
use crate::wires::{Wire, driver, run};
use handfast_core::transport::Side;
use handfast_core::wire::{Body, Message, Op};
use handfast_core::{Incarnation, Lifecycle, NicPath, Pair};
use handfast_transport::{Access, CompletionStatus, Direction, Memory, Posting, RemoteSpan};
use handfast_transport_rdma::{NicConfig, VerbsError};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Time of a dial that nobody answers.
const SHORT: Duration = Duration::from_secs(1);
/// Exponent of the ACK timeout: of one second, seven of which end a lane whose peer is silent.
const TIMEOUT: u8 = 18;
/// Lane after those of a story.
const NEXT: Lifecycle = Lifecycle(100);
/// The host whose device is removed, or whose link goes down.
const LOSES: u8 = 0;
/// The host that writes, where one alone does.
const WRITES: u8 = 1;
/// The write that the other host refuses.
const REFUSED: u64 = 2;
/// Interface of a guest's NIC.
const INTERFACE: &str = "eth0";
/// Port of RoCE's packets.
const ROCE_PORT: u16 = 4791;

/// Slices of both directions move both ways over a lane of two queue pairs, one side after the other and both at once.
#[test]
fn batches_move_both_ways_between_two_kernels() {
    let Some(mut here) = Here::meet(|_| ()) else { return };
    here.connect(LANE, 2);
    for writer in [0, 1] {
        let seed = 2 * writer;
        let writes = here.number == writer;
        if writes {
            here.site.memory.copy_in(0, &pattern(seed)).unwrap();
            here.moves(Direction::Write, 32);
        }
        here.other.both("written");
        if !writes {
            assert!(here.site.bytes() == pattern(seed), "other bytes were written");
            here.site.memory.copy_in(0, &pattern(seed + 1)).unwrap();
        }
        here.other.both("to be read");
        if writes {
            here.moves(Direction::Read, 16);
            assert!(here.site.bytes() == pattern(seed + 1), "other bytes were read");
        }
        here.other.both("read");
    }
    let (half, seeds) = (BYTES / 2, [4, 5].map(pattern));
    let range = |host: u8| usize::from(host) * half..usize::from(host + 1) * half;
    let own = range(here.number);
    here.site.memory.copy_in(own.start, &seeds[usize::from(here.number)][own.clone()]).unwrap();
    here.other.both("both at once");
    here.site.told.forget();
    let length = half / SLICES;
    let slice = |n: usize| {
        let offset = own.start + n * length;
        here.site.posting_to(here.remote, n as u64, Direction::Write, offset, length)
    };
    here.site.nic.post(LANE, &mut (0..SLICES).map(slice).collect());
    let ends = here.site.told.ends(SLICES);
    assert!(ends.iter().all(|end| *end == CompletionStatus::Done), "{ends:?}");
    here.other.both("both have written");
    let expected = [&seeds[0][range(0)], &seeds[1][range(1)]].concat();
    assert!(here.site.bytes() == expected, "other bytes were written at once");
    assert_eq!(here.site.told.failures(), []);
    here.end(LANE);
}

/// Both kernels open at the same instant, a hundred times, and write over each lane. Nothing is left.
#[test]
fn a_hundred_opens_at_the_same_instant_of_two_kernels() {
    let Some(mut here) = Here::meet(|_| ()) else { return };
    let begun = Instant::now();
    for lane in (0..AT_ONCE).map(Lifecycle) {
        let met = here.exchange(lane, 1);
        here.other.both("now");
        here.connects(lane, &met);
        here.site.nic.post(lane, &mut vec![here.slice(lane.0, 64)]);
        here.site.told.ends(lane.0 as usize + 1);
        here.end(lane);
    }
    println!("{AT_ONCE} opens take {} ms", begun.elapsed().as_millis());
    let ends = here.site.told.ends(usize::try_from(AT_ONCE).unwrap());
    assert!(ends.iter().all(|end| *end == CompletionStatus::Done), "{ends:?}");
    here.site.wait_for_room();
}

/// A write that the other host's memory does not permit is charged, and none of those before and behind it. Nothing is
/// written by it. The next lane works.
#[test]
fn write_that_the_other_host_refuses_is_charged() {
    let Some(mut here) = Here::meet(|_| ()) else { return };
    let guarded = Memory::zeroed(4096).unwrap();
    let registration = here.site.nic.register(guarded.whole(), Access::READ).unwrap();
    let forbidden = here.trade(registration.remote_span());
    let mut charged = Vec::new();
    // The first lane may not tell which write it was.
    for lane in [20, 21].map(Lifecycle) {
        here.connect(lane, 2);
        if here.number == WRITES {
            here.site.told.forget();
            let slice = |number| {
                let slice = here.slice(number, 4096);
                let remote = if number == REFUSED { forbidden } else { slice.remote };
                Posting { remote, ..slice }
            };
            here.site.nic.post(lane, &mut (0..4).map(slice).collect());
            // A driver may not complete what was posted after the failure.
            here.site.told.wait("the failure", |told| !told.failures.is_empty());
        }
        here.end(lane);
        if here.number == WRITES {
            let ends = here.site.told.ends(4).into_iter();
            let is_charged = |end: &CompletionStatus| {
                matches!(end, CompletionStatus::Failed(_) | CompletionStatus::Refused(_))
            };
            charged.extend((0..).zip(ends).filter(|(_, end)| is_charged(end)).map(|(at, _)| at));
        }
    }
    if here.number == WRITES {
        assert!(!charged.is_empty() && charged.iter().all(|at| *at == REFUSED), "{charged:?}");
    } else {
        let mut bytes = [1; 4096];
        guarded.copy_out(0, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 4096]);
    }
    here.another_lane_works(NEXT);
}

/// A wrong token and an ended lifecycle are refused by the other host's NIC with the reason, and a port at which nobody
/// listens by its kernel. The next lane works.
#[test]
fn refusals_of_the_other_host_come_with_their_reason() {
    let Some(mut here) = Here::meet(|_| ()) else { return };
    let lane = LANE;
    let met = here.announce(lane);
    if met.dials {
        let wrong = with(&met.theirs, |it| it.token.0 ^= 1);
        here.is_refused(lane, &wrong, "the token is not that of the queue pair");
    }
    here.end(lane);
    let lane = Lifecycle(8);
    let met = here.announce(lane);
    if !met.dials {
        here.site.nic.retire(lane).unwrap();
    }
    here.other.both("ended");
    if met.dials {
        here.is_refused(lane, &met.theirs, "the lifecycle has ended");
    }
    here.end(lane);
    let lane = Lifecycle(9);
    let met = here.announce(lane);
    if met.dials {
        let nobody = with(&met.theirs, |it| it.address.set_port(NOBODY));
        here.is_refused(lane, &nobody, "nobody listens");
    }
    here.end(lane);
    here.another_lane_works(NEXT);
}

/// A program at the other host's address that accepts a dial and answers with another token, as another lifecycle, as it
/// was asked or without private data is not the peer, and is disconnected. The next lane works.
#[cfg(feature = "bare")]
#[test]
fn answer_of_a_stranger_at_the_other_host_is_refused() {
    let Some(mut here) = Here::meet(|_| ()) else { return };
    for (lane, answer) in (20..).map(Lifecycle).zip(ANSWERS) {
        let met = here.announce(lane);
        if met.dials {
            let port = here.other.hear().parse().unwrap();
            let told = with(&met.theirs, |it| it.address.set_port(port));
            assert_is_unproven(&here.site.nic.connect(lane, &told).unwrap_err());
            here.site.nic.retire(lane).unwrap();
        } else {
            let stranger = Stranger::new(&here.site, &met.mine);
            here.other.tell(&stranger.port.to_string());
            let accepted = stranger.accept(&answer(&met.theirs, &met.mine));
            stranger.until("DISCONNECTED");
            drop(accepted);
        }
        here.end(lane);
    }
    here.another_lane_works(NEXT);
}

/// A listener of the other host whose program takes no request keeps as many as its backlog, whose dials end by their
/// time. Soft-iWARP refuses the others; over soft-RoCE they end by their time too. The next lane works.
#[cfg(feature = "bare")]
#[test]
fn dials_to_a_full_listener_of_the_other_host_end_by_name() {
    let Some(mut here) = Here::meet(|it| it.dial = 2 * DIAL) else { return };
    let met: Vec<_> =
        (10..10 + DIALS).map(Lifecycle).map(|lane| (lane, here.announce(lane))).collect();
    let first = &met[0].1;
    if first.dials {
        let port = here.other.hear().parse().unwrap();
        let told = met
            .iter()
            .map(|(lane, met)| (*lane, with(&met.theirs, |it| it.address.set_port(port))));
        // Past the backlog of TCP soft-iWARP forgets connections of one instant, which a busy machine makes of several.
        let is_late = if is_soft_iwarp() { KEPT..met.len() } else { met.len()..met.len() + 1 };
        dials_end_by_name(&here.site.nic, told.collect(), is_late);
        here.other.both("dialled");
    } else {
        let listener = FullListener::new(&first.mine);
        here.other.tell(&listener.port.to_string());
        here.other.both("dialled");
        drop(listener);
    }
    met.iter().for_each(|(lane, _)| here.end(*lane));
    here.another_lane_works(NEXT);
}

/// An address of the wire that no host has, and one without a route, are the peer's failure in bounded time. The next
/// lane works.
#[test]
fn address_that_no_host_has_fails_in_time() {
    let Some(mut here) = Here::meet(|_| ()) else { return };
    for (lane, nowhere) in (7..).map(Lifecycle).zip(NOWHERE) {
        let met = here.announce(lane);
        if met.dials {
            let told = with(&met.theirs, |it| it.address.set_ip(nowhere.into()));
            let begun = Instant::now();
            let error = here.site.nic.connect(lane, &told).unwrap_err();
            assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
            assert_eq!(error.side, Side::Peer, "{error}");
            assert!(error.detail.contains("cannot be reached"), "{error}");
        }
        here.end(lane);
    }
    here.another_lane_works(NEXT);
}

/// A dial to a host that drops the packets of connections ends by its time. The next lane works once they pass.
#[test]
fn dial_to_a_host_that_drops_packets_ends_in_time() {
    let Some(mut here) = Here::meet(|it| it.dial = SHORT) else { return };
    let met = here.announce(LANE);
    let deaf = (!met.dials).then(|| Deaf::new(announcement(&met.mine).address.port()));
    here.other.both("deaf");
    if met.dials {
        let begun = Instant::now();
        let error = here.site.nic.connect(LANE, &met.theirs).unwrap_err();
        println!("{}: a dial ended within {} ms", driver(), begun.elapsed().as_millis());
        assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
        assert_eq!(error.side, Side::Peer, "{error}");
        assert!(error.detail.contains("not established in time"), "{error}");
    }
    here.end(LANE);
    drop(deaf);
    here.other.both("hears");
    here.reopens(|_| ());
    here.another_lane_works(NEXT);
}

/// A link that goes down at one host under writes of the other ends the lane at both. The next lane works once it is back.
#[test]
fn link_that_goes_down_is_noticed_by_both_hosts() {
    let Some(mut here) = Here::meet(|_| ()) else { return };
    here.connect(LANE, 1);
    let begun = Instant::now();
    if here.number == LOSES {
        run(&format!("ip link set {INTERFACE} down"));
        here.fails(LANE);
        // Nothing of the lane is retired before: soft-RoCE sends no disconnect over a link that is down, nor later.
        run(&format!("ip link set {INTERFACE} up"));
    } else {
        here.fails(LANE);
    }
    println!("{}: noticed within {} ms", driver(), begun.elapsed().as_millis());
    here.end(LANE);
    here.another_lane_works(NEXT);
}

/// A device that is removed at one host under writes of the other is lost there, and its lane fails at the other. Lanes
/// work again once it is back.
#[test]
fn removed_device_is_noticed_by_the_other_host() {
    let Some(mut here) = Here::meet(|_| ()) else { return };
    here.connect(LANE, 1);
    if here.number == LOSES {
        here = here.loses_its_device();
    } else {
        here.fails(LANE);
        here.other.both("lost");
        here.site.nic.retire(LANE).unwrap();
    }
    here.other.both("returned");
    here.trades_memory();
    here.another_lane_works(NEXT);
}

/// Announcements of a lane before its connection.
struct Met {
    #[cfg_attr(not(feature = "bare"), allow(dead_code, reason = "strangers are bare"))]
    mine: Body,
    theirs: Body,
    /// Whether this host dials.
    dials: bool,
}

/// The NIC of this host, and the other host with the memory of its NIC.
struct Here {
    number: u8,
    other: Other,
    site: Site,
    remote: RemoteSpan,
}

impl Here {
    /// Both hosts, if there are two.
    fn meet(change: impl FnOnce(&mut NicConfig)) -> Option<Self> {
        let number = host()?;
        let mut here = Self {
            number,
            other: Other::meet(number),
            site: site(change),
            remote: RemoteSpan { key: 0, address: 0 },
        };
        here.trades_memory();
        Some(here)
    }

    /// Each host reports its memory.
    fn trades_memory(&mut self) {
        self.remote = self.trade(self.site.registration.remote_span());
    }

    /// Each host reports memory; returns that of the other.
    fn trade(&mut self, RemoteSpan { key, address }: RemoteSpan) -> RemoteSpan {
        self.other.tell(&format!("{key} {address}"));
        let heard = self.other.hear();
        let (key, address) = heard.split_once(' ').expect("a key and an address");
        RemoteSpan { key: key.parse().unwrap(), address: address.parse().unwrap() }
    }

    /// Both open their NICs again.
    fn reopens(&mut self, change: impl FnOnce(&mut NicConfig)) {
        self.site = site(change);
        self.trades_memory();
    }

    /// Creates a lane, and exchanges the announcements as nodes do.
    fn exchange(&mut self, lane: Lifecycle, queue_pairs: usize) -> Met {
        let mine = self.site.nic.create(lane, &psns(queue_pairs)).unwrap();
        let path = |host| NicPath::parse(&format!("host-{host}@nic")).unwrap();
        let message = Message {
            op: Op::Request,
            from: path(self.number),
            to: path(1 - self.number),
            sender: Pair { incarnation: Incarnation(u128::from(self.number) + 1), lifecycle: lane },
            echo: None,
            body: mine,
            refusal: None,
        };
        self.other.tell(message.encode().trim_end());
        let theirs = Message::decode(&self.other.hear()).unwrap().body;
        let mine = message.body;
        let dials = announcement(&mine).pair < announcement(&theirs).pair;
        Met { mine, theirs, dials }
    }

    /// The same; both hosts know the other's announcement then.
    fn announce(&mut self, lane: Lifecycle) -> Met {
        let met = self.exchange(lane, 1);
        self.site.nic.note_request(None, &met.theirs);
        self.other.both("announced");
        met
    }

    fn connect(&mut self, lane: Lifecycle, queue_pairs: usize) {
        let met = self.exchange(lane, queue_pairs);
        self.connects(lane, &met);
    }

    /// Connects, and waits for the `ready` of the other host: on iWARP the side that has dialled sends the first frame.
    fn connects(&mut self, lane: Lifecycle, met: &Met) {
        if let Err(error) = self.site.nic.connect(lane, &met.theirs) {
            panic!(
                "lane {} of the side that {}: {error}",
                lane.0,
                if met.dials { "dials" } else { "waits" }
            );
        }
        self.other.both("ready");
    }

    /// Retires a lane once both hosts have done with it.
    fn end(&mut self, lane: Lifecycle) {
        self.other.both("end");
        self.site.nic.retire(lane).unwrap();
    }

    /// A write into the start of the other's memory.
    fn slice(&self, number: u64, length: usize) -> Posting {
        self.site.posting_to(self.remote, number, Direction::Write, 0, length)
    }

    /// Moves the whole memory in so many slices.
    fn moves(&self, direction: Direction, count: usize) {
        self.site.told.forget();
        self.site.post_all_to(self.remote, direction, count);
        let ends = self.site.told.ends(count);
        assert!(ends.iter().all(|end| *end == CompletionStatus::Done), "{ends:?}");
    }

    /// Both hosts connect and write over a lane.
    fn another_lane_works(&mut self, lane: Lifecycle) {
        self.connect(lane, 1);
        self.site.told.forget();
        self.site.nic.post(lane, &mut vec![self.slice(0, 4096)]);
        assert_eq!(self.site.told.ends(1), [CompletionStatus::Done]);
        self.end(lane);
    }

    fn is_refused(&self, lane: Lifecycle, told: &Body, reason: &str) {
        let error: VerbsError = self.site.nic.connect(lane, told).unwrap_err();
        assert_eq!((error.side, error.call), (Side::Peer, "rdma_connect"), "{error}");
        assert!(error.detail.contains(reason), "{error}");
    }

    /// Writes over a lane until a write is not carried out, or the lane fails. The last write may end only when the lane
    /// is retired.
    fn fails(&self, lane: Lifecycle) {
        let (begun, told) = (Instant::now(), &self.site.told);
        for number in 1.. {
            assert!(begun.elapsed() < PATIENCE, "nothing fails");
            self.site.nic.post(lane, &mut vec![self.slice(number, 4096)]);
            let has_ended = |told: &Told| told.ends.contains_key(&number);
            told.wait("the end of a write", |it| has_ended(it) || !it.failures.is_empty());
            if !told.failures().is_empty() || told.end(number) != CompletionStatus::Done {
                return;
            }
        }
    }

    /// Removes the device under its lane. Both are here again at the end.
    fn loses_its_device(self) -> Self {
        let Self { number, mut other, site: lost, .. } = self;
        // The removal of a machine's only device waits for the end of the process.
        let spare = Wire::new(23);
        let begun = Instant::now();
        let device = lost.nic.device().to_owned();
        let mut removal = Command::new("rdma").args(["link", "delete", &device]).spawn().unwrap();
        let until = |what: &str, is_so: &mut dyn FnMut() -> bool| {
            while !is_so() {
                assert!(begun.elapsed() < PATIENCE, "{what}");
                sleep(LOOK_AGAIN);
            }
        };
        until("the device is not lost", &mut || lost.nic.lost().is_some());
        lost.nic.retire(LANE).unwrap();
        // With the memory, whose registration holds the device.
        drop(lost);
        until("the kernel waits with the removal", &mut || removal.try_wait().unwrap().is_some());
        println!("{}: removed within {} ms", driver(), begun.elapsed().as_millis());
        other.both("lost");
        run(&format!("rdma link add {device} type {} netdev {INTERFACE}", driver()));
        // They end with the process, which has them open.
        for side in 0..2 {
            drop(spare.removal(side));
        }
        Self { number, other, site: site(|_| ()), remote: RemoteSpan { key: 0, address: 0 } }
    }
}

/// The guest's only NIC. No slow machine ends its dials, and a lost packet costs soft-RoCE no lane.
fn site(change: impl FnOnce(&mut NicConfig)) -> Site {
    let config = managed("rxe0");
    let mut config = NicConfig { dial: PATIENCE / 2, timeout_exponent: TIMEOUT, ..config };
    change(&mut config);
    Site::new(config)
}

/// While it exists, the packets of connections that arrive at this host's port are dropped.
struct Deaf;

impl Deaf {
    fn new(port: u16) -> Self {
        let (protocol, port) = match &*driver() {
            "siw" => ("tcp", port),
            _ => ("udp", ROCE_PORT),
        };
        // Before what is the host's own is taken in.
        run("ip rule add pref 100 lookup local");
        run("ip rule del pref 0");
        run(&format!("ip rule add pref 1 ipproto {protocol} dport {port} blackhole"));
        Self
    }
}

impl Drop for Deaf {
    fn drop(&mut self) {
        run("ip rule del pref 1");
        run("ip rule add pref 0 lookup local");
        run("ip rule del pref 100");
    }
}
