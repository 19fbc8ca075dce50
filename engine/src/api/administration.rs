//! Grants of segments that other nodes serve.

use super::engine::{Engine, unlocked};
use crate::error::{Cause, Error, Stage};
use handfast_core::NodeName;
use handfast_core::transport::Side;
use handfast_core::wire::{
    DescriptorError, FrameKind, GrantsAnswer, GrantsRefusal, GrantsRefusalReason, GrantsRequest,
    NodeDescriptor, SegmentGrants,
};

impl Engine {
    /// Lists the grants of a node's segments, or changes those of one, as an administrator of that node
    /// ([`Builder::administrators`](crate::Builder::administrators)); `node` is its address, or its name
    /// in the store. Returns the grants of the segments asked for, after the change, which is in force
    /// then as after [`Registration::grant`](crate::Registration::grant) and
    /// [`Registration::revoke`](crate::Registration::revoke).
    ///
    /// Not cancel-safe: a change may be in force though nobody has waited for the answer. Adding and
    /// revoking a grant twice does no harm.
    ///
    /// # Errors
    /// The node cannot be reached, or another one is at the address that the store has for its name
    /// ([`AuthRefusal::Addressed`](crate::auth::AuthRefusal)); [`Cause::GrantsRefused`], with [`Side::Protection`] if this node is
    /// no administrator, else with [`Side::Peer`].
    pub async fn administer(
        &self,
        node: &str,
        request: GrantsRequest,
    ) -> Result<SegmentGrants, Error> {
        self.check_open()?;
        let address = self.call_address(node).await?;
        let (shared, text) = (self.shared(), request.encode());
        let asked = match &shared.directory {
            // The store is not authenticated, and an address may have passed to another node.
            Some(_) => {
                let name = NodeName::new(node)
                    .map_err(|error| Error::local(Stage::Metadata, error).at(node))?;
                shared.caller.ask_node(&address, name, FrameKind::Metadata, text).await
            }
            None => shared.caller.ask(&address, FrameKind::Metadata, text).await,
        };
        let answered = asked.map_err(|error| error.into_error(Stage::Metadata).at(node))?;
        let refused = |refusal: GrantsRefusal| {
            let side = match refusal.reason {
                GrantsRefusalReason::NoAdministrator => Side::Protection,
                _ => Side::Peer,
            };
            Error::new(side, Stage::Metadata, Cause::GrantsRefused(refusal)).at(node)
        };
        match GrantsAnswer::decode(&answered.text) {
            Ok(GrantsAnswer(answer)) => answer.map_err(refused),
            Err(error) => {
                // The answer of a node with keys to one without.
                if let Err(locked @ DescriptorError::Required(_)) =
                    NodeDescriptor::decode(&answered.text)
                {
                    return Err(unlocked(locked, Stage::Metadata).at(node));
                }
                let text = format!("the node is an earlier version, or none of handfast: {error}");
                Err(Error::new(Side::Peer, Stage::Metadata, Cause::Invalid(text)).at(node))
            }
        }
    }
}
