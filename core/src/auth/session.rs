//! The two ends of one authenticated connection.

use super::message::{AUTH_VERSION, AuthHello};
use super::policy::{AuthPolicy, Identity};
use crate::identity::{Incarnation, NodeName};

/// Reasons to refuse a connection; the number is the status on the wire. A refusal is not
/// authenticated: it ends a connection and changes nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
#[repr(u8)]
pub enum AuthRefusal {
    /// Another version of the messages.
    #[error("it has another version of authentication")]
    Version = 1,
    /// No key has the id.
    #[error("it knows no key with this id")]
    UnknownKey = 2,
    /// The message does not open with the key of that id.
    #[error("its key of this id is another, or the message was altered")]
    Unopened = 3,
    /// The key does not allow the announced name.
    #[error("the key does not allow this node's name")]
    Name = 4,
    /// Another node was addressed.
    #[error("another node has this address")]
    Addressed = 5,
    /// The refusing node has no keys.
    #[error("it has no keys")]
    NoKeys = 6,
    /// The refusing node accepts no plain peers.
    #[error("it accepts only peers that prove a key")]
    Plain = 7,
    /// The refusing node has the announced name itself.
    #[error("it has the same name")]
    Conflict = 8,
}

impl AuthRefusal {
    /// Every reason, ordered by number.
    pub const ALL: [Self; 8] = [
        Self::Version,
        Self::UnknownKey,
        Self::Unopened,
        Self::Name,
        Self::Addressed,
        Self::NoKeys,
        Self::Plain,
        Self::Conflict,
    ];
}

/// Reasons for a dialling node to give a connection up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum AuthFailure {
    /// The peer refused.
    #[error("the peer refuses this node: {0}")]
    Refused(AuthRefusal),
    /// The peer ended the connection, or answered something else.
    #[error("the peer proves no key: it is open, an earlier version or a Mooncake node")]
    Unproven,
    /// The answer does not open with the key.
    #[error("the peer's answer does not prove the key")]
    Unopened,
    /// The key does not allow the name of the peer.
    #[error("the key does not allow the peer's name")]
    Name,
    /// Another node than the addressed one answered, or a message names another sender.
    #[error("another node than the addressed one answers")]
    Addressed,
    /// The peer has the name of this node.
    #[error("the peer has the name of this node")]
    Conflict,
    /// The peer requires a key, and this node has none.
    #[error("the peer accepts only peers that prove a key, and this node has none")]
    Required,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Accepting {
    First,
    Opening { key: usize },
    Answered { peer: Identity },
    Proven { peer: Identity },
    Plain,
    Over,
}

/// The accepting end of a connection. It serves nothing before its peer has proven a key with a
/// fresh message, and then only in the peer's own name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Inbound(Accepting);

impl Default for Inbound {
    fn default() -> Self {
        Self(Accepting::First)
    }
}

impl Inbound {
    /// Handles a first message that is plain.
    ///
    /// # Errors
    /// The node has keys. No state of a connection and no earlier one changes that.
    pub fn handle_plain(&mut self, policy: &AuthPolicy) -> Result<(), AuthRefusal> {
        match self.0 {
            Accepting::First | Accepting::Plain if policy.is_open() => {
                self.0 = Accepting::Plain;
                Ok(())
            }
            _ => self.refuse(AuthRefusal::Plain),
        }
    }

    /// Handles the head of a hello; returns the key that opens it.
    ///
    /// # Errors
    /// The reason for a refusal.
    pub fn handle_head(
        &mut self,
        policy: &AuthPolicy,
        version: u8,
        id: &str,
    ) -> Result<usize, AuthRefusal> {
        if policy.is_open() {
            return self.refuse(AuthRefusal::NoKeys);
        }
        if version != AUTH_VERSION {
            return self.refuse(AuthRefusal::Version);
        }
        if self.0 != Accepting::First {
            return self.refuse(AuthRefusal::Unopened);
        }
        let Some(key) = policy.keys().iter().position(|key| key.id() == id) else {
            return self.refuse(AuthRefusal::UnknownKey);
        };
        self.0 = Accepting::Opening { key };
        Ok(key)
    }

