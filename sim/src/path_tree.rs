//! Worlds by the way that leads to them: a parent and a choice each, from which a world is made
//! again when it is wanted.

use handfast_transport_sim::{Choice, Step, World};

/// The events that lead to worlds, each after another world. World 0 is the start.
pub(crate) struct Steps<E> {
    parents: Vec<u32>,
    events: Vec<E>,
}

impl<E> Default for Steps<E> {
    fn default() -> Self {
        Self { parents: Vec::new(), events: Vec::new() }
    }
}

/// Appends to a list that grows by an eighth, since worlds are many.
pub(crate) fn push<T>(list: &mut Vec<T>, item: T) {
    if list.len() == list.capacity() {
        list.reserve_exact(list.len() / 8 + 1024);
    }
    list.push(item);
}

/// Bytes that a list holds.
pub(crate) fn bytes<T>(list: &Vec<T>) -> usize {
    list.capacity() * size_of::<T>()
}

impl<E: Clone> Steps<E> {
    /// Numbers given so far; the next world gets this one.
    pub(crate) fn len(&self) -> u32 {
        u32::try_from(self.parents.len() + 1).unwrap_or(u32::MAX)
    }

    /// Adds a world and returns its number.
    pub(crate) fn add(&mut self, parent: u32, event: &E) -> u32 {
        push(&mut self.parents, parent);
        push(&mut self.events, event.clone());
        self.len() - 1
    }

    fn step(&self, world: u32) -> Option<(u32, &E)> {
        let at = (world as usize).checked_sub(1)?;
        Some((*self.parents.get(at)?, self.events.get(at)?))
    }

    /// The parent of each world but the start, and the event after it.
    pub(crate) fn all(&self) -> impl ExactSizeIterator<Item = (u32, &E)> {
        self.parents.iter().copied().zip(&self.events)
    }

    /// Bytes that it holds.
    pub(crate) fn bytes(&self) -> usize {
        bytes(&self.parents) + bytes(&self.events)
    }

    /// Every event from the start to a world, and the one after it.
    pub(crate) fn schedule(&self, world: u32, last: Option<&E>) -> Vec<E> {
        let mut schedule: Vec<E> = last.into_iter().cloned().collect();
        let mut at = world;
        while let Some((parent, event)) = self.step(at) {
            schedule.push(event.clone());
            at = parent;
        }
        schedule.reverse();
        schedule
    }
}

/// The tree of shortest ways: each step is the place of an event among the possible ones.
pub(crate) struct Ways {
    start: World,
    /// Only the events of one pair of nodes are possible; see [`World::keep_one_pair`].
    apart: bool,
    pub(crate) steps: Steps<u16>,
}

/// Worlds on the way to the one made last, by rising number.
#[derive(Default)]
pub(crate) struct Trail(Vec<(u32, World)>);

impl Ways {
    pub(crate) fn new(start: &World, apart: bool) -> Self {
        Self { start: start.clone(), apart, steps: Steps::default() }
    }

    /// The world they all begin with.
    pub(crate) fn start(&self) -> &World {
        &self.start
    }

    /// Lists the events that are possible in a world.
    pub(crate) fn list(&self, world: &World, choices: &mut Vec<Choice>) {
        world.actions(choices);
        if self.apart {
            world.keep_one_pair(choices);
        }
    }

    /// Every event from the start to a world, and the one after it.
    pub(crate) fn schedule(&self, number: u32, last: Option<u16>) -> Vec<Choice> {
        let mut world = self.start.clone();
        let mut choices = Vec::new();
        let places = self.steps.schedule(number, last.as_ref());
        let events = places.into_iter().filter_map(|place| {
            self.list(&world, &mut choices);
            let choice = choices.get(usize::from(place))?.clone();
            world.apply(&choice, &mut Step::default());
            Some(choice)
        });
        events.collect()
    }

    /// Makes a world again. Neighbours in a layer share most of their ways: asked for in rising
    /// order, only what is not shared is played.
    pub(crate) fn world(&self, wanted: u32, trail: &mut Trail) -> World {
        let trail = &mut trail.0;
        let mut missing = Vec::new();
        let mut at = wanted;
        let mut world = loop {
            while trail.last().is_some_and(|(number, _)| *number > at) {
                trail.pop();
            }
            if let Some((_, world)) = trail.last().filter(|(number, _)| *number == at) {
                break world.clone();
            }
            let Some((parent, _)) = self.steps.step(at) else { break self.start.clone() };
            missing.push(at);
            at = parent;
        };
        let mut choices = Vec::new();
        for number in missing.into_iter().rev() {
            self.list(&world, &mut choices);
            let place = self.steps.step(number).map(|(_, place)| usize::from(*place));
            if let Some(choice) = place.and_then(|place| choices.get(place)) {
                world.apply(choice, &mut Step::default());
            }
            if number != wanted {
                trail.push((number, world.clone()));
            }
        }
        world
    }
}
