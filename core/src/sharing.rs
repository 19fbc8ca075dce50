//! One end of a channel between two processes of one host that copy into each other's memory.
//!
//! The owner of a region grants it to the peer, which maps it and copies by itself: an initiator.
//! Both ends are owners and initiators at once. No device stands between a copy and the memory, so
//! an owner gives memory back only when no copy can touch it: the initiator has acknowledged the
//! revocation, or is proven dead. A stopped process acknowledges nothing, and goes on with its copy
//! when it continues.
//!
//! The machine performs no I/O. The caller carries [`Frame`]s in order, maps what was granted, and
//! encloses each copy in [`Sharing::begin`] and [`Sharing::end`]. `docs/lanes.md` describes the
//! channel.

mod at_once;
mod device;
mod kept;
mod room;
#[cfg(test)]
mod tests;

pub use at_once::{AT_ONCE_BYTES_MAX, AT_ONCE_REQUESTS_MAX};
pub use device::{
    Allocation, DEVICE_BLOCK_BYTES, HANDLE_BYTES, Handle, OPENINGS_MAX, Opening, Openings, Staged,
};
pub use kept::{KEPT_MAX, KEPT_PER_PROCESS_MAX, KeepRefusal, Keeper, KeptMemory};

use crate::transfer::{Direction, Remote};
use alloc::collections::{BTreeMap, VecDeque};
use room::Room;

/// Maximum regions that an end has granted and not got back.
pub const GRANTS_MAX: usize = 4_096;
/// Maximum regions of the peer that an end has asked for, mapped or been denied; denials make room, a few at a time.
pub const MAPS_MAX: usize = 4_096;

/// Maximum bytes of the peer's regions that an end maps at once: an eighth of the addresses of a process.
pub const MAPPED_BYTES_MAX: u64 = 16 << 40;

/// Failed maps in a row that count: 2^10 copies are refused before one asks again.
const FAILED_MAPS_MAX: u8 = 10;
/// Denials of a key in a row that count, if they may pass: 2^10 copies are refused before one asks again.
const DENIALS_MAX: u8 = 10;

/// Names a grant of the owner's end. Never used twice on a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GrantId(pub u64);

/// A region as its owner offers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Offered {
    /// First byte, in the owner's addresses.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
    /// The peer may read it.
    pub readable: bool,
    /// The peer may write it.
    pub writable: bool,
}

impl Offered {
    fn allows(&self, wanted: &Wanted) -> bool {
        let is_permitted = match wanted.direction {
            Direction::Read => self.readable,
            Direction::Write => self.writable,
        };
        let end = wanted.address.checked_add(wanted.length);
        let is_inside = wanted.address >= self.address
            && end.is_some_and(|end| end - self.address <= self.bytes);
        is_permitted && is_inside
    }
}

/// Reasons of an owner to grant nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum Denial {
    /// No region has the key.
    #[error("no region has the key")]
    UnknownKey,
    /// The region cannot be shared with its rights.
    #[error("the memory of the region cannot be shared with its rights")]
    NotSharable,
    /// The region is on a device, and staged.
    #[error(transparent)]
    Staged(Staged),
    /// [`GRANTS_MAX`] regions are granted, or the peer keeps this one until it ends, or as many as it may
    /// ([`KeepRefusal`]).
    #[error(
        "{GRANTS_MAX} regions are granted already, or this one, or as many as may, stay open in the peer"
    )]
    Full,
    /// The owner's system refused.
    #[error("the owner's system refused to share the region")]
    System,
}

impl Denial {
    /// Whether a later request may be granted although the region stays as it is.
    fn may_pass(self) -> bool {
        match self {
            Self::Full | Self::System => true,
            Self::UnknownKey | Self::NotSharable | Self::Staged(_) => false,
        }
    }
}

/// A message between the ends. The channel keeps their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Frame {
    /// The initiator asks for the region with a key.
    Ask {
        /// The region's key.
        key: u64,
    },
    /// The owner grants a region, and passes what maps it.
    Grant {
        /// The region's key.
        key: u64,
        /// The grant.
        grant: GrantId,
        /// The region.
        offered: Offered,
    },
    /// The owner grants nothing.
    Deny {
        /// The region's key.
        key: u64,
        /// The reason.
        denial: Denial,
    },
    /// The owner takes a grant back.
    Revoke {
        /// The grant.
        grant: GrantId,
    },
    /// No copy of the sender touches the region of a grant, nor will; its map is gone.
    Revoked {
        /// The grant.
        grant: GrantId,
    },
    /// The sender has the region of a grant in reach until its process ends, and begins no copy.
    Kept {
        /// The grant.
        grant: GrantId,
    },
    /// The sender ends the channel: the receiver is to begin no copy.
    Close,
    /// No copy of the sender touches memory of the receiver, nor will, but for grants that are [`Frame::Kept`].
    Closed,
}

