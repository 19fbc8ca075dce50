//! The choices of a seed: nodes, load, clocks, and when which fault happens.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::fmt;

/// Faults of the network and of processes, each for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A process dies, and another takes its place.
    Crash(usize),
    /// A process closes its engine, and another takes its place.
    Restart(usize),
    /// No message passes.
    Partition(usize, usize),
    /// No message passes from the first to the second.
    Mute(usize, usize),
    /// Messages wait, and pass afterwards.
    Hold(usize, usize),
    /// Messages take up to this many milliseconds.
    Slow(usize, usize, u64),
    /// One message of twenty-five breaks the link until another passes.
    Lossy(usize, usize),
    /// The metadata store dies with its entries; an empty one takes its place.
    StoreLost,
    /// A node serves its memory under another key. No transfer may notice.
    Reregister(usize),
}

impl Fault {
    /// Whether transfers between two nodes are disturbed.
    pub(crate) fn disturbs(&self, pair: (usize, usize)) -> bool {
        match *self {
            Self::Crash(node) | Self::Restart(node) => pair.0 == node || pair.1 == node,
            Self::Partition(one, other)
            | Self::Mute(one, other)
            | Self::Hold(one, other)
            | Self::Slow(one, other, _)
            | Self::Lossy(one, other) => pair == (one, other) || pair == (other, one),
            Self::StoreLost | Self::Reregister(_) => false,
        }
    }

    /// Faults that meet in one place happen one after the other.
    fn meets(&self, other: &Self) -> bool {
        use Fault::{Crash, Hold, Lossy, Mute, Partition, Restart, Slow};
        use Fault::{Reregister, StoreLost};
        match (*self, *other) {
            (StoreLost, StoreLost) => true,
            (Reregister(one), Reregister(two)) => one == two,
            (Crash(one) | Restart(one), Crash(two) | Restart(two)) => one == two,
            (
                Partition(a, b) | Mute(a, b) | Hold(a, b) | Slow(a, b, _) | Lossy(a, b),
                Partition(..) | Mute(..) | Hold(..) | Slow(..) | Lossy(..),
            ) => other.disturbs((a, b)),
            _ => false,
        }
    }
}

/// A fault, with the milliseconds of its begin and end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Disturbance {
    pub(crate) fault: Fault,
    pub(crate) begins: u64,
    pub(crate) ends: u64,
}

/// The metadata store of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreKind {
    Http,
    Redis,
}

/// The clock of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Skew {
    pub(crate) offset_seconds: u64,
    pub(crate) rate_percent: u64,
}

/// A run.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) nodes: usize,
    /// Peers to which a node writes and from which it reads.
    pub(crate) peers: Vec<Vec<usize>>,
    pub(crate) skews: Vec<Skew>,
    pub(crate) latency_max_ms: u64,
    /// Longest pause between two transfers to a peer.
    pub(crate) pace_max_ms: u64,
    /// Milliseconds of load with faults.
    pub(crate) load_ms: u64,
    /// Nodes find each other by name, and listen on another port in each run.
    pub(crate) store: Option<StoreKind>,
    /// A Mooncake node is the last peer of each node.
    pub(crate) has_legacy: bool,
    /// Streams move small pieces and pause, and accepts fail.
    pub(crate) is_rough: bool,
    /// Ports, lanes and pending hellos are barely enough for the nodes.
    pub(crate) is_tight: bool,
    /// A stranger sends parts of messages to every node.
    pub(crate) has_stranger: bool,
    pub(crate) disturbances: Vec<Disturbance>,
}

/// Numbers of a seed.
pub(crate) struct Draw(ChaCha8Rng);

impl Draw {
    pub(crate) fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0.next_u64() % end
    }

    pub(crate) fn between(&mut self, first: u64, last: u64) -> u64 {
        first + self.below(last - first + 1)
    }

    fn two_of(&mut self, nodes: usize) -> (usize, usize) {
        let one = self.below(nodes as u64) as usize;
        let other = (one + 1 + self.below(nodes as u64 - 1) as usize) % nodes;
        (one, other)
    }
}

