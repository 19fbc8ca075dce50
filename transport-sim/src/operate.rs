//! Queue-pair operations, performed step by step on the site's device.

use crate::fabric::{Psns, Target};
use crate::oracle::{Oracle, Violation};
use crate::verbs::{Call, Errno, QpState, VerbsError};
use crate::world::{Step, World, error};
use handfast_core::node::StateKind;
use handfast_core::transport::{
    Operation, OperationId, OperationKind, Outcome, Side, TransportError,
};
use handfast_core::wire::Body;
use handfast_core::{Lifecycle, NicPath, Pair};

/// Return value of an injected step failure.
const INJECTED: Errno = Errno::Enomem;
/// Sequence numbers have 24 bits.
const PSN_MASK: u64 = 0x00ff_ffff;

impl World {
    /// The steps of an operation, in order.
    pub(crate) fn steps_of(kind: OperationKind) -> &'static [Call] {
        match kind {
            OperationKind::Create => &[Call::CreateQueuePair, Call::Modify(QpState::Init)],
            OperationKind::Connect => &[Call::Modify(QpState::Rtr), Call::Modify(QpState::Rts)],
            OperationKind::Retire => &[Call::Modify(QpState::Err), Call::DestroyQueuePair],
            OperationKind::Probe | OperationKind::Drain => &[],
        }
    }

    /// Fails one step of an operation, after its earlier steps.
    pub(crate) fn fail_step(&mut self, index: usize, call: Call, step: &mut Step) {
        debug_assert!(self.fabric.has_devices(), "the setup has devices where a step may fail");
        let pending = &self.operations[index];
        let nic = self.nic_of_lane(pending.site, pending.operation.id().lifecycle);
        self.fabric.verbs.inject(nic, call, INJECTED);
        self.operate(index, true, step);
    }

    /// Returns the first sequence number of a lifecycle: a function of it if numbers are exchanged,
    /// and otherwise zero, which is the harder choice.
    pub fn psn(&self, pair: Pair) -> u32 {
        if !self.setup.devices.random_psns {
            return 0;
        }
        let run = pair.incarnation.0 as u64;
        let mixed = (run << 20 ^ pair.lifecycle.0).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 32 & PSN_MASK) as u32
    }

    pub(crate) fn perform(
        &mut self,
        site: usize,
        operation: &Operation,
        step: &mut Step,
    ) -> Outcome {
        let nic = self.nic_of_lane(site, operation.id().lifecycle);
        let outcome = match operation {
            Operation::Create { lifecycle, skip, peer } => {
                self.create(nic, (*lifecycle, peer), *skip)
            }
            Operation::Connect { local, remote, body } => {
                self.connect(site, *local, *remote, body, step)
            }
            Operation::Probe { lifecycle } => Ok(self.probe(site, *lifecycle)),
            Operation::Drain { lifecycle } => Ok(self.drain_lane(site, *lifecycle, step)),
            Operation::Retire { lifecycle } => self.retire(site, *lifecycle, step),
        };
        self.check_laws(step);
        let broken = self
            .fabric
            .of(site, operation.id().lifecycle)
            .is_some_and(|queue_pair| queue_pair.broken);
        outcome.unwrap_or_else(|error| {
            let mut error = transport_error(&error, broken);
            if self.setup.devices.backend.blames_port_on_peer() && !self.port_is_up(nic) {
                error.side = Side::Peer;
            }
            self.check_blame(nic, error.side, step);
            Outcome::Failed(error)
        })
    }

    fn create(
        &mut self,
        site: usize,
        (lifecycle, peer): (Lifecycle, &NicPath),
        skip: u32,
    ) -> Result<Outcome, VerbsError> {
        let number = match skip {
            0 => self.fabric.create(site, lifecycle)?,
            _ => self.fabric.create_fresh(site, lifecycle)?,
        };
        let gid = match self.setup.without_gid {
            Some(without) if without != site => "gid".into(),
            _ => String::new(),
        };
        let psns = match self.setup.devices.random_psns {
            true => vec![self.psn(self.pair(site, lifecycle))],
            false => Vec::new(),
        };
        let mut body = Body { queue_pairs: vec![number], psns, gid, ..Body::default() };
        self.announce_managed(site, (lifecycle, number), peer, &mut body);
        Ok(Outcome::Created(body))
    }

    fn probe(&self, site: usize, lifecycle: Lifecycle) -> Outcome {
        match self.flows(site, lifecycle) {
            true => Outcome::Probed,
            false => Outcome::Failed(error(Side::Peer, "simulated proof")),
        }
    }

    /// Whether bytes flow and arrive: each side is connected to the other's present queue pair, not
    /// to an earlier one of the same number.
    pub(crate) fn flows(&self, site: usize, own: Lifecycle) -> bool {
        let qp = self.fabric.of(site, own).filter(|qp| self.fabric.intact(qp));
        let target = qp.and_then(|qp| qp.target);
        let back = target.and_then(|target| self.fabric.at(target.site, target.number)?.target);
        back.is_some_and(|back| back.believed == self.pair(site, own))
    }

    /// Completes posted work: with success if bytes flow, and with a failure if the peer is gone.
    fn drain_lane(&mut self, site: usize, lifecycle: Lifecycle, step: &mut Step) -> Outcome {
        if self.has_work(site, lifecycle) {
            let own = self.describe_own(site, lifecycle);
            let detail = format!("{own} counts as drained, and work posted on it is outstanding");
            step.violations.push(Violation::new(Oracle::CutOff, detail));
        }
        let intact = self.fabric.of(site, lifecycle).is_some_and(|qp| self.fabric.intact(qp));
        match self.fabric.of_mut(site, lifecycle) {
            Some(qp) if intact => {
                qp.drained = true;
                Outcome::Drained
            }
            _ => Outcome::Failed(error(Side::Peer, "simulated drain")),
        }
    }

    fn retire(
        &mut self,
        site: usize,
        lifecycle: Lifecycle,
        step: &mut Step,
    ) -> Result<Outcome, VerbsError> {
        if self.fabric.of(site, lifecycle).is_some_and(|qp| qp.published && !qp.revoked) {
            let detail = format!("site {site} destroys {lifecycle:?}, still published");
            step.violations.push(Violation::new(Oracle::FabricLaw, detail));
        }
        if self.is_managed() {
            self.retire_managed(site, lifecycle, step)?;
            self.lane_down(site, lifecycle, step);
            return Ok(Outcome::Retired);
        }
        let mut drained = Vec::new();
        let destroyed = self.fabric.destroy(site, lifecycle, &mut drained);
        self.completions_drained(site, lifecycle, &drained, step);
        destroyed?;
        self.channel_retired(site, lifecycle, step);
        self.lane_down(site, lifecycle, step);
        Ok(Outcome::Retired)
    }

    fn connect(
        &mut self,
        site: usize,
        local: Pair,
        remote: Pair,
        body: &Body,
        step: &mut Step,
    ) -> Result<Outcome, VerbsError> {
        if self.is_managed() {
            return Ok(self.end_connect(site, local.lifecycle));
        }
        let path = self.peer_of(site, local.lifecycle);
        let target = Target {
            site: path.map_or(usize::MAX, |path| self.site_at(remote.incarnation, path)),
            number: body.queue_pairs.first().copied().unwrap_or(0),
            believed: remote,
        };
        let there = self.fabric.at(target.site, target.number);
        let there = there.map(|qp| self.pair(qp.site, qp.lifecycle));
        let believed = there.filter(|_| remote.is_legacy()).unwrap_or(remote);
        let target = Target { believed, ..target };
        let wirable = self.fabric.of(site, local.lifecycle).is_some_and(|qp| qp.target.is_none());
        if !wirable {
            let detail = format!("site {site} wires {local:?}, which cannot be connected");
            step.violations.push(Violation::new(Oracle::FabricLaw, detail));
            return Ok(Outcome::Connected);
        }
        let theirs = body.psns.first().copied().unwrap_or(0);
        if self.setup.devices.backend.posts_early() {
            self.lane_up(site, local.lifecycle, remote.incarnation, step);
        }
        let psns = Psns { ours: self.psn(local), theirs };
        self.fabric.connect(site, local.lifecycle, target, psns)?;
        self.channel_connects(site, local, remote);
        let state = self.sites[site].node.state_of(local.lifecycle);
        if state.is_some_and(StateKind::is_ending) {
            // It was asked to retire meanwhile.
            self.channel_closes(site, local.lifecycle, step);
        }
        Ok(Outcome::Connected)
    }

    /// Checks the laws that every backend must obey.
    pub(crate) fn check_laws(&mut self, step: &mut Step) {
        for law in self.fabric.verbs.take_broken_laws() {
            step.violations.push(Violation::new(Oracle::FabricLaw, format!("{law:?}")));
        }
    }

    pub(crate) fn fail(&mut self, site: usize, id: OperationId, step: &mut Step) -> Outcome {
        if id.kind == OperationKind::Connect {
            self.fail_connect(site, id.lifecycle, step);
            self.fabric.break_down(site, id.lifecycle);
        }
        Outcome::Failed(error(Side::Local, "simulated operation"))
    }
}

/// The side charged with a failed step. A queue pair in ERR refuses steps that are otherwise valid.
fn transport_error(error: &VerbsError, broken: bool) -> TransportError {
    let is = |errno: Errno| error.code.abs() == errno as i32;
    let side = if broken {
        Side::Local
    } else if is(Errno::Etimedout) {
        Side::Peer
    } else if is(Errno::Einval) || is(Errno::Eafnosupport) || is(Errno::Eopnotsupp) {
        Side::Configuration
    } else {
        Side::Local
    };
    let detail = error.to_string();
    TransportError { side, call: error.call.to_string().into(), code: error.code, detail }
}
