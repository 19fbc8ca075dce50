//! Changes of peers in a metadata store: another call address, or none.

use super::{Directory, RETRY_MAX, RETRY_MIN};
use crate::observe::counters::Counts;
use crate::peer::target::Target;
use handfast_core::mooncake::RpcMeta;
use handfast_metadata::{Change, StoreError};
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::time::sleep;
use tracing::{debug, info};

/// Watches a store for the lifetime of the engine.
pub(crate) struct Watcher {
    pub(crate) directory: Arc<Directory>,
    /// Returns every known peer.
    pub(crate) targets: Box<dyn Fn() -> Vec<Arc<Target>> + Send + Sync>,
    pub(crate) counts: Arc<Counts>,
}

impl Watcher {
    /// Marks a node as stale when its entry changes, so that the next
    /// transfer looks it up again. Returns at once if the store cannot be watched.
    pub(crate) async fn run(self) {
        let Some(mut changes) = self.directory.watch() else { return };
        let (mut pause, mut unsure) = (RETRY_MIN, false);
        loop {
            let heard = match unsure {
                true => self.look_at_all().await.map(|()| unsure = false),
                false => changes.next().await.map(|change| match change {
                    Change::Missed => unsure = true,
                    Change::Put { key, value } => self.on_change(&key, Some(&value)),
                    Change::Removed { key } => self.on_change(&key, None),
                }),
            };
            match heard {
                Ok(()) => pause = RETRY_MIN,
                Err(error) => {
                    debug!(%error, "watching the metadata store failed");
                    sleep(pause).await;
                    pause = (2 * pause).min(RETRY_MAX);
                }
            }
        }
    }

    /// Looks up every known node, since changes may have been missed.
    async fn look_at_all(&self) -> Result<(), StoreError> {
        let names: BTreeSet<String> =
            (self.targets)().iter().map(|it| it.node().to_owned()).collect();
        for name in names {
            match self.directory.published_at(&name).await? {
                Some(Ok(at)) => self.tell(&name, Some(&at)),
                Some(Err(_)) => {}
                None => self.tell(&name, None),
            }
        }
        Ok(())
    }

    fn on_change(&self, key: &str, value: Option<&str>) {
        let Some(name) = self.directory.name_of(key) else { return };
        match value.map(RpcMeta::decode) {
            Some(Ok(at)) => self.tell(name, Some(&at)),
            Some(Err(error)) => debug!(name, %error, "ignoring an entry of the metadata store"),
            None => self.tell(name, None),
        }
    }

    fn tell(&self, name: &str, at: Option<&RpcMeta>) {
        for target in (self.targets)().iter().filter(|target| target.node() == name) {
            if target.on_published(at) {
                self.counts.update(|it| it.peers_moved += 1);
                let at = at.map_or_else(|| "nowhere".to_owned(), RpcMeta::address);
                info!(name, at, "a node moved, says its entry in the metadata store");
            }
        }
    }
}