impl Plan {
    /// Every fifth seed restarts eight nodes one after the other, every fifth loses the metadata store,
    /// which is a Redis or speaks HTTP, every fifth has a Mooncake node, and every tenth meets no fault.
    pub(crate) fn of(seed: u64) -> Self {
        let mut draw = Draw::new(seed);
        let is_rolling = seed % 5 == 4;
        let nodes = if is_rolling { 8 } else { draw.between(2, 6) as usize };
        let store = match seed % 10 {
            3 => Some(StoreKind::Http),
            8 => Some(StoreKind::Redis),
            _ => None,
        };
        let has_legacy = seed % 5 == 2;
        let latency_max_ms = draw.between(2, 12);
        let mut peers: Vec<_> = (0..nodes).map(|node| peers_of(&mut draw, node, nodes)).collect();
        if has_legacy {
            peers.iter_mut().for_each(|peers| peers.push(nodes));
        }
        let skews = (0..nodes).map(|_| Skew {
            offset_seconds: draw.below(3_600),
            rate_percent: 90 + 10 * draw.below(3),
        });
        let skews = skews.collect();
        let mut plan = Self {
            seed,
            nodes,
            peers,
            skews,
            latency_max_ms,
            pace_max_ms: draw.between(20, 120),
            load_ms: if is_rolling { 6_500 } else { draw.between(3_000, 5_000) },
            store,
            has_legacy,
            is_rough: draw.below(2) == 0,
            is_tight: draw.below(2) == 0,
            has_stranger: draw.below(2) == 0,
            disturbances: Vec::new(),
        };
        if is_rolling {
            plan.restart_in_turn(&mut draw);
        } else if seed % 10 != 5 {
            plan.disturb(&mut draw);
        }
        plan
    }

    fn restart_in_turn(&mut self, draw: &mut Draw) {
        let is_orderly = draw.below(2) == 0;
        for node in 0..self.nodes {
            let begins = 400 + 700 * node as u64;
            let fault = if is_orderly { Fault::Restart(node) } else { Fault::Crash(node) };
            let ends = begins + draw.between(50, 500);
            self.disturbances.push(Disturbance { fault, begins, ends });
        }
    }

    fn disturb(&mut self, draw: &mut Draw) {
        if self.store.is_some() {
            let (begins, ends) = (draw.between(300, 900), draw.between(1_200, 2_500));
            self.disturbances.push(Disturbance { fault: Fault::StoreLost, begins, ends });
        }
        for _ in 0..draw.between(1, 6) {
            let (one, other) = draw.two_of(self.nodes + usize::from(self.has_legacy));
            let fault = match draw.below(9) {
                0 | 1 => Fault::Crash(one % self.nodes),
                2 => Fault::Restart(one % self.nodes),
                3 => Fault::Partition(one, other),
                4 => Fault::Mute(one, other),
                5 => Fault::Hold(one, other),
                6 => Fault::Slow(one, other, draw.between(50, 250)),
                7 => Fault::Lossy(one, other),
                _ => Fault::Reregister(one % self.nodes),
            };
            let begins = draw.between(200, self.load_ms - 1_500);
            let ends = begins + draw.between(1, 1_400);
            let is_free = |it: &Disturbance| {
                !it.fault.meets(&fault) || it.ends + 20 < begins || ends + 20 < it.begins
            };
            if self.disturbances.iter().all(is_free) {
                self.disturbances.push(Disturbance { fault, begins, ends });
            }
        }
    }
}

fn peers_of(draw: &mut Draw, node: usize, nodes: usize) -> Vec<usize> {
    let mut peers = vec![(node + 1) % nodes];
    let another = (node + 1 + draw.below(nodes as u64 - 1) as usize) % nodes;
    if !peers.contains(&another) {
        peers.push(another);
    }
    peers
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, nodes, peers, store, .. } = self;
        writeln!(f, "seed {seed}: {nodes} nodes, peers {peers:?}, store {store:?}")?;
        let Self { has_legacy, is_rough, is_tight, has_stranger, .. } = self;
        writeln!(
            f,
            "  legacy {has_legacy}, rough {is_rough}, tight {is_tight}, stranger {has_stranger}"
        )?;
        for Disturbance { fault, begins, ends } in &self.disturbances {
            writeln!(f, "  {begins:>6} to {ends:>6} ms: {fault:?}")?;
        }
        Ok(())
    }
}
