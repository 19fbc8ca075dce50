//! Packets of a channel: one frame each, numbers unsigned and little-endian.

use handfast_core::sharing::{Denial, Frame, GrantId, Offered, Staged};
use handfast_core::{Incarnation, Lifecycle, Pair};

/// First bytes of a hello.
const MAGIC: [u8; 8] = *b"hfshm\0\x01\n";
/// Bytes of a hello.
pub(crate) const HELLO_BYTES: usize = 8 + 24 + 24;
/// Bytes of an answer to a hello.
pub(crate) const ANSWER_BYTES: usize = 8;
/// Bytes of every other packet.
pub(crate) const FRAME_BYTES: usize = 48;
/// Longest packet.
pub(crate) const PACKET_BYTES_MAX: usize = HELLO_BYTES;

/// The first packet of a connection. The file that comes with it proves who sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) sender: Pair,
    pub(crate) receiver: Pair,
}

impl Hello {
    pub(crate) fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        put_pair(&mut bytes[8..32], self.sender);
        put_pair(&mut bytes[32..], self.receiver);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let known = bytes.len() == HELLO_BYTES && bytes[..8] == MAGIC;
        known.then(|| Self { sender: pair(&bytes[8..32]), receiver: pair(&bytes[32..]) })
    }
}

/// The answer to a hello, with the file of the answering side.
pub(crate) const ANSWER: [u8; ANSWER_BYTES] = MAGIC;

fn put_pair(bytes: &mut [u8], pair: Pair) {
    bytes[..16].copy_from_slice(&pair.incarnation.0.to_le_bytes());
    bytes[16..24].copy_from_slice(&pair.lifecycle.0.to_le_bytes());
}

fn pair(bytes: &[u8]) -> Pair {
    let mut incarnation = [0; 16];
    incarnation.copy_from_slice(&bytes[..16]);
    Pair {
        incarnation: Incarnation(u128::from_le_bytes(incarnation)),
        lifecycle: Lifecycle(number(&bytes[16..24])),
    }
}

fn number(bytes: &[u8]) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(bytes);
    u64::from_le_bytes(number)
}

/// Access to granted memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Way {
    /// By a descriptor that comes with the grant.
    Descriptor,
    /// By calls that name the owner's process.
    Calls,
    /// By a handle of a device's driver, in memory that comes with the grant.
    Handle,
    /// The same of an owner that does not know [`Frame::Kept`].
    EarlierHandle,
}

const READABLE: u8 = 1;
const WRITABLE: u8 = 2;
const BY_CALLS: u8 = 4;
const BY_HANDLE: u8 = 8;
/// With a handle: the owner knows [`Frame::Kept`], without which nothing that may stay open is opened.
const KNOWS_KEPT: u8 = 16;
/// Denial of a region that is staged: with its reason in the next byte, which earlier versions ignore.
const NOT_SHARABLE: u8 = 2;

/// Encodes a frame; `way` matters for a grant alone.
pub(crate) fn encode(frame: &Frame, way: Way) -> [u8; FRAME_BYTES] {
    let mut bytes = [0; FRAME_BYTES];
    let (kind, detail, numbers) = match frame {
        Frame::Ask { key } => (1, 0, [*key, 0, 0, 0]),
        Frame::Grant { key, grant, offered } => {
            let mut rights = match way {
                Way::Descriptor => 0,
                Way::Calls => BY_CALLS,
                Way::Handle => BY_HANDLE | KNOWS_KEPT,
                Way::EarlierHandle => BY_HANDLE,
            };
            rights |= if offered.readable { READABLE } else { 0 };
            rights |= if offered.writable { WRITABLE } else { 0 };
            (2, rights, [*key, grant.0, offered.address, offered.bytes])
        }
        Frame::Deny { key, denial } => (3, denial_code(*denial), [*key, 0, 0, 0]),
        Frame::Revoke { grant } => (4, 0, [0, grant.0, 0, 0]),
        Frame::Revoked { grant } => (5, 0, [0, grant.0, 0, 0]),
        Frame::Close => (6, 0, [0; 4]),
        Frame::Closed => (7, 0, [0; 4]),
        Frame::Kept { grant } => (8, 0, [0, grant.0, 0, 0]),
    };
    (bytes[0], bytes[1]) = (kind, detail);
    if let Frame::Deny { denial: Denial::Staged(reason), .. } = frame {
        let place = Staged::ALL.iter().position(|known| known == reason);
        bytes[2] = place.map_or(0, |place| place as u8 + 1);
    }
    for (place, number) in bytes[16..].chunks_exact_mut(8).zip(numbers) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    bytes
}

