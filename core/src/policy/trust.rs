//! Trust groups of peers, each with a protection domain of its own at every RDMA device.
//!
//! A device lets a queue pair reach the registrations of its own domain alone. Queue pairs and registrations
//! are of one domain for life, so the group of a peer rests on its name, which does not change with grants.

use super::grants::Requester;
use crate::auth::{KeyRule, NamePattern};
use crate::excerpt::excerpt;
use crate::identity::NodeName;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

/// Maximum trust groups of a node, with that of the peers in no other.
pub const TRUST_GROUPS_MAX: usize = 8;
/// Maximum patterns of names in the trust groups of a node.
pub const TRUST_PATTERNS_MAX: usize = 64;
/// Maximum bytes of the name of a trust group.
pub const TRUST_GROUP_NAME_BYTES_MAX: usize = 32;

/// A trust group by its number; 0 has the peers in no other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TrustGroup(pub u8);

impl TrustGroup {
    /// The place of its protection domain at each device.
    pub fn place(self) -> usize {
        usize::from(self.0)
    }
}

/// The trust groups of a node, by patterns of the names of peers. By default every peer is in one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct TrustGroups {
    names: Vec<String>,
    patterns: Vec<(NamePattern, TrustGroup)>,
    /// The group of this node itself.
    own: TrustGroup,
}

impl TrustGroups {
    /// Puts the peers that a pattern covers into a group, unless an earlier pattern covers them.
    ///
    /// # Errors
    /// A name of a group or a pattern that is none, or too many of them; nothing changed.
    pub fn add(&mut self, group: &str, peers: &str) -> Result<(), TrustGroupError> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        let has_name = (1..=TRUST_GROUP_NAME_BYTES_MAX).contains(&group.len());
        if !has_name || !group.chars().all(is_plain) {
            return Err(TrustGroupError::Name { name: excerpt(group) });
        }
        let pattern = NamePattern::new(peers)
            .map_err(|_| TrustGroupError::Pattern { pattern: excerpt(peers) })?;
        if self.patterns.len() >= TRUST_PATTERNS_MAX {
            return Err(TrustGroupError::Patterns);
        }
        let known = self.names.iter().position(|known| known == group);
        let place = known.unwrap_or(self.names.len());
        if place + 1 >= TRUST_GROUPS_MAX {
            return Err(TrustGroupError::Groups);
        }
        if known.is_none() {
            self.names.push(group.to_string());
        }
        self.patterns.push((pattern, TrustGroup(place as u8 + 1)));
        Ok(())
    }

    /// The groups of a node of this name, which is also in one.
    #[must_use]
    pub fn of_node(mut self, own: &NodeName) -> Self {
        self.own = self.of(own);
        self
    }

    /// The group of a peer: that of the first pattern that covers its name. Its lanes have queue pairs of
    /// the group's domain.
    pub fn of(&self, peer: &NodeName) -> TrustGroup {
        let covering = self.patterns.iter().find(|(pattern, _)| pattern.covers(peer));
        covering.map_or(TrustGroup::default(), |(_, group)| *group)
    }

    /// A group of the peers that a pattern covers: that of the first pattern that covers them all.
    pub(crate) fn of_pattern(&self, peers: &NamePattern) -> TrustGroup {
        let containing = self.patterns.iter().find(|(pattern, _)| pattern.contains(peers));
        containing.map_or(TrustGroup::default(), |(_, group)| *group)
    }

    /// The group of a requester, in whose domain its keys are. A peer without a name is in no other than
    /// the first.
    pub fn of_requester(&self, requester: Requester<'_>) -> TrustGroup {
        match requester {
            Requester::Own => self.own,
            Requester::Peer(name) => self.of(name),
            Requester::Anybody => TrustGroup::default(),
        }
    }

    /// Whether a holder of a key can choose its group: the key allows names of several groups.
    pub fn can_be_chosen_with(&self, key: &KeyRule) -> bool {
        if self.count() == 1 {
            return false;
        }
        let mut first = None;
        let mut is_another = |group| *first.get_or_insert(group) != group;
        key.covers_all() || key.names().iter().any(|names| self.groups_of(names, &mut is_another))
    }

    /// Calls `is_found` with each group that names of a pattern may be in, until it returns true.
    fn groups_of(&self, names: &NamePattern, mut is_found: impl FnMut(TrustGroup) -> bool) -> bool {
        for (pattern, group) in &self.patterns {
            if pattern.meets(names) && is_found(*group) {
                return true;
            }
            if pattern.contains(names) {
                // The others decide nothing.
                return false;
            }
        }
        is_found(TrustGroup::default())
    }

    /// Number of groups, at least 1.
    pub fn count(&self) -> usize {
        1 + self.names.len()
    }
}

