//! Laws that every backend must obey on every device (oracle O2).

use super::states::QpState;

/// Maximum broken laws kept for [`Fabric::take_broken_laws`](super::Fabric::take_broken_laws).
pub const LAWS_MAX: usize = 64;

/// A broken law.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Law {
    /// A send was posted outside RTS.
    PostedOutsideRts {
        /// The NIC.
        nic: usize,
        /// The queue pair.
        number: u32,
        /// The state of the queue pair.
        state: QpState,
    },
    /// A queue pair was destroyed or reset with work outstanding, whose outcome is lost.
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
        /// Return value.
        code: i32,
    },
    /// Laws that were broken past [`LAWS_MAX`], and are not kept.
    Dropped {
        /// Their number.
        laws: u64,
    },
}
