//! Memory that a peer serves, as its descriptor reports it.

use crate::data::transport::{RemoteRegion, RequestRegions};
use crate::error::{Cause, Error, Stage};
use crate::mooncake::{ABSOLUTE, absolute};
use crate::peer::target::{RequestSpan, Target};
use handfast_core::Incarnation;
use handfast_core::policy::LookUp;
use handfast_core::wire::{NodeDescriptor, RegionDescriptor};
use handfast_transport::RemoteSpan;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Maximum edit distance of a suggested name.
const SUGGESTION_EDITS_MAX: usize = 3;

/// Maximum segment names listed in an error.
const NAMES_SHOWN_MAX: usize = 8;

/// A segment that a node serves, see [`Engine::segments`](crate::Engine::segments).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServedSegment {
    /// Its name; a Mooncake node's buffers are named by their indices.
    pub name: String,
    /// First byte, in the node's addresses.
    pub address: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Whether peers may read it.
    pub readable: bool,
    /// Whether peers may write it.
    pub writable: bool,
}

impl ServedSegment {
    pub(crate) fn of(region: RegionDescriptor) -> Self {
        let RegionDescriptor { name, address, bytes, readable, writable, .. } = region;
        Self { name, address, bytes, readable, writable }
    }
}

/// The part of a node's memory that a segment is.
#[derive(Clone, Debug)]
pub(crate) enum Scope {
    /// The only region of the node.
    Only,
    /// The region of a name.
    Named(String),
    /// All regions; offsets are the node's addresses.
    Whole,
}

/// A peer's region with its RDMA keys.
pub(crate) struct RemotePart {
    pub(crate) region: RegionDescriptor,
    pub(crate) keys: Arc<RemoteRegion>,
}

impl RemotePart {
    fn new(region: RegionDescriptor) -> Self {
        let keys = Arc::new(RemoteRegion::of(&region));
        Self { region, keys }
    }

    fn contains(&self, first: u64, end: u64) -> bool {
        self.region.address <= first && end <= self.region.address.saturating_add(self.region.bytes)
    }
}

/// The regions of a segment.
pub(crate) enum RemoteMemory {
    /// One region; offsets count from its start.
    Region(RemotePart),
    /// All regions of a node; offsets are addresses.
    Whole {
        /// In the order of their addresses.
        parts: Vec<RemotePart>,
        /// For each part the greatest end of those up to it, since regions may overlap.
        ends: Vec<u64>,
    },
}

impl RemoteMemory {
    pub(crate) fn of(descriptor: &NodeDescriptor, scope: &Scope) -> Result<Self, Error> {
        let name = match scope {
            Scope::Only => None,
            Scope::Named(name) => Some(&**name),
            Scope::Whole => return Ok(Self::whole(descriptor)),
        };
        pick(descriptor, name).map(|region| Self::Region(RemotePart::new(region)))
    }

    fn whole(descriptor: &NodeDescriptor) -> Self {
        if is_by_address(descriptor) {
            return Self::Region(RemotePart::new(absolute()));
        }
        let mut parts: Vec<_> = descriptor.regions.iter().cloned().map(RemotePart::new).collect();
        parts.sort_by_key(|part| part.region.address);
        let end = |part: &RemotePart| part.region.address.saturating_add(part.region.bytes);
        let greatest = |most: &mut u64, part: &RemotePart| {
            *most = end(part).max(*most);
            Some(*most)
        };
        let ends = parts.iter().scan(0, greatest).collect();
        Self::Whole { parts, ends }
    }

    /// The name of the only region; none of a whole node.
    pub(crate) fn name(&self) -> Option<&str> {
        match self {
            Self::Region(part) => Some(&part.region.name),
            Self::Whole { .. } => None,
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::Region(part) => part.region.bytes,
            Self::Whole { ends, .. } => ends.last().copied().unwrap_or(0),
        }
    }

    /// Whether any part has RDMA keys.
    pub(crate) fn has_keys(&self) -> bool {
        let has = |part: &RemotePart| !part.region.remote_keys.is_empty();
        match self {
            Self::Region(part) => has(part),
            Self::Whole { parts, .. } => parts.iter().any(has),
        }
    }

    /// Turns placed requests into requests by offset, without registrations.
    pub(crate) fn unplace(&self, placed: &mut [RequestSpan]) {
        let first = match self {
            Self::Region(part) => part.region.address,
            Self::Whole { .. } => 0,
        };
        for request in placed {
            request.remote = RemoteSpan { key: 0, address: request.remote.address - first };
            request.regions = RequestRegions::None;
        }
    }

    /// Whether requests by offset have the same regions in both.
    pub(crate) fn is_same_for(&self, other: &Self, requests: &[RequestSpan]) -> bool {
        requests.iter().all(|RequestSpan { span, remote, .. }| {
            let region = |memory: &Self| {
                let placed = memory.place(remote.address, span.len() as u64);
                placed.ok().map(|(part, _)| part.region.clone())
            };
            region(self) == region(other)
        })
    }

    /// Returns the part with `length` bytes at an address of the owner.
    pub(crate) fn part(&self, address: u64, length: u64) -> Result<&RemotePart, Error> {
        match self {
            Self::Region(part) => Ok(part),
            Self::Whole { .. } => self.place(address, length).map(|(part, _)| part),
        }
    }

