//! Frames of a peer that has proven a key or a certificate: in records of chosen lengths, of which one is
//! changed, cut, repeated or preceded by other bytes, in parts of any length.

#[path = "../../../engine/tests/stories/certificates.rs"]
#[allow(dead_code, reason = "the stories of the engine use the rest")]
mod issuing;

use crate::check_error;
use handfast::fuzzing::{End, Nodes, RECORD_PLAIN_BYTES_MAX};
use handfast_core::wire::{
    FRAME_BYTES_DEFAULT_MAX, FRAME_HEADER_BYTES, FrameKind, decode_frame, encode_frame,
    frame_length,
};
use handfast_transport_tcp::Bounced;
use issuing::Authority;
use std::cell::RefCell;
use std::sync::OnceLock;
use std::time::Duration;
use tokio::io::{AsyncWriteExt, DuplexStream};
use tokio::runtime::{Builder, Runtime};

const KEYS: &str = "k 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
/// Bytes that a pipe holds.
const PIPE_BYTES: usize = 4 << 10;
/// Most records of chosen lengths.
const RECORDS_MAX: usize = 4;
/// Longest plain text, past which frames are left out.
const PLAIN_BYTES_MAX: usize = 80 << 10;
/// Repetitions of the text of a frame that fills more than one record.
const REPEATED: usize = 300;
/// Limit of the end of a session.
const END_MAX: Duration = Duration::from_secs(4);
/// Bytes before the lengths of records.
const HEAD_BYTES: usize = 6;

/// A frame that was read, or that must be.
type Text = (FrameKind, String);

/// A change of the records on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Nothing,
    /// One bit is another.
    Flip,
    /// They end.
    Cut,
    /// They begin again.
    Repeat,
    /// A byte comes between.
    Insert,
}

impl Change {
    const ALL: [Self; 5] = [Self::Nothing, Self::Flip, Self::Cut, Self::Repeat, Self::Insert];

    fn apply(self, records: &mut Vec<u8>, at: usize, with: u8) {
        match self {
            Self::Nothing => {}
            Self::Flip => records[at] ^= 1 << (with % 8),
            Self::Cut => records.truncate(at),
            Self::Repeat => {
                let again = records.clone();
                records.truncate(at);
                records.extend(again);
            }
            Self::Insert => records.insert(at, with),
        }
    }
}

/// An input.
#[derive(Debug)]
struct Case {
    through_tls: bool,
    /// The accepting end sends.
    is_reversed: bool,
    change: Change,
    /// The place of the change, up to the length of all records, and a byte of it.
    at: u16,
    with: u8,
    /// Bytes that are sent at once.
    step: usize,
    /// Plain texts of records.
    pieces: Vec<Vec<u8>>,
}

/// Panics unless the receiving end reads the frames that were sealed, in their order, up to the first record
/// that is changed or holds no frame, and ends with its connection.
///
/// The head is a byte for cipher and direction, one for `Change`, its place in two, its byte, and
/// the bytes that are sent at once. The number of records with lengths of their own follows, up to
/// `RECORDS_MAX`, with their lengths of 16 bits, then frames: a byte for the kind and the repetitions, the
/// length of a text, and the text. A kind past those of frames is the text alone.
pub fn check(bytes: &[u8]) {
    thread_local! {
        static RUNTIME: RefCell<Runtime> = RefCell::new(paused());
    }
    let Some(case) = case(bytes) else { return };
    RUNTIME.with_borrow(|runtime| {
        runtime.block_on(async {
            let played = tokio::time::timeout(END_MAX, play(&case));
            played.await.expect("a session ends with its connection");
        });
    });
}

/// A runtime whose limits end only when every task is idle, however slow the machine is.
fn paused() -> Runtime {
    let mut builder = Builder::new_current_thread();
    builder.enable_time().start_paused(true).build().expect("a runtime")
}

