//! Encrypted lanes: a Noise session under the secret of the lane, and stream halves that seal and open
//! its records. `docs/lanes.md` is the layout.

use crate::failure::CopyFailed;
use crate::hello::Hello;
use crate::net::{Piece, StreamReader, StreamWriter};
use crate::proof::LaneSecret;
use handfast_core::auth::LANE_NONCE_BYTES;
use handfast_transport::{MemoryError, Span};
use snow::params::NoiseParams;
use snow::{Builder, HandshakeState, StatelessTransportState};
use std::io;
use std::sync::{Arc, LazyLock};

/// The handshake: ephemeral keys of both sides, mixed with the secret of the lane.
const NOISE: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// Bytes of a message of the handshake: an ephemeral key and a tag.
pub(crate) const EXCHANGE_BYTES: usize = 48;
/// Bytes that sealing adds to a record.
const TAG_BYTES: usize = 16;
/// Bytes of the length before a record.
const LENGTH_BYTES: usize = 2;
/// Longest record, its tag included.
const RECORD_BYTES_MAX: usize = u16::MAX as usize;
/// Longest plain part of a record.
const PLAIN_BYTES_MAX: usize = RECORD_BYTES_MAX - TAG_BYTES;
/// First size of the buffer of received records. It grows to hold the longest record.
const INPUT_FIRST_BYTES: usize = 4 << 10;
/// Largest size of that buffer: a record, and the begin of the next.
const INPUT_BYTES_MAX: usize = 128 << 10;

/// The session of an encrypted lane.
pub(crate) type Session = Arc<StatelessTransportState>;

/// One end of the handshake.
pub(crate) struct Exchange(HandshakeState);

impl Exchange {
    /// The end of the side that dials, or of the one that listens. Hello and number are bound to it.
    fn new(
        secret: &LaneSecret,
        hello: &Hello,
        dialling_nonce: &[u8; LANE_NONCE_BYTES],
        dials: bool,
    ) -> Option<Self> {
        static PARAMS: LazyLock<Option<NoiseParams>> = LazyLock::new(|| NOISE.parse().ok());
        let prologue = [&hello.encode()[..], dialling_nonce].concat();
        let builder = Builder::new(PARAMS.clone()?).prologue(&prologue).ok()?;
        let builder = builder.psk(0, secret.bytes()).ok()?;
        let state = if dials { builder.build_initiator() } else { builder.build_responder() };
        state.ok().map(Self)
    }

    /// The dialling end and its message, which follows its hello and number.
    pub(crate) fn dial(
        secret: &LaneSecret,
        hello: &Hello,
        dialling_nonce: &[u8; LANE_NONCE_BYTES],
    ) -> Option<(Self, [u8; EXCHANGE_BYTES])> {
        let mut exchange = Self::new(secret, hello, dialling_nonce, true)?;
        let mut message = [0; EXCHANGE_BYTES];
        let length = exchange.0.write_message(&[], &mut message).ok()?;
        (length == EXCHANGE_BYTES).then_some((exchange, message))
    }

    /// The session of the listening side and its message, if the dialling one's opens.
    pub(crate) fn answer(
        secret: &LaneSecret,
        hello: &Hello,
        dialling_nonce: &[u8; LANE_NONCE_BYTES],
        received: &[u8; EXCHANGE_BYTES],
    ) -> Option<(Session, [u8; EXCHANGE_BYTES])> {
        let mut exchange = Self::new(secret, hello, dialling_nonce, false)?;
        exchange.0.read_message(received, &mut []).ok()?;
        let mut message = [0; EXCHANGE_BYTES];
        let length = exchange.0.write_message(&[], &mut message).ok()?;
        let session = exchange.0.into_stateless_transport_mode().ok()?;
        (length == EXCHANGE_BYTES).then(|| (Arc::new(session), message))
    }

    /// The session of the dialling side, if the answer opens.
    pub(crate) fn finish(mut self, received: &[u8; EXCHANGE_BYTES]) -> Option<Session> {
        self.0.read_message(received, &mut []).ok()?;
        self.0.into_stateless_transport_mode().ok().map(Arc::new)
    }
}

/// The receiving half of an encrypted lane. Bytes leave it only from records that have opened, each in
/// its place.
pub(crate) struct SealedReader<R> {
    half: R,
    session: Session,
    /// Number of the next record.
    next: u64,
    sealed: Vec<u8>,
    start: usize,
    end: usize,
    plain: Vec<u8>,
    given: usize,
}

impl<R> SealedReader<R> {
    pub(crate) fn new(half: R, session: Session) -> Self {
        Self {
            half,
            session,
            next: 0,
            sealed: vec![0; INPUT_FIRST_BYTES],
            start: 0,
            end: 0,
            plain: Vec::new(),
            given: 0,
        }
    }

    /// Length of the next record, if its length is there.
    fn record_bytes(&self) -> Option<usize> {
        let head = self.sealed[self.start..self.end].first_chunk::<LENGTH_BYTES>()?;
        Some(usize::from(u16::from_le_bytes(*head)))
    }

    /// Whether bytes can be given without receiving more.
    fn has_bytes(&self) -> bool {
        let has_record =
            self.record_bytes().is_some_and(|bytes| self.end - self.start >= LENGTH_BYTES + bytes);
        self.given < self.plain.len() || has_record
    }

