//! The registry of broken variants of policies: what each breaks, and where it is found.

use super::oracle::PolicyOracle;
use super::scenario::{PolicyMachines, PolicyScenario};
use super::silence;
use handfast_core::Instant;
use handfast_core::policy::PolicyVariant;
use handfast_core::target::{Target, TargetVariant};

/// A broken variant of the rules of policies, and where it is found out.
pub struct PolicyEntry {
    /// The machine and a number.
    pub id: &'static str,
    /// Its name in the code.
    pub name: &'static str,
    /// The rule that it breaks, for people.
    pub breaks: &'static str,
    /// The scenario that finds it.
    pub scenario: PolicyScenario,
    /// Faults needed.
    pub faults_max: u32,
    /// The oracle that is expected to fail.
    pub oracle: PolicyOracle,
    /// The variant that its machines follow.
    pub variant: Broken,
}

/// A variant of a policy, or of a target.
#[derive(Clone, Copy, Debug)]
pub enum Broken {
    /// Of a policy.
    Policy(PolicyVariant),
    /// Of a target.
    Target(TargetVariant),
}

impl PolicyEntry {
    /// Machines that follow it.
    pub fn machines(&self) -> PolicyMachines {
        let shipping = PolicyMachines::shipping();
        let variant = match self.variant {
            Broken::Policy(variant) => variant,
            Broken::Target(variant) => {
                let silence = Target::with_variant(silence::config(), Instant(0), variant);
                return PolicyMachines { silence, ..shipping };
            }
        };
        let (grants, memo, groups, (apart, trust)) = shipping.grants;
        PolicyMachines {
            eviction: shipping.eviction.following(variant),
            quota: shipping.quota.following(variant),
            fallback: shipping.fallback.following(variant),
            qpn_reuse: shipping.qpn_reuse.following(variant),
            grants: (
                grants.following(variant),
                memo.following(variant),
                groups.following(variant),
                (apart.following(variant), trust.following(variant)),
            ),
            administrators: shipping.administrators.map(|all| all.following(variant)),
            rails: shipping.rails.following(variant),
            fences: shipping.fences.following(variant),
            silence: shipping.silence,
        }
    }
}

/// Rows of id, machine, variant, scenario, faults needed, oracle and rule; the machine is a policy if none is
/// named.
macro_rules! table {
    (@ $variant:ident) => {
        Broken::Policy(PolicyVariant::$variant)
    };
    (@ $variant:ident Target) => {
        Broken::Target(TargetVariant::$variant)
    };
    ($($id:literal $variant:ident $(of $machine:ident)?: $scenario:ident with $faults_max:literal breaks $oracle:ident,
        $breaks:literal;)*) => {
        &[$(PolicyEntry {
            id: $id,
            name: stringify!($variant),
            breaks: $breaks,
            scenario: PolicyScenario::$scenario,
            faults_max: $faults_max,
            oracle: PolicyOracle::$oracle,
            variant: table!(@ $variant $($machine)?),
        }),*]
    };
}

