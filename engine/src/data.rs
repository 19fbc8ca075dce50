//! The data path: registered regions, the choice of a transport, and lanes over it.
//!
//! Posting runs on the submitting thread, completions on a lane's task (TCP) or on the NIC's poller
//! thread (RDMA), queue-pair steps on the step pool. Nothing here touches the life cycle.

pub(crate) mod devices;
pub(crate) mod fallback;
pub(crate) mod local;
pub(crate) mod local_path;
#[cfg(feature = "verbs")]
pub(crate) mod rdma;
#[cfg(not(feature = "verbs"))]
#[path = "data/rdma_absent.rs"]
pub(crate) mod rdma;
pub(crate) mod regions;
pub(crate) mod same_host;
pub(crate) mod transport;
