//! The two ends of one authenticated connection.

use super::certificate::CertificateFault;
use super::message::{AUTH_TLS, AUTH_VERSION, AuthHello};
use super::policy::{AuthMethod, AuthPolicy, Identity, Proof};
use crate::identity::{Incarnation, NodeName};
use crate::policy::Requester;

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
    /// The key or the certificate does not allow the announced name.
    #[error("the key or certificate does not allow this node's name")]
    Name = 4,
    /// Another node was addressed.
    #[error("another node has this address")]
    Addressed = 5,
    /// The refusing node has no keys.
    #[error("it has no keys")]
    NoKeys = 6,
    /// The refusing node accepts no plain peers.
    #[error("it accepts only peers that prove a key or a certificate")]
    Plain = 7,
    /// The refusing node has the announced name or incarnation itself, and not both.
    #[error("it has the same name, or the same incarnation under another name")]
    Conflict = 8,
    /// The refused node dials by keys, and the refusing one has certificates alone, or the other way round.
    #[error("one side has keys and the other certificates")]
    Method = 9,
    /// The certificate has expired.
    #[error("this node's certificate has expired")]
    Expired = 10,
    /// The certificate is not valid yet.
    #[error("this node's certificate is not valid yet")]
    NotYetValid = 11,
    /// No authority that the refusing node trusts issued the certificate.
    #[error("it trusts no authority that issued this node's certificate")]
    UnknownAuthority = 12,
    /// The certificate is missing, malformed or made for another purpose.
    #[error("this node's certificate cannot be used")]
    Unusable = 13,
    /// The certificate is on a revocation list of the refusing node.
    #[error("this node's certificate has been revoked")]
    Revoked = 14,
}

impl AuthRefusal {
    /// Every reason, ordered by number.
    pub const ALL: [Self; 14] = [
        Self::Version,
        Self::UnknownKey,
        Self::Unopened,
        Self::Name,
        Self::Addressed,
        Self::NoKeys,
        Self::Plain,
        Self::Conflict,
        Self::Method,
        Self::Expired,
        Self::NotYetValid,
        Self::UnknownAuthority,
        Self::Unusable,
        Self::Revoked,
    ];
}

