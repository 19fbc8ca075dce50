//! How a backend performs what it is asked for: the right way, and ways that must be found out.

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
}

#[cfg(feature = "mutants")]
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
}

#[cfg(not(feature = "mutants"))]
impl Backend {
    pub(crate) fn resets(self) -> bool {
        false
    }

    pub(crate) fn drops_work(self) -> bool {
        false
    }

    pub(crate) fn posts_early(self) -> bool {
        false
    }

    pub(crate) fn takes_gone_for_fenced(self) -> bool {
        false
    }
}
