//! Connections of queue pairs through the connection manager of `librdmacm`, for devices that
//! refuse queue pairs connected out of band: iWARP, and eRDMA in its standard mode.
//!
//! The messages of the handshake carry a token for each queue pair and its number
//! ([`Announced`]). Once both sides know each other's announcement, one of them dials: the side with
//! the lower (incarnation, lifecycle), or the one that the other asks. [`PrivateData`] binds the
//! connection to both queue pairs, so that a request is accepted for the lifecycle that it was meant
//! for, and for no other. A queue pair is connected once: a connection that fails ends its queue
//! pair. Its end is disconnect, drain, destroy; a disconnect alone proves nothing about outstanding
//! work.
//!
//! [`LaneConnections`] applies this to the queue pairs of lanes. The machines perform no I/O. The caller
//! performs each [`ConnectionOutput`] on the identifier of the queue pair and hands the events of the
//! connection manager in. A timer of the caller bounds each wait: [`LaneConnections::handle_timeout`].

mod announcement;
mod lanes;
mod private_data;
#[cfg(test)]
mod tests;

pub use announcement::{ANNOUNCEMENT_BYTES_MAX, Announcement, AnnouncementError};
pub use lanes::{
    ANNOUNCEMENTS_PER_PEER_MAX, ANNOUNCING_PEERS_MAX, AnnouncedLane, AnnouncedLaneError,
    LaneConnectError, LaneConnections, LaneOutput, LaneProgress, UNREACHED_MAX,
};
pub use private_data::{
    Content, PRIVATE_DATA_BYTES, PRIVATE_DATA_VERSION, PrivateData, PrivateDataError, Refusal,
    Token,
};

use crate::identity::{Incarnation, Lifecycle, Pair};
use alloc::collections::{BTreeMap, VecDeque};

/// Maximum queue pairs that are announced, connected or ending: those of the largest device profile.
pub const CONNECTIONS_MAX: usize = 65_536;

/// A queue pair of a lifecycle of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId {
    /// The lifecycle.
    pub lifecycle: Lifecycle,
    /// The place of the queue pair in the lifecycle's set.
    pub place: u16,
}

/// Names a connect request that the connection manager has delivered. The caller numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// A queue pair as its node announces it to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Announced {
    /// The pair of the lifecycle.
    pub pair: Pair,
    /// The place of the queue pair in the lifecycle's set.
    pub place: u16,
    /// The queue pair's number; 24 bits.
    pub number: u32,
    /// Drawn for this queue pair alone, and known to nobody but the peer.
    pub token: Token,
    /// The node cannot reach the peer's address: the peer is to dial.
    pub asks: bool,
}

/// Reasons why a queue pair does not connect, or is connected no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum Cause {
    /// The peer refused the request.
    #[error("the peer refused the connection: {0}")]
    Refused(Refusal),
    /// The connection manager of the peer refused the request: nobody listens, or the number is in
    /// timewait.
    #[error("the peer's connection manager rejected the connection")]
    Rejected,
    /// The address does not resolve, has no route, or does not answer.
    #[error("the peer's address cannot be reached")]
    Unreachable,
    /// Neither side reaches the other's address.
    #[error("neither side reaches the other's address")]
    NeitherReaches,
    /// Both ends are the same queue pair.
    #[error("a queue pair cannot be connected to itself through the connection manager")]
    Itself,
    /// The answer does not prove that it comes from the peer.
    #[error("the answer to the connection is not the peer's")]
    Unproven,
    /// The timer of the connection expired.
    #[error("the connection was not established in time")]
    TimedOut,
    /// The connection ended.
    #[error("the connection was disconnected")]
    Disconnected,
    /// The device was removed.
    #[error("the device was removed")]
    DeviceRemoved,
    /// A call of this side failed, and says nothing of the peer.
    #[error("a call of this side failed")]
    Local,
}

