//! The circuit breakers of rails, as observed from outside (oracle `Breaker`).
//!
//! While transfers are pending, every rail of a target has a lane, is being opened, or pauses with
//! a timer. A rail whose attempt failed is not reopened in the same event while another carries
//! bytes. A rail whose lane failed carries bytes only after a probe over it was answered.

use crate::data::Data;
use crate::oracle::{Oracle, Violation};
use crate::world::{Demand, Step, World};
use handfast_core::policy::FailureClass;
use handfast_core::target::TargetTimer;
use handfast_core::transport::TransportError;
use handfast_core::{Lifecycle, NicPath};

/// The history of the rails of a host's targets. The state of the targets determines it, so
/// fingerprints omit it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Breakers {
    /// Rails over which a lane failed, by target.
    failed: Vec<(usize, NicPath)>,
    /// Rails that failed permanently, by target.
    out: Vec<(usize, NicPath)>,
    /// Targets whose demand failed, until the next submission.
    lost: Vec<usize>,
    /// Lanes that carry bytes.
    in_use: Vec<Lifecycle>,
    /// Lanes whose probe was answered.
    answered: Vec<Lifecycle>,
    /// Lanes that failed before they carried bytes.
    unproven: Vec<Lifecycle>,
    /// The rail of the attempt whose failure is handled in this event.
    failing: Option<NicPath>,
}

impl Breakers {
    pub(crate) fn on_submit(&mut self, at: usize) {
        self.lost.retain(|lost| *lost != at);
    }

    pub(crate) fn on_peer_lost(&mut self, at: usize) {
        self.lost.push(at);
    }

    pub(crate) fn on_answered(&mut self, lane: Lifecycle) {
        self.answered.push(lane);
    }

    pub(crate) fn on_out_of_use(&mut self, lane: Lifecycle) {
        self.in_use.retain(|known| *known != lane);
    }

    pub(crate) fn on_attempt_failed(&mut self, at: usize, path: &NicPath, cause: &TransportError) {
        if FailureClass::of(cause).is_final() {
            self.out.push((at, path.clone()));
        }
        self.failing = Some(path.clone());
    }

    pub(crate) fn on_handled(&mut self) {
        self.failing = None;
    }

    /// Records the coming end of a failed lane of a target with rails. Of a lane that carries bytes a refused
    /// access says nothing of its rail.
    pub(crate) fn on_failed(
        &mut self,
        at: usize,
        (lane, path): (Lifecycle, &NicPath),
        cause: &TransportError,
    ) {
        let (class, carries) = (FailureClass::of(cause), self.in_use.contains(&lane));
        if !(carries && class == FailureClass::Protection) {
            self.failed.push((at, path.clone()));
        }
        if class.is_final() {
            self.out.push((at, path.clone()));
        }
        if !carries {
            self.unproven.push(lane);
        }
    }

    /// Records the end of a lane; `path` is the path of the attempt that failed with it.
    pub(crate) fn on_down(&mut self, lane: Lifecycle, path: Option<&NicPath>) {
        let unproven = self.unproven.contains(&lane);
        self.unproven.retain(|known| *known != lane);
        self.failing = path.filter(|_| unproven).cloned();
    }
}

impl World {
    /// Records that a lane carries bytes from now on.
    pub(crate) fn on_in_use(&mut self, site: usize, at: usize, lane: Lifecycle, step: &mut Step) {
        let path = self.peer_of(site, lane).cloned();
        let Some(data) = self.data_mut() else { return };
        let breakers = &mut data.sites[site].breakers;
        breakers.in_use.push(lane);
        let failed = path.is_some_and(|path| breakers.failed.contains(&(at, path)));
        if failed && !breakers.answered.contains(&lane) {
            let own = self.describe_own(site, lane);
            let detail = format!("{own} carries bytes over a rail that failed, without a probe");
            step.violations.push(Violation::new(Oracle::Breaker, detail));
        }
    }

    /// Checks that a lane whose probe was answered carries bytes, unless it is ending.
    pub(crate) fn check_proven(&self, site: usize, lane: Lifecycle, step: &mut Step) {
        let Some(data) = &self.data else { return };
        let sound = self.fabric.of(site, lane).is_some_and(|qp| qp.published && !qp.revoked);
        if sound && !data.sites[site].breakers.in_use.contains(&lane) {
            let own = self.describe_own(site, lane);
            let detail = format!("the probe of {own} was answered, and it carries nothing");
            step.violations.push(Violation::new(Oracle::Breaker, detail));
        }
    }

    /// Checks a target's demand for a lane over a path.
    pub(crate) fn check_opened(&self, site: usize, at: usize, path: &NicPath, step: &mut Step) {
        let Some(data) = &self.data else { return };
        let breakers = &data.sites[site].breakers;
        if breakers.failing.as_ref() != Some(path) {
            return;
        }
        let carries = |lane: &Lifecycle| {
            let sound = |qp: &crate::QueuePair| qp.published && !qp.revoked;
            self.peer_of(site, *lane) != Some(path)
                && self.fabric.of(site, *lane).is_some_and(sound)
        };
        let mut lanes = data.sites[site].targets[at].machine.lanes();
        if lanes.any(|lane| breakers.in_use.contains(&lane) && carries(&lane)) {
            let site = self.describe_site(site);
            let detail =
                format!("{site} opens a rail as soon as it failed, and another carries bytes");
            step.violations.push(Violation::new(Oracle::Breaker, detail));
        }
    }

    /// Checks that no rail is left out while transfers are pending.
    pub(crate) fn check_breakers(&self, step: &mut Step) {
        let Some(data) = self.data.as_ref().filter(|_| self.setup.rails) else { return };
        for site in (0..self.sites.len()).filter(|site| self.host(*site) == *site) {
            for at in 0..data.sites[site].targets.len() {
                if let Some(path) = self.rail_left_out(data, site, at) {
                    let own = self.describe_site(site);
                    let detail = format!("{own} has transfers, and never opens {path} again");
                    step.violations.push(Violation::new(Oracle::Breaker, detail));
                }
            }
        }
    }

    /// Returns a rail without a lane, an attempt and a timer.
    fn rail_left_out(&self, data: &Data, site: usize, at: usize) -> Option<NicPath> {
        let breakers = &data.sites[site].breakers;
        let target = &data.sites[site].targets[at];
        let pauses = |machine: &handfast_core::target::Target| {
            machine.timers().any(|(timer, _)| timer == TargetTimer::Rails)
        };
        let machine = &target.machine;
        let resting = machine.rails().is_none() || !machine.is_busy() || pauses(machine);
        if resting || breakers.lost.contains(&at) {
            return None;
        }
        let plans = self.rails_to(site, target.peer);
        let left_out = |path: &NicPath| {
            let wanted = self
                .rail_by(site, path)
                .is_some_and(|(own, there)| self.demand(own, there) == Demand::Wanted);
            let lane = || self.sites[site].node.lifecycles().any(|(_, _, to, _)| to == path);
            !wanted && !breakers.out.contains(&(at, path.clone())) && !lane()
        };
        plans.into_iter().map(|plan| plan.path).find(left_out)
    }
}
