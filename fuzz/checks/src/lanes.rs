//! Bytes of a peer on a lane over TCP: a hello, or frames after a valid one, in the clear or encrypted.

mod sealed;

use handfast_core::transport::TransportError;
use handfast_core::wire::Body;
use handfast_core::{Incarnation, Lifecycle, Pair};
use handfast_transport::{Access, Completion, LaneSink, Memory, RegionTable};
use handfast_transport_tcp::{
    ACK_BYTES, Bounced, FRAME_HEADER_BYTES, HELLO_BYTES, LANE_MAGIC, LANE_VERSION, Net, TcpConfig,
    TcpLimits, TcpTiming, TcpTransport,
};
use sealed::Session;
use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::runtime::{Builder, Runtime};

/// Bytes of each region.
const REGION_BYTES: usize = 256;
/// Bytes that a pipe holds.
const PIPE_BYTES: usize = 4 << 10;
/// Pattern of memory that no peer may change.
const UNTOUCHED: u8 = 0x5A;
/// Most records of chosen lengths.
const RECORDS_MAX: usize = 3;
/// Number of which the secrets of lanes are derived.
const SECRETS: [u8; 32] = [3; 32];
const DEPTH: u32 = 8;
/// Third and fourth byte of a frame.
const MARKER: [u8; 2] = [0xA6, 0xF5];
/// Both sides prove, and encrypt.
const FEATURES_SEALED: u16 = 3;
const TOKEN: u64 = 0x0123_4567_89AB_CDEF;
const LANE: Lifecycle = Lifecycle(7);
const PEER: Pair = Pair { incarnation: Incarnation(1), lifecycle: LANE };
const NODE: Pair = Pair { incarnation: Incarnation(2), lifecycle: LANE };
/// Keys of the regions: a peer may write the first and read the second.
const KEYS: [u64; 2] = [0x1001, 0x1002];
/// Limit of the end of a lane.
const END_MAX: Duration = Duration::from_secs(4);

/// Said after the magic of a hello.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Said {
    /// The input.
    Raw,
    /// A valid hello, and frames.
    Frames,
    /// To a node that encrypts its lanes, the input.
    RawToSealed,
    /// A session, and frames in its records.
    Records,
    /// A session, and the input outside of records.
    RawAfterSession,
}

impl Said {
    const ALL: [Self; 5] =
        [Self::Raw, Self::Frames, Self::RawToSealed, Self::Records, Self::RawAfterSession];

    fn encrypts(self) -> bool {
        matches!(self, Self::RawToSealed | Self::Records | Self::RawAfterSession)
    }

    fn has_session(self) -> bool {
        matches!(self, Self::Records | Self::RawAfterSession)
    }
}

/// Panics if a byte lands where the peer may not write, if the lane does not end with its connection,
/// or if frames in records change other bytes than the same ones in the clear. Not compared are streams with
/// an answer that nothing asked for, or with more requests than may be outstanding: a lane ends at these with
/// the frames that came along.
///
/// The first byte chooses among `Said::ALL`. Frames are records of a frame's kind, its region, offset,
/// length and payload, and after a record of an unknown kind the rest as it is. Before those of an
/// encrypted lane are the number of lengths, up to `RECORDS_MAX`, and the lengths, of 16 bits.
pub fn check(bytes: &[u8]) {
    thread_local! {
        static RUNTIME: RefCell<Runtime> =
            RefCell::new(paused());
    }
    let Some((mode, rest)) = bytes.split_first() else { return };
    let said = Said::ALL[usize::from(*mode) % Said::ALL.len()];
    RUNTIME.with_borrow(|runtime| {
        runtime.block_on(async {
            let (lengths, frames_said) =
                if said == Said::Records { lengths(rest) } else { (None, rest) };
            let run = async |said| {
                let lane =
                    tokio::time::timeout(END_MAX, lane(said, lengths.as_deref(), frames_said));
                lane.await.expect("the lane ends with its connection")
            };
            let written = run(said).await;
            let compared = || {
                is_taken_alike(&pieces(frames(frames_said, [0; 2]), lengths.as_deref()).concat())
            };
            if said == Said::Records && compared() {
                assert_eq!(run(Said::Frames).await, written, "in the clear and encrypted");
            }
        });
    });
}

