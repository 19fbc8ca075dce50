//! Where the nodes of a fleet find each other, other than by asking one another.
//!
//! A [`Store`] keeps texts under keys: descriptors and addresses of nodes, in the format of the
//! Mooncake Transfer Engine, so that its nodes and ours share one. [`HttpStore`] speaks to an HTTP
//! metadata server, the engine's own or [`HttpServer`]; with the feature `etcd`, `EtcdStore` to an
//! etcd.
#![forbid(unsafe_code)]

mod error;
#[cfg(feature = "etcd")]
mod etcd;
mod http;
mod journal;
mod server;
mod source;
mod store;

pub use error::{StoreCause, StoreError, StoreOperation};
#[cfg(feature = "etcd")]
pub use etcd::{EtcdOptions, EtcdStore};
pub use http::HttpStore;
pub use journal::JournalError;
pub use server::{HttpServer, ServerError, ServerLimits};
pub use source::{Source, SourceError};
pub use store::{KEY_BYTES_MAX, Pending, Store, VALUE_BYTES_MAX};