fn case(bytes: &[u8]) -> Option<Case> {
    let ([mode, change, low, high, with, step], rest) = bytes.split_first_chunk::<HEAD_BYTES>()?;
    let (count, rest) = rest.split_first()?;
    let count = usize::from(*count) % (RECORDS_MAX + 1);
    let (lengths, frames) = rest.split_at(rest.len().min(2 * count));
    let of = |pair: &[u8; 2]| usize::from(u16::from_le_bytes(*pair)).min(RECORD_PLAIN_BYTES_MAX);
    let lengths = lengths.as_chunks().0.iter().map(of);
    Some(Case {
        through_tls: mode & 1 == 1,
        is_reversed: mode & 2 == 2,
        change: Change::ALL[usize::from(*change) % Change::ALL.len()],
        at: u16::from_le_bytes([*low, *high]),
        with: *with,
        step: 1 + 16 * usize::from(*step),
        pieces: pieces(&plain(frames), lengths),
    })
}

/// Frames, and texts that are none.
fn plain(mut rest: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    while let Some(([kind, length], left)) = rest.split_first_chunk::<2>() {
        let (text, left) = left.split_at(left.len().min(usize::from(*length)));
        rest = left;
        // Seldom: without optimisation such a frame takes as long as a hundred others.
        let repeated = text.repeat(if *kind >= 0xf0 { REPEATED } else { 1 });
        let kind = match kind & 7 {
            0 => Some(FrameKind::Connection),
            1 => Some(FrameKind::Metadata),
            2 => Some(FrameKind::Notify),
            3 => Some(FrameKind::Probe),
            _ => None,
        };
        let added = match kind {
            Some(kind) => encode_frame(kind, &String::from_utf8_lossy(&repeated)),
            None => repeated,
        };
        if plain.len() + added.len() <= PLAIN_BYTES_MAX {
            plain.extend(added);
        }
    }
    plain
}

/// A text in pieces of these lengths, and the rest in pieces as long as a record may be.
fn pieces(mut plain: &[u8], lengths: impl Iterator<Item = usize>) -> Vec<Vec<u8>> {
    let mut pieces = Vec::new();
    for length in lengths {
        let (piece, left) = plain.split_at(plain.len().min(length));
        pieces.push(piece.to_vec());
        plain = left;
    }
    pieces.extend(plain.chunks(RECORD_PLAIN_BYTES_MAX).map(<[u8]>::to_vec));
    pieces
}

/// The frames that a receiver reads from whole pieces: through TLS, whose records are a stream, or from
/// records, of which each ends with a frame or within one.
fn frames(pieces: &[Vec<u8>], through_tls: bool) -> Vec<Text> {
    let mut frames = Vec::new();
    if through_tls {
        let stream = pieces.concat();
        let mut rest = &stream[..];
        while let Some((frame, bytes)) = first_frame(rest) {
            frames.push(frame);
            rest = &rest[bytes..];
        }
        return frames;
    }
    let mut pieces = pieces.iter();
    while let Some(first) = pieces.next() {
        let Some(expected) = whole_length(first) else { break };
        let mut whole = first.clone();
        while whole.len() < expected {
            match pieces.next() {
                Some(piece) if !piece.is_empty() => whole.extend(piece),
                _ => return frames,
            }
        }
        match first_frame(&whole) {
            Some((frame, bytes)) if bytes == whole.len() => frames.push(frame),
            _ => break,
        }
    }
    frames
}

/// The length of a frame with its header.
fn whole_length(bytes: &[u8]) -> Option<usize> {
    let header = bytes.first_chunk::<FRAME_HEADER_BYTES>()?;
    Some(FRAME_HEADER_BYTES + frame_length(*header, FRAME_BYTES_DEFAULT_MAX).ok()?)
}

fn first_frame(bytes: &[u8]) -> Option<(Text, usize)> {
    let length = whole_length(bytes)?;
    let frame = decode_frame(bytes.get(..length)?, FRAME_BYTES_DEFAULT_MAX).ok()?;
    Some(((frame.kind, frame.text.to_owned()), length))
}