/// A copy to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Wanted {
    /// Key of the peer's region.
    pub key: u64,
    /// First byte, in the peer's addresses.
    pub address: u64,
    /// Bytes.
    pub length: u64,
    /// Direction.
    pub direction: Direction,
}

/// The answer to [`Sharing::begin`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Begun {
    /// The copy is under way until [`Sharing::end`].
    Copy {
        /// The grant whose map has the bytes.
        grant: GrantId,
        /// First byte, from the start of the region.
        offset: u64,
    },
    /// The owner is asked: [`SharingOutput::Answered`] follows, or the end of the channel.
    Asked,
    /// The bytes take another path.
    Unshared(Unshared),
}

/// Reasons for another path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum Unshared {
    /// The owner denied the region.
    #[error("{0}")]
    Denied(Denial),
    /// The owner has taken the region back.
    #[error("the region was taken back")]
    Revoked,
    /// The grant does not allow the access.
    #[error("the grant does not allow the access")]
    NotAllowed,
    /// The region could not be mapped here.
    #[error("the region could not be mapped")]
    NotMapped,
    /// [`MAPS_MAX`] regions of the peer are mapped or asked for.
    #[error("{MAPS_MAX} regions of the peer are mapped or asked for already")]
    Full,
    /// The channel ends.
    #[error("the channel ends")]
    Closing,
}

/// Outputs of the machine, in order. Drain to `None` after every call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SharingOutput {
    /// Send a frame to the peer.
    Send(Frame),
    /// The peer asks for a region: answer with [`Sharing::grant`] or [`Sharing::deny`].
    Asked {
        /// The region's key.
        key: u64,
    },
    /// Map what came with a grant, then [`Sharing::on_mapped`].
    Map {
        /// The region's key.
        key: u64,
        /// The grant.
        grant: GrantId,
        /// The region.
        offered: Offered,
    },
    /// Slices that wait for the answer about a key may begin again.
    Answered {
        /// The region's key.
        key: u64,
    },
    /// Unmap a grant, before anything that follows.
    Unmap {
        /// The grant.
        grant: GrantId,
    },
    /// No copy of the peer can touch the region any more: give its memory back.
    Release {
        /// The grant.
        grant: GrantId,
    },
    /// The peer has the region in reach until its process ends. Move the memory to [`KeptMemory`], then
    /// [`Sharing::on_moved`]; without room there the channel holds it, and does not end before that process.
    Keep {
        /// The grant.
        grant: GrantId,
    },
    /// Nothing of the channel touches memory of either side, but for what is in [`KeptMemory`].
    Ended,
}

/// A region granted to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Grant {
    key: u64,
    writable: bool,
    is_revoked: bool,
    /// The peer has it in reach until its process ends.
    is_kept: bool,
}

/// A region of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Import {
    /// Asked for, after so many denials in a row that may pass. Copies are refused for the last one meanwhile.
    Asked {
        denials: u8,
        denied: Option<Denial>,
    },
    /// Granted; the caller maps it.
    Mapping {
        grant: GrantId,
        offered: Offered,
        is_revoked: bool,
    },
    Mapped {
        grant: GrantId,
        offered: Offered,
    },
    Denied(Denial),
    /// Denied for a reason that may pass. So many more copies are refused before one asks again, which is refused too.
    Paused {
        denial: Denial,
        denials: u8,
        refusals: u32,
    },
    /// Not mapped. So many more copies are refused before one asks again.
    Unmapped {
        refusals: u32,
    },
}

/// A map with copies under way, or one that the owner takes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Copies {
    under_way: u32,
    is_revoked: bool,
}

/// Knowledge about the peer's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Peer {
    Connected,
    /// It sent [`Frame::Closed`].
    Closed,
    /// It closed the connection without a word. It may still have its maps.
    HungUp,
    Dead,
}

