use super::*;
use handfast_core::NodeName;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn peer(number: u64) -> NicPath {
    let name = |text: &str| NodeName::new(text).unwrap();
    NicPath { node: name(&format!("peer-{number}")), nic: name("tcp") }
}

fn at(milliseconds: u64) -> Instant {
    Instant(0) + Duration::from_millis(milliseconds)
}

/// What a driver knows, and a sieve that it asks.
#[derive(Default)]
struct World {
    sieve: Sieve,
    now: u64,
    lanes: BTreeMap<Lifecycle, (u64, Usage)>,
    next: u64,
}

impl World {
    fn up(&mut self, number: u64) -> Lifecycle {
        self.next += 1;
        let lane = Lifecycle(self.next);
        let usage = Usage { busy: false, uses: 0, last: at(self.now) };
        self.lanes.insert(lane, (number, usage));
        self.sieve.on_up(at(self.now), lane, &peer(number), 0);
        lane
    }

    fn pass(&mut self, milliseconds: u64) {
        self.now += milliseconds;
    }

    /// By the peer: that it was is seen, and not when.
    fn used(&mut self, lane: Lifecycle) {
        self.lanes.get_mut(&lane).unwrap().1.uses += 1;
    }

    fn busy(&mut self, lane: Lifecycle, busy: bool) {
        let usage = &mut self.lanes.get_mut(&lane).unwrap().1;
        (usage.busy, usage.last) = (busy, at(self.now));
    }

    fn choose(&mut self) -> Choice {
        let lanes = &self.lanes;
        let chosen =
            self.sieve.choose(at(self.now), |lane| lanes.get(&lane).map(|(_, usage)| *usage));
        if let Choice::Evict(lane, _) = chosen {
            self.lanes.remove(&lane);
        }
        chosen
    }

    /// As who asks again when told to; `None` where nobody can make way.
    fn evict(&mut self) -> Option<Lifecycle> {
        // It comes up, everybody was used, and they are again.
        for _ in 0..3 {
            match self.choose() {
                Choice::Evict(lane, _) => return Some(lane),
                Choice::Nobody => return None,
                Choice::Wait(until) => {
                    assert!(until > at(self.now), "waiting brings something");
                    self.now = until.0.div_ceil(1_000_000);
                }
            }
        }
        panic!("whoever waits is told in the end")
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
fn where_all_were_used_those_that_are_used_now_stay() {
    let mut world = World::default();
    let [one, two] = [1, 2].map(|number| world.up(number));
    world.pass(300);
    world.used(one);
    world.used(two);
    assert_eq!(world.choose(), Choice::Wait(at(350)));
    world.pass(20);
    assert_eq!(world.choose(), Choice::Wait(at(350)), "they are given their time");
    world.used(one);
    world.pass(30);
    assert_eq!(world.choose(), Choice::Evict(two, peer(2)), "it has shown nothing since");
    world.used(one);
    assert_eq!(world.choose(), Choice::Wait(at(400)), "the other has");
    world.used(one);
    world.pass(50);
    assert_eq!(world.choose(), Choice::Evict(one, peer(1)), "somebody has to");
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
    assert_eq!(world.choose(), Choice::Wait(at(300)));
    world.used(one);
    world.pass(50);
    assert_eq!(world.choose(), Choice::Evict(two, peer(2)));
}

/// A busy lane stays, and a recently used one stays for its hold time.
#[test]
fn busy_and_recent_lanes_stay() {
    let mut world = World::default();
    let [one, two] = [1, 2].map(|number| world.up(number));
    assert_eq!(world.choose(), Choice::Wait(at(250)), "both have just come up");
    world.busy(one, true);
    world.pass(250);
    assert_eq!(world.choose(), Choice::Evict(two, peer(2)));
    assert_eq!(world.choose(), Choice::Nobody);
    world.busy(one, false);
    assert_eq!(world.choose(), Choice::Wait(at(500)));
    world.pass(250);
    assert_eq!(world.choose(), Choice::Evict(one, peer(1)));
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
fn so_many_peers_are_remembered_and_the_oldest_is_forgotten() {
    let mut world = World::default();
    for number in 0..=EVICTED_MAX as u64 {
        world.up(number);
    }
    world.pass(250);
    while world.evict().is_some() {}
    assert_eq!(world.sieve.evicted.len(), EVICTED_MAX);
    let hold = |world: &mut World, number| {
        world.up(number);
        world.sieve.lanes.last().unwrap().hold
    };
    assert_eq!(hold(&mut world, 0), HOLD_MIN);
    assert_eq!(hold(&mut world, 1), HOLD_MIN.doubled(1));
}

proptest! {
    /// Whatever happens, who makes way may, once, and is not one that is used all the time while
    /// another is not; and nobody waits without end.
    #[test]
    fn who_makes_way_has_no_work_and_had_its_time(
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
                    world.sieve.on_down(lane);
                }
                _ => {
                    world.pass(milliseconds);
                    asked(&mut world);
                }
            }
            prop_assert_eq!(world.sieve.lanes.len(), world.lanes.len());
            prop_assert!(world.sieve.hand <= world.lanes.len());
        }
    }
}

fn asked(world: &mut World) {
    let held: BTreeMap<Lifecycle, (Instant, u64)> =
        world.sieve.lanes.iter().map(|held| (held.lane, (held.up, held.uses))).collect();
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
            assert!(!unused || usage.uses == held[&lane].1, "an unused one goes first");
        }
    }
}
