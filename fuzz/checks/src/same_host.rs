//! Packets of another process of the host, and one end of a channel that takes them in between its own
//! copies, maps and revocations.

use handfast_core::sharing::{
    Begun, Denial, Frame, GRANTS_MAX, GrantId, Offered, Sharing, SharingOutput, Wanted,
};
use handfast_core::transfer::Direction;
use handfast_transport_shm::{frame_again, hello_again};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Bytes of a step.
const STEP_BYTES: usize = 6;
/// Bytes of a packet with a frame.
const PACKET_BYTES: usize = 48;
/// Keys below it are those of regions of this end.
const REGIONS: u64 = 4;
/// Most copies at a time.
const COPIES_MAX: usize = 64;
/// Address of the first region of the peer.
const ADDRESS: u64 = 1 << 20;
/// A region of this end.
const OFFERED: Offered = Offered { address: ADDRESS, bytes: 4096, readable: true, writable: true };

/// Panics unless a packet that decodes encodes to what decodes alike, a hello to itself, and an end maps what
/// it asked for, copies within what is mapped, unmaps before it says so, and gives memory back once the
/// peer has said so or has ended.
///
/// The input is a packet as it is, and steps of six bytes: kind, detail, key, grant, and two of a range. A
/// kind below 128 is that of a frame of the peer, modulo 10, and otherwise a step of this end, modulo 8.
pub fn check(bytes: &[u8]) {
    if let Some(again) = hello_again(bytes) {
        assert_eq!(again, bytes, "the hello changed");
    }
    decoded(bytes);
    let mut end = End::default();
    for step in bytes.as_chunks::<STEP_BYTES>().0 {
        end.step(step);
        end.take_outputs();
        end.check();
    }
}

/// The frame of a packet, if it is one.
fn decoded(packet: &[u8]) -> Option<Frame> {
    let (frame, again) = frame_again(packet)?;
    assert_eq!(frame_again(&again), Some((frame, again.clone())), "the frame changed");
    Some(frame)
}

/// An address near the peer's region, or at the end of all addresses.
fn address(detail: u8, low: u8) -> u64 {
    if detail & 0x80 == 0 { ADDRESS + u64::from(low) } else { u64::MAX - u64::from(low) }
}

fn length(detail: u8, high: u8) -> u64 {
    if detail & 0x40 == 0 { u64::from(high) } else { u64::MAX - u64::from(high) }
}

fn packet([kind, detail, key, grant, low, high]: [u8; STEP_BYTES]) -> [u8; PACKET_BYTES] {
    let mut bytes = [0; PACKET_BYTES];
    bytes[..3].copy_from_slice(&[kind % 10, detail, low]);
    let numbers = [key.into(), grant.into(), address(detail, low), length(detail, high)];
    for (place, number) in bytes[16..].chunks_exact_mut(8).zip(numbers) {
        place.copy_from_slice(&u64::to_le_bytes(number));
    }
    bytes
}

/// An end, and what its outputs and its peer's frames have said.
#[derive(Default)]
struct End {
    sharing: Sharing,
    asked: BTreeSet<u64>,
    mapping: VecDeque<(GrantId, Offered)>,
    mapped: BTreeMap<GrantId, Offered>,
    copies: Vec<GrantId>,
    /// Grants of this end, and whether the peer gave them back.
    granted: BTreeMap<GrantId, bool>,
    kept: VecDeque<GrantId>,
}

impl End {
    fn step(&mut self, step: &[u8; STEP_BYTES]) {
        let [kind, detail, key, grant, low, high] = *step;
        if kind < 0x80 {
            if let Some(frame) = decoded(&packet(*step)) {
                self.take_frame(frame);
            }
            return;
        }
        match kind % 8 {
            0 => {
                let direction = if detail & 1 == 0 { Direction::Read } else { Direction::Write };
                let (address, length) = (address(detail, low), length(detail, high));
                self.begin(&Wanted { key: key.into(), address, length, direction });
            }
            1 if !self.copies.is_empty() => {
                let ended = self.copies.remove(usize::from(grant) % self.copies.len());
                self.sharing.end(ended);
            }
            2 => self.map(detail & 1 == 0),
            3 => self.sharing.revoke(key.into()),
            4 => self.sharing.close(),
            5 => self.sharing.on_hung_up(),
            6 => {
                self.granted.values_mut().for_each(|it| *it = true);
                self.sharing.on_peer_dead();
            }
            7 => {
                if let Some(grant) = self.kept.pop_front() {
                    self.granted.remove(&grant);
                    self.sharing.on_moved(grant);
                }
            }
            _ => {}
        }
    }

    fn take_frame(&mut self, frame: Frame) {
        match frame {
            Frame::Revoked { grant } => {
                if let Some(is_back) = self.granted.get_mut(&grant) {
                    *is_back = true;
                }
            }
            Frame::Closed => self.granted.values_mut().for_each(|it| *it = true),
            _ => {}
        }
        self.sharing.handle_frame(frame);
    }

