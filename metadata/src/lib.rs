//! Where the nodes of a fleet find each other, other than by asking one another.
//!
//! A [`Store`] keeps texts under keys: descriptors and addresses of nodes, in the format of the
//! Mooncake Transfer Engine, so that its nodes and ours share one. [`HttpStore`] speaks to an HTTP
//! metadata server, the engine's own or [`HttpServer`]; with the feature `etcd`, `EtcdStore` to an
//! etcd. With the feature `tls` both speak it.
#![forbid(unsafe_code)]

mod error;
#[cfg(feature = "etcd")]
mod etcd;
mod http;
mod journal;
mod server;
mod source;
mod store;
#[cfg(feature = "tls")]
mod tls;

pub use error::{StoreCause, StoreError, StoreOperation, TlsFailure};
#[cfg(feature = "etcd")]
pub use etcd::{EtcdOptions, EtcdStore};
pub use http::HttpStore;
pub use journal::JournalError;
pub use server::{HttpServer, ServerError, ServerLimits};
pub use source::{Credentials, Source, SourceError, TlsFiles};
pub use store::{Change, Changes, KEY_BYTES_MAX, Pending, Store, VALUE_BYTES_MAX};
#[cfg(feature = "tls")]
pub use tls::{TLS_FILE_BYTES_MAX, Tls};
