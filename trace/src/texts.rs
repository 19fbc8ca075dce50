//! Texts as they are, and names of calls that last as long as the program.

use handfast_core::codec::{TextKind, Texts};
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// Different names of calls, limits and steps that all traces read by one process may have; there
/// are some fifty.
pub const CALL_NAMES_MAX: usize = 1024;
/// Longest of them, in bytes.
pub const CALL_NAME_BYTES_MAX: usize = 64;

/// The core takes such names from its callers' code, where they last for ever.
static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

pub(crate) fn lasting(name: &str) -> Option<&'static str> {
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = names.get(name) {
        return Some(known);
    }
    if names.len() >= CALL_NAMES_MAX || name.len() > CALL_NAME_BYTES_MAX {
        return None;
    }
    let kept: &'static str = Box::leak(name.to_owned().into_boxed_str());
    names.insert(kept);
    Some(kept)
}

/// Takes every text as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plain;

impl Texts for Plain {
    fn text(&mut self, _: TextKind, text: String) -> String {
        text
    }

    fn lasting(&mut self, name: &str) -> Option<&'static str> {
        lasting(name)
    }
}
