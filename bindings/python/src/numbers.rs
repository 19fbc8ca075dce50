//! Addresses and lengths: sequences of integers, arrays of 64-bit ones, and strided layouts.
#![allow(unsafe_code)]

use crate::strided::{Layout, Strided};
use handfast_compat::{Direction, REQUESTS_MAX, Request};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule, PyCapsuleMethods, PyInt, PyList, PyMemoryView, PyTuple};
use std::ffi::{c_char, c_int, c_void};

/// Maximum elements that a sequence gets room for before it is read.
const CAPACITY_MAX: usize = 4_096;
/// Bytes of an element of an array.
const ELEMENT_BYTES: usize = size_of::<u64>();

/// Numbers of a call.
pub(crate) enum Numbers {
    /// One by one.
    Each(Vec<u64>),
    /// Of a regular layout.
    Strided(Layout),
    /// The same number for each piece.
    All(u64),
    /// So many numbers of an array, which are in the table.
    Placed(usize),
}

/// Requests that arrays were read into: a million numbers are not copied twice.
pub(crate) struct Table {
    direction: Direction,
    requests: Vec<Request>,
}

/// The number of a request that a column of a call has.
pub(crate) type Column = fn(&mut Request) -> &mut u64;

impl Table {
    pub(crate) fn new(direction: Direction) -> Self {
        Self { direction, requests: Vec::new() }
    }

    /// Whether an array was read into it.
    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Places `count` numbers in a column. A column of another count than an earlier one is not
    /// placed: the call is refused.
    fn place(&mut self, count: usize, column: Column, number: impl Fn(usize) -> u64) {
        if self.requests.is_empty() {
            self.requests.reserve_exact(count);
            on_huge_pages(&mut self.requests);
            let empty = Request { direction: self.direction, local: 0, remote: 0, bytes: 0 };
            self.requests.extend((0..count).map(|place| {
                let mut request = empty;
                *column(&mut request) = number(place);
                request
            }));
        } else if self.requests.len() == count {
            let places = self.requests.iter_mut().enumerate();
            places.for_each(|(place, request)| *column(request) = number(place));
        }
    }

    /// The requests, with the columns that are not placed yet. Needs no lock of the interpreter.
    pub(crate) fn into_requests(mut self, columns: [(Numbers, Column); 3]) -> Vec<Request> {
        let count = self.requests.len();
        for (numbers, column) in columns {
            match numbers {
                Numbers::Placed(_) => {}
                Numbers::All(number) => self.place(count, column, |_| number),
                Numbers::Each(each) => self.place(count, column, |place| each[place]),
                Numbers::Strided(layout) => {
                    let each = layout.addresses();
                    self.place(count, column, |place| each[place]);
                }
            }
        }
        self.requests
    }
}

/// Lets the kernel place a large vector on huge pages: a million requests are 8,000 page faults otherwise.
fn on_huge_pages(requests: &mut Vec<Request>) {
    const HUGE_PAGE_BYTES: usize = 2 << 20;
    let room = requests.spare_capacity_mut();
    let (start, bytes) = (room.as_mut_ptr().addr(), size_of_val(room));
    let skipped = start.next_multiple_of(HUGE_PAGE_BYTES) - start;
    let whole = bytes.saturating_sub(skipped) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    if whole > 0 {
        let from = room.as_mut_ptr().wrapping_byte_add(skipped);
        // SAFETY: the range is within the allocation of the vector, and the advice changes no byte of it.
        // A kernel that refuses it gives small pages.
        unsafe { libc::madvise(from.cast(), whole, libc::MADV_HUGEPAGE) };
    }
}

impl Numbers {
    /// The count; `None` for as many as needed.
    pub(crate) fn count(&self) -> Option<usize> {
        match self {
            Self::Each(each) => Some(each.len()),
            Self::Strided(layout) => Some(layout.count()),
            Self::Placed(count) => Some(*count),
            Self::All(_) => None,
        }
    }

    /// The first `count` numbers. Needs no lock of the interpreter.
    pub(crate) fn into_each(self, count: usize) -> Vec<u64> {
        match self {
            Self::Each(each) => each,
            Self::Strided(layout) => layout.addresses(),
            Self::All(number) => vec![number; count],
            Self::Placed(_) => Vec::new(),
        }
    }
}

/// Reads the addresses of a call, of an array into the table.
pub(crate) fn read(
    name: &str,
    numbers: &Bound<'_, PyAny>,
    into: (&mut Table, Column),
) -> PyResult<Numbers> {
    match numbers.cast::<Strided>() {
        Ok(strided) => Ok(Numbers::Strided(strided.get().layout().clone())),
        Err(_) => read_into(name, numbers, Some(into)),
    }
}