/// One end of a channel.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sharing {
    peer: Peer,
    /// This end begins no copy any more.
    is_closing: bool,
    /// It has no copy under way since, and the peer was informed.
    is_closed: bool,
    has_ended: bool,
    next_grant: u64,
    /// Greatest grant of the peer.
    newest: GrantId,
    grants: BTreeMap<GrantId, Grant>,
    /// Grants whose memory is held apart from the channel, and the keys of their regions.
    moved: BTreeMap<GrantId, u64>,
    imports: BTreeMap<u64, Import>,
    maps: BTreeMap<GrantId, Copies>,
    copies: u32,
    room: Room,
    /// Maps that failed since the last that did not, at most [`FAILED_MAPS_MAX`].
    failed_maps: u8,
    outputs: VecDeque<SharingOutput>,
}

impl Default for Sharing {
    fn default() -> Self {
        Self::new()
    }
}

impl Sharing {
    /// An end of a connected channel whose processes have proven that they share a host.
    pub fn new() -> Self {
        Self {
            peer: Peer::Connected,
            is_closing: false,
            is_closed: false,
            has_ended: false,
            next_grant: 1,
            newest: GrantId(0),
            grants: BTreeMap::new(),
            moved: BTreeMap::new(),
            imports: BTreeMap::new(),
            maps: BTreeMap::new(),
            copies: 0,
            room: Room::default(),
            failed_maps: 0,
            outputs: VecDeque::new(),
        }
    }

    /// Begins a copy, or returns the reason why there is none. A copy that began must end.
    pub fn begin(&mut self, wanted: &Wanted) -> Begun {
        if self.is_closing || self.peer != Peer::Connected {
            return Begun::Unshared(Unshared::Closing);
        }
        match self.imports.get(&wanted.key).copied() {
            Some(Import::Mapped { grant, offered }) => {
                if !offered.allows(wanted) {
                    return Begun::Unshared(Unshared::NotAllowed);
                }
                let offset = wanted.address - offered.address;
                if !self.maps.contains_key(&grant) {
                    return Begun::Unshared(Unshared::Revoked);
                }
                self.count_begun(grant);
                Begun::Copy { grant, offset }
            }
            Some(Import::Asked { denied: Some(denial), .. }) => {
                Begun::Unshared(Unshared::Denied(denial))
            }
            Some(Import::Asked { .. } | Import::Mapping { is_revoked: false, .. }) => Begun::Asked,
            Some(Import::Mapping { .. }) => Begun::Unshared(Unshared::Revoked),
            Some(Import::Denied(Denial::UnknownKey)) => {
                // The next one asks again, for a region that is registered later.
                self.imports.remove(&wanted.key);
                Begun::Unshared(Unshared::Denied(Denial::UnknownKey))
            }
            Some(Import::Denied(denial)) => Begun::Unshared(Unshared::Denied(denial)),
            Some(Import::Paused { denial, denials, refusals: 0 }) => {
                // The answer may be late; the other path needs none.
                self.ask(wanted.key, denials, Some(denial));
                Begun::Unshared(Unshared::Denied(denial))
            }
            Some(Import::Paused { denial, denials, refusals }) => {
                let refused = Import::Paused { denial, denials, refusals: refusals - 1 };
                self.imports.insert(wanted.key, refused);
                Begun::Unshared(Unshared::Denied(denial))
            }
            Some(Import::Unmapped { refusals }) => {
                match refusals {
                    0 | 1 => self.imports.remove(&wanted.key),
                    _ => {
                        self.imports.insert(wanted.key, Import::Unmapped { refusals: refusals - 1 })
                    }
                };
                Begun::Unshared(Unshared::NotMapped)
            }
            None if !self.has_room() => Begun::Unshared(Unshared::Full),
            None => {
                self.ask(wanted.key, 0, None);
                Begun::Asked
            }
        }
    }

    fn ask(&mut self, key: u64, denials: u8, denied: Option<Denial>) {
        self.imports.insert(key, Import::Asked { denials, denied });
        self.send(Frame::Ask { key });
    }

    fn count_begun(&mut self, grant: GrantId) {
        if let Some(copies) = self.maps.get_mut(&grant) {
            copies.under_way += 1;
            self.copies += 1;
        }
    }

    /// Ends a copy: the caller touches the region for it no more.
    ///
    /// # Panics
    /// If no copy of the grant is under way, a mistake of the caller.
    pub fn end(&mut self, grant: GrantId) {
        let copies = self.maps.get_mut(&grant).expect("a map stays while a copy is under way");
        copies.under_way = copies.under_way.checked_sub(1).expect("a copy ends once");
        self.copies -= 1;
        self.settle_map(grant);
        self.settle();
    }