    /// Opens the next record; false if it is not complete.
    fn open(&mut self) -> io::Result<bool> {
        let Some(bytes) = self.record_bytes() else { return Ok(false) };
        let begin = self.start + LENGTH_BYTES;
        // A record has content, since none is sent without.
        if bytes <= TAG_BYTES {
            return Err(broken());
        }
        let Some(sealed) = self.sealed[..self.end].get(begin..begin + bytes) else {
            return Ok(false);
        };
        self.plain.resize(bytes - TAG_BYTES, 0);
        let opened = self.session.read_message(self.next, sealed, &mut self.plain);
        if opened.ok() != Some(self.plain.len()) {
            self.plain.clear();
            return Err(broken());
        }
        (self.given, self.start, self.next) = (0, begin + bytes, self.next + 1);
        Ok(true)
    }

    /// Makes room behind the received bytes.
    fn make_room(&mut self) {
        self.sealed.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        if self.end == self.sealed.len() {
            self.sealed.resize(INPUT_BYTES_MAX, 0);
        }
    }

    /// Moves bytes of the open record.
    fn give(&mut self, target: Option<&Span>, spare: &mut [u8]) -> io::Result<usize> {
        let held = &self.plain[self.given..];
        let direct = target.map_or(0, Span::len).min(held.len());
        if let Some(span) = target {
            span.copy_in(0, &held[..direct]).map_err(|error| {
                self.given += direct;
                memory_error(direct, error)
            })?;
        }
        let held = &self.plain[self.given..];
        let rest = (held.len() - direct).min(spare.len());
        spare[..rest].copy_from_slice(&held[direct..direct + rest]);
        self.given += direct + rest;
        Ok(direct + rest)
    }
}

impl<R: StreamReader> StreamReader for SealedReader<R> {
    async fn readable(&mut self) -> io::Result<()> {
        if self.has_bytes() {
            return Ok(());
        }
        self.half.readable().await
    }

    async fn readable_asleep(&mut self) -> io::Result<()> {
        if self.has_bytes() {
            return Ok(());
        }
        self.half.readable_asleep().await
    }

    fn try_fill(&mut self, target: Option<&Span>, spare: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.given < self.plain.len() {
                return self.give(target, spare);
            }
            if self.open()? {
                continue;
            }
            self.make_room();
            match self.half.try_fill(None, &mut self.sealed[self.end..])? {
                0 if self.end == 0 => return Ok(0),
                0 => {
                    let text = "the connection ended in the middle of a record";
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
                }
                count => self.end += count,
            }
        }
    }
}

/// The sending half of an encrypted lane. Accepted bytes are sealed at once; what the connection does
/// not take is kept.
pub(crate) struct SealedWriter<W> {
    half: W,
    session: Session,
    /// Number of the next record.
    next: u64,
    plain: Vec<u8>,
    sealed: Vec<u8>,
    sent: usize,
}

impl<W: StreamWriter> SealedWriter<W> {
    pub(crate) fn new(half: W, session: Session) -> Self {
        Self { half, session, next: 0, plain: Vec::new(), sealed: Vec::new(), sent: 0 }
    }

    /// Sends of the kept record what the connection takes; returns whether nothing is left.
    fn push(&mut self) -> io::Result<bool> {
        while self.sent < self.sealed.len() {
            match self.half.try_send(&[Piece::Bytes(&self.sealed[self.sent..])]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        self.sealed.clear();
        self.sent = 0;
        Ok(true)
    }

    /// Copies bytes of the pieces, as many as fit into a record, or none of them.
    fn stage(&mut self, pieces: &[Piece<'_>]) -> io::Result<()> {
        self.plain.clear();
        for piece in pieces {
            let begin = self.plain.len();
            let count = piece.len().min(PLAIN_BYTES_MAX - begin);
            match piece {
                Piece::Bytes(bytes) => self.plain.extend_from_slice(&bytes[..count]),
                Piece::Memory { span, skip } => {
                    self.plain.resize(begin + count, 0);
                    let copied = span.copy_out(*skip, &mut self.plain[begin..]);
                    copied.map_err(|error| memory_error(0, error))?;
                }
            }
        }
        Ok(())
    }

    fn seal(&mut self) -> io::Result<()> {
        let bytes = self.plain.len() + TAG_BYTES;
        self.sealed.resize(LENGTH_BYTES + bytes, 0);
        let length = u16::try_from(bytes).map_err(|_| broken())?.to_le_bytes();
        self.sealed[..LENGTH_BYTES].copy_from_slice(&length);
        let written =
            self.session.write_message(self.next, &self.plain, &mut self.sealed[LENGTH_BYTES..]);
        written.map_err(|error| io::Error::other(error.to_string()))?;
        self.next += 1;
        Ok(())
    }
}

impl<W: StreamWriter> StreamWriter for SealedWriter<W> {
    async fn writable(&mut self) -> io::Result<()> {
        while !self.push()? {
            self.half.writable().await?;
        }
        Ok(())
    }

    async fn flush(&mut self) -> io::Result<()> {
        self.writable().await?;
        self.half.flush().await
    }

    fn try_send(&mut self, pieces: &[Piece<'_>]) -> io::Result<usize> {
        if !self.push()? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.stage(pieces)?;
        self.seal()?;
        self.push()?;
        Ok(self.plain.len())
    }
}

fn memory_error(lost: usize, error: MemoryError) -> io::Error {
    match error {
        MemoryError::Accelerator(_) => CopyFailed::wrap(lost, &error),
        other => io::Error::new(io::ErrorKind::InvalidInput, other),
    }
}

fn broken() -> io::Error {
    let text = "a record of the encrypted lane does not open: it was changed, repeated or left out";
    io::Error::new(io::ErrorKind::InvalidData, text)
}
