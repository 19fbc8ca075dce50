//! Permissions of peers in a served region, and the keys that RDMA devices enforce them by.
//!
//! [`Grants`] decides what a requester may do. A lane remembers the last decision in an [`AccessMemo`]
//! while nothing changes. A device checks keys, not names: [`KeyGroups`] gives the peers that have the
//! same grants one registration, which ends when one of these grants is revoked.

use super::trust::{TrustGroup, TrustGroups};
use crate::auth::{KeyRule, NamePattern};
use crate::excerpt::excerpt;
use crate::identity::NodeName;
use crate::time::{Duration, Instant};
use crate::transfer::Direction;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// Maximum patterns of names in the grants of one region.
pub const GRANTS_MAX: usize = 64;
/// Maximum registrations of one region, one for each key group.
pub const KEY_GROUPS_MAX: usize = 16;
/// Pause after a registration that failed. Requests of its peers meanwhile try no other.
pub const KEY_RETRY_INTERVAL: Duration = Duration::from_millis(5_000);

/// Permissions in a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Access {
    /// A peer may read it.
    pub remote_read: bool,
    /// A peer may write it.
    pub remote_write: bool,
}

impl Access {
    /// A peer may read only.
    pub const READ: Self = Self { remote_read: true, remote_write: false };
    /// A peer may write only.
    pub const WRITE: Self = Self { remote_read: false, remote_write: true };
    /// A peer may read and write.
    pub const READ_WRITE: Self = Self { remote_read: true, remote_write: true };

    /// Whether a peer may move bytes in this direction.
    pub fn allows(self, direction: Direction) -> bool {
        match direction {
            Direction::Read => self.remote_read,
            Direction::Write => self.remote_write,
        }
    }

    /// Whether a peer may do nothing.
    pub fn is_none(self) -> bool {
        self == Self::default()
    }

    /// The permissions of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            remote_read: self.remote_read || other.remote_read,
            remote_write: self.remote_write || other.remote_write,
        }
    }

    /// These permissions without those of the other.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self {
            remote_read: self.remote_read && !other.remote_read,
            remote_write: self.remote_write && !other.remote_write,
        }
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.remote_read, self.remote_write) {
            (true, false) => "read",
            (false, true) => "write",
            (true, true) => "read-write",
            (false, false) => "nothing",
        })
    }
}

/// Permissions in a region for the peers whose names a pattern covers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Grant {
    peers: NamePattern,
    access: Access,
}

impl Grant {
    /// Grants `access` to the peers that the pattern covers: a name, with `*` for any characters.
    ///
    /// # Errors
    /// [`GrantError::Pattern`] and [`GrantError::Nothing`].
    pub fn new(access: Access, peers: &str) -> Result<Self, GrantError> {
        if access.is_none() {
            return Err(GrantError::Nothing);
        }
        let pattern = NamePattern::new(peers);
        let peers = pattern.map_err(|_| GrantError::Pattern { pattern: excerpt(peers) })?;
        Ok(Self { peers, access })
    }

    /// Grants reading.
    ///
    /// # Errors
    /// [`GrantError::Pattern`].
    pub fn read(peers: &str) -> Result<Self, GrantError> {
        Self::new(Access::READ, peers)
    }

    /// Grants writing.
    ///
    /// # Errors
    /// [`GrantError::Pattern`].
    pub fn write(peers: &str) -> Result<Self, GrantError> {
        Self::new(Access::WRITE, peers)
    }

    /// Grants reading and writing.
    ///
    /// # Errors
    /// [`GrantError::Pattern`].
    pub fn read_write(peers: &str) -> Result<Self, GrantError> {
        Self::new(Access::READ_WRITE, peers)
    }

    /// The pattern of names.
    pub fn peers(&self) -> &str {
        self.peers.as_str()
    }

    /// The permissions.
    pub fn access(&self) -> Access {
        self.access
    }
}

/// Such as `read for decode-*`.
impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} for {}", self.access, self.peers())
    }
}

/// Errors of grants.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrantError {
    /// The pattern is no name with `*`.
    #[error("'{pattern}' names no peers: write a node's name, with * for any characters")]
    Pattern {
        /// The text.
        pattern: String,
    },
    /// Neither reading nor writing.
    #[error("a grant allows reading, writing, or both")]
    Nothing,
    /// The region has [`GRANTS_MAX`] patterns.
    #[error("a segment has at most {GRANTS_MAX} patterns of names")]
    Full,
    /// Names of peers are not proven.
    #[error(
        "a grant for '{pattern}' needs keys of peers: without them names are not proven, and only a \
         grant for * holds"
    )]
    Unproven {
        /// The pattern.
        pattern: String,
    },
}

