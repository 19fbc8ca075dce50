//! Problems with RDMA and around it: their messages, causes and remedies.
//!
//! The catalogue is data (`catalogue/*.toml`, in English and Chinese) that the build converts to
//! tables. [`explain`] recognises its messages in the logs of any program, [`ids`] are the ids in
//! errors, and [`doctor`] searches a machine for its problems. The catalogue and `explain` do no
//! I/O; the doctor gets its facts as arguments.

mod calls;
pub mod doctor;
pub mod explain;
mod language;
mod normal;
mod page;
mod printed;
mod problem;
mod reset;

pub use calls::{of_call, of_completion};
pub use language::Language;
pub use page::{COLUMNS_MIN, Style, page, page_json, wrapped};
pub use printed::{PrintedPage, printed_catalogue};
pub use problem::{Id, Problem, Role, Severity, Side, Text, problem, problems};
pub use reset::AfterReset;

/// The ids of the catalogue.
pub mod ids {
    use crate::Id;
    include!(concat!(env!("OUT_DIR"), "/ids.rs"));
}
