//! Numbers of the look-ups of this process. Those of all engines are one sequence, in which a greater number
//! began later.

use handfast_core::policy::{Doubt, LookUp, LookUps};
use parking_lot::Mutex;

static LOOK_UPS: Mutex<LookUps> = Mutex::new(LookUps::new());

/// Begins a look-up. Call before anything is asked for it.
pub(crate) fn begin() -> LookUp {
    LOOK_UPS.lock().begin()
}

/// A doubt that arises now.
pub(crate) fn doubt() -> Doubt {
    LOOK_UPS.lock().doubt()
}
