//! Queue pairs that are created in advance, on scripted devices.

use super::{EIO, EVERY, on, until};
use crate::support::{LANE, PATIENCE, config, pattern};
use crate::transport::Node;
use handfast_core::wire::Body;
use handfast_core::{Incarnation, Lifecycle, NicPath, Pair};
use handfast_fabric_control::Fabric;
use handfast_transport::{CompletionStatus, Endpoints, NicLimit};
use handfast_transport_rdma::{
    COMPLETION_QUEUES_MAX, DeviceEvent, LANE_QUEUE_PAIRS_DEFAULT, Nic, NicConfig, NicCounters,
    NicLoad, POOLED_LANES_DEFAULT,
};
use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

const ENOMEM: i32 = 12;
const NEXT: Lifecycle = Lifecycle(8);
/// Profiles that give a number again late: others, such as siw and iwarp, give the lowest free one.
const FRESH: [&str; 4] = ["rxe", "mlx5", "erdma-compat", "erdma-standard"];
/// Queue pairs of a full pool.
const POOLED: usize = POOLED_LANES_DEFAULT * LANE_QUEUE_PAIRS_DEFAULT;

/// The devices of this process.
static FABRIC: LazyLock<Fabric> = LazyLock::new(|| Fabric::find().unwrap());

/// Runs a story of the pool on devices of these profiles.
fn story<Ends: Future<Output = ()>>(
    profiles: &[&str],
    name: &str,
    story: impl Fn(&'static Fabric) -> Ends,
) {
    on(profiles, &format!("pool::{name}"), |_| {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        runtime.block_on(story(&FABRIC));
    });
}

impl Node {
    fn nic(&self) -> Arc<Nic> {
        self.transport.nics().remove(0).unwrap()
    }

    fn load(&self) -> NicLoad {
        self.nic().load()
    }

    fn counters(&self) -> NicCounters {
        self.nic().counters()
    }

    async fn make(&self, lane: Lifecycle) -> Body {
        self.try_create(lane, "peer@tcp").await.unwrap()
    }

    /// Waits until the pool has queue pairs of so many lanes.
    fn wait_for_pool(&self, lanes: usize) {
        let deadline = Instant::now() + PATIENCE;
        while self.load().pooled_lanes != lanes {
            assert!(Instant::now() < deadline, "{:?}, not {lanes}", self.load());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Two nodes with full pools.
fn nodes() -> (Node, Node) {
    let nodes = (Node::new(config("rxe0")), Node::new(config("rxe1")));
    nodes.0.wait_for_pool(POOLED_LANES_DEFAULT);
    nodes.1.wait_for_pool(POOLED_LANES_DEFAULT);
    nodes
}

/// Connects a lane and moves the memory over it.
async fn transfer((one, other): &(Node, Node), lane: Lifecycle, seed: u8) {
    let (mine, theirs) = (one.make(lane).await, other.make(lane).await);
    let pair = |incarnation| Pair { incarnation: Incarnation(incarnation), lifecycle: lane };
    // The connection manager accepts a request whose announcement is known.
    let peer = NicPath::parse("peer@tcp").unwrap();
    other.transport.note_request(&peer, &mine);
    one.transport.note_request(&peer, &theirs);
    other.transport.connect(pair(2), pair(1), mine).await.unwrap();
    one.transport.connect(pair(1), pair(2), theirs).await.unwrap();
    one.told.forget();
    one.memory.copy_in(0, &pattern(seed)).unwrap();
    one.write_over(lane, other);
    assert_eq!(one.told.ends(1), [CompletionStatus::Done]);
    let mut bytes = pattern(seed ^ 1);
    other.memory.copy_out(0, &mut bytes).unwrap();
    assert!(bytes == pattern(seed));
}

/// The numbers of the queue pairs that a device has.
fn numbers(fabric: &Fabric, device: &str) -> BTreeSet<u32> {
    let text = fabric.run(&format!("pairs {device}"));
    text.lines().map(|line| line.split(' ').next().unwrap().parse().unwrap()).collect()
}

/// A first transfer to a second peer works while no queue pair can be created, and modifies each of
/// its queue pairs twice. Its end leaves nothing on the device.
#[test]
fn first_transfer_creates_no_queue_pair() {
    story(&EVERY, "first_transfer_creates_no_queue_pair", async |fabric| {
        let nodes = nodes();
        transfer(&nodes, LANE, 1).await;
        nodes.0.wait_for_pool(POOLED_LANES_DEFAULT);
        nodes.1.wait_for_pool(POOLED_LANES_DEFAULT);
        for device in ["rxe0", "rxe1"] {
            fabric.run(&format!("fail call {device} ibv_create_qp {ENOMEM}"));
            fabric.run(&format!("fail call {device} ibv_create_cq {ENOMEM}"));
        }
        let modified = || {
            let of = |device| fabric.run(&format!("count {device} ibv_modify_qp"));
            ["rxe0", "rxe1"].map(|device| of(device).parse::<usize>().unwrap())
        };
        let before = modified();
        transfer(&nodes, NEXT, 2).await;
        // The connection manager modifies those that it connects.
        let own = if nodes.0.nic().uses_connection_manager() { 0 } else { 2 };
        let pairs = LANE_QUEUE_PAIRS_DEFAULT;
        assert_eq!(modified(), before.map(|count| count + own * pairs));
        assert_eq!(nodes.0.counters().lanes_pooled, 2);
        fabric.run("pass");
        drop(nodes);
        for device in ["rxe0", "rxe1"] {
            assert_eq!(fabric.run(&format!("pairs {device}")), "");
            assert_eq!(fabric.run(&format!("queues {device}")), "0");
        }
    });
}

/// No number is announced twice on a device with fresh ones: what a lane had does not return to the
/// pool.
#[test]
fn no_queue_pair_is_used_twice() {
    story(&FRESH, "no_queue_pair_is_used_twice", async |fabric| {
        let nodes = nodes();
        let mut seen = BTreeSet::new();
        let lanes = 3 * POOLED_LANES_DEFAULT;
        for lane in (0..lanes as u64).map(Lifecycle) {
            let announced = nodes.0.make(lane).await.queue_pairs;
            nodes.0.transport.retire(lane).await.unwrap();
            seen.extend(announced);
        }
        assert_eq!(seen.len(), lanes * LANE_QUEUE_PAIRS_DEFAULT);
        nodes.0.wait_for_pool(POOLED_LANES_DEFAULT);
        assert!(numbers(fabric, "rxe0").is_disjoint(&seen));
        assert!(nodes.0.counters().lanes_pooled > 0);
    });
}

/// An iWARP port that goes down takes the pool along; queue pairs of other devices keep their state.
#[test]
fn pool_of_an_iwarp_port_ends_with_it() {
    let profiles = ["siw", "erdma-standard", "mlx5"];
    story(&profiles, "pool_of_an_iwarp_port_ends_with_it", async |fabric| {
        let one = Node::new(config("rxe0"));
        one.wait_for_pool(POOLED_LANES_DEFAULT);
        let before = numbers(fabric, "rxe0");
        fabric.run("port rxe0 down");
        let down = DeviceEvent::PortDown { port: 1 };
        one.told.wait("the end of the port", |told| told.events.contains(&down));
        fabric.run("port rxe0 up");
        let is_kept = one.nic().recognised().profile.name == "mlx5";
        assert_eq!(one.load().pooled_lanes, if is_kept { POOLED_LANES_DEFAULT } else { 0 });
        let made: BTreeSet<u32> = one.make(LANE).await.queue_pairs.into_iter().collect();
        assert_eq!(made.is_subset(&before), is_kept);
        one.wait_for_pool(POOLED_LANES_DEFAULT);
        let destroyed = fabric.run("count rxe0 ibv_destroy_qp");
        assert_eq!(destroyed, if is_kept { 0 } else { POOLED }.to_string());
        assert_eq!(numbers(fabric, "rxe0").len(), POOLED + made.len());
    });
}

/// The numbers after a skip are none of those that the pool had.
#[test]
fn skipped_numbers_leave_the_pool() {
    story(&["rxe"], "skipped_numbers_leave_the_pool", async |fabric| {
        let one = Node::new(config("rxe0"));
        one.wait_for_pool(POOLED_LANES_DEFAULT);
        let before = numbers(fabric, "rxe0");
        assert_eq!(before.len(), POOLED);
        let peer = NicPath::parse("peer@tcp").unwrap();
        one.transport.skip_numbers(&peer, 1).await.unwrap();
        let last = *before.last().unwrap();
        assert!(one.make(LANE).await.queue_pairs.iter().all(|number| *number > last + 1));
    });
}

/// A device that refuses the pool is asked again at the next step, and lanes are created without
/// it.
#[test]
fn refused_refill_is_tried_again() {
    story(&EVERY, "refused_refill_is_tried_again", async |fabric| {
        fabric.run(&format!("fail call rxe0 ibv_create_qp {ENOMEM} after 3 times 1"));
        let one = Node::new(config("rxe0"));
        until_true(|| one.counters().pool_failures == 1);
        // The second queue pair of the second lane was refused, and the first of them is gone.
        assert_eq!((one.load().pooled_lanes, numbers(fabric, "rxe0").len()), (1, 2));
        one.make(LANE).await;
        one.wait_for_pool(POOLED_LANES_DEFAULT);
        fabric.run(&format!("fail call rxe0 ibv_modify_qp(INIT) {ENOMEM} times 1"));
        one.make(NEXT).await;
        until_true(|| one.counters().pool_failures == 2);
        one.transport.retire(NEXT).await.unwrap();
        one.wait_for_pool(POOLED_LANES_DEFAULT);
        assert_eq!(one.counters().lanes_pooled, 2);
    });
}

/// The pool gives its queue pairs back before a lane is refused: at the limit of queue pairs, of
/// completions, and where the device is exhausted.
#[test]
fn pool_gives_way_to_lanes() {
    // The completion queues of soft-iWARP are never that short.
    story(&["strict", "erdma-standard", "iwarp"], "pool_gives_way_to_lanes", async |fabric| {
        let one = Node::new(NicConfig { queue_pairs_max: 7, ..config("rxe0") });
        one.wait_for_pool(3);
        one.nic().create(LANE, &[1, 2, 3]).unwrap();
        let load = one.load();
        assert_eq!((load.queue_pairs, load.queue_pairs_pooled, load.pooled_lanes), (3, 4, 2));
        one.make(NEXT).await;
        one.make(Lifecycle(9)).await;
        let refused = one.try_create(Lifecycle(10), "peer@tcp").await.unwrap_err();
        let limit = refused.limit.unwrap();
        assert_eq!((limit.limit, limit.in_use, limit.max), (NicLimit::QueuePairs, 7, 7));
        assert_eq!((one.load().queue_pairs, one.load().pooled_lanes), (7, 0));
        drop(one);

        let one = Node::new(config("rxe0"));
        one.wait_for_pool(POOLED_LANES_DEFAULT);
        fabric.run(&format!("fail call rxe0 ibv_create_qp {ENOMEM} times 1"));
        one.nic().create(LANE, &[1]).unwrap();
        assert_eq!(one.load().pooled_lanes, POOLED_LANES_DEFAULT - 1);
        assert_eq!(one.load().queue_pairs_pooled as usize, POOLED - LANE_QUEUE_PAIRS_DEFAULT);
        drop(one);

        // Each lane of the pool fills a completion queue, and so do two lanes of one queue pair.
        let entries = LANE_QUEUE_PAIRS_DEFAULT as u32 * config("rxe0").depth;
        let one = Node::new(NicConfig { completion_entries: entries, ..config("rxe0") });
        one.wait_for_pool(POOLED_LANES_DEFAULT);
        let left = (COMPLETION_QUEUES_MAX - POOLED_LANES_DEFAULT) * LANE_QUEUE_PAIRS_DEFAULT;
        for lane in (0..left as u64).map(Lifecycle) {
            one.nic().create(lane, &[1]).unwrap();
        }
        assert_eq!(one.load().pooled_lanes, POOLED_LANES_DEFAULT);
        one.nic().create(Lifecycle(left as u64), &[1]).unwrap();
        assert_eq!(one.load().pooled_lanes, POOLED_LANES_DEFAULT - 1);
        drop(one);
        assert_eq!(fabric.run("pairs rxe0"), "");
    });
}

/// A limit of lanes holds for the pool too, and its lanes are not more than those that may come.
#[test]
fn pool_keeps_to_the_limit_of_lanes() {
    story(&EVERY, "pool_keeps_to_the_limit_of_lanes", async |fabric| {
        let one = Node::new(NicConfig { lanes_max: 2, ..config("rxe0") });
        one.wait_for_pool(2);
        one.make(LANE).await;
        one.make(NEXT).await;
        assert_eq!((one.load().pooled_lanes, numbers(fabric, "rxe0").len()), (0, 4));
        one.transport.retire(LANE).await.unwrap();
        one.wait_for_pool(1);
    });
}

/// Without a pool a queue pair is created for a lane alone.
#[test]
fn pool_of_size_zero_creates_nothing() {
    story(&EVERY, "pool_of_size_zero_creates_nothing", async |fabric| {
        let one = Node::new(NicConfig { pooled_lanes: 0, ..config("rxe0") });
        one.make(LANE).await;
        one.transport.retire(LANE).await.unwrap();
        one.make(NEXT).await;
        let created = fabric.run("count rxe0 ibv_create_qp");
        assert_eq!(created, (2 * LANE_QUEUE_PAIRS_DEFAULT).to_string());
        assert_eq!((one.counters().lanes_pooled, one.load().queue_pairs_pooled), (0, 0));
    });
}

/// The transport's end waits for the creation that is under way, and destroys its queue pair too.
#[test]
fn close_waits_for_a_refill() {
    story(&EVERY, "close_waits_for_a_refill", async |fabric| {
        fabric.run("hold call rxe0 ibv_create_qp after 3");
        let one = Node::new(config("rxe0"));
        until(fabric, "waiting rxe0 ibv_create_qp", "1");
        let ended = std::thread::spawn(move || drop(one));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!ended.is_finished(), "a call into the device is under way");
        fabric.run("release call rxe0 ibv_create_qp");
        ended.join().unwrap();
        assert_eq!(fabric.run("pairs rxe0"), "");
        assert_eq!(fabric.run("queues rxe0"), "0");
        let created = fabric.run("count rxe0 ibv_create_qp");
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(fabric.run("count rxe0 ibv_create_qp"), created, "the refill has ended");
    });
}

/// Queue pairs of the pool that the device does not destroy end with the device's close; they never
/// had memory.
#[test]
fn undestroyed_pool_does_not_hold_the_close() {
    story(&EVERY, "undestroyed_pool_does_not_hold_the_close", async |fabric| {
        let (one, other) = nodes();
        fabric.run(&format!("fail call rxe0 ibv_destroy_qp {EIO}"));
        drop((one, other));
        fabric.run("pass");
        assert_eq!(fabric.run("pairs rxe1"), "");
        let one = Node::new(config("rxe0"));
        one.make(LANE).await;
    });
}

/// A completion queue that failed takes the pool's queue pairs on it along: the next lane has
/// others.
#[test]
fn overrun_queue_spoils_the_pool() {
    story(&FRESH, "overrun_queue_spoils_the_pool", async |fabric| {
        let nodes = nodes();
        let spoiled = numbers(fabric, "rxe0");
        fabric.run("overrun rxe0");
        until_true(|| nodes.0.load().pooled_lanes == 0);
        transfer(&nodes, LANE, 1).await;
        nodes.0.wait_for_pool(POOLED_LANES_DEFAULT);
        assert!(numbers(fabric, "rxe0").is_disjoint(&spoiled));
        transfer(&nodes, NEXT, 2).await;
    });
}

/// A device that dies takes a full pool along; after its return the next has one again.
#[test]
fn device_dies_with_a_full_pool() {
    story(&EVERY, "device_dies_with_a_full_pool", async |fabric| {
        let nodes = nodes();
        transfer(&nodes, LANE, 1).await;
        nodes.0.wait_for_pool(POOLED_LANES_DEFAULT);
        fabric.run("die rxe0");
        nodes.0.told.wait("the loss", |told| told.events.contains(&DeviceEvent::DeviceLost));
        assert!(nodes.0.try_create(NEXT, "peer@tcp").await.is_err(), "a dead device takes no lane");
        nodes.0.transport.retire(LANE).await.unwrap();
        nodes.0.wait_for_pool(0);
        drop(nodes);
        fabric.run("revive rxe0");
        let nodes = self::nodes();
        transfer(&nodes, NEXT, 2).await;
    });
}

fn until_true(is_true: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_true() {
        assert!(Instant::now() < deadline, "it does not come");
        std::thread::sleep(Duration::from_millis(1));
    }
}
