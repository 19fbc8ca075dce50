//! The nodes of a world, their keys, and broken callers of the machines.

use super::oracle::AuthOracle;
use super::term::{Certificate, Secret};
use super::world::AuthWorld;

/// A node. Keys are pairs of an id and a secret, both numbers, and the first is dialled with.
#[derive(Clone, Debug, Default)]
pub struct NodePlan {
    /// Keys of its first run; without them and a certificate it is plain.
    pub keys: Vec<(u8, Secret)>,
    /// Keys of its later runs, if it may restart, or after a change of its file.
    pub keys_later: Option<Vec<(u8, Secret)>>,
    /// Its certificate, and the authorities that it trusts.
    pub certificate: Option<(Certificate, Vec<u8>)>,
    /// Of keys and a certificate it dials by the certificate.
    pub certificate_first: bool,
    /// The same after a change of its files.
    pub certificate_later: Option<(Certificate, Vec<u8>)>,
    /// It encrypts its lanes.
    pub seals: bool,
    /// An earlier version, which cannot encrypt, nor read that another does.
    pub is_earlier: bool,
    /// The price in faults of a change of its files while it runs, in place of a restart.
    pub reload: Option<u32>,
    /// Lanes that are up before its files change.
    pub reload_after: usize,
}

/// The caller of the machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthBackend {
    /// It keeps the contract of the machines.
    Shipping,
    /// It serves plain calls, refused or not.
    PlainServed,
    /// It calls plain where no key is proven.
    FallsBack,
    /// It keeps the keys of earlier runs.
    RemovedKeyKept,
    /// It serves messages in whichever name they come.
    NameUnchecked,
    /// It serves a hello, before a record proves that the hello is no repetition.
    ServedUnproven,
    /// It lets a lane begin whatever is proven for it.
    LaneUnbound,
    /// It computes the proofs of both sides over the same text.
    SidesAlike,
    /// Its fresh number for a lane is always the same.
    NumberRepeated,
    /// It takes records in any order.
    OrderIgnored,
    /// It takes a valid certificate for any name.
    CertificateUnbound,
    /// It keeps sessions whose key or certificate is no longer accepted.
    ChangeForgotten,
    /// It accepts certificates that have expired.
    ExpiryIgnored,
    /// It remembers of a peer what the peer has proven last.
    EarlierForgotten,
    /// It ends every session at a change of its files.
    SessionsDropped,
    /// It takes a peer with its own name and incarnation for itself.
    OwnerClaimed,
    /// It takes a peer with its incarnation for itself, under any name.
    IncarnationAlone,
    /// It takes each address for one of its own.
    AnyAddressOwn,
    /// It compares patterns of names with the text behind a host.
    TextGranted,
    /// It dials by its key where its certificate has led to no session.
    MethodFallsBack,
    /// It encrypts a lane only if its peer does.
    SealingFollowed,
    /// It ends a connection on which the other side cannot agree, and says nothing.
    DifferenceUntold,
}

/// A world before its first event.
#[derive(Clone, Debug)]
pub struct AuthSetup {
    /// The caller.
    pub backend: AuthBackend,
    /// The nodes.
    pub nodes: Vec<NodePlan>,
    /// Pairs of nodes, of which the first opens a lane to the second.
    pub dials: Vec<(usize, usize)>,
    /// Times that a node tries to open each.
    pub tries_max: u8,
    /// Nodes dial addresses, and name nobody; the attacker can lead a connection back.
    pub by_address: bool,
    /// Id, secret and holder's name of keys of the attacker; the holder is a node.
    pub stolen: Vec<(u8, Secret, Option<usize>)>,
    /// Certificates of the attacker.
    pub stolen_certificates: Vec<Certificate>,
    /// Certificates that may expire.
    pub expiring: Vec<Certificate>,
    /// A node that is a member and lies about its name.
    pub liar: Option<usize>,
    /// Memory is served to the names of a pattern, which covers node 0 alone.
    pub grant: Option<&'static str>,
    /// A node, and text that the holder of its certificate writes behind its name.
    pub chosen: Option<(usize, &'static str)>,
    /// A node, and another whose incarnation the attacker announces under its name.
    pub borrowed: Option<(usize, usize)>,
    /// Faults: actions of the attacker, and restarts.
    pub faults_max: u32,
}

/// Worlds of authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthScenario {
    /// One node opens a lane to another.
    Opened,
    /// Two nodes open lanes to each other at once.
    Crossing,
    /// The listening node restarts without keys.
    TurnedPlain,
    /// Both nodes restart with another key, and the attacker has the one before.
    Rotated,
    /// A third member with the same key lies about its name.
    Liar,
    /// The attacker has a key that is bound to another name.
    BoundKey,
    /// A key is removed while the node runs, and the attacker has it.
    Removed,
    /// The dialling node opens a lane by a key that the attacker has as well, and one more by another key,
    /// which its file has then. The first is removed from the listening node afterwards.
    Replaced,
    /// Nodes with certificates; the attacker has another node's, and one of a strange authority.
    Certified,
    /// Both nodes get new certificates of the same authority while they run.
    Renewed,
    /// An authority is removed while the listening node runs: that of the dialling one, and of a
    /// certificate that the attacker has.
    Withdrawn,
    /// The certificate of the dialling node expires, and it dials again.
    Expired,
    /// Memory is served to the dialling node; the attacker has the key of all.
    Granted,
    /// Memory is served to the dialling node by its host; the attacker has another host's certificate,
    /// and writes a name behind that host.
    GrantedHost,
    /// The attacker has the key of all, and answers under the name of the listening node with the
    /// incarnation of the dialling one.
    Borrowed,
    /// The dialling node knows the address of the other alone, and the attacker, which has no key, can
    /// lead its connection back to it.
    LedBack,
    /// A fleet passes from a key to certificates: both nodes have both, and dial each other by different
    /// ones. The attacker has the key.
    Passing,
    /// The last step of it: the listening node removes the key while it runs.
    Passed,
    /// Two nodes that encrypt their lanes.
    Sealed,
    /// A node that encrypts its lanes and one that does not, each of which dials the other.
    SealedAndPlain,
    /// The same with an earlier version.
    SealedAndEarlier,
}

