//! What no backend may do, on any device (oracle O2).

use super::states::QpState;

/// A law that was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Law {
    /// A send was posted outside RTS.
    PostedOutsideRts {
        /// The NIC.
        nic: usize,
        /// The queue pair.
        number: u32,
        /// The state it was in.
        state: QpState,
    },
    /// A queue pair was destroyed or reset with work outstanding: nobody is told how that ended.
    DroppedWork {
        /// The NIC.
        nic: usize,
        /// The queue pair.
        number: u32,
        /// Pieces of work.
        pieces: u32,
    },
    /// A queue pair was used again after RESET.
    Reset {
        /// The NIC.
        nic: usize,
        /// The queue pair.
        number: u32,
    },
    /// A step that the device refuses.
    Refused {
        /// The NIC.
        nic: usize,
        /// The state asked for.
        state: QpState,
        /// What was returned.
        code: i32,
    },
}