    /// Handles the hello as it opened with the key; `None` if it did not. The answer follows.
    ///
    /// # Errors
    /// The reason for a refusal.
    pub fn handle_hello(
        &mut self,
        policy: &AuthPolicy,
        opened: Option<AuthHello>,
    ) -> Result<(), AuthRefusal> {
        let Accepting::Opening { key } = self.0 else {
            return self.refuse(AuthRefusal::Unopened);
        };
        let Some(hello) = opened else { return self.refuse(AuthRefusal::Unopened) };
        if !policy.keys()[key].covers(&hello.from.name) {
            return self.refuse(AuthRefusal::Name);
        }
        if hello.to.is_some_and(|to| to != policy.own().name) {
            return self.refuse(AuthRefusal::Addressed);
        }
        if is_conflict(policy.own(), &hello.from) {
            return self.refuse(AuthRefusal::Conflict);
        }
        self.0 = Accepting::Answered { peer: hello.from };
        Ok(())
    }

    /// Handles a record of the session: whether it opened, in its place of the order. The first one
    /// proves that the hello was no repetition. Returns whether its content may be served.
    pub fn handle_record(&mut self, opened: bool) -> bool {
        let state = core::mem::replace(&mut self.0, Accepting::Over);
        self.0 = match state {
            Accepting::Answered { peer } | Accepting::Proven { peer } if opened => {
                Accepting::Proven { peer }
            }
            _ => Accepting::Over,
        };
        matches!(self.0, Accepting::Proven { .. })
    }

    /// The peer, once it has proven its key.
    pub fn peer(&self) -> Option<&Identity> {
        match &self.0 {
            Accepting::Proven { peer } => Some(peer),
            _ => None,
        }
    }

    /// Whether a message on this connection may come from this node: on an authenticated one, its
    /// peer alone.
    pub fn admits(&self, name: &NodeName, incarnation: Incarnation) -> bool {
        match &self.0 {
            Accepting::Proven { peer } => peer.name == *name && peer.incarnation == incarnation,
            Accepting::Plain => true,
            _ => false,
        }
    }

    fn refuse<T>(&mut self, refusal: AuthRefusal) -> Result<T, AuthRefusal> {
        self.0 = Accepting::Over;
        Err(refusal)
    }
}

/// The answer to a hello, as the dialling node could read it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AnswerSeen {
    /// The end of the connection, or anything else than an answer to a hello.
    Nothing,
    /// A refusal.
    Refused(AuthRefusal),
    /// An answer that does not open.
    Unopened,
    /// An answer that opened.
    Opened(Identity),
}

/// The dialling end of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Outbound {
    expected: Option<NodeName>,
    peer: Option<Identity>,
}

impl Outbound {
    /// Creates the end of a connection to the node of a name, if it is known.
    pub fn new(expected: Option<NodeName>) -> Self {
        Self { expected, peer: None }
    }

    /// The hello and the key to seal it with; `None` for a plain connection, which only a node
    /// without keys uses.
    pub fn hello(&self, policy: &AuthPolicy) -> Option<(usize, AuthHello)> {
        let hello = AuthHello { from: policy.own().clone(), to: self.expected.clone() };
        (!policy.is_open()).then_some((0, hello))
    }

    /// Handles the answer to the hello. Records may be sent afterwards.
    ///
    /// # Errors
    /// The connection has no use, and nothing takes its place: a peer that proves no key is never
    /// called plain.
    pub fn handle_answer(
        &mut self,
        policy: &AuthPolicy,
        answer: AnswerSeen,
    ) -> Result<(), AuthFailure> {
        let peer = match answer {
            AnswerSeen::Nothing => return Err(AuthFailure::Unproven),
            AnswerSeen::Refused(refusal) => return Err(AuthFailure::Refused(refusal)),
            AnswerSeen::Unopened => return Err(AuthFailure::Unopened),
            AnswerSeen::Opened(peer) => peer,
        };
        let Some(key) = policy.keys().first() else { return Err(AuthFailure::Unproven) };
        if !key.covers(&peer.name) {
            return Err(AuthFailure::Name);
        }
        if is_conflict(policy.own(), &peer) {
            return Err(AuthFailure::Conflict);
        }
        if !self.is_expected(&peer.name) {
            return Err(AuthFailure::Addressed);
        }
        self.peer = Some(peer);
        Ok(())
    }

    /// The peer, once it has proven its key.
    pub fn peer(&self) -> Option<&Identity> {
        self.peer.as_ref()
    }

    /// Whether a call to the node of a name may use this connection.
    pub fn is_expected(&self, name: &NodeName) -> bool {
        self.expected.as_ref().is_none_or(|expected| expected == name)
    }
}

/// Another run under this node's name. A node may call itself.
fn is_conflict(own: &Identity, peer: &Identity) -> bool {
    own.name == peer.name && own.incarnation != peer.incarnation
}