/// The side that accesses a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requester<'a> {
    /// The node that serves it.
    Own,
    /// A peer by its name, which it has proven where the node has keys.
    Peer(&'a NodeName),
    /// A peer without a name.
    Anybody,
}

/// The peers that may ask for the grants of a node and change them, by their names. Without any, the node
/// alone does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Administrators {
    patterns: Vec<NamePattern>,
}

impl Administrators {
    /// The peers of these patterns.
    ///
    /// # Errors
    /// [`GrantError::Pattern`].
    pub fn new<'a>(patterns: impl IntoIterator<Item = &'a str>) -> Result<Self, GrantError> {
        let of = |text: &str| {
            NamePattern::new(text).map_err(|_| GrantError::Pattern { pattern: excerpt(text) })
        };
        let patterns = patterns.into_iter().map(of).collect::<Result<_, _>>()?;
        Ok(Self { patterns })
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// Whether holders of a key can choose to be administrators: it allows names of them and others.
    pub fn can_be_chosen_with(&self, key: &KeyRule) -> bool {
        key.can_choose(&self.patterns)
    }

    /// Whether a requester is one. A peer without a proven name is none, whatever the patterns.
    pub fn admits(&self, requester: Requester<'_>) -> bool {
        match requester {
            Requester::Own => true,
            Requester::Peer(name) => self.patterns.iter().any(|it| it.covers(name)),
            Requester::Anybody => false,
        }
    }
}

/// The grants of one region.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Grants {
    by_peers: BTreeMap<NamePattern, Access>,
    /// The permissions of every peer.
    everybody: Access,
}

impl From<Access> for Grants {
    fn from(access: Access) -> Self {
        Self::everybody(access)
    }
}

impl Grants {
    /// The same access for every peer.
    pub fn everybody(access: Access) -> Self {
        let mut grants = Self::default();
        if !access.is_none() {
            grants.by_peers.insert(NamePattern::any(), access);
            grants.everybody = access;
        }
        grants
    }

    /// Adds a grant to those of its pattern.
    ///
    /// # Errors
    /// [`GrantError::Full`]; nothing changed.
    pub fn add(&mut self, grant: Grant) -> Result<(), GrantError> {
        let Grant { peers, access } = grant;
        if !self.by_peers.contains_key(&peers) && self.by_peers.len() >= GRANTS_MAX {
            return Err(GrantError::Full);
        }
        let held = self.by_peers.entry(peers).or_default();
        *held = held.and(access);
        self.note_everybody();
        Ok(())
    }

    /// Takes the access of a grant from its pattern. Other patterns may cover the same peers, and keep
    /// theirs.
    pub fn revoke(&mut self, grant: &Grant) {
        if let Some(held) = self.by_peers.get_mut(&grant.peers) {
            *held = held.without(grant.access);
            if held.is_none() {
                self.by_peers.remove(&grant.peers);
            }
        }
        self.note_everybody();
    }

    /// The grants, one for each pattern.
    pub fn iter(&self) -> impl Iterator<Item = Grant> {
        self.by_peers.iter().map(|(peers, access)| Grant { peers: peers.clone(), access: *access })
    }

    /// The permissions that any peer has.
    pub fn union(&self) -> Access {
        self.by_peers.values().fold(Access::default(), |all, access| all.and(*access))
    }

    /// Checks that no grant rests on a name, where names are not proven.
    ///
    /// # Errors
    /// [`GrantError::Unproven`].
    pub fn check_unproven(&self) -> Result<(), GrantError> {
        let mut named = self.by_peers.keys().filter(|peers| !peers.is_any());
        match named.next() {
            Some(peers) => Err(GrantError::Unproven { pattern: peers.as_str().into() }),
            None => Ok(()),
        }
    }

    /// A grant whose pattern covers that of `grant`, or is covered by it, and that allows a part of the same.
    pub fn overlapping(&self, grant: &Grant) -> Option<Grant> {
        let Access { remote_read, remote_write } = grant.access;
        self.iter().find(|held| {
            let overlaps = held.peers.contains(&grant.peers) || grant.peers.contains(&held.peers);
            let Access { remote_read: reads, remote_write: writes } = held.access;
            overlaps && (reads && remote_read || writes && remote_write)
        })
    }

    /// Whether every peer has the same access.
    pub fn is_for_everybody(&self) -> bool {
        self.by_peers.keys().all(NamePattern::is_any)
    }

    /// The permissions of every peer.
    pub fn access_of_everybody(&self) -> Access {
        self.everybody
    }

