//! Discovery through a metadata store: publication of the local node, and look-up of others. The
//! entries are Mooncake's.

mod watching;

pub(crate) use watching::Watcher;

use crate::control::answer::Answers;
use crate::error::{Cause, Error, Stage};
use handfast_core::mooncake::{Keys, RpcMeta, RpcMetaError, SegmentDescriptor};
use handfast_core::wire::{DescriptorError, NodeDescriptor};
use handfast_metadata::{Changes, Store, StoreError};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::timeout;
use tracing::{info, warn};

/// Shortest pause after publishing or watching failed.
pub(crate) const RETRY_MIN: Duration = Duration::from_millis(100);
/// Longest pause after publishing or watching failed.
pub(crate) const RETRY_MAX: Duration = Duration::from_secs(5);

/// A metadata store, and the cluster of its entries.
#[derive(Clone)]
#[non_exhaustive]
pub struct MetadataOptions {
    /// The store.
    pub store: Arc<dyn Store>,
    /// Cluster id in every key, like `MC_METADATA_CLUSTER_ID`; empty for none.
    pub cluster_id: String,
    /// Interval between publications. A store that lost an entry regains it within this time.
    pub publish_interval: Duration,
}

impl MetadataOptions {
    /// Options of a store without a cluster id, with a publication every ten seconds.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store, cluster_id: String::new(), publish_interval: Duration::from_secs(10) }
    }

    /// These options with changes: `MetadataOptions::new(store).with(|it| it.cluster_id = id)`.
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

impl fmt::Debug for MetadataOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MetadataOptions({}, {:?})", self.store.name(), self.cluster_id)
    }
}

/// Entries of a node in a store.
pub(crate) enum Found {
    /// Call address of a handfast node, which is asked for its descriptor.
    Ours(String),
    /// A Mooncake node, and its call address.
    LegacyPeers(Box<SegmentDescriptor>, String),
}

/// A metadata store as this node uses it.
pub(crate) struct Directory {
    store: Arc<dyn Store>,
    keys: Keys,
    interval: Duration,
    /// Serializes publications.
    publication: tokio::sync::Mutex<Publication>,
}

/// Whether the store may have entries of this node.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Publication {
    None,
    Begun,
    Withdrawn,
}

impl Directory {
    pub(crate) fn new(options: &MetadataOptions) -> Result<Arc<Self>, Error> {
        let invalid = |text: String| Error::local(Stage::Configuration, Cause::Invalid(text));
        let keys = Keys::new(&options.cluster_id).map_err(|error| invalid(error.to_string()))?;
        if options.publish_interval.is_zero() {
            return Err(invalid("publish_interval must not be zero".into()));
        }
        let interval = options.publish_interval;
        let publication = tokio::sync::Mutex::new(Publication::None);
        Ok(Arc::new(Self { store: options.store.clone(), keys, interval, publication }))
    }

    /// Looks a node up by its name.
    pub(crate) async fn look_up(&self, name: &str) -> Result<Found, Error> {
        let failed = |cause: Cause| Error::peer(Stage::Metadata, cause).at(name);
        let store = |error: StoreError| failed(Cause::Store(error));
        let unknown = || {
            let store = self.store.name().to_owned();
            failed(Cause::NotPublished { name: name.to_owned(), store })
        };
        let text = self.store.get(&self.keys.segment(name)).await.map_err(store)?;
        let text = text.ok_or_else(unknown)?;
        match NodeDescriptor::decode(&text) {
            Ok(ours) => Ok(Found::Ours(ours.address)),
            Err(DescriptorError::NoKey(_)) => {
                let theirs = SegmentDescriptor::decode(&text).map_err(|it| failed(it.into()))?;
                let meta = self.published_at(name).await.map_err(store)?.ok_or_else(unknown)?;
                let meta = meta.map_err(|error| failed(Cause::Invalid(error.to_string())))?;
                Ok(Found::LegacyPeers(Box::new(theirs), meta.address()))
            }
            Err(error) => Err(failed(error.into())),
        }
    }

    /// The published call address of a node, if any.
    pub(crate) async fn published_at(
        &self,
        name: &str,
    ) -> Result<Option<Result<RpcMeta, RpcMetaError>>, StoreError> {
        let text = self.store.get(&self.keys.rpc_meta(name)).await?;
        Ok(text.as_deref().map(RpcMeta::decode))
    }