/// Errors of [`Connections::announce`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnnounceError {
    /// [`CONNECTIONS_MAX`] queue pairs exist.
    #[error("{CONNECTIONS_MAX} queue pairs are announced already")]
    Full,
    /// The queue pair is announced, and not destroyed.
    #[error("the queue pair is announced already")]
    Announced,
}

/// Outputs of the machine, in order. Drain to `None` after every call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConnectionOutput {
    /// Connect the identifier of the queue pair to the peer, with this private data.
    Dial {
        /// The queue pair.
        id: ConnectionId,
        /// The private data of the request.
        data: PrivateData,
    },
    /// Accept a request with the queue pair, whose identifier is from now on the request's.
    Accept {
        /// The queue pair.
        id: ConnectionId,
        /// The request.
        request: RequestId,
        /// The private data of the answer.
        data: PrivateData,
    },
    /// Reject a request and destroy its identifier.
    Reject {
        /// The request.
        request: RequestId,
        /// The private data of the rejection; `None` for a request that names nobody to answer.
        data: Option<PrivateData>,
    },
    /// The queue pair is connected to the queue pair that it was meant for.
    Established {
        /// The queue pair.
        id: ConnectionId,
    },
    /// The queue pair does not connect, or is connected no more. [`ConnectionOutput::Drain`] follows.
    Failed {
        /// The queue pair.
        id: ConnectionId,
        /// The reason.
        cause: Cause,
    },
    /// Disconnect the identifier of the queue pair.
    Disconnect {
        /// The queue pair.
        id: ConnectionId,
    },
    /// Stop the queue pair and poll its completions until none is outstanding, then
    /// [`Connections::handle_drained`].
    Drain {
        /// The queue pair.
        id: ConnectionId,
    },
    /// Destroy the queue pair and its identifier.
    Destroy {
        /// The queue pair.
        id: ConnectionId,
    },
}

/// The state of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum State {
    /// The peer's announcement is not known. A request that has the token waits for it.
    Announced {
        parked: Option<(RequestId, PrivateData)>,
    },
    /// This side has dialled.
    Dialling {
        peer: Announced,
    },
    /// The peer is to dial.
    Awaiting {
        peer: Announced,
    },
    /// This side has accepted the peer's request.
    Accepting {
        peer: Announced,
    },
    Connected {
        peer: Announced,
    },
    /// Work may be outstanding.
    Draining,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Connection {
    own: Announced,
    state: State,
}

/// The queue pairs of a node that connect through the connection manager.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Connections {
    incarnation: Incarnation,
    connections: BTreeMap<ConnectionId, Connection>,
    outputs: VecDeque<ConnectionOutput>,
}

impl Connections {
    /// A node without queue pairs.
    pub fn new(incarnation: Incarnation) -> Self {
        Self { incarnation, connections: BTreeMap::new(), outputs: VecDeque::new() }
    }

    /// Adds a queue pair, and returns what the peer is to know of it. `asks`: the last dial to the
    /// peer ended in [`Cause::Unreachable`].
    ///
    /// # Errors
    /// There are too many, or this one exists.
    pub fn announce(
        &mut self,
        id: ConnectionId,
        number: u32,
        token: Token,
        asks: bool,
    ) -> Result<Announced, AnnounceError> {
        if self.connections.contains_key(&id) {
            return Err(AnnounceError::Announced);
        }
        if self.connections.len() >= CONNECTIONS_MAX {
            return Err(AnnounceError::Full);
        }
        let pair = Pair { incarnation: self.incarnation, lifecycle: id.lifecycle };
        let own = Announced { pair, place: id.place, number, token, asks };
        let state = State::Announced { parked: None };
        self.connections.insert(id, Connection { own, state });
        Ok(own)
    }

