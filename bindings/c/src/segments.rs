//! Ids of peers.

use crate::abi::LOCAL_SEGMENT;
use crate::outcome::{limit, no_such_segment};
use handfast_compat::Failure;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Maximum names of segments of an engine.
pub const SEGMENTS_MAX: usize = 65_536;

/// The segments that a program has opened. An id is valid as long as its engine.
pub(crate) struct Segments {
    /// By id; the first is the engine's own.
    names: Vec<Arc<str>>,
    ids: BTreeMap<Arc<str>, i32>,
}

impl Segments {
    /// `address` is another name of the engine's own.
    pub(crate) fn new(name: String, address: String) -> Self {
        let name: Arc<str> = name.into();
        let ids = [(name.clone(), LOCAL_SEGMENT), (address.into(), LOCAL_SEGMENT)];
        Self { names: vec![name], ids: ids.into() }
    }

    pub(crate) fn id(&self, name: &str) -> Option<i32> {
        self.ids.get(name).copied()
    }

    /// Returns the id of a name, known or new.
    ///
    /// # Errors
    /// [`SEGMENTS_MAX`].
    pub(crate) fn insert(&mut self, name: &str) -> Result<i32, Failure> {
        if let Some(id) = self.id(name) {
            return Ok(id);
        }
        if self.names.len() >= SEGMENTS_MAX {
            let cure = "create another engine";
            return Err(limit("SEGMENTS_MAX", SEGMENTS_MAX, cure));
        }
        let (id, name) = (self.names.len() as i32, Arc::<str>::from(name));
        self.names.push(name.clone());
        self.ids.insert(name, id);
        Ok(id)
    }

    /// # Errors
    /// No segment has the id.
    pub(crate) fn name(&self, id: i64) -> Result<Arc<str>, Failure> {
        let name = usize::try_from(id).ok().and_then(|place| self.names.get(place));
        name.cloned().ok_or_else(|| no_such_segment(id))
    }

    /// The names of peers.
    pub(crate) fn peers(&self) -> &[Arc<str>] {
        &self.names[1..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handfast_compat::Cause;

    #[test]
    fn segment_past_the_limit_is_refused() {
        let mut segments = Segments::new("node".into(), "127.0.0.1:1".into());
        assert_eq!((segments.id("node"), segments.id("127.0.0.1:1")), (Some(0), Some(0)));
        for number in 1..SEGMENTS_MAX {
            assert_eq!(segments.insert(&number.to_string()).unwrap(), number as i32);
        }
        let error = segments.insert("one more").unwrap_err();
        let is_limit = matches!(error.cause(), Cause::Limit { name: "SEGMENTS_MAX", .. });
        assert!(is_limit, "{error}");
        assert_eq!(segments.insert("7").unwrap(), 7);
        assert_eq!(&*segments.name(7).unwrap(), "7");
        for unknown in [-1, SEGMENTS_MAX as i64, i64::MAX, i64::MIN] {
            assert!(segments.name(unknown).is_err());
        }
    }
}
