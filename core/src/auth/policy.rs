//! The keys of a node, and the names that their holders may have.

use crate::identity::{Incarnation, NodeName};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Maximum keys of a node: the present one, and those of rotations under way.
pub const KEYS_MAX: usize = 16;
/// Longest id of a key, in bytes.
pub const KEY_ID_BYTES_MAX: usize = 32;
/// Maximum patterns of names of one key.
pub const KEY_NAMES_MAX: usize = 64;

/// One run of a node by its name: what an authenticated session is bound to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    /// The announced name.
    pub name: NodeName,
    /// The run.
    pub incarnation: Incarnation,
}

impl Identity {
    /// Whether a peer has the name or the incarnation of this node and not both: another run under its name,
    /// or a peer that passes for it, since peers know its incarnation. A node may call itself.
    pub fn conflicts_with(&self, peer: &Self) -> bool {
        (self.name == peer.name) != (self.incarnation == peer.incarnation)
    }
}

/// Names of nodes; `*` stands for any characters, none included. Before other characters it stands for
/// none of the colons.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamePattern(Box<str>);

/// A key without its secret: its id, and the names that a peer with this key may have.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyRule {
    id: Box<str>,
    names: Vec<NamePattern>,
}

/// Errors of the rules of keys.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyRuleError {
    /// The id is empty, too long or has other characters.
    #[error(
        "the id of a key has 1 to {KEY_ID_BYTES_MAX} letters, digits, dots, hyphens or underscores"
    )]
    Id,
    /// A pattern is no name with `*`.
    #[error("the pattern of a name is empty, too long or has characters that no name has")]
    Pattern,
    /// Too many patterns.
    #[error("a key has at most {KEY_NAMES_MAX} patterns of names")]
    Names,
    /// Two keys have one id.
    #[error("two keys have the same id")]
    Twice,
    /// Too many keys.
    #[error("a node has at most {KEYS_MAX} keys")]
    Keys,
}

/// The proof of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Proof {
    /// A key, by its place in the policy.
    Key(usize),
    /// A valid certificate of a trusted authority.
    Certificate {
        /// Whether it has the name that the peer announced.
        names_peer: bool,
    },
}

impl Proof {
    /// The way in which the peer proved itself.
    pub fn method(self) -> AuthMethod {
        match self {
            Self::Key(_) => AuthMethod::Key,
            Self::Certificate { .. } => AuthMethod::Certificate,
        }
    }
}

/// Ways in which a node proves itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AuthMethod {
    /// A pre-shared key.
    Key,
    /// A certificate.
    Certificate,
}

/// The peers that a node accepts: with keys or certificates, only peers that prove a key or a certificate
/// that it accepts, and never a plain peer. With both it dials by one alone, and a refusal does not lead to the other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AuthPolicy {
    own: Identity,
    keys: Vec<KeyRule>,
    has_certificates: bool,
    /// The way to dial of a node with keys and certificates.
    first: AuthMethod,
    epoch: u64,
}

impl NamePattern {
    /// Checks and wraps a pattern.
    ///
    /// # Errors
    /// [`KeyRuleError::Pattern`].
    pub fn new(text: &str) -> Result<Self, KeyRuleError> {
        NodeName::new(text).map_err(|_| KeyRuleError::Pattern)?;
        Ok(Self(text.into()))
    }

    /// The pattern that covers every name.
    pub fn any() -> Self {
        Self("*".into())
    }

    /// Whether the pattern is a `*` alone.
    pub fn is_any(&self) -> bool {
        &*self.0 == "*"
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the pattern covers a name. A node chooses the text behind the host of its certificate and
    /// a colon, so a `*` before other characters covers no colon.
    pub fn covers(&self, name: &NodeName) -> bool {
        let mut parts = self.0.split('*');
        let first = parts.next().and_then(|first| name.as_str().strip_prefix(first));
        let Some(mut rest) = first else { return false };
        let mut last = None;
        for part in parts {
            if let Some(middle) = last.replace(part) {
                // The first place leaves the shortest text to the `*` before it.
                let found = rest.split_once(middle).filter(|(covered, _)| !covered.contains(':'));
                let Some((_, after)) = found else { return false };
                rest = after;
            }
        }
        match last {
            None => rest.is_empty(),
            Some("") => true,
            Some(last) => rest.strip_suffix(last).is_some_and(|covered| !covered.contains(':')),
        }
    }

    /// Whether the pattern covers every name that another one covers. It does not find all such pairs.
    pub(crate) fn contains(&self, other: &Self) -> bool {
        NodeName::new(&other.0).is_ok_and(|text| self.covers(&text))
    }

    /// Whether a name can match both patterns, where a `*` covers colons as well.
    pub(crate) fn meets(&self, other: &Self) -> bool {
        let (own, other) = (self.0.as_bytes(), other.0.as_bytes());
        // Whether the rests of both patterns meet, by their places; the row of the place behind.
        let mut behind = alloc::vec![false; other.len() + 1];
        for at in (0..=own.len()).rev() {
            let mut row = alloc::vec![false; other.len() + 1];
            for place in (0..=other.len()).rev() {
                let after = row.get(place + 1).copied().unwrap_or_default();
                row[place] = match (own.get(at), other.get(place)) {
                    (None, None) => true,
                    (Some(b'*'), _) => behind[place] || after,
                    (byte, Some(b'*')) => after || (byte.is_some() && behind[place]),
                    (Some(one), Some(two)) => one == two && behind[place + 1],
                    (None, Some(_)) | (Some(_), None) => false,
                };
            }
            behind = row;
        }
        behind[0]
    }
}

impl KeyRule {
    /// Checks and wraps an id and the names of its holders; without names they may have any.
    ///
    /// # Errors
    /// [`KeyRuleError::Id`] and [`KeyRuleError::Names`].
    pub fn new(id: &str, names: Vec<NamePattern>) -> Result<Self, KeyRuleError> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if id.is_empty() || id.len() > KEY_ID_BYTES_MAX || !id.bytes().all(plain) {
            return Err(KeyRuleError::Id);
        }
        if names.len() > KEY_NAMES_MAX {
            return Err(KeyRuleError::Names);
        }
        Ok(Self { id: id.into(), names })
    }