async fn play(case: &Case) {
    let (near, far) = tokio::io::duplex(PIPE_BYTES);
    let opened = nodes(case.through_tls).open(Bounced(near), Bounced(far)).await;
    let [dialling, accepting] = opened.expect("the session opens");
    let ((mut sender, to), receiver) =
        if case.is_reversed { (accepting, dialling) } else { (dialling, accepting) };
    let (mut records, mut ends) = (Vec::new(), Vec::new());
    for piece in &case.pieces {
        records.extend(sender.seal(piece).expect("a piece fits into a record"));
        ends.push(records.len());
    }
    let sealed = records.clone();
    if !sealed.is_empty() {
        case.change.apply(&mut records, usize::from(case.at) % sealed.len(), case.with);
    }
    let ((), received) = tokio::join!(send(to.0, &records, case.step), receive(receiver));
    let expected = frames(&case.pieces, case.through_tls);
    let same = received.iter().zip(&expected).take_while(|(one, other)| one == other).count();
    assert_eq!(same, received.len(), "a frame that was not sent, or not in its place: {case:?}");
    // A record of TLS that does not open takes frames with it that arrived before and are not read yet.
    if !case.through_tls || records == sealed {
        // An inserted byte that is equal to its neighbours changes what is behind them.
        let same = records.iter().zip(&sealed).take_while(|(one, other)| one == other).count();
        let whole = ends.iter().filter(|end| **end <= same).count();
        let before = frames(&case.pieces[..whole], case.through_tls).len();
        assert_eq!(received.len(), before, "{case:?}");
    }
}

/// Sends bytes in parts, as far as the other side takes them, and ends the connection.
async fn send(mut to: DuplexStream, bytes: &[u8], step: usize) {
    for part in bytes.chunks(step) {
        if to.write_all(part).await.is_err() {
            return;
        }
        tokio::task::yield_now().await;
    }
    let _ = to.shutdown().await;
}

/// Reads frames until one is refused or the connection ends.
async fn receive((mut end, mut stream): (End, Bounced<DuplexStream>)) -> Vec<Text> {
    let mut received = Vec::new();
    loop {
        match end.receive(&mut stream).await {
            Ok(frame) => received.push(frame),
            Err(error) => {
                check_error(&error);
                return received;
            }
        }
    }
}

/// The nodes of a session by keys or through TLS.
fn nodes(through_tls: bool) -> &'static Nodes {
    static BY_KEYS: OnceLock<Nodes> = OnceLock::new();
    static THROUGH_TLS: OnceLock<Nodes> = OnceLock::new();
    if !through_tls {
        return BY_KEYS.get_or_init(|| Nodes::with_keys(KEYS).expect("it is a key"));
    }
    THROUGH_TLS.get_or_init(|| {
        let fleet = Authority::new("fleet");
        let names = ["dialling", "accepting"];
        let issued = names.map(|name| fleet.issue(&[name]));
        let of = |place: usize| (names[place], &*issued[place].certificate, &*issued[place].key);
        Nodes::with_certificates(&fleet.pem, [of(0), of(1)]).expect("they have certificates")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record may end within a frame, but not with a part of the next; a stream may.
    #[test]
    fn frames_are_read_by_the_rules_of_each_cipher() {
        let frame = |text: &str| encode_frame(FrameKind::Probe, text);
        let both = [frame("a"), frame("b")].concat();
        let count = |cuts: &[usize]| {
            let pieces = pieces(&both, cuts.iter().copied());
            [frames(&pieces, false).len(), frames(&pieces, true).len()]
        };
        let one = frame("a").len();
        assert_eq!(count(&[]), [0, 2]);
        assert_eq!(count(&[one]), [2, 2]);
        assert_eq!(count(&[9, one - 9]), [2, 2], "a frame in two records");
        assert_eq!(count(&[7, one - 7]), [0, 2], "a header in two records");
        assert_eq!(count(&[one, 9, 0]), [1, 2], "an empty record");
    }

    /// A case of each kind reaches the receiving end: the frame of an unchanged session is read, and
    /// none of one whose first record is changed.
    #[test]
    fn each_cipher_carries_frames_both_ways() {
        for mode in 0..4 {
            let head = [mode, 0, 0, 0, 0, 9, 0];
            let case = case(&[&head[..], &[3, 4], b"ping"].concat()).unwrap();
            assert_eq!(frames(&case.pieces, case.through_tls), [(FrameKind::Probe, "ping".into())]);
            for change in 0..Change::ALL.len() as u8 {
                check(&[&[mode, change, 20, 0, 3, 9, 0][..], &[3, 4], b"ping"].concat());
            }
        }
    }
}
