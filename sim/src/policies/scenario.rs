//! The worlds of policies by name, and the machines that they begin with.

use super::administration::{self, AdministrationWorld};
use super::eviction::EvictionWorld;
use super::fallback::FallbackWorld;
use super::fences::FencesWorld;
use super::grants::{self, GrantsWorld};
use super::oracle::PolicyOracle;
use super::qpn_reuse::{self, QpnReuseWorld};
use super::quota::{self, QuotaWorld};
use super::rails::{self, RailsWorld};
use super::silence::{self, SilenceWorld};
use crate::machine_world::{Searched, Violation, explore, play};
use handfast_core::Instant;
use handfast_core::policy::{
    FenceLedger, LaneEviction, PeerQuota, QpnReuseDetector, Rails, RdmaFallback,
};
use handfast_core::target::Target;

/// Worlds of policies, by machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyScenario {
    /// Three peers and room for two lanes.
    Eviction,
    /// Two peers with three NICs each, and a quota of two lanes.
    Quota,
    /// Two peers, to which lanes are created, fail and are answered over.
    Fallback,
    /// Two peers that announce queue pairs, restart and repeat themselves.
    QpnReuse,
    /// Two peers, of one trust group or of two, that read, write and ask for keys while grants change.
    Grants,
    /// Three nodes whose grants administrators list and change; all others are refused.
    Administration,
    /// Two rails to a peer, which are opened, probed, fail and pause.
    Rails,
    /// Lanes over two paths to a peer, which end and are fenced.
    Fences,
    /// A lane whose peer answers or is silent.
    Silence,
}

/// The machines in their first state.
#[derive(Clone, Debug)]
pub struct PolicyMachines {
    pub(super) eviction: LaneEviction,
    pub(super) quota: PeerQuota,
    pub(super) fallback: RdmaFallback,
    pub(super) qpn_reuse: QpnReuseDetector,
    pub(super) grants: grants::Machines,
    pub(super) administrators: administration::Administered,
    pub(super) rails: Rails,
    pub(super) fences: FenceLedger,
    pub(super) silence: Target,
}

impl PolicyMachines {
    /// Those that ship.
    pub fn shipping() -> Self {
        Self {
            eviction: LaneEviction::default(),
            quota: PeerQuota::new(quota::LANES_MAX),
            fallback: RdmaFallback::default(),
            qpn_reuse: QpnReuseDetector::new(qpn_reuse::PEERS),
            grants: grants::machines(),
            administrators: administration::administrators(),
            rails: rails::machine(),
            fences: FenceLedger::default(),
            silence: Target::new(silence::config(), Instant(0)),
        }
    }
}

impl PolicyScenario {
    /// Every scenario.
    pub const ALL: [Self; 9] = [
        Self::Eviction,
        Self::Quota,
        Self::Fallback,
        Self::QpnReuse,
        Self::Grants,
        Self::Administration,
        Self::Rails,
        Self::Fences,
        Self::Silence,
    ];

    /// Tries every event in every world, until no new world appears, an oracle breaks, or there are
    /// `states_max` worlds.
    pub fn explore(
        self,
        machines: &PolicyMachines,
        faults_max: u32,
        states_max: usize,
    ) -> Searched<PolicyOracle> {
        let machines = machines.clone();
        match self {
            Self::Eviction => {
                explore(&EvictionWorld::new(machines.eviction, faults_max), states_max)
            }
            Self::Quota => explore(&QuotaWorld::new(machines.quota, faults_max), states_max),
            Self::Fallback => {
                explore(&FallbackWorld::new(machines.fallback, faults_max), states_max)
            }
            Self::QpnReuse => {
                explore(&QpnReuseWorld::new(machines.qpn_reuse, faults_max), states_max)
            }
            Self::Grants => explore(&GrantsWorld::new(machines.grants, faults_max), states_max),
            Self::Administration => {
                explore(&AdministrationWorld::new(machines.administrators), states_max)
            }
            Self::Rails => explore(&RailsWorld::new(machines.rails, faults_max), states_max),
            Self::Fences => explore(&FencesWorld::new(machines.fences), states_max),
            Self::Silence => explore(&SilenceWorld::new(machines.silence), states_max),
        }
    }

    /// Plays a random schedule until an oracle breaks or nothing is left to happen without a fault.
    pub fn play(
        self,
        machines: &PolicyMachines,
        faults_max: u32,
        seed: u64,
    ) -> Option<Violation<PolicyOracle>> {
        let machines = machines.clone();
        match self {
            Self::Eviction => play(&EvictionWorld::new(machines.eviction, faults_max), seed),
            Self::Quota => play(&QuotaWorld::new(machines.quota, faults_max), seed),
            Self::Fallback => play(&FallbackWorld::new(machines.fallback, faults_max), seed),
            Self::QpnReuse => play(&QpnReuseWorld::new(machines.qpn_reuse, faults_max), seed),
            Self::Grants => play(&GrantsWorld::new(machines.grants, faults_max), seed),
            Self::Administration => play(&AdministrationWorld::new(machines.administrators), seed),
            Self::Rails => play(&RailsWorld::new(machines.rails, faults_max), seed),
            Self::Fences => play(&FencesWorld::new(machines.fences), seed),
            Self::Silence => play(&SilenceWorld::new(machines.silence), seed),
        }
    }
}
