//! The outcome of moving queue pairs through RESET and connecting them again.

use std::fmt;

/// The outcome, as reported by `handfast smoke` and recognised by `explain`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AfterReset {
    /// A call on the way failed.
    Refused {
        /// The side, such as `first`.
        side: &'static str,
        /// Its error.
        error: String,
    },
    /// Every call succeeded, but a transfer afterwards failed: ERDMA-RESET.
    Mute {
        /// Its error.
        error: String,
    },
    /// The queue pairs work as before.
    Works {
        /// Bytes moved in each direction.
        bytes: usize,
    },
}

impl fmt::Display for AfterReset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { side, error } => write!(f, "the {side} side was refused: {error}"),
            Self::Mute { error } => {
                write!(
                    f,
                    "RESET was accepted, and the queue pairs move nothing afterwards: {error}"
                )
            }
            Self::Works { bytes } => {
                write!(f, "accepted, and {bytes} bytes moved each way afterwards")
            }
        }
    }
}
