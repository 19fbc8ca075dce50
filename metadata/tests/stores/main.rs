//! Stores and what stands behind them, on sockets of this machine.
//!
//! A test that cannot run here prints a line that starts with `skipped:` on standard error.

#[cfg(feature = "tls")]
mod certificates;
#[cfg(feature = "tls")]
mod encrypted;
#[cfg(feature = "etcd")]
mod etcd;
#[cfg(any(feature = "etcd", feature = "redis"))]
mod helpers;
mod http;
#[cfg(feature = "redis")]
mod redis;