    /// Connects a queue pair to the peer's, which has echoed the lifecycle. A second call, and one
    /// for a queue pair that ends, changes nothing.
    pub fn connect(&mut self, id: ConnectionId, peer: Announced) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let State::Announced { parked } = connection.state else { return };
        match dials(&connection.own, &peer) {
            Err(cause) => self.fail(id, cause),
            Ok(true) => {
                connection.state = State::Dialling { peer };
                let data = PrivateData::new(&connection.own, &peer, Content::Request);
                self.outputs.push_back(ConnectionOutput::Dial { id, data });
                if let Some((request, data)) = parked {
                    self.reject(request, Some(&data), Refusal::WrongSide);
                }
            }
            Ok(false) => {
                connection.state = State::Awaiting { peer };
                if let Some((request, data)) = parked {
                    self.on_request(id, request, &data);
                }
            }
        }
    }

    /// Handles a connect request with the private data that came with it. A request that is
    /// rejected changes nothing.
    pub fn handle_request(&mut self, request: RequestId, data: &[u8]) {
        let data = match PrivateData::decode(data) {
            Ok(data) if data.content == Content::Request => data,
            Err(error) if error.is_of_another_version() => {
                let data = Some(PrivateData::refused_version());
                return self.outputs.push_back(ConnectionOutput::Reject { request, data });
            }
            Ok(_) | Err(_) => return self.reject(request, None, Refusal::NotMeant),
        };
        let id = ConnectionId { lifecycle: data.receiver, place: data.place };
        self.on_request(id, request, &data);
    }

    fn on_request(&mut self, id: ConnectionId, request: RequestId, data: &PrivateData) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return self.reject(request, Some(data), Refusal::NotMeant);
        };
        let own = connection.own;
        if data.token != own.token {
            return self.reject(request, Some(data), Refusal::Token);
        }
        let refusal = match &mut connection.state {
            State::Announced { parked: parked @ None } => {
                *parked = Some((request, *data));
                return;
            }
            State::Awaiting { peer } if data.is_from(peer) => {
                let peer = *peer;
                connection.state = State::Accepting { peer };
                let data = PrivateData::new(&own, &peer, Content::Accept);
                return self.outputs.push_back(ConnectionOutput::Accept { id, request, data });
            }
            State::Awaiting { .. } | State::Draining => Refusal::NotMeant,
            State::Dialling { .. } => Refusal::WrongSide,
            State::Announced { .. } | State::Accepting { .. } | State::Connected { .. } => {
                Refusal::Taken
            }
        };
        self.reject(request, Some(data), refusal);
    }

    fn reject(&mut self, request: RequestId, to: Option<&PrivateData>, refusal: Refusal) {
        let data = to.map(|data| data.refused(self.incarnation, refusal));
        self.outputs.push_back(ConnectionOutput::Reject { request, data });
    }

    /// Handles the end of the connection manager's exchange. `data` came with the answer to a dial.
    pub fn handle_established(&mut self, id: ConnectionId, data: &[u8]) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        match connection.state {
            State::Dialling { peer } => {
                let proves = |data: PrivateData| {
                    data.content == Content::Accept
                        && data.token == connection.own.token
                        && data.receiver == id.lifecycle
                        && data.is_from(&peer)
                };
                match PrivateData::decode(data) {
                    Ok(data) if proves(data) => {}
                    Err(error) if error.is_of_another_version() => {
                        return self.fail(id, Cause::Refused(Refusal::Version));
                    }
                    Ok(_) | Err(_) => return self.fail(id, Cause::Unproven),
                }
                connection.state = State::Connected { peer };
            }
            State::Accepting { peer } => connection.state = State::Connected { peer },
            _ => return,
        }
        self.outputs.push_back(ConnectionOutput::Established { id });
    }

    /// Handles a rejection, with the private data that came with it.
    pub fn handle_rejected(&mut self, id: ConnectionId, data: &[u8]) {
        let refused = |data: PrivateData| match data.content {
            // Its sender could not read whom the request was from.
            Content::Refusal(Refusal::Version) => Some(Refusal::Version),
            Content::Refusal(refusal) if data.receiver == id.lifecycle => Some(refusal),
            _ => None,
        };
        let refusal = match PrivateData::decode(data) {
            Ok(data) => refused(data),
            Err(error) => error.is_of_another_version().then_some(Refusal::Version),
        };
        self.handle_failed(id, refusal.map_or(Cause::Rejected, Cause::Refused));
    }

    /// Handles an error of address, route or connection, and the removal of the device.
    pub fn handle_failed(&mut self, id: ConnectionId, cause: Cause) {
        let is_live = |connection: &Connection| connection.state != State::Draining;
        if self.connections.get(&id).is_some_and(is_live) {
            self.fail(id, cause);
        }
    }

    /// Handles the end of a connection. Work of the queue pair may still be outstanding.
    pub fn handle_disconnected(&mut self, id: ConnectionId) {
        self.handle_failed(id, Cause::Disconnected);
    }

    /// Handles the timer of a queue pair: one that is not connected ends.
    pub fn handle_timeout(&mut self, id: ConnectionId) {
        let is_connected =
            |connection: &Connection| matches!(connection.state, State::Connected { .. });
        if !self.connections.get(&id).is_some_and(is_connected) {
            self.handle_failed(id, Cause::TimedOut);
        }
    }

    /// Ends a queue pair on this side's wish: disconnect, drain, destroy.
    pub fn retire(&mut self, id: ConnectionId) {
        self.end(id);
    }

    /// Handles the end of the last outstanding work of a queue pair that was to be drained.
    pub fn handle_drained(&mut self, id: ConnectionId) {
        let is_draining = |connection: &Connection| connection.state == State::Draining;
        if self.connections.get(&id).is_some_and(is_draining) {
            self.connections.remove(&id);
            self.outputs.push_back(ConnectionOutput::Destroy { id });
        }
    }

    /// Returns the next output.
    pub fn poll_output(&mut self) -> Option<ConnectionOutput> {
        self.outputs.pop_front()
    }

    /// Whether the peer's announcement is not known to the queue pair, and it is not ending.
    fn is_announced(&self, id: ConnectionId) -> bool {
        let connection = self.connections.get(&id);
        connection.is_some_and(|it| matches!(it.state, State::Announced { .. }))
    }

    /// Returns the peer's queue pair of one that is connected.
    pub fn peer(&self, id: ConnectionId) -> Option<Announced> {
        match self.connections.get(&id)?.state {
            State::Connected { peer } => Some(peer),
            _ => None,
        }
    }

    /// Number of queue pairs that are not destroyed.
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// Whether every queue pair is destroyed.
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    fn fail(&mut self, id: ConnectionId, cause: Cause) {
        self.outputs.push_back(ConnectionOutput::Failed { id, cause });
        self.end(id);
    }

    fn end(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        match core::mem::replace(&mut connection.state, State::Draining) {
            State::Draining => return,
            State::Announced { parked: Some((request, data)) } => {
                self.reject(request, Some(&data), Refusal::NotMeant);
            }
            State::Announced { parked: None } | State::Awaiting { .. } => {}
            State::Dialling { .. } | State::Accepting { .. } | State::Connected { .. } => {
                self.outputs.push_back(ConnectionOutput::Disconnect { id });
            }
        }
        self.outputs.push_back(ConnectionOutput::Drain { id });
    }
}

/// Whether this side dials: the lower pair does, unless exactly one side asks the other.
///
/// # Errors
/// Neither side can dial.
fn dials(own: &Announced, peer: &Announced) -> Result<bool, Cause> {
    match (own.asks, peer.asks) {
        _ if own.pair == peer.pair => Err(Cause::Itself),
        (true, true) => Err(Cause::NeitherReaches),
        (false, false) => Ok(own.pair < peer.pair),
        (asks, _) => Ok(!asks),
    }
}
