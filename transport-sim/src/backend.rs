//! Backends of the simulated sites: the correct one, and broken variants that tests must find.

/// The backend of every site: the shipping one, or a broken one that an oracle must find.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Backend {
    /// Moves to error, drains, then destroys; posts only on published lanes.
    #[default]
    Shipping,
    /// Takes a queue pair through RESET and uses it again.
    ResetReuse,
    /// Destroys without moving to error and draining first.
    DestroyWithWorkOutstanding,
    /// Posts on a lane before it is connected.
    PostBeforeReady,
    /// Treats a locally retired lane as fenced at the peer.
    SuccessBeforeFence,
    /// Reports a forbidden access as a retryable error of the peer.
    ProtectionForgiven,
    /// Reports failures of a port that is down locally as errors of the peer.
    PortBlamedOnPeer,
    /// Destroys ended queue pairs only when it creates new ones.
    RetiresOnInsert,
    /// Loses the posted work of a destroyed queue pair.
    WorkForgotten,
    /// Treats a new lane on another rail as the fence of a retired one.
    AnyRailFences,
    /// Retires a same-host lane without waiting for its peer to let memory go.
    RetiresUnreleased,
    /// Reports the copies of a same-host lane that closes as ended while their threads copy.
    DisownsCopies,
    /// Finds maps of a peer's memory by their key, also those of an earlier incarnation.
    KeepsMaps,
    /// Copies a batch at once over a map that it has, without announcing it to the channel.
    CopiesUnannounced,
    /// Treats the end of a same-host connection as the death of the peer.
    HangUpIsDeath,
}

impl Backend {
    pub(crate) fn resets(self) -> bool {
        self == Self::ResetReuse
    }

    pub(crate) fn drops_work(self) -> bool {
        self == Self::DestroyWithWorkOutstanding
    }

    pub(crate) fn posts_early(self) -> bool {
        self == Self::PostBeforeReady
    }

    pub(crate) fn takes_gone_for_fenced(self) -> bool {
        self == Self::SuccessBeforeFence
    }

    pub(crate) fn forgives_protection(self) -> bool {
        self == Self::ProtectionForgiven
    }

    pub(crate) fn blames_port_on_peer(self) -> bool {
        self == Self::PortBlamedOnPeer
    }

    pub(crate) fn retires_on_insert(self) -> bool {
        self == Self::RetiresOnInsert
    }

    pub(crate) fn forgets_work(self) -> bool {
        self == Self::WorkForgotten
    }

    pub(crate) fn retires_unreleased(self) -> bool {
        self == Self::RetiresUnreleased
    }

    pub(crate) fn disowns_copies(self) -> bool {
        self == Self::DisownsCopies
    }

    pub(crate) fn copies_unannounced(self) -> bool {
        self == Self::CopiesUnannounced
    }

    pub(crate) fn keeps_maps(self) -> bool {
        self == Self::KeepsMaps
    }

    pub(crate) fn takes_hang_up_for_death(self) -> bool {
        self == Self::HangUpIsDeath
    }

    pub(crate) fn takes_any_rail_for_fence(self) -> bool {
        self == Self::AnyRailFences
    }
}