impl From<CertificateFault> for AuthRefusal {
    fn from(fault: CertificateFault) -> Self {
        match fault {
            CertificateFault::Expired => Self::Expired,
            CertificateFault::NotYetValid => Self::NotYetValid,
            CertificateFault::UnknownAuthority => Self::UnknownAuthority,
            CertificateFault::Revoked => Self::Revoked,
            CertificateFault::Unusable => Self::Unusable,
        }
    }
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
    /// The certificate of the peer is refused.
    #[error("the peer is refused: {0}")]
    Certificate(CertificateFault),
    /// This node's own certificate is no valid one.
    #[error("this node's own certificate is refused: {0}")]
    Own(CertificateFault),
    /// This node's own certificate does not have its name.
    #[error("this node's own certificate does not have its name")]
    OwnName,
    /// The key or the certificate does not allow the name of the peer.
    #[error("the key or certificate does not allow the peer's name")]
    Name,
    /// Another node than the addressed one answered, or a message names another sender.
    #[error("another node than the addressed one answers")]
    Addressed,
    /// The peer has the name or the incarnation of this node, and not both.
    #[error("the peer has the name of this node, or its incarnation under another name")]
    Conflict,
    /// This node itself answers, at an address that is not its own: the connection was led back.
    #[error("this node itself answers, at an address that is not its own")]
    Itself,
    /// The peer requires a key or a certificate, and this node has none.
    #[error(
        "the peer accepts only peers that prove a key or a certificate, and this node has none"
    )]
    Required,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Accepting {
    First,
    Opening { key: usize },
    Presenting,
    Answered { peer: Identity, epoch: u64 },
    Proven { peer: Identity, epoch: u64 },
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
        if let Some(refusal) = self.refusal(policy, version, AUTH_VERSION) {
            return self.refuse(refusal);
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
        self.admit(policy, Proof::Key(key), hello)
    }

    /// Handles a hello after which TLS follows.
    ///
    /// # Errors
    /// The reason for a refusal.
    pub fn handle_tls(&mut self, policy: &AuthPolicy, version: u8) -> Result<(), AuthRefusal> {
        if let Some(refusal) = self.refusal(policy, version, AUTH_TLS) {
            return self.refuse(refusal);
        }
        self.0 = Accepting::Presenting;
        Ok(())
    }

    /// Handles the hello of a peer inside of TLS, and whether its certificate is valid and names it.
    /// The answer follows.
    ///
    /// # Errors
    /// The reason for a refusal.
    pub fn handle_certificate(
        &mut self,
        policy: &AuthPolicy,
        certificate: Result<(AuthHello, bool), CertificateFault>,
    ) -> Result<(), AuthRefusal> {
        if self.0 != Accepting::Presenting {
            return self.refuse(AuthRefusal::Unusable);
        }
        match certificate {
            Ok((hello, names_peer)) => self.admit(policy, Proof::Certificate { names_peer }, hello),
            Err(fault) => self.refuse(fault.into()),
        }
    }

    /// Handles a change of the policy: what the peer proved, if it is accepted still. Without a call
    /// after each change, no further record counts.
    pub fn handle_change(&mut self, policy: &AuthPolicy, proof: Option<Proof>) {
        let (Accepting::Answered { peer, epoch } | Accepting::Proven { peer, epoch }) = &mut self.0
        else {
            return;
        };
        match proof.is_some_and(|proof| policy.allows(proof, &peer.name)) {
            true => *epoch = policy.epoch(),
            false => self.0 = Accepting::Over,
        }
    }

    /// Handles a record of the session: whether it opened, in its place of the order. The first one
    /// proves that the hello was no repetition. Returns whether its content may be served.
    pub fn handle_record(&mut self, policy: &AuthPolicy, opened: bool) -> bool {
        let state = core::mem::replace(&mut self.0, Accepting::Over);
        self.0 = match state {
            Accepting::Answered { peer, epoch } | Accepting::Proven { peer, epoch }
                if opened && epoch == policy.epoch() =>
            {
                Accepting::Proven { peer, epoch }
            }
            _ => Accepting::Over,
        };
        matches!(self.0, Accepting::Proven { .. })
    }

    /// The peer as it announced itself, before its first record.
    pub fn announced(&self) -> Option<&Identity> {
        match &self.0 {
            Accepting::Answered { peer, .. } | Accepting::Proven { peer, .. } => Some(peer),
            _ => None,
        }
    }

    /// The peer, once it has proven its key or certificate.
    pub fn peer(&self) -> Option<&Identity> {
        match &self.0 {
            Accepting::Proven { peer, .. } => Some(peer),
            _ => None,
        }
    }

    /// The requester of memory over this connection. The name and the incarnation of the owner are known
    /// to its peers, so a peer with both is a peer by its name.
    pub fn requester(&self) -> Requester<'_> {
        self.peer().map_or(Requester::Anybody, |peer| Requester::Peer(&peer.name))
    }

    /// Whether a message on this connection may come from this node: on an authenticated one, its
    /// peer alone.
    pub fn admits(&self, name: &NodeName, incarnation: Incarnation) -> bool {
        match &self.0 {
            Accepting::Proven { peer, .. } => peer.name == *name && peer.incarnation == incarnation,
            Accepting::Plain => true,
            _ => false,
        }
    }

    /// The refusal of a first message in an order or a form that the node does not take.
    fn refusal(&self, policy: &AuthPolicy, version: u8, expected: u8) -> Option<AuthRefusal> {
        let method = match version {
            AUTH_VERSION => Some(AuthMethod::Key),
            AUTH_TLS => Some(AuthMethod::Certificate),
            _ => None,
        };
        match version {
            _ if policy.is_open() => Some(AuthRefusal::NoKeys),
            _ if method.is_some_and(|method| !policy.accepts(method)) => Some(AuthRefusal::Method),
            _ if version != expected => Some(AuthRefusal::Version),
            _ => (self.0 != Accepting::First).then_some(AuthRefusal::Unopened),
        }
    }

    fn admit(
        &mut self,
        policy: &AuthPolicy,
        proof: Proof,
        hello: AuthHello,
    ) -> Result<(), AuthRefusal> {
        if !policy.allows(proof, &hello.from.name) {
            return self.refuse(AuthRefusal::Name);
        }
        if hello.to.is_some_and(|to| to != policy.own().name) {
            return self.refuse(AuthRefusal::Addressed);
        }
        if policy.own().conflicts_with(&hello.from) {
            return self.refuse(AuthRefusal::Conflict);
        }
        self.0 = Accepting::Answered { peer: hello.from, epoch: policy.epoch() };
        Ok(())
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
    /// An answer that opened with the key.
    Opened(Identity),
    /// A certificate that is refused.
    Faulty(CertificateFault),
    /// An answer inside of TLS, and whether the valid certificate of its sender names it.
    Certified(Identity, bool),
}

