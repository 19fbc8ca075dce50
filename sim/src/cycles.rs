//! Cycles of worlds without further faults.

use crate::path_tree::{Trail, Ways, bytes, push};
use crate::seen::Compact;
use handfast_transport_sim::{Choice, Demand, Step, World};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The worlds of an exploration, by number, and the events without a fault between them.
#[derive(Default)]
pub(crate) struct FreeGraph {
    /// Index in `to` of each world's first successor.
    first: Vec<u32>,
    to: Vec<u32>,
}

impl FreeGraph {
    /// The next world's successors follow.
    pub(crate) fn begin(&mut self) {
        push(&mut self.first, u32::try_from(self.to.len()).unwrap_or(u32::MAX));
    }

    pub(crate) fn lead_to(&mut self, world: u32) {
        push(&mut self.to, world);
    }

    /// The successors of every world whose events were tried.
    pub(crate) fn all(&self) -> impl ExactSizeIterator<Item = &[u32]> {
        (0..self.first.len()).map(|world| self.successors(world))
    }

    /// Bytes that it holds.
    pub(crate) fn bytes(&self) -> usize {
        bytes(&self.first) + bytes(&self.to)
    }

    fn successors(&self, world: usize) -> &[u32] {
        let Some(first) = self.first.get(world) else { return &[] };
        let end = self.first.get(world + 1).map_or(self.to.len(), |end| *end as usize);
        &self.to[*first as usize..end]
    }

    /// Events of the longest schedule without a fault, or the worlds from which one does not end.
    /// Of `worlds`, those past a bound that was reached have no successors.
    pub(crate) fn longest(&self, worlds: usize) -> Result<u32, BTreeSet<u32>> {
        let count = |world| u32::try_from(self.successors(world).len()).unwrap_or(u32::MAX);
        let mut pending: Vec<u32> = (0..worlds).map(count).collect();
        let (from, before) = self.reversed(worlds);
        let mut longest = vec![0u16; worlds];
        let mut done: Vec<usize> = (0..worlds).filter(|world| pending[*world] == 0).collect();
        let (mut ended, mut most) = (0, 0);
        while let Some(world) = done.pop() {
            ended += 1;
            most = most.max(longest[world]);
            for parent in &from[before[world]..before[world + 1]] {
                let parent = *parent as usize;
                longest[parent] = longest[parent].max(longest[world].saturating_add(1));
                pending[parent] -= 1;
                if pending[parent] == 0 {
                    done.push(parent);
                }
            }
        }
        if ended == worlds {
            return Ok(u32::from(most));
        }
        let endless = (0..worlds).filter(|world| pending[*world] > 0);
        Err(endless.filter_map(|world| u32::try_from(world).ok()).collect())
    }

    /// The predecessors of all worlds, and where those of each begin.
    fn reversed(&self, worlds: usize) -> (Vec<u32>, Vec<usize>) {
        let mut before = vec![0usize; worlds + 1];
        self.to.iter().for_each(|to| before[*to as usize + 1] += 1);
        (1..before.len()).for_each(|world| before[world] += before[world - 1]);
        let mut free = before.clone();
        let mut from = vec![0u32; self.to.len()];
        for world in 0..self.first.len() {
            for to in self.successors(world) {
                from[free[*to as usize]] = u32::try_from(world).unwrap_or(u32::MAX);
                free[*to as usize] += 1;
            }
        }
        (from, before)
    }
}

/// A closed walk: where it begins, and its events.
pub(crate) struct Circle {
    pub(crate) start: u32,
    pub(crate) events: Vec<Choice>,
    /// Every class of event that is possible in a world it can be joined with happens on it, and in
    /// none of them is every demand met.
    pub(crate) fair: bool,
}

/// Successor and class of an event.
type Edge = (u32, String);

/// Worlds that reach each other, with the events between them.
struct Cycle {
    edges: BTreeMap<u32, Vec<Edge>>,
    possible: BTreeSet<String>,
    met: bool,
}

/// Successors of the worlds in a part of the graph.
type Leads = BTreeMap<u32, Vec<u32>>;

/// Worlds that some way of at least one event leads to.
fn reach(start: u32, leads: &Leads, within: &BTreeSet<u32>) -> BTreeSet<u32> {
    let mut reached = BTreeSet::new();
    let mut left = vec![start];
    while let Some(world) = left.pop() {
        for to in leads.get(&world).into_iter().flatten() {
            if within.contains(to) && reached.insert(*to) {
                left.push(*to);
            }
        }
    }
    reached
}

