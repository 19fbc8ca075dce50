//! Grants of memory that peers serve, for their administrators.

use super::TransferEngine;
use crate::Interrupt;
use crate::failure::Failure;
use crate::waiting::{interruptible, outside};
use handfast::Grant;
use handfast::auth::{GrantsRequest, SegmentGrants};

impl TransferEngine {
    /// The grants of the memory that a peer serves under a name, or under all, one for each pattern of
    /// names.
    ///
    /// # Errors
    /// The peer cannot be reached, this engine is no administrator of it, or it serves nothing under the
    /// name.
    pub fn peer_grants(
        &self,
        peer: &str,
        segment: Option<&str>,
        interrupt: Interrupt<'_>,
    ) -> Result<SegmentGrants, Failure> {
        let segment = segment.map(str::to_owned);
        self.administer(peer, GrantsRequest::List { segment }, interrupt)
    }

    /// Adds a grant to the memory that a peer serves under a name: in force on return.
    ///
    /// # Errors
    /// As of [`TransferEngine::peer_grants`], or the peer refuses the grant. After an interruption the
    /// grant may be in force.
    pub fn peer_grant(
        &self,
        peer: &str,
        segment: &str,
        grant: Grant,
        interrupt: Interrupt<'_>,
    ) -> Result<(), Failure> {
        let request = GrantsRequest::Add { segment: segment.to_owned(), grant };
        self.administer(peer, request, interrupt).map(drop)
    }

    /// Takes what a grant allows from its pattern of names, in the memory that a peer serves under a
    /// name: in force on return.
    ///
    /// # Errors
    /// As of [`TransferEngine::peer_grant`].
    pub fn peer_revoke(
        &self,
        peer: &str,
        segment: &str,
        grant: Grant,
        interrupt: Interrupt<'_>,
    ) -> Result<(), Failure> {
        let request = GrantsRequest::Revoke { segment: segment.to_owned(), grant };
        self.administer(peer, request, interrupt).map(drop)
    }

    fn administer(
        &self,
        peer: &str,
        request: GrantsRequest,
        interrupt: Interrupt<'_>,
    ) -> Result<SegmentGrants, Failure> {
        let inner = &self.inner;
        inner.process.check()?;
        let asked = inner.engine.administer(peer, request);
        Ok(outside(inner.runtime, interruptible(asked, interrupt))???)
    }
}