    fn begin(&mut self, wanted: &Wanted) {
        if self.copies.len() == COPIES_MAX {
            return;
        }
        if let Begun::Copy { grant, offset } = self.sharing.begin(wanted) {
            let offered = self.mapped.get(&grant).expect("a copy without a map");
            let end = offset.checked_add(wanted.length);
            assert!(end.is_some_and(|end| end <= offered.bytes), "a copy beyond its region");
            let is_allowed = match wanted.direction {
                Direction::Read => offered.readable,
                Direction::Write => offered.writable,
            };
            assert!(is_allowed, "a copy that the grant does not allow");
            self.copies.push(grant);
        }
    }

    fn map(&mut self, is_mapped: bool) {
        let Some((grant, offered)) = self.mapping.pop_front() else { return };
        if is_mapped {
            self.mapped.insert(grant, offered);
        }
        self.sharing.on_mapped(grant, is_mapped);
    }

    fn take_outputs(&mut self) {
        while let Some(output) = self.sharing.poll_output() {
            match output {
                SharingOutput::Send(frame) => self.check_sent(frame),
                SharingOutput::Asked { key } if key < REGIONS => {
                    if let Some(grant) = self.sharing.grant(key, OFFERED) {
                        assert_eq!(self.granted.insert(grant, false), None, "a grant twice");
                    }
                }
                SharingOutput::Asked { key } => self.sharing.deny(key, Denial::UnknownKey),
                SharingOutput::Map { key, grant, offered } => {
                    assert!(self.asked.remove(&key), "a map that nothing asked for");
                    self.mapping.push_back((grant, offered));
                }
                SharingOutput::Answered { key } => {
                    self.asked.remove(&key);
                }
                SharingOutput::Unmap { grant } => {
                    assert!(self.mapped.remove(&grant).is_some(), "nothing to unmap");
                    assert!(!self.copies.contains(&grant), "a copy loses its map");
                }
                SharingOutput::Release { grant } => {
                    let is_back = self.granted.remove(&grant);
                    assert_eq!(is_back, Some(true), "memory that the peer may touch");
                }
                SharingOutput::Keep { grant } => {
                    assert!(self.granted.contains_key(&grant), "a grant of nothing is kept");
                    self.kept.push_back(grant);
                }
                SharingOutput::Ended => {
                    let is_idle = self.copies.is_empty() && self.mapped.is_empty();
                    assert!(is_idle && self.granted.is_empty(), "memory is touched past the end");
                }
            }
        }
    }

    /// A frame of this end says nothing false of its own copies.
    fn check_sent(&mut self, frame: Frame) {
        match frame {
            Frame::Ask { key } => assert!(self.asked.insert(key), "a region is asked for twice"),
            Frame::Revoked { grant } => {
                let is_mapping = self.mapping.iter().any(|(mapping, _)| *mapping == grant);
                assert!(!is_mapping && !self.mapped.contains_key(&grant), "it is mapped still");
            }
            Frame::Closed => {
                let is_idle = self.mapping.is_empty() && self.mapped.is_empty();
                assert!(is_idle && self.copies.is_empty(), "it touches memory still");
            }
            _ => {}
        }
    }

    fn check(&self) {
        assert!(self.sharing.granted() <= GRANTS_MAX);
        assert_eq!(self.sharing.copying() as usize, self.copies.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps reach a copy into a region of the peer, and a grant that it gives back.
    #[test]
    fn steps_reach_copies_and_grants() {
        let mut end = End::default();
        let mut play = |step: [u8; STEP_BYTES]| {
            end.step(&step);
            end.take_outputs();
            end.check();
            (end.copies.len(), end.granted.len())
        };
        assert_eq!(play([0x80, 1, 9, 0, 0, 16]), (0, 0), "it asks");
        assert_eq!(play([2, 3, 9, 1, 0, 64]), (0, 0), "it is granted");
        assert_eq!(play([0x82, 0, 0, 0, 0, 0]), (0, 0), "it maps");
        assert_eq!(play([0x80, 1, 9, 0, 48, 16]), (1, 0), "up to the end of the region");
        assert_eq!(play([0x80, 1, 9, 0, 48, 17]), (1, 0), "past it");
        assert_eq!(play([1, 0, 3, 0, 0, 0]), (1, 1), "the peer asks");
        assert_eq!(play([0x83, 0, 3, 0, 0, 0]), (1, 1), "it is taken back");
        assert_eq!(play([5, 0, 0, 1, 0, 0]), (1, 0), "the peer has let go of it");
        assert_eq!(play([4, 0, 0, 1, 0, 0]), (1, 0), "the peer takes its own back");
        assert_eq!(play([0x81, 0, 0, 0, 0, 0]), (0, 0), "the copy ends");
    }
}