impl AuthScenario {
    /// Every scenario.
    pub const ALL: [Self; 21] = [
        Self::Opened,
        Self::Crossing,
        Self::TurnedPlain,
        Self::Rotated,
        Self::Liar,
        Self::BoundKey,
        Self::Removed,
        Self::Replaced,
        Self::Certified,
        Self::Renewed,
        Self::Withdrawn,
        Self::Expired,
        Self::Granted,
        Self::GrantedHost,
        Self::Borrowed,
        Self::LedBack,
        Self::Passing,
        Self::Passed,
        Self::Sealed,
        Self::SealedAndPlain,
        Self::SealedAndEarlier,
    ];

    /// The world with a number of faults.
    pub fn setup(self, faults_max: u32) -> AuthSetup {
        let node = |keys: &[(u8, Secret)]| NodePlan { keys: keys.to_vec(), ..NodePlan::default() };
        let group = || node(&[(1, 1)]);
        let plain = AuthSetup {
            backend: AuthBackend::Shipping,
            nodes: vec![group(), group()],
            dials: vec![(0, 1)],
            tries_max: 1,
            by_address: self == Self::LedBack,
            stolen: Vec::new(),
            stolen_certificates: Vec::new(),
            expiring: Vec::new(),
            liar: None,
            grant: None,
            chosen: None,
            borrowed: None,
            faults_max,
        };
        match self {
            Self::Certified
            | Self::Renewed
            | Self::Withdrawn
            | Self::Expired
            | Self::GrantedHost
            | Self::Passing
            | Self::Passed => self.certified(plain),
            Self::Opened | Self::LedBack => plain,
            Self::Crossing => AuthSetup { dials: vec![(0, 1), (1, 0)], ..plain },
            Self::TurnedPlain | Self::Rotated | Self::Removed | Self::Replaced => {
                self.rotated(plain)
            }
            Self::Sealed | Self::SealedAndPlain | Self::SealedAndEarlier => {
                self.sealed(&group(), plain)
            }
            Self::Liar => AuthSetup {
                nodes: vec![group(), group(), group()],
                dials: vec![(2, 1), (0, 1)],
                liar: Some(2),
                ..plain
            },
            Self::Granted => {
                AuthSetup { grant: Some("node-0"), stolen: vec![(1, 1, None)], ..plain }
            }
            Self::Borrowed => {
                AuthSetup { borrowed: Some((1, 0)), stolen: vec![(1, 1, None)], ..plain }
            }
            Self::BoundKey => AuthSetup {
                nodes: vec![group(), node(&[(1, 1), (3, 3)]), node(&[(3, 3)])],
                stolen: vec![(3, 3, Some(2))],
                ..plain
            },
        }
    }

