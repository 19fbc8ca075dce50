//! The nodes of a world, their keys, and broken callers of the machines.

use super::oracle::AuthOracle;
use super::term::Secret;
use super::world::AuthWorld;

/// A node. Keys are pairs of an id and a secret, both numbers, and the first is dialled with.
#[derive(Clone, Debug)]
pub struct NodePlan {
    /// Keys of its first run; none: it is plain.
    pub keys: Vec<(u8, Secret)>,
    /// Keys of its later runs, if it may restart.
    pub keys_later: Option<Vec<(u8, Secret)>>,
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
    /// Id, secret and holder's name of keys of the attacker; the holder is a node.
    pub stolen: Vec<(u8, Secret, Option<usize>)>,
    /// A node that is a member and lies about its name.
    pub liar: Option<usize>,
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
}

impl AuthScenario {
    /// Every scenario.
    pub const ALL: [Self; 6] = [
        Self::Opened,
        Self::Crossing,
        Self::TurnedPlain,
        Self::Rotated,
        Self::Liar,
        Self::BoundKey,
    ];

    /// The world with a number of faults.
    pub fn setup(self, faults_max: u32) -> AuthSetup {
        let node = |keys: &[(u8, Secret)]| NodePlan { keys: keys.to_vec(), keys_later: None };
        let group = || node(&[(1, 1)]);
        let plain = AuthSetup {
            backend: AuthBackend::Shipping,
            nodes: vec![group(), group()],
            dials: vec![(0, 1)],
            tries_max: 1,
            stolen: Vec::new(),
            liar: None,
            faults_max,
        };
        match self {
            Self::Opened => plain,
            Self::Crossing => AuthSetup { dials: vec![(0, 1), (1, 0)], ..plain },
            Self::TurnedPlain => {
                let turned = NodePlan { keys_later: Some(Vec::new()), ..group() };
                AuthSetup { nodes: vec![group(), turned], tries_max: 2, ..plain }
            }
            Self::Rotated => {
                let rotated =
                    NodePlan { keys: vec![(2, 2), (1, 1)], keys_later: Some(vec![(2, 2)]) };
                let stolen = vec![(1, 1, None)];
                AuthSetup { nodes: vec![node(&[(2, 2)]), rotated], stolen, ..plain }
            }
            Self::Liar => AuthSetup {
                nodes: vec![group(), group(), group()],
                dials: vec![(2, 1), (0, 1)],
                liar: Some(2),
                ..plain
            },
            Self::BoundKey => AuthSetup {
                nodes: vec![group(), node(&[(1, 1), (3, 3)]), node(&[(3, 3)])],
                stolen: vec![(3, 3, Some(2))],
                ..plain
            },
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
};