    /// The permissions of a requester.
    pub fn access_of(&self, requester: Requester<'_>) -> Access {
        match requester {
            Requester::Own => self.union(),
            Requester::Anybody => self.everybody,
            Requester::Peer(_) => {
                let matching = self.matching(requester);
                matching.fold(Access::default(), |all, (_, access)| all.and(*access))
            }
        }
    }

    fn matching(&self, requester: Requester<'_>) -> impl Iterator<Item = (&NamePattern, &Access)> {
        self.by_peers.iter().filter(move |(peers, _)| match requester {
            Requester::Own => true,
            Requester::Anybody => peers.is_any(),
            Requester::Peer(name) => peers.covers(name),
        })
    }

    /// Whether no requester has exactly these grants: one of them allows something else now, or a further
    /// pattern covers its peers as well. It does not find all such sets.
    fn are_nobodys(&self, set: &[Grant]) -> bool {
        let is_in_set = |peers: &NamePattern| set.iter().any(|grant| grant.peers == *peers);
        let is_changed = |grant: &Grant| self.by_peers.get(&grant.peers) != Some(&grant.access);
        // A requester without a name has the grant of `*` alone, whatever else covers every name.
        let is_covered = |grant: &Grant| {
            let mut further = self.by_peers.keys().filter(|peers| !is_in_set(peers));
            !grant.peers.is_any() && further.any(|peers| peers.contains(&grant.peers))
        };
        set.iter().any(|grant| is_changed(grant) || is_covered(grant))
    }

    fn note_everybody(&mut self) {
        let everybody = self.by_peers.iter().find(|(peers, _)| peers.is_any());
        self.everybody = everybody.map_or(Access::default(), |(_, access)| *access);
    }
}

/// The last decision for the peer of one lane. It holds until the grants change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct AccessMemo {
    last: Option<(u64, u64, Access)>,
}

impl AccessMemo {
    /// The permissions of a requester, always the same one, in the region with a key. `version` is the
    /// number of changes to any region or grant.
    pub fn access(
        &mut self,
        (version, key): (u64, u64),
        grants: &Grants,
        requester: Requester<'_>,
    ) -> Access {
        match self.last {
            Some((of, at, access)) if (of, at) == (version, key) => access,
            _ => {
                let access = grants.access_of(requester);
                self.last = Some((version, key, access));
                access
            }
        }
    }
}

/// A registration for the peers with the same grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyGroupId(pub u64);

/// The registration for a requester.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyGroup {
    /// The requester may do nothing.
    None,
    /// One that was made before.
    Known(KeyGroupId),
    /// One that failed within [`KEY_RETRY_INTERVAL`].
    Failed(KeyGroupId),
    /// None: [`KEY_GROUPS_MAX`] others have theirs, which their peers use. One that ends makes room.
    Full,
    /// One to make, with these permissions and no others.
    New {
        /// The group.
        group: KeyGroupId,
        /// The permissions of the registration.
        access: Access,
        /// The trust group in whose protection domain it is.
        trust: TrustGroup,
        /// A group that goes in its favour at [`KEY_GROUPS_MAX`]: one whose registration failed, or that
        /// had the same peers before the grants changed.
        evicted: Option<KeyGroupId>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Group {
    id: KeyGroupId,
    trust: TrustGroup,
    grants: Vec<Grant>,
    /// End of the pause after a registration that failed.
    retry_at: Option<Instant>,
    /// No requester has exactly these grants, under the present ones.
    is_nobodys: bool,
}

/// The registrations of one region: one for the peers of a trust group that the same grants cover. A
/// peer's key allows what its grants allow, and ends with the first of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct KeyGroups {
    /// The oldest first.
    groups: Vec<Group>,
    next: u64,
    trust: TrustGroups,
}

impl KeyGroups {
    /// No registrations, for the peers of these trust groups.
    pub fn new(trust: TrustGroups) -> Self {
        Self { trust, ..Self::default() }
    }

    /// The registration of a requester that was made before.
    pub fn find(&self, grants: &Grants, requester: Requester<'_>) -> Option<KeyGroupId> {
        let trust = self.trust.of_requester(requester);
        let is_of = |group: &&Group| {
            let own = group.grants.iter().map(|grant| (&grant.peers, grant.access));
            let its = grants.matching(requester).map(|(peers, access)| (peers, *access));
            group.trust == trust && own.eq(its)
        };
        self.groups.iter().find(is_of).map(|group| group.id)
    }

    /// Whether the registration of a group failed less than [`KEY_RETRY_INTERVAL`] ago.
    pub fn is_pausing(&self, group: KeyGroupId, now: Instant) -> bool {
        let known = self.groups.iter().find(|known| known.id == group);
        known.and_then(|known| known.retry_at).is_some_and(|at| now < at)
    }

