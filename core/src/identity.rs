//! Identities: node names, incarnations, lifecycles, pairs.
//!
//! Queue-pair numbers, GIDs, keys and clocks do not identify a node (rule H1): a restarted process
//! gets the same ones again.

use alloc::string::String;
use alloc::sync::Arc;
use core::cmp::Ordering;
use core::fmt;
use core::hash::{Hash, Hasher};
use serde::{Deserialize, Serialize};

/// The name of a node. Free text without `@`; with peer-to-peer metadata it is `host:port`.
#[derive(Clone, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeName(Arc<str>);

impl NodeName {
    /// Longest name accepted, in bytes: a DNS name (255, RFC 1035) with room for a port.
    pub const BYTES_MAX: usize = 262;

    /// Checks and wraps a name.
    pub fn new(text: &str) -> Result<Self, NameError> {
        if text.is_empty() {
            return Err(NameError::Empty);
        }
        if text.len() > Self::BYTES_MAX {
            return Err(NameError::TooLong { bytes: text.len() });
        }
        if text.contains('@') || text.chars().any(char::is_control) {
            return Err(NameError::ForbiddenCharacter);
        }
        Ok(Self(text.into()))
    }

    /// The text of the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// By text. Clones of one name are not compared byte by byte.
impl PartialEq for NodeName {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl Hash for NodeName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

/// By text, as equality.
impl Ord for NodeName {
    fn cmp(&self, other: &Self) -> Ordering {
        if Arc::ptr_eq(&self.0, &other.0) { Ordering::Equal } else { self.0.cmp(&other.0) }
    }
}

impl PartialOrd for NodeName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl TryFrom<String> for NodeName {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        Self::new(&text)
    }
}

impl From<NodeName> for String {
    fn from(name: NodeName) -> Self {
        name.as_str().into()
    }
}

impl fmt::Debug for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Errors of parsing a node or NIC name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The text is empty.
    #[error("a name must not be empty")]
    Empty,
    /// The text is longer than [`NodeName::BYTES_MAX`].
    #[error("a name of {bytes} bytes is too long: at most {} are allowed", NodeName::BYTES_MAX)]
    TooLong {
        /// Length of the rejected text.
        bytes: usize,
    },
    /// `@` separates node and NIC; control characters are not allowed.
    #[error("a name must not contain '@' or control characters")]
    ForbiddenCharacter,
    /// A NIC path without `@`.
    #[error("a NIC path has the form NODE@NIC")]
    NoSeparator,
}

/// Separator of the two NICs of a rail.
const BETWEEN_NICS: char = '~';

/// One NIC of one node, written `node@nic` on the wire.
///
/// Two nodes with several NICs may have several lanes, each over a *rail*: one NIC of either side.
/// Its path names both, the addressed node's NIC first, as in `node@mlx5_1~mlx5_0`, so each rail is
/// a separate endpoint of one node.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NicPath {
    /// The node that owns the NIC.
    pub node: NodeName,
    /// The NIC, by its device name.
    pub nic: NodeName,
}

impl NicPath {
    /// Parses `node@nic`, splitting at the first `@` as Mooncake does.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let (node, nic) = text.split_once('@').ok_or(NameError::NoSeparator)?;
        Ok(Self { node: NodeName::new(node)?, nic: NodeName::new(nic)? })
    }

    /// The path of `node` over the rail between its NIC `theirs` and the local NIC `ours`.
    ///
    /// # Errors
    /// Either name is invalid. A NIC of a rail has no `~` in its name.
    pub fn over_rail(node: &NodeName, theirs: &str, ours: &str) -> Result<Self, NameError> {
        let plain = |nic: &str| match nic.contains(BETWEEN_NICS) {
            true => Err(NameError::ForbiddenCharacter),
            false => NodeName::new(nic),
        };
        let nic =
            NodeName::new(&alloc::format!("{}{BETWEEN_NICS}{}", plain(theirs)?, plain(ours)?))?;
        Ok(Self { node: node.clone(), nic })
    }

    /// Returns the NICs of a path over a rail: that of the node, and that of the other side.
    pub fn rail(&self) -> Option<(&str, &str)> {
        self.nic.as_str().split_once(BETWEEN_NICS)
    }

    /// Returns the path of `own` in the form that the node at this path uses.
    pub fn seen_from(&self, own: &NicPath) -> Self {
        let rail = self.rail().map(|(theirs, ours)| Self::over_rail(&own.node, ours, theirs));
        rail.and_then(Result::ok).unwrap_or_else(|| own.clone())
    }

    /// Node and NIC as text.
    pub fn as_parts(&self) -> (&str, &str) {
        (self.node.as_str(), self.nic.as_str())
    }
}

impl fmt::Display for NicPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.node, self.nic)
    }
}

impl fmt::Debug for NicPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One run of a node: 128 random bits drawn at its start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Incarnation(#[serde(with = "hex")] pub u128);

impl Incarnation {
    /// The incarnation of a legacy Mooncake node, which has none (rule H13). No handfast node draws
    /// it.
    pub const UNKNOWN: Self = Self(0);

    /// Thirty-two lower-case hexadecimal digits, as on the wire.
    pub fn to_hex(self) -> String {
        alloc::format!("{:032x}", self.0)
    }

    /// Parses exactly thirty-two hexadecimal digits.
    pub fn from_hex(text: &str) -> Option<Self> {
        let plain = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if plain { u128::from_str_radix(text, 16).ok().map(Self) } else { None }
    }
}

/// A `u128` as hexadecimal digits: not every JSON reader has integers of 128 bits.
pub(crate) mod hex {
    use alloc::string::String;
    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::Serializer;

    pub(crate) fn serialize<S: Serializer>(value: &u128, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{value:032x}"))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u128, D::Error> {
        let number = super::Incarnation::from_hex(&String::deserialize(from)?);
        Ok(number.ok_or_else(|| D::Error::custom("expected 32 hexadecimal digits"))?.0)
    }
}

impl fmt::Debug for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// The number of an endpoint, never reused within an incarnation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Lifecycle(pub u64);

impl fmt::Debug for Lifecycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// A lifecycle of a known incarnation: one half of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Pair {
    /// The incarnation of the node.
    pub incarnation: Incarnation,
    /// The lifecycle within that incarnation.
    pub lifecycle: Lifecycle,
}