    /// The id, which peers see.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Whether a holder may have any name.
    pub fn covers_all(&self) -> bool {
        self.names.is_empty() || self.names.iter().any(NamePattern::is_any)
    }

    /// The names that a holder may have; empty for any.
    pub(crate) fn names(&self) -> &[NamePattern] {
        &self.names
    }

    /// Whether a holder can choose to have a name that one of the patterns covers: the key allows such
    /// names and others.
    pub(crate) fn can_choose(&self, patterns: &[NamePattern]) -> bool {
        let meets = |own: &NamePattern| patterns.iter().any(|it| it.meets(own));
        let is_contained = |own: &NamePattern| patterns.iter().any(|it| it.contains(own));
        let allows_one = self.covers_all() || self.names.iter().any(meets);
        let allows_others = self.covers_all() || !self.names.iter().all(is_contained);
        !patterns.is_empty() && allows_one && allows_others
    }

    /// Whether a holder may have a name.
    pub fn covers(&self, name: &NodeName) -> bool {
        self.names.is_empty() || self.names.iter().any(|pattern| pattern.covers(name))
    }
}

impl AuthPolicy {
    /// The policy of a node with these keys, the first of which it dials with; without keys the node
    /// is open.
    ///
    /// # Errors
    /// [`KeyRuleError::Keys`] and [`KeyRuleError::Twice`].
    pub fn new(own: Identity, keys: Vec<KeyRule>) -> Result<Self, KeyRuleError> {
        if keys.len() > KEYS_MAX {
            return Err(KeyRuleError::Keys);
        }
        let is_twice = |(at, key): (usize, &KeyRule)| keys[..at].iter().any(|it| it.id == key.id);
        if keys.iter().enumerate().any(is_twice) {
            return Err(KeyRuleError::Twice);
        }
        Ok(Self { own, keys, has_certificates: false, first: AuthMethod::Key, epoch: 0 })
    }

    /// The policy of a node with a certificate, which accepts peers with one of an authority that it
    /// trusts.
    pub fn certified(own: Identity) -> Self {
        Self {
            own,
            keys: Vec::new(),
            has_certificates: true,
            first: AuthMethod::Certificate,
            epoch: 0,
        }
    }

    /// The policy with certificates in addition to keys, if there are any. The node dials by `first`.
    pub fn with_certificates(self, first: AuthMethod) -> Self {
        Self { has_certificates: true, first, ..self }
    }

    /// The policy after a number of changes of its keys or certificates.
    pub fn at_epoch(self, epoch: u64) -> Self {
        Self { epoch, ..self }
    }

    /// This node.
    pub fn own(&self) -> &Identity {
        &self.own
    }

    /// The keys, the one to dial with first.
    pub fn keys(&self) -> &[KeyRule] {
        &self.keys
    }

    /// Whether the node accepts certificates.
    pub fn has_certificates(&self) -> bool {
        self.has_certificates
    }

    /// The way in which the node dials; `None` if it has neither keys nor certificates.
    pub fn dials_by(&self) -> Option<AuthMethod> {
        match (self.keys.is_empty(), self.has_certificates) {
            (true, false) => None,
            (true, true) => Some(AuthMethod::Certificate),
            (false, false) => Some(AuthMethod::Key),
            (false, true) => Some(self.first),
        }
    }

    /// Whether the node accepts peers that prove themselves in this way.
    pub fn accepts(&self, method: AuthMethod) -> bool {
        match method {
            AuthMethod::Key => !self.keys.is_empty(),
            AuthMethod::Certificate => self.has_certificates,
        }
    }

    /// Changes of the keys or certificates so far. A session lasts beyond one if what its peer proved
    /// is still accepted.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether the node has neither keys nor certificates: it accepts plain peers and proves nothing.
    pub fn is_open(&self) -> bool {
        self.keys.is_empty() && !self.has_certificates
    }

    /// Whether a peer that proved this may have a name.
    pub fn allows(&self, proof: Proof, name: &NodeName) -> bool {
        match proof {
            Proof::Key(key) => self.keys.get(key).is_some_and(|key| key.covers(name)),
            Proof::Certificate { names_peer } => self.has_certificates && names_peer,
        }
    }
}
