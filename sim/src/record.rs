//! A replayed line, written down event by event: what a timeline draws.

use crate::line::{Line, ReplayError, rules};
use crate::liveness::next;
use crate::play::Run;
use handfast_transport_sim::{
    Action, Choice, Demand, InFlight, Letter, Oracle, Step, Violation, World,
};
use std::sync::Arc;

/// Most events that a world is followed for while it heals.
const HEALING_MAX: usize = 400;

/// One event.
#[derive(Clone, Debug)]
pub struct Row {
    /// The site at which it happens.
    pub site: usize,
    /// The event.
    pub words: String,
    /// It is paid from the budget of faults.
    pub fault: bool,
    /// It follows by itself once the schedule is over.
    pub healing: bool,
    /// Outputs of the nodes.
    pub notes: Vec<String>,
    /// Violations of any oracle.
    pub violations: Vec<Violation>,
    /// Every site's state after it.
    pub states: Vec<SiteState>,
}

/// A site after an event.
#[derive(Clone, Debug, Default)]
pub struct SiteState {
    /// Lifecycles and their states: `A#1 Connected`.
    pub lifecycles: Vec<String>,
    /// Everything: demands, lifecycles with their queue pairs, operations under way.
    pub details: Vec<String>,
}

/// Fate of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It arrived.
    Arrived,
    /// A copy of it arrived and it is still on its way.
    Copied,
    /// It was lost.
    Lost,
    /// Its receiver is gone, or could only have ignored it.
    Dropped,
    /// It is on its way at the end.
    OnItsWay,
}

/// A message from where it was sent to what became of it.
#[derive(Clone, Debug)]
pub struct Passage {
    /// Its text.
    pub words: String,
    /// The site that sent it.
    pub from: usize,
    /// The site that it arrived at, or was meant for.
    pub to: usize,
    /// The row in which it was sent.
    pub sent: usize,
    /// The row in which its fate showed; the number of rows if it never did.
    pub ended: usize,
    /// Outcome of its delivery.
    pub fate: Fate,
}

/// Content of a timeline.
#[derive(Clone, Debug, Default)]
pub struct Picture {
    /// Names of the sites.
    pub sites: Vec<String>,
    /// Every event, healing included.
    pub rows: Vec<Row>,
    /// Every message.
    pub passages: Vec<Passage>,
    /// The violation, if any.
    pub violation: Option<Violation>,
    /// The row in which that shows.
    pub broken: Option<usize>,
}

/// A schedule written down.
#[derive(Clone, Debug)]
pub struct Record {
    /// The line that was replayed.
    pub line: Line,
    /// The hash of all worlds passed through, healing left out.
    pub trace_hash: u128,
    /// The timeline so far.
    pub picture: Picture,
}

impl Record {
    /// Replays a line and writes everything down.
    ///
    /// # Errors
    /// [`ReplayError`] if the line does not replay here.
    pub fn of(line: &Line) -> Result<Self, ReplayError> {
        let run = line.play()?;
        let mut world = line.case.start();
        let site =
            |at: usize| format!("{} ({})", world.describe_site(at), line.case.setup().sites[at]);
        let picture = Picture {
            sites: (0..world.sites()).map(site).collect(),
            violation: run.violation.clone(),
            ..Picture::default()
        };
        let (line, trace_hash) = (line.clone(), run.trace_hash);
        let mut record = Self { line, trace_hash, picture };
        let mut open: Vec<(Arc<Letter>, Passage)> = Vec::new();
        for choice in &run.schedule {
            record.event(&mut world, choice, false, &mut open);
        }
        record.liveness(&run, &mut world, &mut open);
        record.finish(open);
        Ok(record)
    }

    fn liveness(&mut self, run: &Run, world: &mut World, open: &mut Vec<(Arc<Letter>, Passage)>) {
        if run.violation.is_some() {
            run.healing.iter().for_each(|choice| self.event(world, choice, true, open));
            return;
        }
        for _ in 0..HEALING_MAX {
            let Some(choice) = next(world) else { break };
            self.event(world, &choice, true, open);
        }
    }

    fn event(
        &mut self,
        world: &mut World,
        choice: &Choice,
        healing: bool,
        open: &mut Vec<(Arc<Letter>, Passage)>,
    ) {
        let before = world.in_flight();
        let (site, words) = (world.actor(&choice.action), world.describe(&choice.action));
        let mut step = Step::traced();
        world.apply(choice, &mut step);
        world.check(&mut step.violations);
        self.follow_messages(&choice.action, &before, world, open);
        let asked = rules(&self.line.case);
        if self.picture.broken.is_none()
            && step.violations.iter().any(|found| asked.asks(found.oracle))
        {
            self.picture.broken = Some(self.picture.rows.len());
        }
        self.picture.rows.push(Row {
            site,
            words,
            fault: choice.cost > 0,
            healing,
            notes: step.notes.unwrap_or_default(),
            violations: step.violations,
            states: (0..world.sites()).map(|site| state_of(world, site)).collect(),
        });
    }

