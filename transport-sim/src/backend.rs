//! Backends of the simulated sites: the correct one, and broken variants that tests must find.

/// The backend of every site. Variants that are wrong on purpose exist behind the cargo feature
/// `mutants` only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Backend {
    /// Creates and destroys; puts in error, drains, then destroys; posts on published lanes.
    #[default]
    Shipping,
    /// Takes a queue pair through RESET and uses it again.
    #[cfg(feature = "mutants")]
    ResetReuse,
    /// Destroys without putting in error and draining first.
    #[cfg(feature = "mutants")]
    DestroyWithWorkOutstanding,
    /// Posts on a lane before it is wired.
    #[cfg(feature = "mutants")]
    PostBeforeReady,
    /// Takes a lane that is gone on our side for fenced on the other.
    #[cfg(feature = "mutants")]
    SuccessBeforeFence,
    /// Calls an access that is not allowed an error of the peer, which may be tried again.
    #[cfg(feature = "mutants")]
    ProtectionForgiven,
    /// Calls what fails because the own port is down an error of the peer.
    #[cfg(feature = "mutants")]
    PortBlamedOnPeer,
    /// Destroys queue pairs that have ended when it makes new ones.
    #[cfg(feature = "mutants")]
    RetiresOnInsert,
    /// Forgets what was posted on a queue pair that it destroys.
    #[cfg(feature = "mutants")]
    WorkForgotten,
    /// Takes a lane that comes up on another rail for the fence of one that is gone.
    #[cfg(feature = "mutants")]
    AnyRailFences,
}

/// Deviations of a broken backend; all false for the shipping one.
macro_rules! questions {
    ($($question:ident: $variant:ident;)*) => {
        impl Backend {
            $(
                #[cfg(feature = "mutants")]
                pub(crate) fn $question(self) -> bool {
                    self == Self::$variant
                }

                #[cfg(not(feature = "mutants"))]
                pub(crate) const fn $question(self) -> bool {
                    false
                }
            )*
        }
    };
}

questions! {
    resets: ResetReuse;
    drops_work: DestroyWithWorkOutstanding;
    posts_early: PostBeforeReady;
    takes_gone_for_fenced: SuccessBeforeFence;
    forgives_protection: ProtectionForgiven;
    blames_port_on_peer: PortBlamedOnPeer;
    retires_on_insert: RetiresOnInsert;
    forgets_work: WorkForgotten;
    takes_any_rail_for_fence: AnyRailFences;
}
