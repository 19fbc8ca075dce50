//! What came of queue pairs that were taken through RESET and connected as they were.

use std::fmt;

/// How they fared, as `handfast smoke` tells it and `explain` knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AfterReset {
    /// A call on the way there or back failed.
    Refused {
        /// Which side's, such as `first`.
        side: &'static str,
        /// What it said.
        error: String,
    },
    /// Every call succeeded, and this became of what was sent then: ERDMA-RESET.
    Mute {
        /// What it said.
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
