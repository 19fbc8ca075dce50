//! Calls of the connection manager as messages, and its events.
#![allow(missing_docs, reason = "a field is the argument of the call in rdma_cma.h")]

use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// Longest private data of a message, in bytes: that of a connect request on InfiniBand and RoCE.
pub const PRIVATE_DATA_MAX: usize = 56;

/// The events, in the numbers of `rdma_cm_event_type`.
pub const EVENTS: [&str; 16] = [
    "ADDR_RESOLVED",
    "ADDR_ERROR",
    "ROUTE_RESOLVED",
    "ROUTE_ERROR",
    "CONNECT_REQUEST",
    "CONNECT_RESPONSE",
    "CONNECT_ERROR",
    "UNREACHABLE",
    "REJECTED",
    "ESTABLISHED",
    "DISCONNECTED",
    "DEVICE_REMOVAL",
    "MULTICAST_JOIN",
    "MULTICAST_ERROR",
    "ADDR_CHANGE",
    "TIMEWAIT_EXIT",
];

/// A call. Channels and identifiers have the names that the answers to their creation gave.
#[derive(Debug, Deserialize, Serialize)]
pub enum ManagerCall {
    CreateChannel {
        events: u64,
    },
    DestroyChannel {
        channel: u64,
    },
    CreateId {
        channel: u64,
        object: u64,
    },
    DestroyId {
        id: u64,
    },
    Migrate {
        id: u64,
        channel: u64,
    },
    Bind {
        id: u64,
        address: SocketAddr,
    },
    ResolveAddress {
        id: u64,
        source: Option<SocketAddr>,
        target: SocketAddr,
    },
    ResolveRoute {
        id: u64,
    },
    SetOption {
        id: u64,
        name: u8,
        value: u8,
    },
    Listen {
        id: u64,
        backlog: i32,
    },
    Connect {
        id: u64,
        pair: u64,
        parameters: Parameters,
    },
    Accept {
        id: u64,
        pair: u64,
        parameters: Parameters,
    },
    Reject {
        id: u64,
        data: Vec<u8>,
    },
    Disconnect {
        id: u64,
    },
    TakeEvent {
        channel: u64,
    },
    /// The program's object of an identifier that an event brought.
    Adopt {
        id: u64,
        object: u64,
    },
    Acknowledge {
        id: u64,
    },
}

/// The parameters of a connection, as the structure has them.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Parameters {
    pub data: Vec<u8>,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
}

/// An event that a program takes.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ManagerEvent {
    /// The kind, a place in [`EVENTS`].
    pub kind: usize,
    pub status: i32,
    /// The identifier. For a connect request it has no object yet.
    pub id: u64,
    pub object: u64,
    /// The object of the listening identifier of a connect request.
    pub listener: u64,
    /// The identifier that counts the event until it is acknowledged: the listening one for a connect
    /// request.
    pub counted: u64,
    pub parameters: Parameters,
    /// Number of the peer's queue pair.
    pub number: u32,
    pub place: IdPlace,
}

/// The device and the addresses of an identifier.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub struct IdPlace {
    pub nic: Option<usize>,
    pub source: Option<SocketAddr>,
    pub target: Option<SocketAddr>,
}