    fn follow_messages(
        &mut self,
        action: &Action,
        before: &[InFlight],
        world: &World,
        open: &mut Vec<(Arc<Letter>, Passage)>,
    ) {
        let row = self.picture.rows.len();
        let nth = |answer: bool, at: usize| {
            before.iter().filter(|flying| flying.answer == answer).nth(at).map(|it| &it.message)
        };
        let (subject, fate, at) = match action {
            Action::Call(at, site) => (nth(false, *at), Fate::Arrived, Some(*site)),
            Action::DuplicateCall(at, site) => (nth(false, *at), Fate::Copied, Some(*site)),
            Action::Answer(at) => (nth(true, *at), Fate::Arrived, None),
            Action::LoseCall(at, _) => (nth(false, *at), Fate::Lost, None),
            Action::LoseAnswer(at, _) => (nth(true, *at), Fate::Lost, None),
            _ => (None, Fate::Dropped, None),
        };
        let after = world.in_flight();
        let flies =
            |message: &Arc<Letter>| after.iter().any(|it| Arc::ptr_eq(&it.message, message));
        open.retain_mut(|(message, passage)| {
            let is_subject = subject.is_some_and(|subject| Arc::ptr_eq(subject, message));
            let mut ended = Passage { ended: row, ..passage.clone() };
            ended.to = at.filter(|_| is_subject).unwrap_or(ended.to);
            ended.fate = if is_subject { fate } else { Fate::Dropped };
            let stays = flies(message);
            if !stays || is_subject {
                self.picture.passages.push(ended);
            }
            stays
        });
        let known = |it: &InFlight| before.iter().any(|old| Arc::ptr_eq(&old.message, &it.message));
        for sent in after.iter().filter(|it| !known(it)) {
            let words = world.describe_message(&sent.message);
            let to = sent.to.first().copied().unwrap_or(sent.from);
            let fate = Fate::OnItsWay;
            let passage = Passage { words, from: sent.from, to, sent: row, ended: row, fate };
            open.push((sent.message.clone(), passage));
        }
    }

    fn finish(&mut self, open: Vec<(Arc<Letter>, Passage)>) {
        let rows = self.picture.rows.len();
        let left = open.into_iter().map(|(_, passage)| Passage { ended: rows, ..passage });
        self.picture.passages.extend(left);
        if self.picture.violation.is_some() && self.picture.broken.is_none() {
            // A world that cannot heal shows it in its last row.
            self.picture.broken = rows.checked_sub(1);
        }
    }

    /// The oracle that breaks first.
    pub fn oracle(&self) -> Option<Oracle> {
        self.picture.violation.as_ref().map(|violation| violation.oracle)
    }
}

fn state_of(world: &World, site: usize) -> SiteState {
    let mut state = SiteState::default();
    for peer in 0..world.sites() {
        let demand = match world.demand(site, peer) {
            Demand::None => continue,
            Demand::Wanted if world.connected(site, peer) => "wants a lane, and bytes flow",
            Demand::Wanted => "wants a lane",
            Demand::Reported => "was told that there is no lane",
        };
        state.details.push(format!("{demand}: to {}", world.describe_site(peer)));
    }
    for (lifecycle, kind, _, remote) in world.node(site).lifecycles() {
        let name = world.describe_pair(world.pair(site, lifecycle));
        let towards = remote.map(|remote| format!(" towards {}", world.describe_pair(remote)));
        let qp = world.queue_pairs().iter().find(|qp| qp.host == site && qp.lifecycle == lifecycle);
        let qp = qp.map(|qp| {
            let connected = qp.target.map(|target| {
                let peer = world.describe_site(target.site);
                format!(" connected to {} of {peer}", target.number)
            });
            let marks =
                [(qp.published, " published"), (qp.revoked, " revoked"), (qp.broken, " broken")];
            let marks: String = marks.iter().filter(|(on, _)| *on).map(|(_, mark)| *mark).collect();
            format!("; queue pair {}{}{marks}", qp.number, connected.unwrap_or_default())
        });
        state.lifecycles.push(format!("{name} {kind:?}"));
        state.details.push(format!(
            "{name} {kind:?}{}{}",
            towards.unwrap_or_default(),
            qp.unwrap_or_default()
        ));
    }
    let under_way = world.operations_under_way().filter(|(owner, _)| *owner == site);
    state.details.extend(under_way.map(|(_, words)| format!("{words} is under way")));
    state
}
