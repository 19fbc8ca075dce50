//! Connecting queue pairs again by way of RESET: what lanes never do.

use super::nic::Nic;
use crate::error::VerbsError;
use handfast_core::Lifecycle;
use handfast_core::wire::Body;

impl Nic {
    /// Takes the queue pairs of a connected lane to RESET, and from there to INIT, RTR and RTS
    /// towards the same peer with the same numbers: an experiment to learn a driver's behaviour.
    /// The outcome differs between drivers, which is why lanes are retired and recreated instead
    /// (`docs/hardware.md`). The lane must be idle, and be retired after the experiment in any
    /// case; work in flight may be dropped silently. Blocks like [`Nic::connect`].
    ///
    /// # Errors
    /// The first call that the driver refused, or no such lane.
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
