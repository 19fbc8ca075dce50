//! NICs near to memory: discovery from `/sys`, Mooncake's `nic_priority_matrix`, and the rank of
//! NIC pairs by the memory on both sides. Transfers over several NICs follow it.
//!
//! NICs are identified by name, never by an index: the two sides of a connection list theirs in
//! different orders, and a failed NIC shifts every index after it.

mod location;
mod machine;
mod near;

pub use handfast_core::mooncake::{
    MATRIX_BYTES_MAX, MATRIX_LOCATIONS_MAX, MATRIX_NICS_MAX, MatrixError, Nearness, Nics,
    PriorityMatrix, WILDCARD,
};
pub use location::{Location, LocationError, SEGMENT_REGIONS_MAX};
pub use machine::{Gpu, Machine, MachineError, Nic, NicConnecting, NumaNode, PCI_DEVICES_MAX};
pub use near::TransferLocations;