    /// Returns the part with `length` bytes at `offset`, and the owner's address of the first.
    pub(crate) fn place(&self, offset: u64, length: u64) -> Result<(&RemotePart, u64), Error> {
        let failed = |cause| Err(Error::local(Stage::Transfer, cause));
        match (self, offset.checked_add(length)) {
            (Self::Region(part), Some(end)) if end <= part.region.bytes => {
                Ok((part, part.region.address + offset))
            }
            (Self::Region(part), _) => {
                failed(Cause::OutOfRange { offset, length, bytes: part.region.bytes })
            }
            (Self::Whole { parts, ends }, Some(end)) => {
                let after = parts.partition_point(|part| part.region.address <= offset);
                let candidates = (0..after).rev().take_while(|place| ends[*place] >= end);
                let found =
                    candidates.map(|place| &parts[place]).find(|it| it.contains(offset, end));
                match found {
                    Some(part) => Ok((part, offset)),
                    None => failed(Cause::NoSuchAddress { address: offset, length }),
                }
            }
            (Self::Whole { .. }, None) => failed(Cause::NoSuchAddress { address: offset, length }),
        }
    }
}

/// A peer's memory, and the incarnation that serves it.
pub(crate) struct Resolved {
    pub(crate) target: Arc<Target>,
    pub(crate) memory: RemoteMemory,
    /// The look-up that found it.
    pub(crate) look_up: LookUp,
    /// Whether the owner refused an access that the descriptor permits.
    pub(crate) outdated: AtomicBool,
}

impl Resolved {
    pub(crate) fn new(target: Arc<Target>, memory: RemoteMemory, look_up: LookUp) -> Arc<Self> {
        Arc::new(Self { target, memory, look_up, outdated: AtomicBool::new(false) })
    }

    pub(crate) fn is_stale(&self) -> bool {
        self.target.is_stale() || self.outdated.load(Ordering::Acquire)
    }
}

/// Whether peers reach the node's memory by address alone: over RDMA each buffer has its own key.
fn is_by_address(descriptor: &NodeDescriptor) -> bool {
    descriptor.incarnation == Incarnation::UNKNOWN && descriptor.transports.tcp
}

fn pick(descriptor: &NodeDescriptor, name: Option<&str>) -> Result<RegionDescriptor, Error> {
    let regions = &descriptor.regions;
    if is_by_address(descriptor) && name == Some(ABSOLUTE) {
        return Ok(absolute());
    }
    let Some(asked) = name else {
        if let [only] = regions.as_slice() {
            return Ok(only.clone());
        }
        let cause = Cause::NotNamed { served: first_names(regions), known: regions.len() };
        return Err(match regions.is_empty() {
            true => Error::peer(Stage::Metadata, cause),
            // The stage distinguishes the two.
            false => Error::local(Stage::Metadata, cause),
        });
    };
    if let Some(region) = regions.iter().find(|region| region.name == asked) {
        return Ok(region.clone());
    }
    let nearest = regions
        .iter()
        .map(|region| (strsim::damerau_levenshtein(asked, &region.name), &region.name))
        .filter(|(edits, _)| *edits <= SUGGESTION_EDITS_MAX)
        .min()
        .map(|(_, name)| name.clone());
    let (asked, served) = (asked.to_owned(), first_names(regions));
    let cause = Cause::NoSuchSegment { asked, nearest, served, known: regions.len() };
    Err(Error::peer(Stage::Metadata, cause))
}

fn first_names(regions: &[RegionDescriptor]) -> Vec<String> {
    regions.iter().take(NAMES_SHOWN_MAX).map(|region| region.name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(address: u64, bytes: u64) -> RegionDescriptor {
        RegionDescriptor { name: format!("{address}+{bytes}"), address, bytes, ..absolute() }
    }

    fn whole(regions: Vec<RegionDescriptor>) -> RemoteMemory {
        let transports = handfast_core::wire::Transports { tcp: true, rdma: false };
        RemoteMemory::whole(&NodeDescriptor {
            name: handfast_core::NodeName::new("n").unwrap(),
            incarnation: Incarnation(7),
            address: String::new(),
            transports,
            devices: Vec::new(),
            matrix: None,
            regions,
            checksum: None,
            data_port: None,
            keep: false,
        })
    }

    /// Overlapping, nested and adjacent regions: a range is found in each region that holds all of
    /// it, and one that no single region holds is refused.
    #[test]
    fn address_is_found_in_a_region_that_holds_it_all() {
        let regions = [(1_000, 100), (500, 2_000), (1_050, 10), (4_000, 50), (4_050, 50)];
        let memory = whole(regions.map(|(address, bytes)| part(address, bytes)).to_vec());
        let found = |address, length| {
            memory.place(address, length).ok().map(|(part, at)| (part.region.name.clone(), at))
        };
        let at = |name: &str, address| Some((name.to_owned(), address));
        assert_eq!(found(1_055, 5), at("1050+10", 1_055));
        assert_eq!(found(1_055, 45), at("1000+100", 1_055));
        assert_eq!(found(1_055, 46), at("500+2000", 1_055));
        assert_eq!(found(2_499, 1), at("500+2000", 2_499));
        assert_eq!(found(2_499, 2), None);
        assert_eq!(found(499, 1), None);
        assert_eq!(found(4_049, 1), at("4000+50", 4_049));
        assert_eq!(found(4_049, 2), None, "two adjacent regions have two keys");
        assert_eq!(found(u64::MAX, 2), None);
        assert_eq!(whole(Vec::new()).place(0, 1).err().unwrap().stage(), Stage::Transfer);
    }
}