/// Decodes a frame; `None` if it is none.
pub(crate) fn decode(bytes: &[u8]) -> Option<(Frame, Way)> {
    if bytes.len() != FRAME_BYTES {
        return None;
    }
    let at = |place: usize| number(&bytes[16 + place * 8..][..8]);
    let (key, grant, detail) = (at(0), GrantId(at(1)), bytes[1]);
    let way = match bytes[0] {
        2 if detail & BY_CALLS != 0 => Way::Calls,
        2 if detail & BY_HANDLE != 0 && detail & KNOWS_KEPT == 0 => Way::EarlierHandle,
        2 if detail & BY_HANDLE != 0 => Way::Handle,
        _ => Way::Descriptor,
    };
    let frame = match bytes[0] {
        1 => Frame::Ask { key },
        2 => {
            let offered = Offered {
                address: at(2),
                bytes: at(3),
                readable: detail & READABLE != 0,
                writable: detail & WRITABLE != 0,
            };
            Frame::Grant { key, grant, offered }
        }
        3 => Frame::Deny { key, denial: staged(bytes).map_or_else(|| denial(detail), Some)? },
        4 => Frame::Revoke { grant },
        5 => Frame::Revoked { grant },
        6 => Frame::Close,
        7 => Frame::Closed,
        8 => Frame::Kept { grant },
        _ => return None,
    };
    Some((frame, way))
}

fn denial_code(denial: Denial) -> u8 {
    match denial {
        Denial::UnknownKey => 1,
        Denial::NotSharable | Denial::Staged(_) => NOT_SHARABLE,
        Denial::Full => 3,
        Denial::System => 4,
    }
}

/// The denial of a region that is staged.
fn staged(bytes: &[u8]) -> Option<Denial> {
    let place = usize::from(bytes[2]).checked_sub(1)?;
    let reason = Staged::ALL.get(place).filter(|_| bytes[1] == NOT_SHARABLE);
    reason.copied().map(Denial::Staged)
}

fn denial(code: u8) -> Option<Denial> {
    let known = [Denial::UnknownKey, Denial::NotSharable, Denial::Full, Denial::System];
    known.into_iter().find(|denial| denial_code(*denial) == code)
}

/// Decodes a hello and encodes it again, for the fuzz targets.
#[doc(hidden)]
pub fn hello_again(packet: &[u8]) -> Option<Vec<u8>> {
    Hello::decode(packet).map(|hello| hello.encode().to_vec())
}

/// Decodes a packet to a frame and encodes it again, for the fuzz targets.
#[doc(hidden)]
pub fn frame_again(packet: &[u8]) -> Option<(Frame, Vec<u8>)> {
    decode(packet).map(|(frame, way)| (frame, encode(&frame, way).to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every packet decodes to what was encoded, and other bytes to nothing.
    #[test]
    fn packets_survive_the_wire() {
        let offered = Offered { address: 1, bytes: u64::MAX, readable: true, writable: false };
        let grant = GrantId(9);
        let frames = [
            Frame::Ask { key: 7 },
            Frame::Grant { key: 7, grant, offered },
            Frame::Deny { key: 7, denial: Denial::System },
            Frame::Revoke { grant },
            Frame::Revoked { grant },
            Frame::Close,
            Frame::Closed,
            Frame::Kept { grant },
        ];
        for frame in frames {
            let packet = encode(&frame, Way::Descriptor);
            assert_eq!(decode(&packet), Some((frame, Way::Descriptor)));
            assert_eq!(decode(&packet[1..]), None);
        }
        let by_calls = encode(&frames[1], Way::Calls);
        assert_eq!(decode(&by_calls), Some((frames[1], Way::Calls)));
        for way in [Way::Handle, Way::EarlierHandle] {
            assert_eq!(decode(&encode(&frames[1], way)), Some((frames[1], way)));
        }
        for reason in Staged::ALL {
            let frame = Frame::Deny { key: 7, denial: Denial::Staged(reason) };
            let mut packet = encode(&frame, Way::Descriptor);
            assert_eq!(decode(&packet), Some((frame, Way::Descriptor)));
            packet[2] = Staged::ALL.len() as u8 + 1;
            let plain = Frame::Deny { key: 7, denial: Denial::NotSharable };
            assert_eq!(decode(&packet), Some((plain, Way::Descriptor)), "a later reason");
        }
        let mut unknown = [0; FRAME_BYTES];
        assert_eq!(decode(&unknown), None);
        unknown[0] = 3;
        assert_eq!(decode(&unknown), None, "no reason");
        let pair = |number: u64| Pair {
            incarnation: Incarnation(u128::from(number) << 70),
            lifecycle: Lifecycle(number),
        };
        let hello = Hello { sender: pair(3), receiver: pair(4) };
        assert_eq!(Hello::decode(&hello.encode()), Some(hello));
        assert_eq!(Hello::decode(&[0; HELLO_BYTES]), None);
        assert_eq!(Hello::decode(&hello.encode()[1..]), None);
    }
}
