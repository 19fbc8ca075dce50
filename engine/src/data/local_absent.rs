//! Stub used when the `verbs` feature is off.

use crate::topology::Location;
use handfast_transport::Span;

/// Memory that a device knows: there is none.
pub(crate) enum LocalRegion {}

impl LocalRegion {
    pub(crate) fn remote_keys(&self) -> Vec<u32> {
        match *self {}
    }

    pub(crate) fn location(&self) -> &Location {
        match *self {}
    }

    pub(crate) fn place(&self, _span: &Span) -> Location {
        match *self {}
    }
}