    /// The worlds of nodes whose keys change.
    fn rotated(self, plain: AuthSetup) -> AuthSetup {
        let node = |keys: &[(u8, Secret)], later: &[(u8, Secret)]| NodePlan {
            keys: keys.to_vec(),
            keys_later: Some(later.to_vec()),
            ..NodePlan::default()
        };
        let (old, new, stolen) = ((1, 1), (2, 2), vec![(1, 1, None)]);
        match self {
            Self::TurnedPlain => {
                let nodes = vec![plain.nodes[0].clone(), node(&[old], &[])];
                AuthSetup { nodes, tries_max: 2, ..plain }
            }
            Self::Replaced => {
                let change = |reload_after: usize, of: NodePlan| NodePlan {
                    reload: Some(0),
                    reload_after,
                    ..of
                };
                let dialling = change(1, node(&[old], &[new]));
                let listening = change(2, node(&[new, old], &[new]));
                AuthSetup { nodes: vec![dialling, listening], tries_max: 2, stolen, ..plain }
            }
            _ => {
                let reload = (self == Self::Removed).then_some(1);
                let rotated = NodePlan { reload, ..node(&[new, old], &[new]) };
                let dialling = NodePlan { keys: vec![new], ..NodePlan::default() };
                AuthSetup { nodes: vec![dialling, rotated], stolen, ..plain }
            }
        }
    }

    /// The worlds of a node that encrypts its lanes.
    fn sealed(self, group: &NodePlan, plain: AuthSetup) -> AuthSetup {
        let seals = NodePlan { seals: true, ..group.clone() };
        let earlier = NodePlan { is_earlier: true, ..group.clone() };
        let (other, dials) = match self {
            Self::Sealed => (seals.clone(), vec![(0, 1)]),
            Self::SealedAndPlain => (group.clone(), vec![(0, 1), (1, 0)]),
            _ => (earlier, vec![(0, 1), (1, 0)]),
        };
        AuthSetup { nodes: vec![seals, other], dials, ..plain }
    }

    /// The worlds of nodes with certificates.
    fn certified(self, plain: AuthSetup) -> AuthSetup {
        let of = |holder, authority, serial| Certificate { holder, authority, serial };
        let node = |certificate: Certificate, trusted: &[u8]| NodePlan {
            certificate: Some((certificate, trusted.to_vec())),
            ..NodePlan::default()
        };
        let plain =
            AuthSetup { nodes: vec![node(of(0, 1, 0), &[1]), node(of(1, 1, 0), &[1])], ..plain };
        match self {
            Self::Renewed => {
                let renewed = |holder| NodePlan {
                    certificate_later: Some((of(holder, 1, 1), vec![1])),
                    reload: Some(0),
                    ..node(of(holder, 1, 0), &[1])
                };
                AuthSetup { nodes: vec![renewed(0), renewed(1)], ..plain }
            }
            Self::Withdrawn => {
                let withdrawn = NodePlan {
                    certificate_later: Some((of(1, 2, 1), vec![2])),
                    reload: Some(1),
                    ..node(of(1, 2, 0), &[1, 2])
                };
                let nodes = vec![node(of(0, 1, 0), &[2]), withdrawn];
                AuthSetup { nodes, stolen_certificates: vec![of(0, 1, 0)], ..plain }
            }
            Self::GrantedHost => {
                let other = node(of(2, 1, 0), &[1]);
                let nodes = plain.nodes.into_iter().chain([other]).collect();
                let (grant, chosen) = (Some("*node-0"), Some((2, "node-0")));
                AuthSetup { nodes, stolen_certificates: vec![of(2, 1, 0)], grant, chosen, ..plain }
            }
            Self::Passing | Self::Passed => {
                let both = |holder, certificate_first| NodePlan {
                    keys: vec![(1, 1)],
                    certificate_first,
                    ..node(of(holder, 1, 0), &[1])
                };
                let removed =
                    NodePlan { keys_later: Some(Vec::new()), reload: Some(1), ..both(1, true) };
                let (nodes, dials) = match self {
                    Self::Passing => (vec![both(0, true), both(1, false)], vec![(0, 1), (1, 0)]),
                    _ => (vec![both(0, true), removed], vec![(0, 1)]),
                };
                AuthSetup { nodes, dials, stolen: vec![(1, 1, None)], ..plain }
            }
            Self::Expired => AuthSetup { expiring: vec![of(0, 1, 0)], tries_max: 2, ..plain },
            _ => {
                let other = node(of(2, 1, 0), &[1]);
                let nodes = plain.nodes.into_iter().chain([other]).collect();
                let stolen_certificates = vec![of(2, 1, 0), of(0, 9, 0)];
                AuthSetup { nodes, stolen_certificates, ..plain }
            }
        }
    }
}