/// Reads the lengths of a call; an integer is the length of every piece.
pub(crate) fn read_lengths(
    name: &str,
    numbers: &Bound<'_, PyAny>,
    into: (&mut Table, Column),
) -> PyResult<Numbers> {
    let is_list = numbers.is_instance_of::<PyList>() || numbers.is_instance_of::<PyTuple>();
    // Integers of numpy are no `int`; its arrays have a length.
    let is_one = !is_list
        && (numbers.is_instance_of::<PyInt>()
            || numbers.hasattr(intern!(numbers.py(), "__index__"))?
                && !numbers.hasattr(intern!(numbers.py(), "__len__"))?);
    match is_one {
        true => one(&name, numbers).map(Numbers::All),
        false => read_into(name, numbers, Some(into)),
    }
}

/// Reads a list of numbers.
pub(crate) fn read_each(name: &str, numbers: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    read_into(name, numbers, None).map(|read| read.into_each(0))
}

/// The same, of an array into a table if there is one.
fn read_into(
    name: &str,
    numbers: &Bound<'_, PyAny>,
    into: Option<(&mut Table, Column)>,
) -> PyResult<Numbers> {
    if let Some(read) = read_plain(name, numbers)? {
        return Ok(Numbers::Each(read));
    }
    // A missing attribute is an exception, which costs more than a short list.
    let is_plain = numbers.is_instance_of::<PyList>() || numbers.is_instance_of::<PyTuple>();
    if !is_plain && let Some(read) = read_whole(name, numbers, into)? {
        return Ok(read);
    }
    let hint = numbers.len().unwrap_or(0);
    let mut read = Vec::with_capacity(hint.min(CAPACITY_MAX));
    for (place, number) in numbers.try_iter()?.enumerate() {
        check_count(name, place + 1)?;
        read.push(one(&format_args!("{name}[{place}]"), &number?)?);
    }
    Ok(Numbers::Each(read))
}

/// Reads a list or a tuple, of which a call can have a hundred thousand integers; `None` for anything
/// else, their subclasses included.
fn read_plain(name: &str, numbers: &Bound<'_, PyAny>) -> PyResult<Option<Vec<u64>>> {
    let py = numbers.py();
    let element: unsafe extern "C" fn(*mut ffi::PyObject, ffi::Py_ssize_t) -> *mut ffi::PyObject =
        if numbers.is_exact_instance_of::<PyList>() {
            ffi::PyList_GetItem
        } else if numbers.is_exact_instance_of::<PyTuple>() {
            ffi::PyTuple_GetItem
        } else {
            return Ok(None);
        };
    let count = numbers.len()?;
    check_count(name, count)?;
    let mut read = Vec::with_capacity(count);
    for place in 0..count {
        // SAFETY: the object is of the function's type. The result is null with an exception set, or
        // an element that the object keeps alive until Python code runs, none before it is counted.
        let borrowed = unsafe { element(numbers.as_ptr(), place as ffi::Py_ssize_t) };
        if borrowed.is_null() {
            drop(PyErr::fetch(py));
            return Err(PyValueError::new_err(format!("{name} became shorter while it was read")));
        }
        let mut overflow = 0;
        // SAFETY: the element is alive, as above, and the place is writable. Reading an integer runs no
        // Python code, so it needs no count. Of the calls for 64 bits this one alone needs no second
        // form of the number.
        let number = unsafe {
            match ffi::PyLong_CheckExact(borrowed) {
                0 => None,
                _ => Some(ffi::PyLong_AsLongLongAndOverflow(borrowed, &raw mut overflow)),
            }
        };
        if let Some(Ok(number)) = number.map(u64::try_from)
            && overflow == 0
        {
            read.push(number);
            continue;
        }
        // SAFETY: the element is still alive, since no Python code has run; from here on it is counted.
        let counted = unsafe { Bound::from_borrowed_ptr(py, borrowed) };
        read.push(one(&format_args!("{name}[{place}]"), &counted)?);
    }
    Ok(Some(read))
}

/// Reads an array of one dimension of 64-bit integers; `None` for anything else.
fn read_whole(
    name: &str,
    numbers: &Bound<'_, PyAny>,
    into: Option<(&mut Table, Column)>,
) -> PyResult<Option<Numbers>> {
    if let Ok(array) = numbers.getattr(intern!(numbers.py(), "__array_struct__")) {
        return read_array(name, &array, into);
    }
    match PyMemoryView::from(numbers) {
        Ok(view) => Ok(read_buffer(name, &view)?.map(Numbers::Each)),
        Err(_) => Ok(None),
    }
}

