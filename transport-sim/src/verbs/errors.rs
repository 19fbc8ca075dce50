//! Return values.

use super::states::QpState;
use std::fmt::{self, Display};

/// Error numbers, with the values that Linux gives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(i32)]
pub enum Errno {
    /// Input/output error.
    Eio = 5,
    /// A table or a queue is full, or memory is exhausted.
    Enomem = 12,
    /// An argument or a state is invalid.
    Einval = 22,
    /// No space left; used by some drivers for a full table.
    Enospc = 28,
    /// The GID entry is empty.
    Enodata = 61,
    /// The operation is not supported.
    Eopnotsupp = 95,
    /// The address family is not supported.
    Eafnosupport = 97,
    /// The network is unreachable.
    Enetunreach = 101,
    /// The connection is being closed.
    Econnaborted = 103,
    /// The neighbour did not answer.
    Etimedout = 110,
}

/// A verbs call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Call {
    /// `ibv_create_qp`.
    CreateQueuePair,
    /// `ibv_modify_qp` to this state.
    Modify(QpState),
    /// `ibv_destroy_qp`.
    DestroyQueuePair,
    /// `ibv_reg_mr`.
    Register,
    /// `ibv_dereg_mr`.
    Deregister,
    /// `ibv_post_send`.
    PostSend,
    /// `ibv_post_recv`.
    PostReceive,
}

/// The name in the verbs library, with the state where there is one.
impl Display for Call {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::CreateQueuePair => "ibv_create_qp",
            Self::Modify(state) => return write!(formatter, "ibv_modify_qp({state})"),
            Self::DestroyQueuePair => "ibv_destroy_qp",
            Self::Register => "ibv_reg_mr",
            Self::Deregister => "ibv_dereg_mr",
            Self::PostSend => "ibv_post_send",
            Self::PostReceive => "ibv_post_recv",
        })
    }
}

/// A failed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
#[error("{call} returned {code}")]
pub struct VerbsError {
    /// The failed call.
    pub call: Call,
    /// Its return value, with the sign that the driver uses: negative in the data path of some
    /// drivers.
    pub code: i32,
    /// Time blocked, in milliseconds.
    pub blocked_ms: u32,
}

impl VerbsError {
    pub(crate) const fn new(call: Call, errno: Errno) -> Self {
        Self { call, code: errno as i32, blocked_ms: 0 }
    }

    pub(super) const fn negative(self, negative: bool) -> Self {
        if negative { Self { code: -self.code, ..self } } else { self }
    }
}