impl Pair {
    /// Whether a connection of this pair takes the place of one of `parked` at a lane that is connected
    /// to `connected`, or to none yet. A peer that gave its connection up comes again in a later
    /// lifecycle, or in another run, which needs a proof.
    pub fn takes_place_of(self, parked: Self, connected: Option<Self>, is_proven: bool) -> bool {
        match connected {
            Some(connected) => connected == self && parked != self,
            None if parked.incarnation == self.incarnation => parked.lifecycle < self.lifecycle,
            None => is_proven,
        }
    }

    /// Identifies a legacy node by its list of queue pairs, which a later incarnation may reuse
    /// (rule H13). FNV-1a over the numbers.
    pub fn legacy(queue_pairs: &[u32]) -> Self {
        let bytes = queue_pairs.iter().flat_map(|number| number.to_le_bytes());
        let digest = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |digest, byte| {
            (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Self { incarnation: Incarnation::UNKNOWN, lifecycle: Lifecycle(digest) }
    }

    /// Returns whether this is a legacy node's pair. Both its PSNs are 0, and path MTU and outstanding reads
    /// are the transport's defaults.
    pub fn is_legacy(self) -> bool {
        self.incarnation == Incarnation::UNKNOWN
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hashed::hashed;

    #[test]
    fn later_connections_take_the_place_of_earlier_ones() {
        let pair = |incarnation: u128, lifecycle: u64| Pair {
            incarnation: Incarnation(incarnation),
            lifecycle: Lifecycle(lifecycle),
        };
        let (parked, other) = (pair(1, 5), pair(2, 1));
        for (sender, connected, is_proven, takes) in [
            (pair(1, 6), None, false, true),
            (pair(1, 5), None, true, false),
            (pair(1, 4), None, true, false),
            (other, None, false, false),
            (other, None, true, true),
            (pair(1, 4), Some(pair(1, 4)), false, true),
            (parked, Some(parked), true, false),
            (pair(1, 6), Some(other), true, false),
        ] {
            let taken = sender.takes_place_of(parked, connected, is_proven);
            assert_eq!(taken, takes, "{sender:?} connected to {connected:?}, proven {is_proven}");
        }
    }

    /// Names and paths are compared and shown by their text, whether a clone or another name of the same text.
    #[test]
    fn names_are_their_text() {
        let [name, same, later] = ["a:1", "a:1", "b:1"].map(|text| NodeName::new(text).unwrap());
        assert_eq!((&name, name.cmp(&same)), (&same, Ordering::Equal));
        assert_eq!(name.partial_cmp(&later), Some(Ordering::Less));
        assert_eq!(alloc::format!("{name} {later:?}"), "a:1 b:1");
        assert_eq!(String::from(later.clone()), "b:1");
        assert_eq!(hashed(&name), hashed(&same));
        assert_ne!(hashed(&name), hashed(&later));
        let path = NicPath { node: name, nic: NodeName::new("mlx5_0").unwrap() };
        assert_eq!((path.as_parts(), path.rail()), (("a:1", "mlx5_0"), None));
        assert_eq!(alloc::format!("{path} {path:?}"), "a:1@mlx5_0 a:1@mlx5_0");
        let rail = NicPath::over_rail(&later, "theirs", "ours").unwrap();
        assert_eq!(rail.rail(), Some(("theirs", "ours")));
        assert_eq!(rail.seen_from(&path).rail(), Some(("ours", "theirs")));
    }

    /// An incarnation is exactly thirty-two digits, without a sign.
    #[test]
    fn incarnation_is_thirty_two_digits() {
        let digits = "0123456789abcdefABCDEF0123456789";
        let incarnation = Incarnation::from_hex(digits).unwrap();
        assert_eq!(incarnation.to_hex(), digits.to_lowercase());
        assert_eq!(alloc::format!("{incarnation:?}"), "123456789abcdefabcdef0123456789");
        assert_eq!(alloc::format!("{:?}", Lifecycle(17)), "#17");
        let signed = digits.replacen('0', "+", 1);
        for wrong in [&digits[1..], &signed, &alloc::format!("{digits}0"), ""] {
            assert_eq!(Incarnation::from_hex(wrong), None, "{wrong}");
        }
        let written = serde_json::to_string(&incarnation).unwrap();
        assert_eq!(serde_json::from_str::<Incarnation>(&written).unwrap(), incarnation);
    }

    /// A legacy node is identified by a digest of its queue pairs, in their order.
    #[test]
    fn legacy_pair_is_a_digest() {
        let legacy = Pair::legacy(&[5, 1000]);
        assert_eq!(legacy.lifecycle, Lifecycle(0x245f_6b7d_9369_8249));
        assert!(legacy.is_legacy() && legacy != Pair::legacy(&[1000, 5]));
        assert!(!Pair { incarnation: Incarnation(1), ..legacy }.is_legacy());
    }
}