/// The dialling end of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Outbound {
    expected: Option<NodeName>,
    is_at_own_address: bool,
    peer: Option<Identity>,
    epoch: u64,
}

impl Outbound {
    /// Creates the end of a connection to the node of a name, if it is known.
    pub fn new(expected: Option<NodeName>) -> Self {
        Self { expected, is_at_own_address: false, peer: None, epoch: 0 }
    }

    /// The same, and whether the dialled address is one of this node. At another address, and without its
    /// name, no answer is taken for that of this node: somebody on the path can lead a connection back to
    /// the node that dials without any key.
    pub fn at_own_address(self, is_at_own_address: bool) -> Self {
        Self { is_at_own_address, ..self }
    }

    /// The hello, and the key to seal it with or, without one, TLS to send it through; `None` for a
    /// plain connection, which only a node without keys and certificates uses.
    pub fn hello(&self, policy: &AuthPolicy) -> Option<(Option<usize>, AuthHello)> {
        let hello = AuthHello { from: policy.own().clone(), to: self.expected.clone() };
        let method = policy.dials_by()?;
        Some(((method == AuthMethod::Key).then_some(0), hello))
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
        let (peer, proof) = match answer {
            AnswerSeen::Nothing => return Err(AuthFailure::Unproven),
            AnswerSeen::Refused(refusal) => return Err(AuthFailure::Refused(refusal)),
            AnswerSeen::Unopened => return Err(AuthFailure::Unopened),
            AnswerSeen::Faulty(fault) => return Err(AuthFailure::Certificate(fault)),
            AnswerSeen::Opened(peer) => (peer, Proof::Key(0)),
            AnswerSeen::Certified(peer, names_peer) => (peer, Proof::Certificate { names_peer }),
        };
        if policy.dials_by() != Some(proof.method()) {
            return Err(AuthFailure::Unproven);
        }
        if !policy.allows(proof, &peer.name) {
            return Err(AuthFailure::Name);
        }
        if policy.own().conflicts_with(&peer) {
            return Err(AuthFailure::Conflict);
        }
        if *policy.own() == peer && self.expected.is_none() && !self.is_at_own_address {
            return Err(AuthFailure::Itself);
        }
        if !self.is_expected(&peer.name) {
            return Err(AuthFailure::Addressed);
        }
        (self.peer, self.epoch) = (Some(peer), policy.epoch());
        Ok(())
    }

    /// Whether the keys and certificates are those that the connection began with. Another one is
    /// begun otherwise.
    pub fn is_current(&self, policy: &AuthPolicy) -> bool {
        self.epoch == policy.epoch()
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
