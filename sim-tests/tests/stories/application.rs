//! Random runs of two or three nodes, compared with a model of an application's view.

mod model;

use crate::nightly;
use handfast_core::node::StateKind;
use handfast_core::{Event, NicPath, Node};
use handfast_sim::{HEAL_EVENTS_MAX, Scenario, next_fair_event};
use handfast_transport_sim::{Action, Build, Choice, Command, CommandKind, Setup, Step, World};
use model::{Happening, Lane, Model, Side, View};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{TestError, TestRunner};
use std::collections::BTreeMap;
use std::sync::Arc;

const NAMES: [&str; 3] = ["a:1@nic", "b:1@nic", "c:1@nic"];

#[derive(Clone, Debug)]
enum Move {
    Open(Index, Index),
    Close(Index, Index),
    /// Something that may happen and is no fault.
    Event(Index),
    Fault(Index),
    /// Everything that is left to happen, in a fair order.
    Settle,
}

/// A run: how many nodes there are, and what happens.
type Case = (usize, Vec<Move>);

#[test]
fn applications_get_what_they_may_rely_on() {
    let cases = match (nightly(), cfg!(debug_assertions)) {
        (true, _) => 200_000,
        (false, true) => 300,
        (false, false) => 6_000,
    };
    let runner = TestRunner::new(config(cases));
    if let Err((why, transcript)) = search(runner, Arc::new(Node::new)) {
        panic!("{why}; a transcript:\n{transcript}");
    }
}

pub(crate) fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// Runs cases until one fails; returns why, and what is left of it as a transcript.
pub(crate) fn search(mut runner: TestRunner, build: Build) -> Result<(), (String, String)> {
    let found = runner.run(&case(), |case| {
        let (result, _) = play(&case, &build);
        result.map_err(TestCaseError::fail)
    });
    match found {
        Ok(()) => Ok(()),
        Err(TestError::Fail(_, case)) => {
            let (result, transcript) = play(&case, &build);
            let why = result.err().unwrap_or_default();
            Err((why.clone(), without_detours(case.0, &transcript, &why, &build)))
        }
        Err(TestError::Abort(why)) => panic!("{why}"),
    }
}

fn case() -> impl Strategy<Value = Case> {
    let index = any::<Index>;
    let step = prop_oneof![
        5 => (index(), index()).prop_map(|(site, peer)| Move::Open(site, peer)),
        2 => (index(), index()).prop_map(|(site, peer)| Move::Close(site, peer)),
        30 => index().prop_map(Move::Event),
        4 => index().prop_map(Move::Fault),
        2 => Just(Move::Settle),
    ];
    (2..=3usize, vec(step, 1..60))
}

/// Drops events one by one while the same violation remains. proptest shrinks moves, and the
/// meaning of a move depends on earlier ones.
fn without_detours(sites: usize, transcript: &str, why: &str, build: &Build) -> String {
    let mut words: Vec<&str> = transcript.lines().skip(PREAMBLE_LINES).collect();
    let mut at = 0;
    while at < words.len() {
        let mut fewer = words.clone();
        fewer.remove(at);
        let mut run = Run::new(sites, build);
        let result = fewer.iter().try_for_each(|words| run.say(words)).and_then(|()| run.settle());
        if result.err().as_deref() == Some(why) {
            words = fewer;
        } else {
            at += 1;
        }
    }
    let mut run = Run::new(sites, build);
    // It fails, as it did a moment ago.
    let _ = words.iter().try_for_each(|words| run.say(words)).and_then(|()| run.settle());
    run.transcript
}

/// Plays a case against the model; returns the violation and the schedule as a transcript.
fn play((sites, moves): &Case, build: &Build) -> (Result<(), String>, String) {
    let mut run = Run::new(*sites, build);
    let result = moves.iter().try_for_each(|step| run.step(step)).and_then(|()| run.settle());
    (result, run.transcript)
}

/// The lines of a transcript that say how the world begins.
pub(crate) const PREAMBLE_LINES: usize = 2;

struct Run {
    world: World,
    model: Model,
    /// Restarts per site.
    runs: Vec<u32>,
    transcript: String,
    choices: Vec<Choice>,
}

impl Run {
    fn new(sites: usize, build: &Build) -> Self {
        let names = NAMES[..sites].iter().map(|name| NicPath::parse(name).expect("a path"));
        let world = World::new(Setup {
            sites: names.collect(),
            commands: Vec::new(),
            reopen: false,
            build: build.clone(),
            ..Scenario::SimultaneousOpen.setup(1_000)
        });
        let transcript = format!(
            "with sites {}\nwith operations one by one\n",
            ["a b", "a b c"][usize::from(sites == 3)]
        );
        let (model, runs, choices) = (Model::default(), vec![0; sites], Vec::new());
        Self { world, model, runs, transcript, choices }
    }

