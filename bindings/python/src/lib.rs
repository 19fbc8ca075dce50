//! The extension module `handfast._handfast`: the compat core with Python's types. The packages
//! `handfast` and `handfast.mooncake` are written in Python over it.

mod engine;
mod errors;
mod numbers;
mod program;
mod strided;

use pyo3::prelude::*;

// Lists are read by borrowed elements, which needs the lock.
#[pymodule(gil_used = true)]
mod _handfast {
    #[pymodule_export]
    use super::engine::{Core, Signal, close_all, local_topology};
    #[pymodule_export]
    use super::program::run_tool;
    #[pymodule_export]
    use super::strided::Strided;

    #[pymodule_init]
    fn init(module: &super::Bound<'_, super::PyModule>) -> super::PyResult<()> {
        use super::PyModuleMethods;
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("VERBS", cfg!(feature = "verbs"))
    }
}
