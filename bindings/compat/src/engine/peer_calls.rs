//! Calls to peers without a transfer.

use super::{Interrupt, TransferEngine};
use crate::failure::Failure;
use crate::waiting::{interruptible, outside};
use handfast::ServedSegment;
use handfast::mooncake::Notification;

impl TransferEngine {
    /// Opens a peer, unless it is open.
    ///
    /// # Errors
    /// It cannot be reached.
    pub fn open(&self, peer: &str, interrupt: Interrupt<'_>) -> Result<(), Failure> {
        let inner = &self.inner;
        inner.process.check()?;
        outside(inner.runtime, async {
            interruptible(inner.peer(peer), interrupt).await?.map(drop)
        })?
    }

    /// Forgets a peer; the next use opens it again. Returns whether it was open: never in a forked
    /// child.
    pub fn close_peer(&self, peer: &str) -> bool {
        self.inner.process.check().is_ok() && self.inner.peers.write().remove(peer).is_some()
    }

    /// Number of known peers; 0 in a forked child.
    pub fn peers(&self) -> usize {
        self.inner.process.check().map_or(0, |()| self.inner.peers.read().len())
    }

    /// Checks that a peer answers calls.
    ///
    /// # Errors
    /// It does not.
    pub fn probe(&self, peer: &str, interrupt: Interrupt<'_>) -> Result<(), Failure> {
        let inner = &self.inner;
        inner.process.check()?;
        let probed = inner.engine.probe(peer);
        Ok(outside(inner.runtime, interruptible(probed, interrupt))???)
    }

    /// Asks a peer for what it serves, in the order of registration.
    ///
    /// # Errors
    /// It cannot be reached.
    pub fn segments(
        &self,
        peer: &str,
        interrupt: Interrupt<'_>,
    ) -> Result<Vec<ServedSegment>, Failure> {
        let inner = &self.inner;
        inner.process.check()?;
        let asked = inner.engine.segments(peer);
        Ok(outside(inner.runtime, interruptible(asked, interrupt))???)
    }

    /// Sends a notification.
    ///
    /// # Errors
    /// The peer cannot be reached, or refuses it.
    pub fn notify(
        &self,
        peer: &str,
        notification: &Notification,
        interrupt: Interrupt<'_>,
    ) -> Result<(), Failure> {
        let inner = &self.inner;
        inner.process.check()?;
        let sent = inner.engine.notify(peer, notification);
        Ok(outside(inner.runtime, interruptible(sent, interrupt))???)
    }

    /// Takes the notifications received since the last call.
    ///
    /// # Errors
    /// [`Cause::Forked`](crate::Cause::Forked).
    pub fn take_notifications(&self) -> Result<Vec<Notification>, Failure> {
        self.inner.process.check()?;
        Ok(self.inner.engine.take_notifications())
    }

    /// Waits until no earlier failed write to a peer can land in its memory any more.
    ///
    /// # Errors
    /// The peer cannot be reached, or is a Mooncake node, which cannot tell.
    pub fn fence(&self, peer: &str, interrupt: Interrupt<'_>) -> Result<(), Failure> {
        let inner = &self.inner;
        inner.process.check()?;
        let fenced = async { Ok::<_, Failure>(inner.peer(peer).await?.fence().await?) };
        outside(inner.runtime, interruptible(fenced, interrupt))??
    }
}
