//! Limits of the devices, and the errors past them.

use crate::faults::{HELD_MAX, PARKED_MAX, PLANTED_MAX};
use crate::serve::CONNECTIONS_MAX;
use crate::server::OFFERED_MAX;
use crate::state::EVENTS_MAX;
use serde::{Deserialize, Serialize};
use thiserror::Error;

#[cfg(test)]
mod tests;

/// A limit that a program or a script has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, Error)]
pub enum LimitReached {
    /// Connections of programs.
    #[error(
        "the devices have {} connections of programs, the maximum: a thread has one from its first \
         call to its end; use fewer threads",
        CONNECTIONS_MAX
    )]
    Connections,
    /// Descriptors for events that wait for the call that uses them.
    #[error(
        "{} descriptors for events wait for their device or channel, the maximum: open fewer at \
         the same time",
        OFFERED_MAX
    )]
    Offered,
    /// Events of an open device or of a channel.
    #[error(
        "an event is lost: the program has not read the {} before it, the maximum; read them with \
         ibv_get_async_event and ibv_get_cq_event",
        EVENTS_MAX
    )]
    Events,
    /// Held packets.
    #[error("a held packet is lost: {} wait already, the maximum; release them", PARKED_MAX)]
    ParkedPackets,
    /// Held completions.
    #[error("a held completion is lost: {} wait already, the maximum; release them", PARKED_MAX)]
    ParkedCompletions,
    /// Held events.
    #[error("a held event is lost: {} wait already, the maximum; release them", EVENTS_MAX)]
    ParkedEvents,
    /// Planted faults.
    #[error("{} faults are planted already, the maximum; take them back with `pass`", PLANTED_MAX)]
    Planted,
    /// Queue pairs whose completions are held.
    #[error(
        "completions of {} queue pairs are held already, the maximum; hold those of the device",
        HELD_MAX
    )]
    Held,
}

/// The answer to the first message of a connection: the program's name.
pub type Welcome = Result<u64, Refusal>;

/// The reason why a connection, or a descriptor, is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, Error)]
pub enum Refusal {
    /// A limit.
    #[error(transparent)]
    Limit(#[from] LimitReached),
    /// The error number of a call of the system.
    #[error("the descriptor cannot be used: error {0}")]
    System(i32),
}
