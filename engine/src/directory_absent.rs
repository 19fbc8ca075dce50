//! Stub used when the `metadata` feature is off: no value of these types exists.

use crate::control::answer::Answers;
use crate::error::Error;
use crate::observe::counters::Counts;
use crate::peer::target::Target;
use handfast_core::mooncake::SegmentDescriptor;
use std::sync::{Arc, Weak};

/// Options of a metadata store.
#[derive(Clone, Debug)]
pub(crate) enum MetadataOptions {}

/// Entries of a node in a store.
#[allow(dead_code, reason = "constructed with a store alone")]
pub(crate) enum Found {
    Ours(String),
    LegacyPeers(Box<SegmentDescriptor>, String),
}

/// A store as the engine uses it.
pub(crate) enum Directory {}

impl Directory {
    pub(crate) fn new(options: &MetadataOptions) -> Result<Arc<Self>, Error> {
        match *options {}
    }

    pub(crate) async fn look_up(&self, _name: &str) -> Result<Found, Error> {
        match *self {}
    }

    pub(crate) async fn call_address(&self, _name: &str) -> Result<String, Error> {
        match *self {}
    }

    pub(crate) async fn keep_published(self: Arc<Self>, _answers: Weak<Answers>) {
        match *self {}
    }

    pub(crate) async fn withdraw(&self, _answers: &Answers) {
        match *self {}
    }
}

/// The task that watches a store.
#[allow(dead_code, reason = "runs with a store alone")]
pub(crate) struct Watcher {
    pub(crate) directory: Arc<Directory>,
    pub(crate) targets: Box<dyn Fn() -> Vec<Arc<Target>> + Send + Sync>,
    pub(crate) counts: Arc<Counts>,
}

impl Watcher {
    pub(crate) async fn run(self) {
        match *self.directory {}
    }
}
