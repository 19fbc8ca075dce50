//! Metadata stores, in which the nodes of a fleet find each other.
//!
//! A [`Store`] keeps texts under keys: descriptors and addresses of nodes, in the format of the
//! Mooncake Transfer Engine, so that Mooncake nodes and handfast nodes share a store. [`HttpStore`] is a
//! client of an HTTP metadata server, Mooncake's or [`HttpServer`]; with the feature `etcd`, `EtcdStore`
//! is a client of an etcd. The feature `tls` adds TLS to both.
#![forbid(unsafe_code)]

mod error;
#[cfg(feature = "etcd")]
mod etcd;
mod http;
mod server;
mod source;
mod store;
#[cfg(feature = "tls")]
mod tls;

pub use error::{StoreCause, StoreError, StoreOperation, TlsFailure};
#[cfg(feature = "etcd")]
pub use etcd::{EtcdOptions, EtcdStore};
pub use http::HttpStore;
pub use server::{HttpServer, ServerError, ServerLimits};
pub use source::{Credentials, Source, SourceError, TlsFiles};
pub use store::{Change, Changes, KEY_BYTES_MAX, Pending, Store, VALUE_BYTES_MAX};
#[cfg(feature = "tls")]
pub use tls::{TLS_FILE_BYTES_MAX, Tls};