/// A circle among worlds from which some schedule does not end: a fair one if there is one.
pub(crate) fn circle(endless: &BTreeSet<u32>, path_tree: &Ways, seen: &Compact) -> Option<Circle> {
    let mut left = endless.clone();
    let mut unfair = None;
    let all = Cycle::of(endless, path_tree, seen).leads();
    let mut back: Leads = BTreeMap::new();
    for (from, to) in &all {
        to.iter().for_each(|to| back.entry(*to).or_default().push(*from));
    }
    while let Some(start) = left.first().copied() {
        let (after, before) = (reach(start, &all, &left), reach(start, &back, &left));
        let mut members: BTreeSet<u32> = after.intersection(&before).copied().collect();
        members.insert(start);
        left.retain(|world| !members.contains(world));
        let cycle = Cycle::of(&members, path_tree, seen);
        if cycle.edges.values().all(Vec::is_empty) {
            continue;
        }
        let (steps, fair) = cycle.walk(start);
        let Some(events) = play(start, &steps, path_tree) else { continue };
        let circle = Circle { start, events, fair };
        if circle.fair {
            return Some(circle);
        }
        unfair.get_or_insert(circle);
    }
    unfair
}

impl Cycle {
    fn of(members: &BTreeSet<u32>, path_tree: &Ways, seen: &Compact) -> Self {
        let mut cycle = Self { edges: BTreeMap::new(), possible: BTreeSet::new(), met: false };
        let mut choices = Vec::new();
        let mut trail = Trail::default();
        for member in members {
            let world = path_tree.world(*member, &mut trail);
            cycle.met |= demands_met(&world);
            world.free_actions(&mut choices);
            let edges = cycle.edges.entry(*member).or_default();
            for choice in &choices {
                let class = class(&world, choice);
                let mut after = world.clone();
                after.apply(choice, &mut Step::default());
                let to = seen.get(after.fingerprint()).filter(|to| members.contains(to));
                if let Some(to) = to {
                    edges.push((to, class.clone()));
                }
                cycle.possible.insert(class);
            }
        }
        cycle
    }

    fn leads(&self) -> Leads {
        let to = |edges: &Vec<Edge>| edges.iter().map(|(to, ..)| *to).collect();
        self.edges.iter().map(|(from, edges)| (*from, to(edges))).collect()
    }

    /// From `start` over one event of every class that stays inside, and back; whether that is fair.
    fn walk(&self, start: u32) -> (Vec<&Edge>, bool) {
        let inside: BTreeSet<&String> =
            self.edges.values().flatten().map(|(_, class)| class).collect();
        let mut steps: Vec<&Edge> = Vec::new();
        let mut at = start;
        for class in &inside {
            if !steps.iter().any(|(_, of)| of == *class) {
                at = self.go(at, &mut steps, |edge| edge.1 == **class);
            }
        }
        if at != start {
            self.go(at, &mut steps, |edge| edge.0 == start);
        }
        (steps, inside.len() == self.possible.len() && !self.met)
    }

    /// Walks the shortest way whose last event is wanted; returns where it ends.
    fn go<'a>(
        &'a self,
        from: u32,
        steps: &mut Vec<&'a Edge>,
        wanted: impl Fn(&Edge) -> bool,
    ) -> u32 {
        let mut came: BTreeMap<u32, (u32, &Edge)> = BTreeMap::new();
        let mut left = VecDeque::from([from]);
        while let Some(at) = left.pop_front() {
            for edge in &self.edges[&at] {
                if wanted(edge) {
                    let mut way = vec![edge];
                    let mut back = at;
                    while back != from {
                        way.push(came[&back].1);
                        back = came[&back].0;
                    }
                    steps.extend(way.into_iter().rev());
                    return edge.0;
                }
                if edge.0 != from && !came.contains_key(&edge.0) {
                    came.insert(edge.0, (at, edge));
                    left.push_back(edge.0);
                }
            }
        }
        from
    }
}

/// The events of a walk. Each world on it equals the one found first only up to lifecycle numbers,
/// so every event is matched by its class and successor.
fn play(start: u32, steps: &[&Edge], path_tree: &Ways) -> Option<Vec<Choice>> {
    let again = |number: u32| path_tree.world(number, &mut Trail::default());
    let mut world = again(start);
    let mut choices = Vec::new();
    let mut events = Vec::new();
    for (to, of) in steps {
        let wanted = again(*to).fingerprint();
        world.free_actions(&mut choices);
        let (choice, after) = choices.iter().find_map(|choice| {
            let mut after = world.clone();
            after.apply(choice, &mut Step::default());
            let found = class(&world, choice) == *of && after.fingerprint() == wanted;
            found.then(|| (choice.clone(), after))
        })?;
        events.push(choice);
        world = after;
    }
    Some(events)
}

/// Class of an event, independent of lifecycle and incarnation numbers: site, kind, message.
fn class(world: &World, choice: &Choice) -> String {
    let words = world.describe(&choice.action);
    words.chars().filter(|letter| !letter.is_ascii_digit() && *letter != '\'').collect()
}

fn demands_met(world: &World) -> bool {
    let sides =
        (0..world.sites()).flat_map(|site| (0..world.sites()).map(move |peer| (site, peer)));
    sides
        .filter(|(site, peer)| world.demand(*site, *peer) == Demand::Wanted)
        .all(|(site, peer)| world.connected(site, peer))
}
