//! Mooncake's `nic_priority_matrix`: the preferred NICs and the others, by memory location.

use crate::excerpt::excerpt;
use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// The location of memory without a known one: every NIC is preferred there. Readers synthesise it;
/// it is never published (Mooncake's `src/topology.cpp`).
pub const WILDCARD: &str = "*";

/// Maximum length of a matrix's text, in bytes.
pub const MATRIX_BYTES_MAX: usize = 1 << 20;

/// Maximum locations of a matrix: a node has a few dozen processors and accelerators.
pub const MATRIX_LOCATIONS_MAX: usize = 1_024;

/// Maximum NICs of a location.
pub const MATRIX_NICS_MAX: usize = 256;

/// The NICs of a location, best first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nics {
    /// Near NICs, all equally suitable.
    pub preferred: Vec<String>,
    /// Other NICs, used if no near one works.
    pub available: Vec<String>,
}

impl Nics {
    /// Iterates over all NICs, preferred ones first.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.preferred.iter().chain(&self.available).map(String::as_str)
    }

    /// Returns the number of NICs.
    pub fn len(&self) -> usize {
        self.preferred.len() + self.available.len()
    }

    /// Returns true if there is no NIC.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Serialize for Nics {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (&self.preferred, &self.available).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Nics {
    fn deserialize<D: Deserializer<'de>>(text: D) -> Result<Self, D::Error> {
        let (preferred, available) = Deserialize::deserialize(text)?;
        Ok(Self { preferred, available })
    }
}

/// Distance of a NIC from memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Nearness {
    /// The NIC is preferred.
    Preferred,
    /// The NIC is used if no preferred one works.
    Available,
    /// The NIC is not listed, and is used last.
    Unlisted,
}

/// The preferred NICs and the others, by location. A matrix that is part of a descriptor is bounded
/// by the descriptor's decoder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PriorityMatrix {
    locations: BTreeMap<String, Nics>,
}

/// Errors of parsing a matrix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MatrixError {
    /// The text is longer than [`MATRIX_BYTES_MAX`].
    #[error("the NIC priority matrix has {0} bytes, more than {MATRIX_BYTES_MAX}")]
    TooLong(usize),
    /// The text is not JSON, or not an object.
    #[error("the NIC priority matrix is not a JSON object: {0}")]
    NotAnObject(String),
    /// The value of a location is not a pair of name lists.
    #[error(
        "location '{location}' of the NIC priority matrix: {problem}; it must be \
         [[\"preferred NIC\", …], [\"other NIC\", …]]"
    )]
    Location {
        /// The location.
        location: String,
        /// Error in its value.
        problem: &'static str,
    },
    /// More locations than [`MATRIX_LOCATIONS_MAX`].
    #[error("the NIC priority matrix has {0} locations, more than {MATRIX_LOCATIONS_MAX}")]
    Locations(usize),
}

impl PriorityMatrix {
    /// Reads the JSON form: `{"cpu:0": [["mlx5_0"], ["mlx5_1"]], …}`.
    ///
    /// # Errors
    /// The first error in the text, and its position.
    pub fn parse(text: &str) -> Result<Self, MatrixError> {
        if text.len() > MATRIX_BYTES_MAX {
            return Err(MatrixError::TooLong(text.len()));
        }
        let value: Value = serde_json::from_str(text)
            .map_err(|error| MatrixError::NotAnObject(error.to_string()))?;
        let Value::Object(object) = value else {
            return Err(MatrixError::NotAnObject("it is another JSON value".into()));
        };
        if object.len() > MATRIX_LOCATIONS_MAX {
            return Err(MatrixError::Locations(object.len()));
        }
        let mut matrix = Self::default();
        for (location, value) in object {
            let nics = nics(&value).map_err(|problem| MatrixError::Location {
                location: excerpt(&location),
                problem,
            })?;
            matrix.insert(&location, nics);
        }
        Ok(matrix)
    }

