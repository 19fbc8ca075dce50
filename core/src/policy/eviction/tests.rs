use super::*;
use crate::identity::NodeName;
use alloc::collections::BTreeMap;
use alloc::format;
use proptest::prelude::*;

fn peer(number: u64) -> NicPath {
    let name = |text: &str| NodeName::new(text).unwrap();
    NicPath { node: name(&format!("peer-{number}")), nic: name("tcp") }
}

fn at(milliseconds: u64) -> Instant {
    Instant(0) + Duration::from_millis(milliseconds)
}

/// The lanes as a driver knows them, and the machine.
#[derive(Default)]
struct World {
    eviction: LaneEviction,
    now: u64,
    lanes: BTreeMap<Lifecycle, (u64, LaneUsage)>,
    next: u64,
}

impl World {
    fn up(&mut self, number: u64) -> Lifecycle {
        self.next += 1;
        let lane = Lifecycle(self.next);
        let usage = LaneUsage { busy: false, uses: 0, last: at(self.now) };
        self.lanes.insert(lane, (number, usage));
        self.eviction.handle_lane_up(at(self.now), lane, &peer(number), 0);
        lane
    }

    fn pass(&mut self, milliseconds: u64) {
        self.now += milliseconds;
    }

    /// A use by the peer, of which the time is not known.
    fn used(&mut self, lane: Lifecycle) {
        self.lanes.get_mut(&lane).unwrap().1.uses += 1;
    }

    fn busy(&mut self, lane: Lifecycle, busy: bool) {
        let usage = &mut self.lanes.get_mut(&lane).unwrap().1;
        (usage.busy, usage.last) = (busy, at(self.now));
    }

    fn choose(&mut self) -> EvictionChoice {
        let lanes = &self.lanes;
        let chosen =
            self.eviction.choose(at(self.now), |lane| lanes.get(&lane).map(|(_, usage)| *usage));
        if let EvictionChoice::Evict(lane, _) = chosen {
            self.lanes.remove(&lane);
        }
        chosen
    }

    /// Chooses again whenever told to wait; `None` if every lane is busy.
    fn evict(&mut self) -> Option<Lifecycle> {
        // The lane is young, all were used, all are used again.
        for _ in 0..3 {
            match self.choose() {
                EvictionChoice::Evict(lane, _) => return Some(lane),
                EvictionChoice::Nobody => return None,
                EvictionChoice::Wait(until) => {
                    assert!(until > at(self.now), "the wait ends later than now");
                    self.now = until.0.div_ceil(1_000_000);
                }
            }
        }
        panic!("the wait ends")
    }
}

/// A lane without further use is evicted; lanes in use stay.
#[test]
fn unused_lane_is_evicted_first() {
    let mut world = World::default();
    let [one, two, three] = [1, 2, 3].map(|number| world.up(number));
    world.pass(300);
    world.used(one);
    world.used(three);
    assert_eq!(world.evict(), Some(two));
    // The hand stands behind it, and has not passed the youngest yet.
    assert_eq!(world.evict(), Some(one));
    assert_eq!(world.evict(), Some(three));
    assert_eq!(world.evict(), None);
}

#[test]
fn lanes_used_again_stay_when_all_were_used() {
    let mut world = World::default();
    let [one, two] = [1, 2].map(|number| world.up(number));
    world.pass(300);
    world.used(one);
    world.used(two);
    assert_eq!(world.choose(), EvictionChoice::Wait(at(350)));
    world.pass(20);
    assert_eq!(world.choose(), EvictionChoice::Wait(at(350)), "lanes have time to show use");
    world.used(one);
    world.pass(30);
    assert_eq!(world.choose(), EvictionChoice::Evict(two, peer(2)), "it has shown nothing since");
    world.used(one);
    assert_eq!(world.choose(), EvictionChoice::Wait(at(400)), "the other has");
    world.used(one);
    world.pass(50);
    assert_eq!(world.choose(), EvictionChoice::Evict(one, peer(1)), "one has to go");
}

/// If all lanes were used again, the next one behind the hand that is not busy has to go.
#[test]
fn hand_goes_on_where_it_stands() {
    let mut world = World::default();
    let [one, two, three, four] = [1, 2, 3, 4].map(|number| world.up(number));
    world.pass(300);
    [one, three, four].into_iter().for_each(|lane| world.used(lane));
    assert_eq!(world.choose(), EvictionChoice::Evict(two, peer(2)));
    world.busy(three, true);
    [one, four].into_iter().for_each(|lane| world.used(lane));
    assert_eq!(world.choose(), EvictionChoice::Wait(at(350)));
    world.pass(50);
    [one, four].into_iter().for_each(|lane| world.used(lane));
    assert_eq!(world.choose(), EvictionChoice::Evict(four, peer(4)));
}