/// Checks the number of pieces of a call.
pub(crate) fn check_count(name: &str, count: usize) -> PyResult<()> {
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

/// `PyArrayInterface` of numpy's array interface, up to the members in use.
#[repr(C)]
struct ArrayInterface {
    /// 2, so that a wrong structure is recognised.
    two: c_int,
    dimensions: c_int,
    kind: c_char,
    element_bytes: c_int,
    flags: c_int,
    shape: *const isize,
    strides: *const isize,
    data: *const c_void,
}

/// Flag of elements in the machine's order of bytes.
const NOT_SWAPPED: c_int = 0x200;

/// Reads numpy's array interface; `None` for elements or dimensions of another kind.
fn read_array(
    name: &str,
    array: &Bound<'_, PyAny>,
    into: Option<(&mut Table, Column)>,
) -> PyResult<Option<Numbers>> {
    let interface = array.cast::<PyCapsule>()?.pointer_checked(None)?.cast::<ArrayInterface>();
    // SAFETY: the capsule of this attribute has a structure of this type, by numpy's definition of
    // the attribute, and `array` keeps it alive during this call.
    let interface = unsafe { interface.as_ref() };
    let ArrayInterface { two: 2, dimensions: 1, element_bytes: 8, shape, strides, data, .. } =
        *interface
    else {
        return Ok(None);
    };
    let is_signed = match interface.kind as u8 {
        b'i' => true,
        b'u' => false,
        _ => return Ok(None),
    };
    if interface.flags & NOT_SWAPPED == 0 {
        return Ok(None);
    }
    // SAFETY: by the same definition both have a number for each dimension; contiguous arrays may
    // have no strides.
    let (count, stride) = unsafe { (*shape as usize, strides.as_ref().copied()) };
    let stride = stride.unwrap_or(ELEMENT_BYTES as isize);
    check_count(name, count)?;
    let first = data.cast::<u8>();
    let element = |place: usize| {
        // SAFETY: the interface describes `count` elements of eight bytes, `stride` bytes apart, in
        // memory that the array keeps alive, and the capsule holds the array. No Python code runs
        // meanwhile, and every pattern of bytes is a number.
        unsafe {
            first
                .wrapping_offset((place as isize).wrapping_mul(stride))
                .cast::<u64>()
                .read_unaligned()
        }
    };
    check_signs(name, is_signed, (0..count).map(element))?;
    Ok(Some(match into {
        Some((table, column)) => {
            table.place(count, column, element);
            Numbers::Placed(count)
        }
        None => Numbers::Each((0..count).map(element).collect()),
    }))
}

/// Reads an object of the buffer protocol, of one dimension of 64-bit integers; `None` for another.
fn read_buffer(name: &str, view: &Bound<'_, PyMemoryView>) -> PyResult<Option<Vec<u64>>> {
    let format: String = view.getattr("format")?.extract()?;
    let dimensions: usize = view.getattr("ndim")?.extract()?;
    let element_bytes: usize = view.getattr("itemsize")?.extract()?;
    let is_signed = match &*format {
        "q" | "l" | "<q" => true,
        "Q" | "L" | "<Q" => false,
        _ => return Ok(None),
    };
    if dimensions != 1 || element_bytes != ELEMENT_BYTES {
        return Ok(None);
    }
    check_count(name, view.len()?)?;
    let copied = view.call_method0("tobytes")?;
    let (elements, _) = copied.cast::<PyBytes>()?.as_bytes().as_chunks::<ELEMENT_BYTES>();
    let read: Vec<u64> = elements.iter().map(|bytes| u64::from_ne_bytes(*bytes)).collect();
    check_signs(name, is_signed, read.iter().copied())?;
    Ok(Some(read))
}

fn check_signs(
    name: &str,
    is_signed: bool,
    mut read: impl Iterator<Item = u64> + Clone,
) -> PyResult<()> {
    // Looks at all of them at once; the place is of interest in an error alone.
    if !is_signed || read.clone().fold(0, |all, number| all | number) <= i64::MAX as u64 {
        return Ok(());
    }
    let place = read.position(|number| number > i64::MAX as u64).unwrap_or(0);
    Err(PyTypeError::new_err(format!("{name}[{place}] is negative")))
}