/// Errors of trust groups.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrustGroupError {
    /// The name of a group is empty, too long or has other characters.
    #[error(
        "'{name}' names no trust group: write 1 to {TRUST_GROUP_NAME_BYTES_MAX} letters, digits, dots, \
         hyphens or underscores"
    )]
    Name {
        /// The text.
        name: String,
    },
    /// The pattern is no name with `*`.
    #[error("'{pattern}' names no peers: write a node's name, with * for any characters")]
    Pattern {
        /// The text.
        pattern: String,
    },
    /// There are [`TRUST_PATTERNS_MAX`] patterns.
    #[error("a node has at most {TRUST_PATTERNS_MAX} patterns of names in its trust groups")]
    Patterns,
    /// There are [`TRUST_GROUPS_MAX`] groups, with that of the other peers.
    #[error(
        "a node has at most {TRUST_GROUPS_MAX} trust groups, one of which has the peers in no other"
    )]
    Groups,
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    fn name(text: &str) -> NodeName {
        NodeName::new(text).unwrap()
    }

    #[test]
    fn group_has_a_place_of_its_own() {
        assert_eq!([0, 1, 7].map(|group| TrustGroup(group).place()), [0, 1, 7]);
    }

    /// The first pattern that covers a name decides, patterns of one group share its domain, and the
    /// others have the first one.
    #[test]
    fn first_pattern_decides_the_group() {
        let mut groups = TrustGroups::default();
        for (group, peers) in [("train", "trainer-*"), ("decode", "*-1"), ("train", "loader-*")] {
            groups.add(group, peers).unwrap();
        }
        let of = |text: &str| groups.of(&name(text)).0;
        assert_eq!([of("trainer-1"), of("decode-1"), of("loader-2"), of("other")], [1, 2, 1, 0]);
        assert_eq!((groups.count(), TrustGroups::default().count()), (3, 1));
        let own = name("loader-7");
        let of = |requester| groups.of_requester(requester).0;
        assert_eq!(
            [of(Requester::Own), of(Requester::Peer(&own)), of(Requester::Anybody)],
            [0, 1, 0]
        );
        let groups = groups.of_node(&own);
        assert_eq!(groups.of_requester(Requester::Own), TrustGroup(1));
    }

    /// A key with names of one group leaves its holder no choice; one with any name, or with names of several, does.
    #[test]
    fn unbound_key_chooses_its_group() {
        let key = |names: &[&str]| {
            let patterns = names.iter().map(|it| NamePattern::new(it).unwrap()).collect();
            KeyRule::new("fleet-1", patterns).unwrap()
        };
        let mut groups = TrustGroups::default();
        assert!(!groups.can_be_chosen_with(&key(&[])), "there is one group");
        for (group, peers) in
            [("train", "trainer-*"), ("train", "loader-*"), ("decode", "decode-*")]
        {
            groups.add(group, peers).unwrap();
        }
        for names in [
            &[][..],
            &["*"],
            &["trainer-*", "decode-1"],
            &["trainer-1", "other"],
            &["*-1"],
            &["t*"],
        ] {
            assert!(groups.can_be_chosen_with(&key(names)), "{names:?}");
        }
        for names in [&["trainer-1"][..], &["trainer-*", "loader-1*"], &["decode-*-a"], &["other"]]
        {
            assert!(!groups.can_be_chosen_with(&key(names)), "{names:?}");
        }
    }

    /// Each mistake has its error and changes nothing, and the limits hold at their values.
    #[test]
    fn trust_groups_are_checked_and_bounded() {
        let mut groups = TrustGroups::default();
        for text in ["", "a b", "a=b", &"x".repeat(TRUST_GROUP_NAME_BYTES_MAX + 1)] {
            let error = groups.add(text, "*").unwrap_err();
            assert!(matches!(error, TrustGroupError::Name { .. }), "{error}");
        }
        let error = groups.add("a", "a@b").unwrap_err();
        assert!(matches!(&error, TrustGroupError::Pattern { pattern } if pattern == "a@b"));
        assert_eq!(groups, TrustGroups::default());
        for at in 1..TRUST_GROUPS_MAX {
            groups.add(&format!("g{at}"), &format!("p{at}")).unwrap();
        }
        assert_eq!(groups.count(), TRUST_GROUPS_MAX);
        assert_eq!(groups.add("one-more", "p"), Err(TrustGroupError::Groups));
        for at in TRUST_GROUPS_MAX..=TRUST_PATTERNS_MAX {
            groups.add("g1", &format!("p{at}")).unwrap();
        }
        assert_eq!(groups.add("g1", "p"), Err(TrustGroupError::Patterns));
        let last = name(&format!("p{TRUST_PATTERNS_MAX}"));
        assert_eq!(groups.of(&last), TrustGroup(1));
    }
}
