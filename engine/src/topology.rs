//! Which NIC is near which memory: discovery from `/sys`, Mooncake's `nic_priority_matrix`, and the
//! choice of a path by where memory lies on both sides.
//!
//! NICs are resolved by name, never by a place in somebody's list: the two sides of a connection
//! list theirs in different orders, and a NIC that is out of service shifts every place after it.

mod choice;
mod location;
mod machine;
mod matrix;

pub use choice::{Choice, Ends, NoPath, PeerNic};
pub use location::{Location, LocationError, SEGMENT_REGIONS_MAX};
pub use machine::{Gpu, Machine, MachineError, Nic, NumaNode, PCI_DEVICES_MAX};
pub use matrix::{MATRIX_BYTES_MAX, MATRIX_LOCATIONS_MAX, MATRIX_NICS_MAX, MatrixError, Nics};
pub use matrix::{PriorityMatrix, WILDCARD};