/// A broken caller, and where it is found out.
pub struct AuthEntry {
    /// `AUTH` and a number.
    pub id: &'static str,
    /// The caller.
    pub backend: AuthBackend,
    /// The rule that it breaks, for people.
    pub breaks: &'static str,
    /// The scenario that finds it.
    pub scenario: AuthScenario,
    /// Faults needed.
    pub faults_max: u32,
    /// The oracle that is expected to fail.
    pub oracle: AuthOracle,
}

impl AuthEntry {
    /// The world in which it is looked for.
    pub fn start(&self) -> AuthWorld {
        let control = self.scenario.setup(self.faults_max);
        AuthWorld::new(AuthSetup { backend: self.backend, ..control })
    }

    /// Its negative control: the same world, with the caller that ships.
    pub fn control(&self) -> AuthWorld {
        AuthWorld::new(self.scenario.setup(self.faults_max))
    }
}

/// Rows of id, caller, scenario, faults needed, oracle and rule.
macro_rules! table {
    ($($id:literal $backend:ident: $scenario:ident with $faults_max:literal
        breaks $oracle:ident, $breaks:literal;)*) => {
        &[$(AuthEntry {
            id: $id,
            backend: AuthBackend::$backend,
            breaks: $breaks,
            scenario: AuthScenario::$scenario,
            faults_max: $faults_max,
            oracle: AuthOracle::$oracle,
        }),*]
    };
}

/// Every broken caller.
pub const AUTH_VARIANTS: &[AuthEntry] = table! {
    "AUTH-1" PlainServed: Opened with 2 breaks Intruder,
        "a plain call is served by a node with keys";
    "AUTH-2" FallsBack: TurnedPlain with 1 breaks Downgrade,
        "a peer that proves no key is called plain";
    "AUTH-3" RemovedKeyKept: Rotated with 4 breaks StaleKey,
        "a key that was removed is accepted after a restart";
    "AUTH-4" NameUnchecked: Liar with 1 breaks Impersonated,
        "a message counts for the node that it names, regardless of its sender";
    "AUTH-5" ServedUnproven: Opened with 2 breaks Intruder,
        "a hello is served before a fresh record proves it";
    "AUTH-6" LaneUnbound: Opened with 2 breaks LaneStolen,
        "a lane begins without a proof of its secret";
    "AUTH-7" SidesAlike: Opened with 2 breaks LaneStolen,
        "the proof of the listening side, sent back, is taken for that of the dialling side";
    "AUTH-8" NumberRepeated: Opened with 2 breaks LaneStolen,
        "the proof of one connection is taken on another";
    "AUTH-9" OrderIgnored: Opened with 1 breaks Intruder,
        "a record that is repeated is served again";
    "AUTH-10" CertificateUnbound: Certified with 3 breaks Intruder,
        "a valid certificate of one node is taken for another's";
    "AUTH-11" ChangeForgotten: Removed with 4 breaks StaleKey,
        "a session outlasts the key that its peer proved";
    "AUTH-12" ChangeForgotten: Withdrawn with 1 breaks StaleKey,
        "a session outlasts the authority that issued its peer's certificate";
    "AUTH-13" ExpiryIgnored: Expired with 1 breaks StaleKey,
        "a certificate that has expired is accepted";
    "AUTH-14" SessionsDropped: Renewed with 0 breaks Liveness,
        "a new certificate of the same authority ends sessions";
    "AUTH-15" OwnerClaimed: Granted with 3 breaks Ungranted,
        "a peer with the owner's name and incarnation has what the owner may do";
    "AUTH-16" TextGranted: GrantedHost with 3 breaks Ungranted,
        "the pattern of a grant covers text behind the host of a certificate";
    "AUTH-17" MethodFallsBack: Passing with 1 breaks Downgrade,
        "a node that dials by certificates dials by a key where they are refused";
    "AUTH-18" SealingFollowed: SealedAndPlain with 0 breaks Downgrade,
        "a node that encrypts its lanes opens a plain one to a node that does not";
    "AUTH-19" SealingFollowed: SealedAndEarlier with 0 breaks Downgrade,
        "a node that encrypts its lanes opens a plain one to an earlier version";
    "AUTH-20" DifferenceUntold: SealedAndEarlier with 0 breaks Liveness,
        "a node gets no report that one side encrypts and the other does not";
    "AUTH-21" IncarnationAlone: Borrowed with 1 breaks Mistaken,
        "a peer with a node's incarnation under another name is taken for that node by itself";
    "AUTH-22" EarlierForgotten: Replaced with 0 breaks StaleKey,
        "a lane outlasts the key that opened it, since its peer has proven another one";
    "AUTH-23" AnyAddressOwn: LedBack with 1 breaks LedBack,
        "a node whose call is led back to it takes itself for the peer";
};