    /// Watches the call addresses of nodes, if the store supports it.
    pub(crate) fn watch(&self) -> Option<Box<dyn Changes>> {
        self.store.watch(&self.keys.rpc_meta(""))
    }

    /// Returns the node whose call address is stored under `key`.
    pub(crate) fn name_of<'a>(&self, key: &'a str) -> Option<&'a str> {
        key.strip_prefix(&self.keys.rpc_meta(""))
    }

    /// The call address of a node, looked up by name.
    pub(crate) async fn call_address(&self, name: &str) -> Result<String, Error> {
        match self.look_up(name).await? {
            Found::Ours(address) | Found::LegacyPeers(_, address) => Ok(address),
        }
    }

    /// Publishes this node's entries once.
    pub(crate) async fn publish(&self, answers: &Answers) -> Result<(), Error> {
        let failed = |error: StoreError| Error::local(Stage::Metadata, Cause::Store(error));
        let mut publication = self.publication.lock().await;
        let Some(meta) = RpcMeta::of_address(&answers.address) else { return Ok(()) };
        if *publication == Publication::Withdrawn {
            return Ok(());
        }
        *publication = Publication::Begun;
        let name = answers.name.as_str();
        self.store.put(&self.keys.rpc_meta(name), &meta.encode()).await.map_err(failed)?;
        // Handfast nodes use only its address, and ask the node there for the rest.
        answers.make_open_keys().await;
        let descriptor = answers.describe_openly().encode();
        self.store.put(&self.keys.segment(name), &descriptor).await.map_err(failed)
    }

    /// Publishes every change, and periodically, until the engine is gone.
    pub(crate) async fn keep_published(self: Arc<Self>, answers: Weak<Answers>) {
        let mut pause = RETRY_MIN;
        loop {
            let Some(alive) = answers.upgrade() else { return };
            let published = self.publish(&alive).await;
            let wait = match published {
                Ok(()) => {
                    if pause > RETRY_MIN {
                        info!(
                            store = self.store.name(),
                            "the metadata store accepts entries again"
                        );
                    }
                    pause = RETRY_MIN;
                    self.interval
                }
                Err(error) => {
                    warn!(%error, "publishing this node's entries failed");
                    alive.counts.update(|it| it.publications_failed += 1);
                    let wait = pause;
                    pause = (2 * pause).min(RETRY_MAX);
                    wait
                }
            };
            let changed = alive.regions.changed.clone();
            drop(alive);
            // A timeout and a change both lead to a publication.
            let _ = timeout(wait, changed.notified()).await;
        }
    }

    /// Removes this node's entries. Entries of another incarnation remain: a successor has published
    /// under this name.
    pub(crate) async fn withdraw(&self, answers: &Answers) {
        let mut publication = self.publication.lock().await;
        if std::mem::replace(&mut *publication, Publication::Withdrawn) != Publication::Begun {
            return;
        }
        if let Err(error) = self.remove_own(answers).await {
            warn!(%error, "entries of this node remain in the metadata store");
        }
    }

    /// Looks at both entries before they are removed; a store has no operation that does both.
    async fn remove_own(&self, answers: &Answers) -> Result<(), StoreError> {
        let name = answers.name.as_str();
        let own = RpcMeta::of_address(&answers.address);
        let address = self.published_at(name).await?;
        let descriptor = self.keys.segment(name);
        let stored = self.store.get(&descriptor).await?;
        // A successor publishes its address first.
        let is_own_address = address.as_ref().is_none_or(|it| it.as_ref().ok() == own.as_ref());
        let stored = stored.map(|text| NodeDescriptor::decode(&text).map(|it| it.incarnation));
        let is_own =
            stored.as_ref().is_none_or(|it| it.as_ref().ok() == Some(&answers.incarnation));
        if !(is_own_address && is_own) {
            info!(name, "the metadata store has a successor's entries");
            return Ok(());
        }
        if address.is_some() {
            self.store.remove(&self.keys.rpc_meta(name)).await?;
        }
        if stored.is_some() {
            self.store.remove(&descriptor).await?;
        }
        Ok(())
    }
}
