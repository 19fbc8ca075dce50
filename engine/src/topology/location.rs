//! Locations of memory.

use handfast_core::excerpt::excerpt;
use handfast_transport::{Accelerator, MemoryKind};
use std::fmt;
use std::str::FromStr;

/// Maximum regions in the name of a striped buffer.
pub const SEGMENT_REGIONS_MAX: usize = 1_024;

/// Location of memory, in the form of Mooncake's descriptors.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Location {
    /// Unknown: `*`.
    Anywhere,
    /// The memory of a NUMA node: `cpu:0`.
    Numa(u32),
    /// The memory of an accelerator, such as `cuda:0` or `hip:1`.
    Accelerator {
        /// Name of the accelerator's runtime.
        runtime: String,
        /// The number that the runtime gives it.
        index: u32,
    },
    /// Regions of equal size on NUMA nodes of their own: `segments:<page bytes>:0,1,…`.
    Striped {
        /// Bytes of a page.
        page_bytes: u64,
        /// The NUMA node of each region, by rising address.
        nodes: Vec<u32>,
    },
}

/// The error of parsing a location.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is not a location: expected '*', 'cpu:<NUMA node>', '<runtime>:<accelerator>' such as \
     'cuda:0', and 'segments:<page bytes>:<NUMA node>,…'"
)]
pub struct LocationError(pub String);

impl Location {
    /// The location of memory of an accelerator; `None` for that of the host.
    pub(crate) fn of_kind(kind: MemoryKind) -> Option<Self> {
        match kind {
            MemoryKind::Device(Accelerator { runtime, ordinal }) => {
                Some(Self::Accelerator { runtime: runtime.to_owned(), index: ordinal })
            }
            _ => None,
        }
    }

    /// Returns the location of a byte of a buffer of `length` bytes: that of its region if the
    /// buffer is striped, else the buffer's own. Regions are assumed to be whole pages, equally many,
    /// the last with the rest; a wrong guess only costs speed.
    pub fn at(&self, offset: u64, length: u64) -> Self {
        let Self::Striped { page_bytes, nodes } = self else { return self.clone() };
        let regions = nodes.len() as u64;
        if *page_bytes == 0 || regions == 0 {
            return Self::Anywhere;
        }
        let pages = length / page_bytes;
        let region_bytes = (pages / regions).max(1) * page_bytes;
        let region = usize::try_from((offset / region_bytes).min(regions - 1)).unwrap_or(0);
        nodes.get(region).map_or(Self::Anywhere, |node| Self::Numa(*node))
    }
}

impl fmt::Display for Location {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anywhere => formatter.write_str("*"),
            Self::Numa(node) => write!(formatter, "cpu:{node}"),
            Self::Accelerator { runtime, index } => write!(formatter, "{runtime}:{index}"),
            Self::Striped { page_bytes, nodes } => {
                write!(formatter, "segments:{page_bytes}:")?;
                for (at, node) in nodes.iter().enumerate() {
                    let comma = if at == 0 { "" } else { "," };
                    write!(formatter, "{comma}{node}")?;
                }
                Ok(())
            }
        }
    }
}

impl FromStr for Location {
    type Err = LocationError;

    fn from_str(text: &str) -> Result<Self, LocationError> {
        if text == "*" {
            return Ok(Self::Anywhere);
        }
        parse(text).ok_or_else(|| LocationError(excerpt(text)))
    }
}

fn parse(text: &str) -> Option<Location> {
    let (kind, rest) = text.split_once(':')?;
    if kind == "segments" {
        let (page_bytes, nodes) = rest.split_once(':')?;
        let page_bytes = page_bytes.parse().ok().filter(|bytes| *bytes > 0)?;
        let nodes: Option<Vec<u32>> = nodes.split(',').map(|node| node.parse().ok()).collect();
        let nodes = nodes.filter(|nodes| nodes.len() <= SEGMENT_REGIONS_MAX)?;
        return Some(Location::Striped { page_bytes, nodes });
    }
    let index = rest.parse().ok()?;
    let is_name = !kind.is_empty() && kind.chars().all(|letter| letter.is_ascii_alphanumeric());
    match kind {
        "cpu" => Some(Location::Numa(index)),
        _ => is_name.then(|| Location::Accelerator { runtime: kind.to_owned(), index }),
    }
}
