//! Oracles of authentication.

use crate::machine_world::Violation;

/// The oracles of authentication. `docs/testing.md` has the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AuthOracle {
    /// Nobody without a key is served.
    Intruder,
    /// A node that has keys calls nobody plain.
    Downgrade,
    /// A key that a node no longer has opens no session there, and no lane that was opened under it is left.
    StaleKey,
    /// A request is served in the name of its sender alone.
    Impersonated,
    /// Both ends of a session name each other.
    Agreement,
    /// A lane belongs to the node that was given its secret, over a connection of which that node
    /// knows.
    LaneStolen,
    /// A peer may do what the grants give to its name.
    Ungranted,
    /// A node takes no other for itself.
    Mistaken,
    /// A node that dials another takes no answer for its own.
    LedBack,
    /// Without an attacker every lane comes up.
    Liveness,
}

/// A violated oracle of authentication and the observation.
pub type AuthViolation = Violation<AuthOracle>;