    /// Handles the caller's map of a grant, or its failure.
    pub fn on_mapped(&mut self, grant: GrantId, is_mapped: bool) {
        let found = self.imports.iter().find_map(|(key, import)| match import {
            Import::Mapping { grant: of, offered, is_revoked } if *of == grant => {
                Some((*key, *offered, *is_revoked))
            }
            _ => None,
        });
        let Some((key, offered, is_revoked)) = found else { return };
        if is_revoked {
            self.imports.remove(&key);
            self.give_back(grant, is_mapped);
        } else if is_mapped {
            self.imports.insert(key, Import::Mapped { grant, offered });
            self.maps.insert(grant, Copies::default());
            self.failed_maps = 0;
        } else {
            self.on_unmapped(key, grant);
        }
        self.outputs.push_back(SharingOutput::Answered { key });
        self.settle();
    }

    /// Handles a grant whose region this process has in reach until it ends, before the next output: behind
    /// [`SharingOutput::Unmap`], or behind a map that failed. The owner learns that in the place of its
    /// acknowledgement.
    pub fn on_kept(&mut self, grant: GrantId) {
        let revoked = SharingOutput::Send(Frame::Revoked { grant });
        self.outputs.retain(|output| *output != revoked);
        if matches!(self.peer, Peer::Connected | Peer::Closed) {
            // Before `Closed`, which acknowledges every other grant.
            self.outputs.push_front(SharingOutput::Send(Frame::Kept { grant }));
        }
    }

    /// Handles a grant whose memory is in [`KeptMemory`]: the channel may end without it.
    pub fn on_moved(&mut self, grant: GrantId) {
        if let Some(Grant { key, .. }) = self.grants.remove(&grant) {
            self.moved.insert(grant, key);
        }
        self.settle();
    }

    /// Grants a region that the peer has asked for. The caller holds its memory until
    /// [`SharingOutput::Release`]; `None`, and a denial, at the limit or at the end of the channel.
    pub fn grant(&mut self, key: u64, offered: Offered) -> Option<GrantId> {
        if self.is_closing || self.peer != Peer::Connected {
            return None;
        }
        if self.grants.len() + self.moved.len() >= GRANTS_MAX {
            self.deny(key, Denial::Full);
            return None;
        }
        let grant = GrantId(self.next_grant);
        self.next_grant += 1;
        let Offered { writable, .. } = offered;
        self.grants.insert(grant, Grant { key, writable, is_revoked: false, is_kept: false });
        self.send(Frame::Grant { key, grant, offered });
        Some(grant)
    }

    /// Grants nothing for a key.
    pub fn deny(&mut self, key: u64, denial: Denial) {
        self.send(Frame::Deny { key, denial });
    }

    /// Takes the grants of a region back: it is no longer registered.
    pub fn revoke(&mut self, key: u64) {
        let of_key = |(_, grant): &(&GrantId, &mut Grant)| grant.key == key && !grant.is_revoked;
        let mut revoked = VecDeque::new();
        for (id, grant) in self.grants.iter_mut().filter(of_key) {
            grant.is_revoked = true;
            revoked.push_back(*id);
        }
        for grant in revoked {
            self.send(Frame::Revoke { grant });
        }
    }

    /// Handles a frame of the peer. One that names nothing changes nothing. A grant that was named
    /// before, and a request for a key that is granted, end the channel as [`Sharing::close`].
    pub fn handle_frame(&mut self, frame: Frame) {
        if self.peer != Peer::Connected {
            return;
        }
        match frame {
            Frame::Ask { key } if self.is_granted(key) => return self.close(),
            // Each grant could be kept as well.
            Frame::Ask { key } if self.is_kept(key) => self.deny(key, Denial::Full),
            Frame::Ask { key } => self.outputs.push_back(SharingOutput::Asked { key }),
            Frame::Grant { key, grant, offered } => self.on_grant(key, grant, offered),
            Frame::Deny { key, denial } => self.on_deny(key, denial),
            Frame::Revoke { grant } => self.on_revoke(grant),
            Frame::Revoked { grant } => {
                if self.grants.remove(&grant).is_some() {
                    self.outputs.push_back(SharingOutput::Release { grant });
                }
            }
            Frame::Close => self.stop(),
            Frame::Closed => {
                self.peer = Peer::Closed;
                self.stop();
                self.release_all();
            }
            Frame::Kept { grant } => self.on_peer_keeps(grant),
        }
        self.settle();
    }

