//! Links of a test's own, with a NIC at each end: of the kernel's soft-RoCE in a guest, or scripted.

use crate::wires::Wire;
use handfast_fabric_control::{Fabric, is_scripted};

/// Events of a port, of `ibv_event_type`.
const PORT_ACTIVE: u32 = 9;
const PORT_ERROR: u32 = 10;

/// A link between the devices `rxe{2n}` and `rxe{2n+1}`.
pub(crate) enum Link {
    Kernel(Wire),
    Scripted { fabric: Fabric, number: u32 },
}

impl Link {
    /// Each test has its own numbers, from 1 to 29.
    pub(crate) fn new(number: u32) -> Self {
        if is_scripted() {
            return Self::Scripted { fabric: Fabric::find().unwrap(), number };
        }
        Self::Kernel(Wire::new(number))
    }

    pub(crate) fn device(&self, side: u32) -> String {
        match self {
            Self::Kernel(wire) => wire.device(side),
            Self::Scripted { number, .. } => format!("rxe{}", 2 * number + side),
        }
    }

    /// The address to listen at on a side.
    pub(crate) fn ip(&self, side: u32) -> String {
        match self {
            Self::Kernel(wire) => wire.ip(side),
            // The network of the process has all of 10.0.0.0/8.
            Self::Scripted { number, .. } => format!("10.{number}.0.{}", side + 1),
        }
    }

    /// Gives both devices an IPv6 address, or returns the one that they have.
    pub(crate) fn ipv6(&self) -> [String; 2] {
        let (prefix, first) = match self {
            Self::Kernel(wire) => {
                wire.ipv6("fd00:5::");
                ("fd00:5::", 1)
            }
            Self::Scripted { number, .. } => ("2001:db8::", 2 * number + 1),
        };
        [0, 1].map(|side| format!("{prefix}{:x}", first + side))
    }

    /// A device, and its address if it has several, that answers nothing that side 0 sends there.
    pub(crate) fn silent(&self) -> (String, Option<String>) {
        match self {
            Self::Kernel(wire) => (wire.device(1), Some(wire.silent_address())),
            Self::Scripted { fabric, .. } => {
                fabric.run(&format!("cut {} rxe1", self.device(0)));
                // The kernel's connection manager looks for longer than a dial may take.
                for event in ["ADDR_ERROR", "UNREACHABLE"] {
                    fabric.run(&format!("manager hold {} {event}", self.device(0)));
                }
                fabric.run("manager hold rxe1 UNREACHABLE");
                ("rxe1".to_owned(), None)
            }
        }
    }

    /// Loses every packet of side 0 from now on. Nothing reports it.
    pub(crate) fn loses_packets(&self) {
        match self {
            Self::Kernel(wire) => wire.loses_packets(),
            Self::Scripted { fabric, .. } => {
                fabric.run(&format!("cut {} {}", self.device(0), self.device(1)));
            }
        }
    }

    /// The peers' address of a side's device leaves its port.
    pub(crate) fn address_leaves(&self, side: u32) {
        match self {
            Self::Kernel(wire) => wire.address_leaves(side),
            Self::Scripted { fabric, .. } => {
                fabric.run(&format!("gid {} remove 1", self.device(side)));
            }
        }
    }

    pub(crate) fn address_returns(&self, side: u32) {
        match self {
            Self::Kernel(wire) => wire.address_returns(side),
            // At another index: the device keeps the old one for the lanes that use it.
            Self::Scripted { fabric, .. } => {
                fabric.run(&format!("gid {} add 2", self.device(side)));
            }
        }
    }

    /// Restarts a device, as after a reboot: its numbers start again.
    pub(crate) fn restart_device(&self, side: u32) {
        match self {
            Self::Kernel(wire) => wire.restart_device(side),
            Self::Scripted { fabric, .. } => {
                fabric.run(&format!("restart {}", self.device(side)));
            }
        }
    }

    /// Both ends go up.
    pub(crate) fn up(&self) {
        match self {
            Self::Kernel(wire) => wire.up(),
            Self::Scripted { fabric, .. } => {
                for side in 0..2 {
                    fabric.run(&format!("port {} up", self.device(side)));
                    fabric.run(&format!("event {} {PORT_ACTIVE}", self.device(side)));
                }
            }
        }
    }

    /// One end goes down. The other can still send, and both ports report it.
    pub(crate) fn down(&self, side: u32) {
        match self {
            Self::Kernel(wire) => wire.down(side),
            Self::Scripted { fabric, .. } => {
                fabric.run(&format!("port {} down", self.device(side)));
                fabric.run(&format!("event {} {PORT_ERROR}", self.device(1 - side)));
            }
        }
    }
}
