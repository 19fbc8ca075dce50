//! Connecting queue pairs again by way of RESET: what lanes never do.

use super::nic::Nic;
use crate::error::VerbsError;
use handfast_core::Lifecycle;
use handfast_core::wire::Body;

impl Nic {
    /// Takes the queue pairs of a wired lane to RESET, and from there to INIT, RTR and RTS towards
    /// the same peer with the same numbers: an experiment, to learn what a driver makes of it. What
    /// follows differs from driver to driver, which is why lanes are retired and made anew instead
    /// (`docs/hardware.md`). The lane is to be idle, and to be retired after the experiment whatever
    /// came of it; work in flight may be dropped without a word. Blocks as [`Nic::wire`].
    ///
    /// # Errors
    /// The first call that the driver refused, or that no such lane exists.
    pub fn connect_again_after_reset(
        &self,
        lifecycle: Lifecycle,
        peer: &Body,
    ) -> Result<(), VerbsError> {
        let lane = self.known(lifecycle, "reset")?;
        let (route, numbers, patience) = self.route_to(&lane, peer)?;
        lane.connect_again_after_reset(&route, &numbers, patience)
    }
}