    /// Ends the channel on this side's wish: [`SharingOutput::Ended`] follows once both sides touch
    /// nothing any more.
    pub fn close(&mut self) {
        if !self.is_closing {
            self.send(Frame::Close);
        }
        self.stop();
        self.settle();
    }

    /// Handles the end of the connection without a proof of the peer's death. Its grants stay.
    pub fn on_hung_up(&mut self) {
        if self.peer == Peer::Connected {
            self.peer = Peer::HungUp;
        }
        self.stop();
        self.settle();
    }

    /// Handles the proof that the peer's process has ended.
    pub fn on_peer_dead(&mut self) {
        self.peer = Peer::Dead;
        self.stop();
        self.release_all();
        self.settle();
    }

    /// Returns the next output.
    pub fn poll_output(&mut self) -> Option<SharingOutput> {
        self.outputs.pop_front()
    }

    /// Whether this end begins no copies any more.
    pub fn is_closing(&self) -> bool {
        self.is_closing || self.peer != Peer::Connected
    }

    /// Whether the channel has ended and the peer sends nothing that matters.
    pub fn is_over(&self) -> bool {
        self.has_ended && self.peer != Peer::Connected
    }

    /// Whether nothing of the channel touches memory of either side.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Whether the peer has closed the connection and may still have its maps.
    pub fn is_unproven(&self) -> bool {
        self.peer == Peer::HungUp && !self.grants.is_empty()
    }

    /// Number of regions granted and not got back.
    pub fn granted(&self) -> usize {
        self.grants.len()
    }

    /// Whether the peer may still touch the region with a key.
    pub fn holds(&self, key: u64) -> bool {
        self.grants.values().any(|grant| grant.key == key)
    }

    /// Number of copies under way on this side.
    pub fn copying(&self) -> u32 {
        self.copies
    }

    /// State of the region of a grant, as its owner knows it: a peer that may write it may do so
    /// until the grant is released.
    pub fn owned_state(&self, grant: GrantId) -> Remote {
        match self.grants.get(&grant) {
            Some(Grant { writable: true, .. }) => Remote::Indeterminate,
            Some(_) => Remote::Untouched,
            // A handle of a device permits writes.
            None if self.moved.contains_key(&grant) => Remote::Indeterminate,
            None => Remote::Fenced,
        }
    }

    fn send(&mut self, frame: Frame) {
        if matches!(self.peer, Peer::Connected | Peer::Closed) {
            self.outputs.push_back(SharingOutput::Send(frame));
        }
    }

    fn on_grant(&mut self, key: u64, grant: GrantId, offered: Offered) {
        if grant <= self.newest {
            return self.close();
        }
        self.newest = grant;
        let is_expected = matches!(self.imports.get(&key), Some(Import::Asked { .. }));
        if self.is_closing || !is_expected {
            // The owner learns from the answer that nothing maps it.
            return self.send(Frame::Revoked { grant });
        }
        if self.mapped_bytes().saturating_add(offered.bytes) > MAPPED_BYTES_MAX {
            self.on_unmapped(key, grant);
            return self.outputs.push_back(SharingOutput::Answered { key });
        }
        self.imports.insert(key, Import::Mapping { grant, offered, is_revoked: false });
        self.outputs.push_back(SharingOutput::Map { key, grant, offered });
    }

    /// Bytes of the peer's regions that are mapped or about to be.
    fn mapped_bytes(&self) -> u64 {
        let bytes = |import: &Import| match import {
            Import::Mapping { offered, .. } | Import::Mapped { offered, .. } => offered.bytes,
            _ => 0,
        };
        self.imports.values().map(bytes).sum()
    }

    fn is_granted(&self, key: u64) -> bool {
        let is_it = |it: &Grant| it.key == key && !it.is_revoked && !it.is_kept;
        self.grants.values().any(is_it)
    }

    /// Whether the peer keeps the region of a key, in the channel or apart from it.
    fn is_kept(&self, key: u64) -> bool {
        self.moved.values().any(|moved| *moved == key)
            || self.grants.values().any(|grant| grant.key == key && grant.is_kept)
    }

