//! The class `Strided`.

use crate::numbers::check_count;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

/// Maximum dimensions of a layout.
const DIMENSIONS_MAX: usize = 16;

/// Places at regular distances: count and distance in bytes of each dimension, the last one varies
/// fastest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    first: u64,
    dimensions: Vec<(usize, i64)>,
}

impl Layout {
    /// # Errors
    /// An address is below 0 or above 2^64 - 1, or the places or dimensions exceed their limit.
    fn new(first: u64, dimensions: Vec<(usize, i64)>) -> PyResult<Self> {
        if dimensions.len() > DIMENSIONS_MAX {
            let text = format!("a layout has at most {DIMENSIONS_MAX} dimensions");
            return Err(PyValueError::new_err(text));
        }
        let is_empty = dimensions.iter().any(|(count, _)| *count == 0);
        let all = dimensions.iter().fold(1_usize, |all, (count, _)| all.saturating_mul(*count));
        let count = if is_empty { 0 } else { all };
        check_count("the layout", count)?;
        let (mut lowest, mut highest) = (i128::from(first), i128::from(first));
        for (count, stride) in dimensions.iter().filter(|_| count > 0) {
            // Below 2^23 and 2^63.
            let farthest = (*count as i128 - 1) * i128::from(*stride);
            lowest += farthest.min(0);
            highest += farthest.max(0);
        }
        if lowest < 0 || highest > i128::from(u64::MAX) {
            let text = "a place of the layout is not an address from 0 to 2^64 - 1";
            return Err(PyValueError::new_err(text));
        }
        Ok(Self { first, dimensions })
    }

    pub(crate) fn count(&self) -> usize {
        // With an empty dimension the others are not bounded.
        match self.dimensions.iter().any(|(count, _)| *count == 0) {
            true => 0,
            false => self.dimensions.iter().map(|(count, _)| count).product(),
        }
    }

    /// The places, in order.
    pub(crate) fn addresses(&self) -> Vec<u64> {
        let mut addresses = Vec::with_capacity(self.count());
        if self.count() > 0 {
            fill(&mut addresses, self.first, &self.dimensions);
        }
        addresses
    }
}

fn fill(addresses: &mut Vec<u64>, first: u64, dimensions: &[(usize, i64)]) {
    // Each place was checked to be an address.
    let places = |(count, stride): (usize, i64)| {
        (0..count as i64).map(move |place| first.wrapping_add_signed(place.wrapping_mul(stride)))
    };
    match dimensions {
        [] => addresses.push(first),
        [last] => addresses.extend(places(*last)),
        [outer, inner @ ..] => places(*outer).for_each(|it| fill(addresses, it, inner)),
    }
}

/// Addresses of a regular layout.
#[pyclass(frozen)]
pub(crate) struct Strided(Layout);

impl Strided {
    pub(crate) fn layout(&self) -> &Layout {
        &self.0
    }
}

/// Reads an integer for one dimension, or a sequence for several.
fn dimensions<'a, 'py, T>(name: &str, given: &'a Bound<'py, PyAny>) -> PyResult<Vec<T>>
where
    T: FromPyObject<'a, 'py>,
    Vec<T>: FromPyObject<'a, 'py>,
{
    if let Ok(one) = given.extract() {
        return Ok(vec![one]);
    }
    given.extract().map_err(|_| {
        let text = format!("{name} is neither an integer nor a sequence of integers: {given:?}");
        PyTypeError::new_err(text)
    })
}

#[pymethods]
impl Strided {
    #[new]
    fn new(address: u64, shape: &Bound<'_, PyAny>, strides: &Bound<'_, PyAny>) -> PyResult<Self> {
        let shape: Vec<usize> = dimensions("shape", shape)?;
        let strides: Vec<i64> = dimensions("strides", strides)?;
        if shape.len() != strides.len() {
            let text = format!("{} dimensions have {} strides", shape.len(), strides.len());
            return Err(PyValueError::new_err(text));
        }
        let dimensions = shape.into_iter().zip(strides).collect();
        Layout::new(address, dimensions).map(Self)
    }

    #[getter]
    fn address(&self) -> u64 {
        self.0.first
    }

    #[getter]
    fn shape(&self) -> Vec<usize> {
        self.0.dimensions.iter().map(|(count, _)| *count).collect()
    }

    #[getter]
    fn strides(&self) -> Vec<i64> {
        self.0.dimensions.iter().map(|(_, stride)| *stride).collect()
    }

    fn __len__(&self) -> usize {
        self.0.count()
    }

    fn __repr__(&self) -> String {
        let (shape, strides) = (self.shape(), self.strides());
        format!("Strided({:#x}, shape={shape:?}, strides={strides:?})", self.0.first)
    }
}