    /// Returns the JSON form, with locations ordered by name.
    pub fn to_json(&self) -> String {
        // Lists of strings in a map always serialize.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Sets the NICs of a location.
    pub fn insert(&mut self, location: &str, nics: Nics) {
        self.locations.insert(location.to_owned(), nics);
    }

    /// Returns the NICs of a location, or those of [`WILDCARD`] if it is not listed.
    pub fn nics(&self, location: &str) -> Nics {
        self.locations.get(location).cloned().unwrap_or_else(|| self.all())
    }

    /// Returns the distance of a NIC from memory at a location, or at [`WILDCARD`] if it is not
    /// listed.
    pub fn nearness(&self, location: &str, nic: &str) -> Nearness {
        let has = |names: &[String]| names.iter().any(|name| name == nic);
        let listed = self.locations.get(location).or_else(|| self.locations.get(WILDCARD));
        match listed {
            Some(nics) if has(&nics.preferred) => Nearness::Preferred,
            Some(nics) if has(&nics.available) => Nearness::Available,
            Some(_) => Nearness::Unlisted,
            None if self.names().any(|name| name == nic) => Nearness::Preferred,
            None => Nearness::Unlisted,
        }
    }

    /// Iterates over the NICs of every location, with repetitions.
    fn names(&self) -> impl Iterator<Item = &str> {
        self.locations.values().flat_map(Nics::iter)
    }

    /// Returns the matrix restricted to these NICs. A location without any of them is no longer
    /// listed.
    pub fn of_nics(&self, names: &[String]) -> Self {
        let known = |list: &[String]| -> Vec<String> {
            list.iter().filter(|name| names.contains(name)).cloned().collect()
        };
        let row = |(location, nics): (&String, &Nics)| {
            let (preferred, available) = (known(&nics.preferred), known(&nics.available));
            let nics = Nics { preferred, available };
            (!nics.is_empty()).then(|| (location.clone(), nics))
        };
        self.locations.iter().filter_map(row).collect()
    }

    /// Returns every listed location with its NICs, ordered by name.
    pub fn locations(&self) -> impl Iterator<Item = (&str, &Nics)> {
        self.locations.iter().map(|(location, nics)| (location.as_str(), nics))
    }

    /// NICs of [`WILDCARD`]: the listed ones, or every NIC once, all preferred.
    fn all(&self) -> Nics {
        if let Some(listed) = self.locations.get(WILDCARD) {
            return listed.clone();
        }
        let mut preferred: Vec<String> = Vec::new();
        for name in self.names() {
            if !preferred.iter().any(|known| known == name) {
                preferred.push(name.to_owned());
            }
        }
        Nics { preferred, available: Vec::new() }
    }
}

impl FromIterator<(String, Nics)> for PriorityMatrix {
    fn from_iter<I: IntoIterator<Item = (String, Nics)>>(rows: I) -> Self {
        Self { locations: rows.into_iter().collect() }
    }
}

fn nics(value: &Value) -> Result<Nics, &'static str> {
    let lists = value.as_array().ok_or("its value is not a list")?;
    let [preferred, available] = lists.as_slice() else {
        return Err("its value is not a pair of lists");
    };
    let nics = Nics { preferred: names(preferred)?, available: names(available)? };
    let mut seen: Vec<&str> = nics.iter().collect();
    seen.sort_unstable();
    if seen.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err("a NIC is listed twice");
    }
    if nics.len() > MATRIX_NICS_MAX {
        return Err("it lists more than 256 NICs");
    }
    Ok(nics)
}

fn names(value: &Value) -> Result<Vec<String>, &'static str> {
    let list = value.as_array().ok_or("one of its two values is not a list")?;
    let name = |name: &Value| match name.as_str() {
        Some(name) if !name.is_empty() => Ok(name.to_owned()),
        _ => Err("a NIC's name is not a string, or is empty"),
    };
    list.iter().map(name).collect()
}

#[cfg(test)]
mod tests;