    fn on_deny(&mut self, key: u64, denial: Denial) {
        let Some(Import::Asked { denials, .. }) = self.imports.get(&key).copied() else { return };
        let denied = match denial.may_pass() {
            true => {
                let refusals = 1_u32 << denials;
                Import::Paused { denial, denials: (denials + 1).min(DENIALS_MAX), refusals }
            }
            false => Import::Denied(denial),
        };
        self.imports.insert(key, denied);
        self.outputs.push_back(SharingOutput::Answered { key });
    }

    fn on_revoke(&mut self, grant: GrantId) {
        let names = |import: &Import| match import {
            Import::Mapping { grant: of, .. } | Import::Mapped { grant: of, .. } => *of == grant,
            _ => false,
        };
        let found = self.imports.iter_mut().find(|(_, import)| names(import));
        let Some((key, import)) = found.map(|(key, import)| (*key, import)) else { return };
        match import {
            Import::Mapping { is_revoked, .. } => *is_revoked = true,
            _ => {
                self.imports.remove(&key);
                if let Some(copies) = self.maps.get_mut(&grant) {
                    copies.is_revoked = true;
                }
                self.settle_map(grant);
            }
        }
    }

    /// Gives a grant back whose region could not be mapped. The more of them failed in a row, the
    /// more copies are refused before one asks again.
    fn on_unmapped(&mut self, key: u64, grant: GrantId) {
        let refusals = 1_u32 << self.failed_maps;
        self.failed_maps = (self.failed_maps + 1).min(FAILED_MAPS_MAX);
        self.imports.insert(key, Import::Unmapped { refusals });
        self.give_back(grant, false);
    }

    /// Gives a map back that was revoked, once no copy uses it.
    fn settle_map(&mut self, grant: GrantId) {
        let is_over = |copies: &Copies| copies.is_revoked && copies.under_way == 0;
        if self.maps.get(&grant).is_some_and(is_over) {
            self.maps.remove(&grant);
            self.give_back(grant, true);
        }
    }

    fn give_back(&mut self, grant: GrantId, is_mapped: bool) {
        if is_mapped {
            self.outputs.push_back(SharingOutput::Unmap { grant });
        }
        if !self.is_closed {
            self.send(Frame::Revoked { grant });
        }
    }

    fn stop(&mut self) {
        if core::mem::replace(&mut self.is_closing, true) {
            return;
        }
        for (key, import) in &self.imports {
            if matches!(import, Import::Asked { .. }) {
                self.outputs.push_back(SharingOutput::Answered { key: *key });
            }
        }
    }

    /// Draws the conclusions of a stop, once the last copy has ended and no map is being made.
    fn settle(&mut self) {
        let is_mapping = |import: &Import| matches!(import, Import::Mapping { .. });
        let is_busy = || self.copies > 0 || self.imports.values().any(is_mapping);
        // In this order: most copies end while the channel lives, perhaps with many maps.
        if self.is_closing && !self.is_closed && !is_busy() {
            for grant in core::mem::take(&mut self.maps).into_keys() {
                self.outputs.push_back(SharingOutput::Unmap { grant });
            }
            self.imports.clear();
            self.send(Frame::Closed);
            self.is_closed = true;
        }
        // Without a grant the peer can touch nothing here, whatever it is doing.
        if self.is_closed && self.grants.is_empty() && !self.has_ended {
            self.has_ended = true;
            self.outputs.push_back(SharingOutput::Ended);
        }
    }

    fn on_peer_keeps(&mut self, grant: GrantId) {
        if let Some(kept) = self.grants.get_mut(&grant).filter(|it| !it.is_kept) {
            kept.is_kept = true;
            self.outputs.push_back(SharingOutput::Keep { grant });
        }
    }

    /// Gives the memory of grants back, without those that the peer keeps while it lives.
    fn release_all(&mut self) {
        let Self { peer, grants, outputs, .. } = self;
        grants.retain(|grant, it| {
            let is_kept = it.is_kept && *peer != Peer::Dead;
            if !is_kept {
                outputs.push_back(SharingOutput::Release { grant: *grant });
            }
            is_kept
        });
    }
}

/// State of the peer's memory after a copy of this node that did not end well: `begun` if any byte
/// was copied, `under_way` while a thread may still copy.
pub fn left_by(begun: bool, under_way: bool) -> Remote {
    match (begun, under_way) {
        (_, true) => Remote::Indeterminate,
        (true, false) => Remote::Fenced,
        (false, false) => Remote::Untouched,
    }
}
