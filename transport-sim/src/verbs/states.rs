//! The states of a queue pair, and the drivers' tables of their transitions.

use super::errors::Errno;
use std::fmt::{self, Display};

/// The states of a queue pair. Driver-specific states are mapped by their behaviour: an idle eRDMA
/// queue pair is `Init`, a closing one `Sqd`, a terminated one `Sqe`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QpState {
    /// Nothing is accepted, packets are dropped.
    #[default]
    Reset,
    /// Receives may be posted.
    Init,
    /// The responder answers.
    Rtr,
    /// Requests are sent.
    Rts,
    /// The send queue is drained.
    Sqd,
    /// The send side is in error; no reliable connection enters it.
    Sqe,
    /// Both directions are dead; posted work is flushed.
    Err,
}

impl QpState {
    /// Every state, in the order of the tables.
    pub const ALL: [Self; 7] =
        [Self::Reset, Self::Init, Self::Rtr, Self::Rts, Self::Sqd, Self::Sqe, Self::Err];
}

impl Display for QpState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&format!("{self:?}").to_uppercase())
    }
}

/// Response of a driver to a requested state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Returns this and changes nothing.
    Refused(Errno),
    /// Returns 0 and changes nothing.
    Nothing,
    /// Moves to this state.
    To(QpState),
    /// Connects to the peer in the address vector and moves to RTS.
    Connect,
}

/// Response in each state (row) to each requested state (column), both in the order of
/// [`QpState::ALL`].
pub type Transitions = [[Step; 7]; 7];

const NO: Step = Step::Refused(Errno::Einval);
const OK: Step = Step::Nothing;
const RESET: Step = Step::To(QpState::Reset);
const INIT: Step = Step::To(QpState::Init);
const RTR: Step = Step::To(QpState::Rtr);
const RTS: Step = Step::To(QpState::Rts);
const SQD: Step = Step::To(QpState::Sqd);
const SQE: Step = Step::To(QpState::Sqe);
const ERR: Step = Step::To(QpState::Err);
const CONNECT: Step = Step::Connect;
const CLOSED: Step = Step::Refused(Errno::Econnaborted);

/// The table that Linux drivers share, for reliable connections.
pub(super) const SHARED: Transitions = [
    [RESET, INIT, NO, NO, NO, NO, NO],
    [RESET, INIT, RTR, NO, NO, NO, ERR],
    [RESET, NO, NO, RTS, NO, NO, ERR],
    [RESET, NO, NO, RTS, SQD, NO, ERR],
    [RESET, NO, NO, RTS, SQD, NO, ERR],
    [RESET, NO, NO, RTS, NO, NO, ERR],
    [RESET, NO, NO, NO, NO, NO, ERR],
];

/// As [`SHARED`], but RESET is treated as ERR, from every state.
pub(super) const RESET_IS_ERROR: Transitions = [
    [ERR, INIT, NO, NO, NO, NO, NO],
    [ERR, INIT, RTR, NO, NO, NO, ERR],
    [ERR, NO, NO, RTS, NO, NO, ERR],
    [ERR, NO, NO, RTS, SQD, NO, ERR],
    [ERR, NO, NO, RTS, SQD, NO, ERR],
    [ERR, NO, NO, RTS, NO, NO, ERR],
    [ERR, NO, NO, NO, NO, NO, ERR],
];

/// eRDMA without out-of-band connections: RTR has no effect, RTS requires a connection manager.
pub(super) const ERDMA_STANDARD: Transitions = erdma(OK, NO);

/// siw: an idle queue pair takes ERR alone, RTS requires a connection manager, and a closing one
/// refuses nothing.
pub(super) const SIW: Transitions = [
    [OK, OK, OK, NO, OK, OK, ERR],
    [OK, OK, OK, NO, OK, OK, ERR],
    [OK, OK, OK, NO, OK, OK, ERR],
    [OK, OK, OK, OK, SQD, SQE, ERR],
    [INIT, INIT, OK, OK, OK, OK, ERR],
    [OK, OK, OK, OK, OK, OK, ERR],
    [OK, OK, OK, OK, OK, OK, OK],
];

/// irdma, iWARP: RESET is treated as ERR, RTR has no effect, and RTS requires a connection manager.
pub(super) const IRDMA_IWARP: Transitions = [
    [ERR, INIT, OK, NO, OK, SQE, ERR],
    [ERR, OK, OK, NO, OK, SQE, ERR],
    [ERR, OK, OK, NO, OK, SQE, ERR],
    [ERR, NO, NO, OK, SQD, SQE, ERR],
    [ERR, NO, NO, NO, OK, SQE, ERR],
    [ERR, NO, NO, NO, OK, NO, ERR],
    [OK, NO, NO, NO, OK, NO, OK],
];

/// eRDMA in compat mode: RTR connects, and so does RTS if RTR was skipped.
pub(super) const ERDMA_COMPAT: Transitions = erdma(CONNECT, CONNECT);

const fn erdma(rtr: Step, rts: Step) -> Transitions {
    [
        [OK, OK, rtr, rts, OK, OK, ERR],
        [OK, OK, rtr, rts, OK, OK, ERR],
        [OK, OK, OK, OK, SQD, SQE, ERR],
        [OK, OK, OK, OK, SQD, SQE, ERR],
        [INIT, INIT, CLOSED, CLOSED, OK, OK, ERR],
        [OK, OK, OK, OK, OK, OK, ERR],
        [OK, OK, OK, OK, OK, OK, OK],
    ]
}
