//! Messages in flight.

use crate::fingerprint::{Encoder, hash_message};
use handfast_core::Pair;
use handfast_core::node::Ranks;
use handfast_core::wire::Message;
use std::hash::Hash;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

/// A message in flight. Worlds share it, with the digests of its content.
#[derive(Debug)]
pub struct Letter {
    message: Message,
    digest: OnceLock<u128>,
    outline: OnceLock<u128>,
    /// Sites that it leads to, as bits.
    sites: OnceLock<u64>,
}

impl Letter {
    pub(crate) fn new(message: Message) -> Self {
        let (digest, outline, sites) = Default::default();
        Self { message, digest, outline, sites }
    }

    /// Returns the message, copied if another world has it too.
    pub(crate) fn into_message(this: Arc<Self>) -> Message {
        match Arc::try_unwrap(this) {
            Ok(letter) => letter.message,
            Err(shared) => shared.message.clone(),
        }
    }

    /// Returns the digest of the whole message.
    pub(crate) fn digest(&self) -> u128 {
        *self.digest.get_or_init(|| {
            let mut encoder = Encoder::default();
            self.message.hash(&mut encoder);
            encoder.digest()
        })
    }

    /// Returns the sites that it leads to, as bits. They are the same in all worlds of a setup.
    pub(crate) fn sites(&self, find: impl FnOnce(&Message) -> u64) -> u64 {
        *self.sites.get_or_init(|| find(&self.message))
    }

    /// Returns the digest of what fingerprints tell apart, except the lifecycles.
    pub(crate) fn outline(&self) -> u128 {
        *self.outline.get_or_init(|| {
            let mut encoder = Encoder::default();
            hash_message(&self.message, &Nameless, &mut encoder);
            encoder.digest()
        })
    }
}

/// All lifecycles alike.
struct Nameless;

impl Ranks for Nameless {
    fn rank(&self, _: Pair) -> u64 {
        0
    }
}

impl Deref for Letter {
    type Target = Message;

    fn deref(&self) -> &Message {
        &self.message
    }
}

impl PartialEq for Letter {
    fn eq(&self, other: &Self) -> bool {
        // Most messages in flight differ here.
        self.message.sender == other.message.sender && self.message == other.message
    }
}

impl Eq for Letter {}
