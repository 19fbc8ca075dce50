//! Lists of addresses and lengths: any sequence of integers, or an array of 64-bit ones.
#![allow(unsafe_code)]

use handfast_compat::REQUESTS_MAX;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Reads a list of numbers.
pub(crate) fn read(name: &str, numbers: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    if let Ok(interface) = numbers.getattr("__array_interface__")
        && let Some(read) = read_array(name, interface.cast::<PyDict>()?)?
    {
        return Ok(read);
    }
    let hint = numbers.len().unwrap_or(0);
    let mut read = Vec::with_capacity(hint.min(CAPACITY_MAX));
    for (place, number) in numbers.try_iter()?.enumerate() {
        check_count(name, place + 1)?;
        read.push(one(&format_args!("{name}[{place}]"), &number?)?);
    }
    Ok(read)
}

/// Maximum elements that a sequence gets room for before it is read.
const CAPACITY_MAX: usize = 4_096;

fn check_count(name: &str, count: usize) -> PyResult<()> {
    if count <= REQUESTS_MAX {
        return Ok(());
    }
    Err(PyValueError::new_err(format!(
        "{name} has more than {REQUESTS_MAX} elements: split the call"
    )))
}

/// Reads one number.
pub(crate) fn one(name: &dyn std::fmt::Display, number: &Bound<'_, PyAny>) -> PyResult<u64> {
    number.extract().map_err(|_| {
        let text = format!("{name} is not an integer from 0 to 2^64 - 1: {number:?}");
        PyTypeError::new_err(text)
    })
}

/// Reads an array of one dimension of 64-bit integers; `None` for another.
fn read_array(name: &str, interface: &Bound<'_, PyDict>) -> PyResult<Option<Vec<u64>>> {
    let get = |key: &str| {
        let missing = || PyTypeError::new_err(format!("{name}: the array has no '{key}'"));
        interface.get_item(key)?.ok_or_else(missing)
    };
    let kind: String = get("typestr")?.extract()?;
    let shape: Vec<usize> = get("shape")?.extract()?;
    let ([count], "<i8" | "<u8") = (&shape[..], &*kind) else { return Ok(None) };
    check_count(name, *count)?;
    let (address, _): (usize, bool) = get("data")?.extract()?;
    let stride = match interface.get_item("strides")? {
        Some(strides) if !strides.is_none() => strides.extract::<(isize,)>()?.0,
        _ => size_of::<u64>() as isize,
    };
    let first: *const u8 = std::ptr::with_exposed_provenance(address);
    let element = |place: usize| {
        // SAFETY: the array interface describes `count` elements of eight bytes, `stride` bytes
        // apart, in memory that the array keeps alive, and the caller holds the array. No Python
        // code runs meanwhile, and every pattern of bytes is a number.
        unsafe {
            first
                .wrapping_offset((place as isize).wrapping_mul(stride))
                .cast::<u64>()
                .read_unaligned()
        }
    };
    let read: Vec<u64> = (0..*count).map(element).collect();
    let negative = |number: &u64| kind == "<i8" && *number > i64::MAX as u64;
    match read.iter().position(negative) {
        Some(place) => Err(PyTypeError::new_err(format!("{name}[{place}] is negative"))),
        None => Ok(Some(read)),
    }
}