    /// Whether another group may have a registration, for a requester. None is taken from peers that use
    /// theirs, as each group would then break the lanes of the next; the group that a requester had before
    /// the grants changed makes room for its next one.
    pub fn has_room_for(&self, grants: &Grants, requester: Requester<'_>) -> bool {
        self.groups.len() < KEY_GROUPS_MAX || self.unused(&matching(grants, requester)).is_some()
    }

    /// The place of a group that makes room for one with these grants.
    fn unused(&self, next: &[Grant]) -> Option<usize> {
        let is_next = |peers: &NamePattern| next.iter().any(|grant| grant.peers == *peers);
        let is_earlier = |group: &Group| {
            group.is_nobodys && group.grants.iter().all(|grant| is_next(&grant.peers))
        };
        let failed = self.groups.iter().position(|group| group.retry_at.is_some());
        failed.or_else(|| self.groups.iter().position(is_earlier))
    }

    /// The registration for the peers that the first grant alone covers, in a trust group of these peers.
    pub fn first(&mut self, grants: &Grants) -> KeyGroup {
        let first: Vec<Grant> = grants.iter().take(1).collect();
        let of_pattern = |grant: &Grant| self.trust.of_pattern(&grant.peers);
        let trust = first.first().map(of_pattern).unwrap_or_default();
        let found = self.group(first, trust, Instant(0));
        self.note_nobodys(grants);
        found
    }

    /// The registration for a requester.
    pub fn group_of(
        &mut self,
        grants: &Grants,
        requester: Requester<'_>,
        now: Instant,
    ) -> KeyGroup {
        let trust = self.trust.of_requester(requester);
        self.group(matching(grants, requester), trust, now)
    }

    fn group(&mut self, matching: Vec<Grant>, trust: TrustGroup, now: Instant) -> KeyGroup {
        let access = matching.iter().fold(Access::default(), |all, grant| all.and(grant.access));
        if access.is_none() {
            return KeyGroup::None;
        }
        let is_its = |group: &&mut Group| group.trust == trust && group.grants == matching;
        if let Some(known) = self.groups.iter_mut().find(is_its) {
            return match known.retry_at {
                None => KeyGroup::Known(known.id),
                Some(at) if now < at => KeyGroup::Failed(known.id),
                Some(_) => {
                    known.retry_at = None;
                    KeyGroup::New { group: known.id, access, trust, evicted: None }
                }
            };
        }
        let mut evicted = None;
        if self.groups.len() >= KEY_GROUPS_MAX {
            let Some(unused) = self.unused(&matching) else { return KeyGroup::Full };
            evicted = Some(self.groups.remove(unused).id);
        }
        let group = KeyGroupId(self.next);
        self.next += 1;
        let (grants, retry_at) = (matching, None);
        self.groups.push(Group { id: group, trust, grants, retry_at, is_nobodys: false });
        KeyGroup::New { group, access, trust, evicted }
    }

    fn note_nobodys(&mut self, grants: &Grants) {
        for group in &mut self.groups {
            group.is_nobodys = grants.are_nobodys(&group.grants);
        }
    }

    /// Handles a change of the grants; returns the groups whose registrations end, since they allow
    /// what a grant no longer does.
    pub fn on_changed(&mut self, grants: &Grants) -> Vec<KeyGroupId> {
        let holds = |grant: &Grant| {
            let now = grants.by_peers.get(&grant.peers).copied().unwrap_or_default();
            grant.access.without(now).is_none()
        };
        let ended = self.groups.extract_if(.., |group| !group.grants.iter().all(holds));
        let ended = ended.map(|group| group.id).collect();
        self.note_nobodys(grants);
        ended
    }

    /// Handles a registration that could not be made: the group is tried again when it is asked for
    /// after [`KEY_RETRY_INTERVAL`], or when its grants have changed.
    pub fn on_failed(&mut self, group: KeyGroupId, now: Instant) {
        if let Some(known) = self.groups.iter_mut().find(|known| known.id == group) {
            known.retry_at = Some(now + KEY_RETRY_INTERVAL);
        }
    }

    /// Whether a group is current.
    pub fn has(&self, group: KeyGroupId) -> bool {
        self.groups.iter().any(|known| known.id == group)
    }
}

/// The grants that cover a requester.
fn matching(grants: &Grants, requester: Requester<'_>) -> Vec<Grant> {
    let of_grant =
        |(peers, access): (&NamePattern, &Access)| Grant { peers: peers.clone(), access: *access };
    grants.matching(requester).map(of_grant).collect()
}

#[cfg(test)]
mod tests;