/// A use before the hold time ends does not protect the lane later.
#[test]
fn early_use_does_not_protect_later() {
    let mut world = World::default();
    let one = world.up(1);
    world.pass(30);
    let two = world.up(2);
    world.used(one);
    world.used(two);
    world.pass(220);
    assert_eq!(world.choose(), EvictionChoice::Wait(at(300)));
    world.used(one);
    world.pass(50);
    assert_eq!(world.choose(), EvictionChoice::Evict(two, peer(2)));
}

/// A busy lane stays, and a recently used one stays for its hold time.
#[test]
fn busy_and_recent_lanes_stay() {
    let mut world = World::default();
    let [one, two] = [1, 2].map(|number| world.up(number));
    assert_eq!(world.choose(), EvictionChoice::Wait(at(250)), "both have just come up");
    world.busy(one, true);
    world.pass(250);
    assert_eq!(world.choose(), EvictionChoice::Evict(two, peer(2)));
    assert_eq!(world.choose(), EvictionChoice::Nobody);
    world.busy(one, false);
    assert_eq!(world.choose(), EvictionChoice::Wait(at(500)));
    world.pass(250);
    assert_eq!(world.choose(), EvictionChoice::Evict(one, peer(1)));
}

/// A returning peer holds its lane for longer each time, up to a second.
#[test]
fn returning_peer_gets_a_longer_hold() {
    let mut world = World::default();
    for hold in [250, 500, 1_000, 1_000] {
        let (lane, up) = (world.up(1), world.now);
        assert_eq!(world.evict(), Some(lane));
        assert_eq!(world.now - up, hold);
    }
    world.pass(4_001);
    let (lane, up) = (world.up(1), world.now);
    assert_eq!(world.evict(), Some(lane));
    assert_eq!(world.now - up, 250, "that was long ago");
}

#[test]
fn peers_past_the_bound_are_forgotten() {
    let mut world = World::default();
    for number in 0..=EVICTED_MAX as u64 {
        world.up(number);
    }
    world.pass(250);
    while world.evict().is_some() {}
    assert_eq!(world.eviction.evicted.len(), EVICTED_MAX);
    let hold = |world: &mut World, number| {
        world.up(number);
        world.eviction.lanes.last().unwrap().hold
    };
    assert_eq!(hold(&mut world, 0), HOLD_MIN);
    assert_eq!(hold(&mut world, 1), HOLD_MIN.doubled(1));
}

proptest! {
    /// The evicted lane is idle, past its hold time, and unused if any ripe lane is. Every wait ends.
    #[test]
    fn evicted_lane_is_idle_and_past_its_hold(
        moves in proptest::collection::vec((0u8..6, 0u64..8, 0u64..400), 1..200),
    ) {
        let mut world = World::default();
        for (kind, number, milliseconds) in moves {
            let lane = world.lanes.keys().nth(number as usize).copied();
            match (kind, lane) {
                (0 | 1, _) => drop(world.up(number)),
                (2, Some(lane)) => world.used(lane),
                (3, Some(lane)) => {
                    let busy = world.lanes[&lane].1.busy;
                    world.busy(lane, !busy);
                }
                (4, Some(lane)) => {
                    world.lanes.remove(&lane);
                    world.eviction.handle_lane_down(lane);
                }
                _ => {
                    world.pass(milliseconds);
                    check_eviction(&mut world);
                }
            }
            prop_assert_eq!(world.eviction.lanes.len(), world.lanes.len());
            prop_assert!(world.eviction.hand <= world.lanes.len());
        }
    }
}

fn check_eviction(world: &mut World) {
    let held: BTreeMap<Lifecycle, (Instant, u64)> =
        world.eviction.lanes.iter().map(|held| (held.lane, (held.up, held.uses))).collect();
    let before = world.lanes.clone();
    let ripe = |lane: &Lifecycle, now| {
        let usage = before[lane].1;
        !usage.busy && usage.last + HOLD_MIN <= now && held[lane].0 + HOLD_MAX <= now
    };
    let (asked_at, chosen) = (at(world.now), world.evict());
    match chosen {
        None => assert!(before.values().all(|(_, usage)| usage.busy)),
        Some(lane) => {
            let (_, usage) = before[&lane];
            assert!(!usage.busy && usage.last + HOLD_MIN <= at(world.now));
            assert!(held[&lane].0 + HOLD_MIN <= at(world.now));
            let unused = before.keys().any(|l| ripe(l, asked_at) && before[l].1.uses == held[l].1);
            assert!(!unused || usage.uses == held[&lane].1, "an unused lane goes first");
        }
    }
}
