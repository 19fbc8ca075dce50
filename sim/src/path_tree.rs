//! Worlds by the way that leads to them: a parent and a choice each, from which a world is made
//! again when it is wanted.

use handfast_transport_sim::{Choice, Step, World};

/// The events that lead to worlds, each after another world. World 0 is the start.
pub(crate) struct Steps<E>(Vec<(u32, E)>);

impl<E> Default for Steps<E> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<E: Clone> Steps<E> {
    /// Numbers given so far; the next world gets this one.
    pub(crate) fn len(&self) -> u32 {
        u32::try_from(self.0.len() + 1).unwrap_or(u32::MAX)
    }

    /// Adds a world and returns its number.
    pub(crate) fn add(&mut self, parent: u32, event: &E) -> u32 {
        self.0.push((parent, event.clone()));
        self.len() - 1
    }

    fn step(&self, world: u32) -> Option<&(u32, E)> {
        self.0.get((world as usize).checked_sub(1)?)
    }

    /// Every event from the start to a world, and the one after it.
    pub(crate) fn schedule(&self, world: u32, last: Option<&E>) -> Vec<E> {
        let mut schedule: Vec<E> = last.into_iter().cloned().collect();
        let mut at = world;
        while let Some((parent, event)) = self.step(at) {
            schedule.push(event.clone());
            at = *parent;
        }
        schedule.reverse();
        schedule
    }
}

/// The tree of shortest ways.
pub(crate) struct Ways {
    start: World,
    pub(crate) steps: Steps<Choice>,
    /// Worlds on the way to the one made last, by rising number.
    trail: Vec<(u32, World)>,
}

impl Ways {
    pub(crate) fn new(start: &World) -> Self {
        Self { start: start.clone(), steps: Steps::default(), trail: Vec::new() }
    }

    /// The world they all begin with.
    pub(crate) fn start(&self) -> &World {
        &self.start
    }

    /// Makes a world again. Neighbours in a layer share most of their ways: asked for in rising
    /// order, only what is not shared is played.
    pub(crate) fn world(&mut self, wanted: u32) -> World {
        let mut missing = Vec::new();
        let mut at = wanted;
        let mut world = loop {
            while self.trail.last().is_some_and(|(number, _)| *number > at) {
                self.trail.pop();
            }
            if let Some((_, world)) = self.trail.last().filter(|(number, _)| *number == at) {
                break world.clone();
            }
            let Some((parent, _)) = self.steps.step(at) else { break self.start.clone() };
            missing.push(at);
            at = *parent;
        };
        for number in missing.into_iter().rev() {
            if let Some((_, choice)) = self.steps.step(number) {
                world.apply(choice, &mut Step::default());
            }
            if number != wanted {
                self.trail.push((number, world.clone()));
            }
        }
        world
    }
}
