//! Worlds by the way that leads to them: a parent and a choice each, from which a world is made
//! again when it is wanted.

use handfast_transport_sim::{Choice, Step, World};

/// The tree of shortest ways. World 0 is the start.
pub(crate) struct Ways {
    start: World,
    /// World `n + 1` results from `steps[n]` on its parent.
    steps: Vec<(u32, Choice)>,
    /// Worlds on the way to the one made last, by rising number.
    trail: Vec<(u32, World)>,
}

impl Ways {
    pub(crate) fn new(start: &World) -> Self {
        Self { start: start.clone(), steps: Vec::new(), trail: Vec::new() }
    }

    /// The world they all begin with.
    pub(crate) fn start(&self) -> &World {
        &self.start
    }

    /// Numbers given so far; the next world gets this one.
    pub(crate) fn len(&self) -> u32 {
        u32::try_from(self.steps.len() + 1).unwrap_or(u32::MAX)
    }

    pub(crate) fn add(&mut self, parent: u32, choice: &Choice) {
        self.steps.push((parent, choice.clone()));
    }

    fn step(&self, world: u32) -> Option<&(u32, Choice)> {
        self.steps.get((world as usize).checked_sub(1)?)
    }

    /// Every event from the start to a world.
    pub(crate) fn schedule(&self, world: u32) -> Vec<Choice> {
        let mut schedule = Vec::new();
        let mut at = world;
        while let Some((parent, choice)) = self.step(at) {
            schedule.push(choice.clone());
            at = *parent;
        }
        schedule.reverse();
        schedule
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
            let Some((parent, _)) = self.step(at) else { break self.start.clone() };
            missing.push(at);
            at = *parent;
        };
        for number in missing.into_iter().rev() {
            if let Some((_, choice)) = self.step(number) {
                world.apply(choice, &mut Step::default());
            }
            if number != wanted {
                self.trail.push((number, world.clone()));
            }
        }
        world
    }
}
