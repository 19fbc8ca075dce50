//! Metadata stores, in which the nodes of a fleet find each other.
//!
//! A [`Store`] keeps texts under keys: descriptors and addresses of nodes, in the format of the
//! Mooncake Transfer Engine, so that Mooncake nodes and handfast nodes share a store. [`HttpStore`] is a
//! client of an HTTP metadata server, Mooncake's or [`HttpServer`]; with the feature `etcd`, `EtcdStore`
//! is a client of an etcd, and with the feature `redis`, `RedisStore` is a client of a Redis. The feature
//! `tls` adds TLS to all.
#![forbid(unsafe_code)]

mod error;
#[cfg(feature = "etcd")]
mod etcd;
mod http;
#[cfg(feature = "redis")]
mod redis;
mod server;
mod source;
mod store;
#[cfg(feature = "tls")]
mod tls;

pub use error::{RedisRefusal, StoreCause, StoreError, StoreOperation, TlsFailure};
#[cfg(feature = "etcd")]
pub use etcd::{EtcdOptions, EtcdStore};
pub use http::HttpStore;
#[cfg(feature = "redis")]
pub use redis::{RedisOptions, RedisStore};
pub use server::{HttpServer, ServerError, ServerLimits};
pub use source::{Credentials, RedisUrl, Source, SourceError, TlsFiles};
pub use store::{Change, Changes, KEY_BYTES_MAX, Pending, Store, VALUE_BYTES_MAX};
#[cfg(feature = "tls")]
pub use tls::{TLS_FILE_BYTES_MAX, Tls};
