//! Time in a world: timers fire in any order, or in the order of their deadlines.

use crate::effects::Told;
use crate::oracle::{Oracle, Violation};
use crate::waits::Cause;
use crate::world::{Step, World};
use handfast_core::node::TimerId;
use handfast_core::{Duration, Instant, Output};

impl World {
    pub(crate) fn fire(&mut self, site: usize, timer: &TimerId, step: &mut Step) {
        let fired = self.sites[site].node.timers().find(|(id, ..)| id == timer);
        let Some((_, at, kind)) = fired else { return };
        step.timer = Some(kind);
        self.history.spent.timers += 1;
        let now = self.now.max(at);
        if self.keeps_time() {
            self.now = now;
        }
        self.tell_at(site, Told::Timer(timer.clone()), now, step);
    }

    /// Whether the clock runs. An explorer leaves it at zero, so that equal worlds stay equal; a
    /// stopped clock orders timers by their timeout, which suffices for a schedule.
    fn keeps_time(&self) -> bool {
        self.now.0 != 0
    }

    /// Starts the clock: from now on a fired timer moves it to its deadline.
    pub fn start_clock(&mut self) {
        self.now = Instant(self.now.0.max(1));
    }

    /// Lets time pass: nodes handle their due timers by `handle_timeout`, in the order of their deadlines
    /// and `late` after them, as a driver does that wakes late. A timer that overtakes a pending event counts
    /// as a fault.
    pub fn pass(&mut self, until: Instant, late: Duration, step: &mut Step) {
        self.touched = 0;
        while let Some((at, site)) = self.first_due(until) {
            self.check_moment(site, at, step);
            self.faults_spent += u32::from(!self.quiet());
            self.now = self.now.max(at + late);
            let now = self.now;
            let due = self.sites[site].node.timers().filter(|(_, at, _)| *at <= now).count();
            self.history.spent.timers += u32::try_from(due).unwrap_or(u32::MAX);
            let at = self.site_mut(site);
            step.timer = at.node.poll_timeout().map(|(_, kind)| kind);
            at.waits.begin(now, None, Cause::Timeout, &at.node);
            at.node.handle_timeout(now);
            self.drain(site, step);
        }
        self.now = self.now.max(until);
    }

    /// Checks that a timer fires at its very moment, at which a driver may wake. One that is due later would wake
    /// the driver again and again.
    fn check_moment(&self, site: usize, at: Instant, step: &mut Step) {
        let mut node = self.sites[site].node.clone();
        node.handle_timeout(at);
        if let Some((_, kind)) = node.poll_timeout().filter(|(next, _)| *next == at) {
            let detail = format!("{kind:?} does not fire at its moment");
            self.report_waits(site, Violation::new(Oracle::Time, detail), step);
        }
    }

    /// Returns the earliest deadline of a node that runs, and its site.
    pub fn deadline(&self) -> Option<(Instant, usize)> {
        let runs = |site: &usize| !self.mute.contains(&self.host(*site));
        let due = |site: usize| Some((self.sites[site].node.poll_timeout()?.0, site));
        (0..self.sites.len()).filter(runs).filter_map(due).min()
    }

    fn first_due(&self, until: Instant) -> Option<(Instant, usize)> {
        self.deadline().filter(|(at, _)| *at <= until)
    }

    pub(crate) fn poll_output(&mut self, site: usize) -> Option<Output> {
        let limits = self.setup.limits;
        let at = self.site_mut(site);
        let output = at.node.poll_output()?;
        at.waits.observe(&output, &at.node, &limits);
        Some(output)
    }

    /// Checks the timers of a node whose outputs are drained (rule H8).
    pub(crate) fn check_waits(&mut self, site: usize, step: &mut Step) {
        let at = self.site_mut(site);
        if let Some(violation) = at.waits.end(&at.node) {
            self.report_waits(site, violation, step);
        }
    }
}
