//! One node: the task that drives the life cycle, and the tables of peers and lanes.
//!
//! Only the driver's task touches the machine; every other task and thread sends it commands. The
//! registry's tables are shared, each behind a lock that is held for one look-up.

mod announced;
pub(crate) mod capacity;
pub(crate) mod driver;
mod ending;
pub(crate) mod legacy;
pub(crate) mod registry;
pub(crate) mod slice_loop;
pub(crate) mod unretired;
