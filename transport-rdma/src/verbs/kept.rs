//! Objects that a device did not let go. They stay until the process ends.

use parking_lot::Mutex;
use std::any::Any;

/// A static, so that a leak check finds them.
static KEPT: Mutex<Vec<Box<dyn Any + Send>>> = Mutex::new(Vec::new());

/// Keeps an object that a device may still touch.
pub(super) fn keep(object: impl Send + 'static) {
    KEPT.lock().push(Box::new(object));
}
