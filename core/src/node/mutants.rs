//! Broken variants of the rules. An explorer must find what is wrong with each; without the cargo
//! feature `mutants` none of this exists and every question below is answered by a constant.

use super::machine::Node;
use crate::identity::NicPath;

/// A broken variant of the rules.
#[cfg(feature = "mutants")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mutant {
    /// A request replaces whatever endpoint there is; two messages, no identities.
    ReplacedByRequest,
    /// A second open rebuilds the queue pairs while the call is out; two messages.
    RebuiltByWaiter,
    /// Two messages; a different generation replaces, older or not.
    TwoMessagesEqual,
    /// Two messages; a newer generation replaces, an older one is refused.
    TwoMessagesOrdered,
    /// Established as soon as our own side has wired.
    EstablishedOnFirstSight,
    /// Lifecycle numbers are reused as soon as they are free.
    ReusedNumbers,
    /// A request is wired towards at once, without an echo, with queue pairs of its own.
    WiredOnFirstSight,
    /// An unknown incarnation takes the name at first sight, and the one before it is banned.
    SupersededSet,
    /// The side with the lower path initiates, the other waits.
    LowerInitiates,
    /// A peer may wire while our earlier lanes to it still exist: rule H6 on one side only.
    OfferedUnfenced,
    /// A close destroys a lane at once, whatever the peer still does on it.
    RetiredUnasked,
    /// Only earlier lanes to the same NIC are waited for, whatever node they led to.
    OneNicFenced,
    /// A request is answered when no request of our own is out.
    AnsweredInTurn,
    /// A lane to a node without our key is usable as soon as both have wired.
    UsableUnproven,
}

#[cfg(feature = "mutants")]
impl Node {
    /// A node that follows a broken variant of the rules.
    pub fn with_mutant(config: super::api::NodeConfig, mutant: Mutant) -> Self {
        Self { mutant: Some(mutant), ..Self::new(config) }
    }

    pub(super) fn wires_on_request(&self) -> bool {
        matches!(
            self.mutant,
            Some(
                Mutant::ReplacedByRequest
                    | Mutant::RebuiltByWaiter
                    | Mutant::TwoMessagesEqual
                    | Mutant::TwoMessagesOrdered
                    | Mutant::WiredOnFirstSight
            )
        )
    }

    pub(super) fn establishes_alone(&self) -> bool {
        let first_sight = self.mutant == Some(Mutant::EstablishedOnFirstSight);
        let waits = self.mutant == Some(Mutant::WiredOnFirstSight);
        first_sight || self.wires_on_request() && !waits
    }

    pub(super) fn replaces_on_request(&self) -> bool {
        matches!(self.mutant, Some(Mutant::ReplacedByRequest | Mutant::WiredOnFirstSight))
    }

    pub(super) fn rebuilds_for_waiter(&self) -> bool {
        self.mutant == Some(Mutant::RebuiltByWaiter)
    }

    pub(super) fn ignores_order(&self) -> bool {
        matches!(self.mutant, Some(Mutant::TwoMessagesEqual | Mutant::RebuiltByWaiter))
    }

    pub(super) fn reuses_numbers(&self) -> bool {
        self.mutant == Some(Mutant::ReusedNumbers)
    }

    pub(super) fn forgets_superseded(&self) -> bool {
        self.wires_on_request()
    }

    pub(super) fn bans_superseded(&self) -> bool {
        self.mutant == Some(Mutant::SupersededSet)
    }

    pub(super) fn leaves_initiative(&self, path: &NicPath) -> bool {
        self.mutant == Some(Mutant::LowerInitiates) && self.config.path > *path
    }

    pub(super) fn offers_unfenced(&self) -> bool {
        self.mutant == Some(Mutant::OfferedUnfenced)
    }

    pub(super) fn retires_unasked(&self) -> bool {
        self.mutant == Some(Mutant::RetiredUnasked)
    }

    pub(super) fn fences_one_nic(&self) -> bool {
        self.mutant == Some(Mutant::OneNicFenced)
    }

    pub(super) fn trusts_unproven(&self) -> bool {
        self.mutant == Some(Mutant::UsableUnproven)
    }

    pub(super) fn answers_in_turn(&self, path: &NicPath) -> bool {
        let asks = |lane: &super::lane::Lane| match &lane.state {
            super::lane::State::Announced(announcement) => announcement.requests > 0,
            _ => false,
        };
        self.mutant == Some(Mutant::AnsweredInTurn)
            && self.lanes.values().any(|lane| lane.peer != *path && asks(lane))
    }
}

/// The shipping rules.
#[cfg(not(feature = "mutants"))]
macro_rules! never {
    ($($question:ident($($argument:ty)?)),+ $(,)?) => {
        impl Node {
            $(
                #[inline(always)]
                #[allow(clippy::unused_self, reason = "a variant looks at it")]
                pub(super) const fn $question(&self $(, _: $argument)?) -> bool {
                    false
                }
            )+
        }
    };
}

#[cfg(not(feature = "mutants"))]
never! {
    wires_on_request(),
    establishes_alone(),
    replaces_on_request(),
    rebuilds_for_waiter(),
    ignores_order(),
    reuses_numbers(),
    forgets_superseded(),
    bans_superseded(),
    leaves_initiative(&NicPath),
    offers_unfenced(),
    retires_unasked(),
    fences_one_nic(),
    trusts_unproven(),
    answers_in_turn(&NicPath),
}
