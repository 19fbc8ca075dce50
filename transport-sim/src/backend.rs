//! Backends of the simulated sites: the correct one, and broken variants that tests must find.

/// The backend of every site: the one that ships, or a broken one that an oracle must find.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Backend {
    /// Creates and destroys; puts in error, drains, then destroys; posts on published lanes.
    #[default]
    Shipping,
    /// Takes a queue pair through RESET and uses it again.
    ResetReuse,
    /// Destroys without putting in error and draining first.
    DestroyWithWorkOutstanding,
    /// Posts on a lane before it is connected.
    PostBeforeReady,
    /// Takes a lane that is gone on our side for fenced on the other.
    SuccessBeforeFence,
    /// Calls an access that is not allowed an error of the peer, which may be tried again.
    ProtectionForgiven,
    /// Calls what fails because the own port is down an error of the peer.
    PortBlamedOnPeer,
    /// Destroys queue pairs that have ended when it makes new ones.
    RetiresOnInsert,
    /// Forgets what was posted on a queue pair that it destroys.
    WorkForgotten,
    /// Takes a lane that comes up on another rail for the fence of one that is gone.
    AnyRailFences,
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

    pub(crate) fn takes_any_rail_for_fence(self) -> bool {
        self == Self::AnyRailFences
    }
}