/// Every broken variant of policies.
pub const POLICY_VARIANTS: &[PolicyEntry] = table! {
    "EVICT-1" BusyLaneEvicted: Eviction with 0 breaks Idle,
        "a lane with a transfer under way is evicted";
    "EVICT-2" HoldForgotten: Eviction with 0 breaks Held,
        "a lane that just came up, or was just used, is evicted";
    "EVICT-3" ReturnForgotten: Eviction with 0 breaks Held,
        "a peer that returns after an eviction holds its lane no longer than before";
    "EVICT-4" UsesIgnored: Eviction with 0 breaks Unused,
        "the oldest lane is evicted, whether it is used or not";
    "EVICT-5" GivenUpAtOnce: Eviction with 0 breaks GivesUp,
        "a demand fails while lanes are held that may go later";
    "EVICT-6" LookedForEver: Eviction with 0 breaks Wait,
        "a demand waits for ever for signs of use that each lane shows";
    "QUOTA-1" EndingUncounted: Quota with 0 breaks Quota,
        "a lane that is ending leaves room for a request of its peer";
    "QUOTA-2" NicsApart: Quota with 0 breaks Quota,
        "a peer has its quota over each of its NICs";
    "QUOTA-3" PeersTogether: Quota with 0 breaks Refused,
        "the lanes of all peers count for each";
    "QUOTA-4" BegunRefused: Quota with 0 breaks Begun,
        "a request that is repeated is refused when its own lane fills the quota";
    "RDMA-1" FirstFailureFinal: Fallback with 1 breaks GivenUpEarly,
        "the first failure gives RDMA up";
    "RDMA-2" NeverTriedAgain: Fallback with 1 breaks TriedLate,
        "RDMA that was given up is never tried again";
    "RDMA-3" AnswerForgotten: Fallback with 1 breaks TriedLate,
        "an answer forgets no failure, and ends no fallback";
    "RDMA-4" AnsweredLaneBlamed: Fallback with 3 breaks GivenUpEarly,
        "the failure of a lane counts though its peer has answered over it";
    "RDMA-5" FailuresKept: Fallback with 2 breaks GivenUpEarly,
        "the failures of before count when RDMA is tried again";
    "RDMA-6" TriedAtOnce: Fallback with 1 breaks TriedEarly,
        "RDMA that was given up is tried with the next lane";
    "RAIL-5" SteadyAtOnce: Rails with 3 breaks Paused,
        "a lane clears the failures of its rail at once";
    "RAIL-6" RailFailuresKept: Rails with 4 breaks Paused,
        "the failure of a demand forgets no failure of a rail";
    "FENCE-5" SentForgotten: Fences with 0 breaks Doubted,
        "the fence of a path settles the doubt of lanes that are up";
    "WATCH-2" FailureAnswers of Target: Silence with 0 breaks Silence,
        "a slice that fails or is given back counts as a sign of life of the peer";
    "REUSE-1" SameRunReported: QpnReuse with 0 breaks Imagined,
        "an announcement that is repeated is taken for a restart";
    "REUSE-2" FirstNumberCompared: QpnReuse with 1 breaks Imagined,
        "numbers are taken for the same if the first is";
    "REUSE-3" FirstRunRemembered: QpnReuse with 1 breaks Imagined,
        "a peer is compared with what it announced first";
    "REUSE-4" NoneForgets: QpnReuse with 1 breaks Missed,
        "a lane without queue pairs forgets the numbers before it";
    "GRANT-1" DecidedAtOpen: Grants with 0 breaks Ungranted,
        "what a lane's peer was allowed first holds after a revocation";
    "GRANT-2" PeersAlike: Grants with 0 breaks Ungranted,
        "a peer has the grants of another one";
    "GRANT-3" RegionsAlike: Grants with 0 breaks Ungranted,
        "what a peer may do in one region holds for the next";
    "GRANT-4" FirstGrantAlone: Grants with 0 breaks Withheld,
        "the first pattern that covers a name decides alone";
    "GRANT-5" RevokedKeyKept: Grants with 0 breaks KeyOutlives,
        "the registration of a group outlives a grant of it";
    "GRANT-6" LateKeyKept: Grants with 0 breaks KeyOutlives,
        "a registration that ends after a revocation is kept";
    "GRANT-7" GroupedByAccess: Grants with 0 breaks KeyOutlives,
        "peers with equal permissions share a key, whichever grants they have them by";
    "GRANT-8" FailureForgotten: Grants with 1 breaks Unpaused,
        "a registration that failed is tried again at each request";
    "GRANT-12" LaneInFirstDomain: Grants with 0 breaks OtherGroup,
        "the lane of a peer is in the domain of the first trust group";
    "GRANT-13" KeyInFirstDomain: Grants with 0 breaks Withheld,
        "the keys of every trust group are in the domain of the first";
    "GRANT-9" MembersAdminister: Administration with 0 breaks Outsider,
        "each member administers a node that has administrators";
    "GRANT-10" NamelessAdministers: Administration with 0 breaks Outsider,
        "a peer without a proven name is an administrator by the pattern *";
    "GRANT-11" FirstAdministratorAlone: Administration with 0 breaks Administrator,
        "the first pattern of administrators counts alone";
};
