//! The outcome of queue pairs that are taken through RESET and connected as before.

use std::fmt;

/// The outcome, as `handfast smoke` reports it and `explain` knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AfterReset {
    /// A call on the way there or back failed.
    Refused {
        /// The side, such as `first`.
        side: &'static str,
        /// Its error.
        error: String,
    },
    /// Every call succeeded, and this became of what was sent then: ERDMA-RESET.
    Mute {
        /// Its error.
        error: String,
    },
    /// They work as before.
    Works {
        /// That moved each way.
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
