//! Failures as Python exceptions, whose classes are in `handfast._errors`.

use handfast_compat::{Failure, Remote};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

static MAKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// Returns the exception for a failure.
pub(crate) fn exception(py: Python<'_>, failure: &Failure) -> PyErr {
    match instance(py, failure) {
        Ok(instance) => PyErr::from_value(instance),
        Err(error) => error,
    }
}

/// Returns the exception's instance.
pub(crate) fn instance<'py>(py: Python<'py>, failure: &Failure) -> PyResult<Bound<'py, PyAny>> {
    let import = || py.import("handfast._errors")?.getattr("make").map(Bound::unbind);
    let make = MAKE.get_or_try_init(py, import)?.bind(py);
    let remote = match failure.remote() {
        Remote::Untouched => "untouched",
        Remote::Fenced => "fenced",
        Remote::Indeterminate => "indeterminate",
    };
    make.call1((
        failure.kind(),
        failure.to_string(),
        failure.side(),
        failure.stage(),
        failure.id(),
        remote,
        failure.code(),
    ))
}