/// The lengths of records, and what follows them.
fn lengths(rest: &[u8]) -> (Option<Vec<usize>>, &[u8]) {
    let Some((count, rest)) = rest.split_first() else { return (Some(Vec::new()), rest) };
    let count = usize::from(*count) % (RECORDS_MAX + 1);
    let (chosen, rest) = rest.split_at(rest.len().min(2 * count));
    let of = |pair: &[u8; 2]| usize::from(u16::from_le_bytes(*pair)).min(sealed::PLAIN_BYTES_MAX);
    (Some(chosen.as_chunks().0.iter().map(of).collect()), rest)
}

/// Frames in pieces of these lengths, begun again as often as it takes, and then what is left of them.
/// An empty piece is the last: the lane ends at it.
fn pieces(frames: Vec<u8>, lengths: Option<&[usize]>) -> Vec<Vec<u8>> {
    let Some(lengths) = lengths else { return vec![frames] };
    let (mut pieces, mut begin) = (Vec::new(), 0);
    for length in lengths {
        let again = frames.iter().cycle().skip(begin % frames.len().max(1));
        pieces.push(again.take(*length).copied().collect::<Vec<_>>());
        begin += length;
        if pieces.last().is_some_and(Vec::is_empty) {
            return pieces;
        }
    }
    let left = frames.get(begin..).unwrap_or_default();
    pieces.extend(left.chunks(sealed::PLAIN_BYTES_MAX).map(<[u8]>::to_vec));
    pieces
}

/// A runtime whose limits end only when every task is idle, however slow the machine is.
fn paused() -> Runtime {
    let mut builder = Builder::new_current_thread();
    builder.enable_time().start_paused(true).build().expect("a runtime")
}

/// Returns the bytes of the region that the peer may write.
async fn lane(said: Said, lengths: Option<&[usize]>, rest: &[u8]) -> Vec<u8> {
    let regions = Arc::new(RegionTable::new());
    let memory = Memory::zeroed(4 * REGION_BYTES).expect("memory");
    memory.copy_in(0, &[UNTOUCHED; 4 * REGION_BYTES]).expect("in bounds");
    let span = |place: usize| memory.span(place * REGION_BYTES, REGION_BYTES).expect("in bounds");
    let write = regions.register(span(1), Access::READ_WRITE, KEYS[0]).expect("a region");
    let read = regions.register(span(2), Access::READ, KEYS[1]).expect("a region");
    let addresses = [write.address(), read.address()];
    let limits = TcpLimits { depth: DEPTH, ..TcpLimits::default() };
    let timing = TcpTiming { hello: END_MAX / 2, ..TcpTiming::default() };
    let config = TcpConfig {
        limits,
        timing,
        address: "pipe:1".into(),
        incarnation: NODE.incarnation,
        secrets: said.encrypts().then_some(SECRETS),
        encrypts: said.encrypts(),
    };
    let transport = TcpTransport::new(config, Pipes, Arc::clone(&regions), Arc::new(Ignored));
    let announced = transport.create(LANE, TOKEN).expect("a lane").token;
    transport.connect(NODE, PEER, Body::default()).await.expect("a lane that waits");
    let (near, far) = tokio::io::duplex(PIPE_BYTES);
    let pieces = match said {
        Said::Frames | Said::Records => pieces(frames(rest, addresses), lengths),
        _ => vec![rest.to_vec()],
    };
    let peer = peer(far, said, &pieces, &announced);
    let ((), answers) = tokio::join!(transport.accept(Bounced(near), LANE_MAGIC), peer);
    if said == Said::Frames {
        assert_eq!(answers.first_chunk(), Some(&LANE_MAGIC), "the hello is answered");
    }
    transport.retire(LANE).await.expect("a lane that ends");
    drop((write, read));
    for key in KEYS {
        regions.unregister(key);
    }
    let mut bytes = vec![0; 4 * REGION_BYTES];
    memory.copy_out(0, &mut bytes).expect("in bounds");
    let written = bytes.drain(REGION_BYTES..2 * REGION_BYTES).collect();
    assert!(bytes.iter().all(|byte| *byte == UNTOUCHED), "a byte landed outside the region");
    assert_eq!(memory.holders(), 1, "a holder is left");
    written
}