    /// Lets the event of these words happen, if it can.
    fn say(&mut self, words: &str) -> Result<(), String> {
        let mut choices = Vec::new();
        self.world.actions(&mut choices);
        let sites = || 0..self.world.sites();
        for (site, peer) in sites().flat_map(|site| sites().map(move |peer| (site, peer))) {
            for kind in [CommandKind::Open, CommandKind::Close] {
                let command = Command { site, peer, kind };
                choices.push(Choice { action: Action::Ask(command), cost: 0 });
            }
        }
        let found = choices.iter().find(|choice| self.world.describe(&choice.action) == words);
        found.map_or(Ok(()), |choice| self.apply(choice))
    }

    fn step(&mut self, step: &Move) -> Result<(), String> {
        let sites = self.world.sites();
        let ask = |site: &Index, peer: &Index, kind| {
            let command = Command { site: site.index(sites), peer: peer.index(sites), kind };
            Choice { action: Action::Ask(command), cost: 0 }
        };
        match step {
            Move::Open(site, peer) => self.apply(&ask(site, peer, CommandKind::Open)),
            Move::Close(site, peer) => self.apply(&ask(site, peer, CommandKind::Close)),
            Move::Event(index) => self.pick(index, false),
            Move::Fault(index) => self.pick(index, true),
            Move::Settle => self.settle(),
        }
    }

    fn pick(&mut self, index: &Index, fault: bool) -> Result<(), String> {
        let mut choices = std::mem::take(&mut self.choices);
        self.world.actions(&mut choices);
        choices.retain(|choice| (choice.cost > 0) == fault);
        let picked = (!choices.is_empty()).then(|| index.get(&choices).clone());
        self.choices = choices;
        picked.map_or(Ok(()), |choice| self.apply(&choice))
    }

    fn settle(&mut self) -> Result<(), String> {
        for _ in 0..HEAL_EVENTS_MAX {
            let Some(choice) = next_fair_event(&self.world) else {
                if !self.world.stuck().is_empty() {
                    return Ok(());
                }
                return self.model.at_rest(&self.view(Vec::new()));
            };
            self.apply(&choice)?;
        }
        Err(format!("not at rest after {HEAL_EVENTS_MAX} events"))
    }

    fn apply(&mut self, choice: &Choice) -> Result<(), String> {
        self.transcript.push_str(&self.world.describe(&choice.action));
        self.transcript.push('\n');
        let happening = match &choice.action {
            Action::Ask(Command { site, peer, kind: CommandKind::Open }) => {
                Happening::Open((*site, *peer))
            }
            Action::Ask(Command { site, peer, kind: CommandKind::Close }) => {
                Happening::Close((*site, *peer))
            }
            Action::Restart(site) => {
                self.runs[*site] += 1;
                Happening::Crash(*site)
            }
            Action::Broken(site, _) | Action::LaneError(site, _) => Happening::LaneFailed(*site),
            _ => Happening::Other,
        };
        let mut step = Step::default();
        self.world.apply(choice, &mut step);
        let view = self.view(step.events);
        self.model.observe(happening, choice.cost > 0, &view)
    }

    fn view(&self, events: Vec<(usize, Event)>) -> View {
        let mut view = View::default();
        let world = &self.world;
        let peer_of = |path: &NicPath| (0..world.sites()).find(|site| world.path(*site) == path);
        for (site, event) in events {
            let peer = peer_about(&event).and_then(peer_of).unwrap_or(site);
            view.events.push(((site, peer), event));
        }
        let mut owners = BTreeMap::new();
        for qp in world.queue_pairs() {
            owners.insert((qp.site, qp.number), qp);
        }
        for qp in world.queue_pairs().iter().filter(|qp| qp.published && !qp.revoked) {
            let Some(target) = qp.target else { continue };
            let side: Side = (qp.site, target.site);
            let lane = Lane { run: self.runs[qp.site], number: qp.lifecycle.0 };
            view.lanes.entry(side).or_default().push(lane);
            let listens = owners.get(&(target.site, target.number)).is_some_and(|other| {
                other.target.is_some_and(|to| (to.site, to.number) == (qp.site, qp.number))
            });
            let state = world.node(target.site).state_of(target.believed.lifecycle);
            let lives = state.is_some_and(|state| state != StateKind::Retiring)
                && world.incarnation(target.site) == target.believed.incarnation;
            if lives && !listens {
                view.deaf.insert(side);
            }
        }
        let sites = || 0..world.sites();
        let sides = sites().flat_map(|site| sites().map(move |peer| (site, peer)));
        view.connected = sides.filter(|(site, peer)| world.connected(*site, *peer)).collect();
        view
    }
}

fn peer_about(event: &Event) -> Option<&NicPath> {
    match event {
        Event::OpenFailed { peer, .. }
        | Event::Ended { peer, .. }
        | Event::PeerRestarted { peer, .. }
        | Event::RetireFailed { peer, .. }
        | Event::RetireOverdue { peer, .. }
        | Event::PeerForgotten { peer }
        | Event::NameConflict { peer, .. } => Some(peer),
        _ => None,
    }
}
