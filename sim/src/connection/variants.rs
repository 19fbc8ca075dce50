//! The registry of broken variants of connections: what each breaks, and where it is found.

use super::oracle::ConnectionOracle;
use super::setup::ConnectionScenario;
use super::world::ConnectionWorld;
use handfast_core::Incarnation;
use handfast_core::connection::{ConnectionVariant, LaneConnections};

/// A broken variant of the rules of connections, and where it is found out.
pub struct ConnectionEntry {
    /// `CM` and a number.
    pub id: &'static str,
    /// Its name in the code.
    pub name: &'static str,
    /// The rule that it breaks, for people.
    pub breaks: &'static str,
    /// The scenario that finds it.
    pub scenario: ConnectionScenario,
    /// Faults needed.
    pub faults_max: u32,
    /// The oracle that is expected to fail.
    pub oracle: ConnectionOracle,
    build: fn(Incarnation) -> LaneConnections,
}

impl ConnectionEntry {
    /// The world in which it is looked for.
    pub fn start(&self) -> ConnectionWorld {
        ConnectionWorld::new(self.scenario.setup(self.build, self.faults_max))
    }

    /// Its negative control: the same world, with the rules that ship.
    pub fn control(&self) -> ConnectionWorld {
        ConnectionWorld::new(self.scenario.setup(LaneConnections::new, self.faults_max))
    }
}

/// Rows of id, variant, scenario, faults needed, oracle and rule.
macro_rules! table {
    ($($id:literal $variant:ident: $scenario:ident with $faults_max:literal
        breaks $oracle:ident, $breaks:literal;)*) => {
        &[$(ConnectionEntry {
            id: $id,
            name: stringify!($variant),
            breaks: $breaks,
            scenario: ConnectionScenario::$scenario,
            faults_max: $faults_max,
            oracle: ConnectionOracle::$oracle,
            build: |incarnation| {
                LaneConnections::new(incarnation).following(ConnectionVariant::$variant)
            },
        }),*]
    };
}

/// Every broken variant of connections.
pub const CONNECTION_VARIANTS: &[ConnectionEntry] = table! {
    "CM-1" AcceptedWhileEnding: Closed with 0 breaks FabricLaw,
        "a request is accepted for a lifecycle that has ended";
    "CM-2" TokenUncompared: Stranger with 1 breaks Stranger,
        "a request is accepted whatever its token";
    "CM-3" DisconnectIsDrained: Closed with 0 breaks GhostByte,
        "a disconnect counts as the end of all outstanding work";
    "CM-4" AnswerUnproven: Stranger with 1 breaks Stranger,
        "an answer is taken for the peer's, whatever its token";
    "CM-5" BothDial: LowerOpens with 0 breaks Unchanged,
        "both sides dial";
    "CM-6" EarlyOfLaterPair: LowerOpens with 3 breaks Unchanged,
        "a request before the connect counts for a later pair of its peer";
    "CM-7" DisplacedByOthers: Crowded with 0 breaks Liveness,
        "an announcement is forgotten for another peer's, and its lane is to be connected";
    "CM-8" NeverEarly: LowerOpens with 0 breaks Liveness,
        "a request waits for the lane's own connect, which waits for the peer";
    "CM-9" EarlyFailureUnsaid: LowerOpens with 1 breaks Liveness,
        "a lane that was accepted before its connect fails, and nobody says so";
};