/// Sends the bytes and reads until the end, as far as the other side lets it.
async fn peer(stream: DuplexStream, said: Said, pieces: &[Vec<u8>], announced: &str) -> Vec<u8> {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let mut session = None;
    if said.has_session() {
        let hello = hello(said);
        session = Some(Session::open((&mut reader, &mut writer), &hello, announced).await);
    }
    let bytes = match (&session, said) {
        (Some(session), Said::Records) => session.seal(pieces),
        _ => pieces.concat(),
    };
    let send = async {
        let hello = hello(said);
        let hello = if said == Said::Frames { &hello[LANE_MAGIC.len()..] } else { &[] };
        // A lane that ends closes the pipe.
        if writer.write_all(hello).await.is_ok() && writer.write_all(&bytes).await.is_ok() {
            let _ = writer.shutdown().await;
        }
    };
    let receive = async {
        let mut answers = Vec::with_capacity(ACK_BYTES);
        let _ = reader.read_to_end(&mut answers).await;
        answers
    };
    let answers = tokio::join!(send, receive).1;
    if let Some(session) = session {
        session.check(&answers);
    }
    answers
}

fn hello(said: Said) -> [u8; HELLO_BYTES] {
    let (features, token) = if said.encrypts() { (FEATURES_SEALED, 0) } else { (0, TOKEN) };
    let mut bytes = [0; HELLO_BYTES];
    bytes[..8].copy_from_slice(&LANE_MAGIC);
    bytes[8..10].copy_from_slice(&LANE_VERSION.to_le_bytes());
    bytes[10..12].copy_from_slice(&features.to_le_bytes());
    bytes[12..16].copy_from_slice(&DEPTH.to_le_bytes());
    bytes[16..24].copy_from_slice(&token.to_le_bytes());
    for (at, pair) in [(24, PEER), (48, NODE)] {
        bytes[at..at + 16].copy_from_slice(&pair.incarnation.0.to_le_bytes());
        bytes[at + 16..at + 24].copy_from_slice(&pair.lifecycle.0.to_le_bytes());
    }
    bytes
}

/// Frames of records of six bytes: kind, region, offset (two), length, tag.
fn frames(mut rest: &[u8], addresses: [u64; 2]) -> Vec<u8> {
    let mut frames = Vec::new();
    while let Some(([kind, region, low, high, length, tag], left)) = rest.split_first_chunk::<6>() {
        if !(1..=4).contains(kind) {
            break;
        }
        rest = left;
        let offset = u64::from(u16::from_le_bytes([*low, *high]));
        let (key, start) = match *region {
            place @ 0..=1 => (KEYS[usize::from(place)], addresses[usize::from(place)]),
            other => (u64::from(other), addresses[0]),
        };
        let address = start.wrapping_add(offset).wrapping_sub(u64::from(*region >> 2));
        frames.extend([*kind, 0, MARKER[0], MARKER[1]]);
        frames.extend(u32::from(*length).to_le_bytes());
        for word in [u64::from(*tag), key, address] {
            frames.extend(word.to_le_bytes());
        }
        if matches!(kind, 1 | 3) {
            let (payload, left) = rest.split_at(rest.len().min(usize::from(*length)));
            frames.extend(payload);
            rest = left;
        }
    }
    frames.extend(rest);
    frames
}

/// Whether a lane takes the same frames of a stream however they arrive: it has no answer, and no more requests
/// than may be outstanding.
fn is_taken_alike(mut stream: &[u8]) -> bool {
    let mut requests = 0;
    while let Some((header, rest)) = stream.split_first_chunk::<FRAME_HEADER_BYTES>() {
        if header[2..4] != MARKER {
            return true;
        }
        match header[0] {
            1 => {
                let length = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
                stream = rest.get(length as usize..).unwrap_or_default();
            }
            2 => stream = rest,
            kind => return kind != 4,
        }
        requests += 1;
        if requests > DEPTH {
            return false;
        }
    }
    true
}

struct Ignored;

impl LaneSink for Ignored {
    fn on_completions(&self, _: Lifecycle, completions: &mut Vec<Completion>) {
        assert!(completions.is_empty(), "nothing was posted");
    }

    fn on_lane_failed(&self, _: Lifecycle, error: TransportError) {
        crate::check_error(&error.to_string());
    }
}

/// A network without listeners: each lane is given its pipe.
#[derive(Clone)]
struct Pipes;

impl Net for Pipes {
    type Stream = Bounced<DuplexStream>;
    type Listener = ();

    async fn bind(&self, _: &str) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    async fn accept(&self, (): &()) -> io::Result<(Self::Stream, SocketAddr)> {
        Err(io::ErrorKind::Unsupported.into())
    }

    async fn connect(&self, _: &str) -> io::Result<Self::Stream> {
        Err(io::ErrorKind::ConnectionRefused.into())
    }

    fn local_address(&self, (): &()) -> io::Result<SocketAddr> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
