//! Sealed control connections: a Noise handshake with a pre-shared key, and records.
//! `handfast_core::auth` decides; `docs/wire.md` is the layout.

use super::frame::{OwnedFrame, ReadError};
use crate::api::auth::{AuthOptions, Secret};
use crate::error::{Cause, Error, Stage};
use handfast_core::auth::{
    AUTH_MAGIC, AUTH_MESSAGE_BYTES_MAX, AUTH_VERSION, AnswerSeen, AuthFailure, AuthHello,
    AuthHelloHead, AuthPolicy, AuthRefusal, Identity, Inbound, Outbound,
};
use handfast_core::wire::{
    FRAME_HEADER_BYTES, FrameError, FrameKind, decode_frame, encode_frame, frame_length,
};
use handfast_core::{Incarnation, NodeName};
use handfast_transport_tcp::{Look, Stream};
use snow::params::NoiseParams;
use snow::{Builder as Noise, HandshakeState, TransportState};
use std::io;
use std::sync::LazyLock;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};

/// The handshake: ephemeral keys of both sides, mixed with a key that they share. `docs/adr/0011-pre-shared-keys.md`.
const NOISE: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// Bytes of a length field.
const LENGTH_BYTES: usize = 2;
/// Bytes that sealing adds.
const TAG_BYTES: usize = 16;
/// Longest record, its tag included.
const RECORD_BYTES_MAX: usize = u16::MAX as usize;
/// Longest plain part of a record.
const CHUNK_BYTES_MAX: usize = RECORD_BYTES_MAX - TAG_BYTES;
/// Status of an answer that is no refusal.
const ACCEPTED: u8 = 0;

/// The keys of this node, or none.
pub(crate) struct Keys {
    policy: AuthPolicy,
    secrets: Vec<Secret>,
}

impl Keys {
    /// The keys of the node of a name; none: it is open.
    fn new(
        name: NodeName,
        incarnation: Incarnation,
        options: Option<&AuthOptions>,
    ) -> Result<Self, handfast_core::auth::KeyRuleError> {
        let keys = options.map(|options| options.keys.clone()).unwrap_or_default();
        let (rules, secrets) = keys.into_iter().unzip();
        let policy = AuthPolicy::new(Identity { name, incarnation }, rules)?;
        Ok(Self { policy, secrets })
    }

    /// The keys that the options name.
    ///
    /// # Errors
    /// [`Stage::Configuration`].
    pub(crate) fn of(
        options: Option<&AuthOptions>,
        name: &NodeName,
        incarnation: Incarnation,
    ) -> Result<Self, Error> {
        let keys = Self::new(name.clone(), incarnation, options);
        keys.map_err(|error| Error::local(Stage::Configuration, Cause::Invalid(error.to_string())))
    }

    pub(crate) fn policy(&self) -> &AuthPolicy {
        &self.policy
    }

    /// The handshake with a key. The readable head of the hello is bound to it.
    fn noise<'keys>(&'keys self, key: usize, head: &'keys [u8]) -> Option<Noise<'keys>> {
        static PARAMS: LazyLock<Option<NoiseParams>> = LazyLock::new(|| NOISE.parse().ok());
        let builder = Noise::new(PARAMS.clone()?).prologue(head).ok()?;
        builder.psk(0, &self.secrets.get(key)?.0).ok()
    }
}

/// Failures of the dialling side.
#[derive(Debug)]
pub(super) enum DialError {
    Auth(AuthFailure),
    Io(io::Error),
}

/// A connection for calls, plain or sealed.
pub(super) struct Channel<S> {
    stream: S,
    seal: Option<Box<TransportState>>,
    /// The dialling end of a sealed one.
    outbound: Outbound,
}

/// A connection that can be kept.
pub(super) trait Spare {
    type Raw: AsyncRead + Send + Unpin + 'static;

    fn raw(&mut self) -> &mut Self::Raw;
}

impl<S: Stream> Spare for Channel<S> {
    type Raw = S;

    fn raw(&mut self) -> &mut S {
        &mut self.stream
    }
}

impl<S: Stream> Channel<S> {
    /// Begins a connection to the node of a name, if it is known: with keys, both sides prove one.
    pub(super) async fn dial(
        mut stream: S,
        keys: &Keys,
        expected: Option<NodeName>,
        look: &Look,
    ) -> Result<Self, DialError> {
        let mut outbound = Outbound::new(expected);
        let Some((key, hello)) = outbound.hello(&keys.policy) else {
            return Ok(Self { stream, seal: None, outbound });
        };
        let unproven = || DialError::Auth(AuthFailure::Unproven);
        let id = keys.policy.keys()[key].id().to_owned();
        let head = AuthHelloHead { version: AUTH_VERSION, key: id }.encode();
        let noise = keys.noise(key, &head).and_then(|noise| noise.build_initiator().ok());
        let mut noise = noise.ok_or_else(unproven)?;
        let sealed = seal(&mut noise, &hello.encode()).ok_or_else(unproven)?;
        let message = message(&[&head, &sealed]);
        stream.write_all(&message).await.map_err(DialError::Io)?;
        stream.flush().await.map_err(DialError::Io)?;
        let seen = match receive_answer(&mut stream, look).await? {
            Some(answer) => open_answer(&mut noise, &answer),
            None => AnswerSeen::Nothing,
        };
        outbound.handle_answer(&keys.policy, seen).map_err(DialError::Auth)?;
        let seal = noise.into_transport_mode().map_err(|_| unproven())?;
        Ok(Self { stream, seal: Some(Box::new(seal)), outbound })
    }

    /// A connection that needs no proof: to a Mooncake node, from a node without keys.
    pub(super) fn plain(stream: S) -> Self {
        Self { stream, seal: None, outbound: Outbound::new(None) }
    }

    /// Whether a call to the node of a name may use this connection.
    pub(super) fn leads_to(&self, name: &NodeName) -> bool {
        self.outbound.peer().is_none_or(|peer| peer.name == *name)
    }

    /// The authenticated peer of a sealed connection.
    pub(super) fn peer(&self) -> Option<&Identity> {
        self.outbound.peer()
    }

    pub(super) async fn send(&mut self, kind: FrameKind, text: &str) -> io::Result<()> {
        send(&mut self.stream, self.seal.as_deref_mut(), kind, text).await
    }

    pub(super) async fn receive(
        &mut self,
        look: &Look,
        bytes_max: usize,
    ) -> Result<OwnedFrame, ReadError> {
        match &mut self.seal {
            Some(seal) => receive(&mut self.stream, seal, look, bytes_max).await,
            None => {
                let header = super::frame::read_header(&mut self.stream, look).await?;
                super::frame::read_frame(&mut self.stream, header, bytes_max).await
            }
        }
    }
}

/// The accepting side of a sealed connection.
pub(super) struct Accepted {
    seal: Box<TransportState>,
    pub(super) inbound: Inbound,
}

impl Accepted {
    /// Handles the rest of a connection that began with [`AUTH_MAGIC`]: reads the hello and answers it.
    ///
    /// # Errors
    /// The refusal, which was sent.
    pub(super) async fn begin<S: Stream>(stream: &mut S, keys: &Keys) -> Result<Self, ReadError> {
        let hello = read_message(stream).await?;
        let mut inbound = Inbound::default();
        match accept(keys, &mut inbound, &hello) {
            Ok((seal, answer)) => {
                stream.write_all(&message(&[&[ACCEPTED], &answer])).await?;
                stream.flush().await?;
                Ok(Self { seal: Box::new(seal), inbound })
            }
            Err(refusal) => {
                stream.write_all(&message(&[&[refusal as u8]])).await?;
                stream.shutdown().await?;
                Err(ReadError::Refused(refusal))
            }
        }
    }

    /// Reads a frame. The first proves that the hello was no repetition.
    pub(super) async fn receive<S: Stream>(
        &mut self,
        stream: &mut S,
        look: &Look,
        bytes_max: usize,
    ) -> Result<OwnedFrame, ReadError> {
        let frame = receive(stream, &mut self.seal, look, bytes_max).await;
        // The end of the connection proves nothing; a frame that is too long opened.
        let opened = matches!(frame, Ok(_) | Err(ReadError::Frame(_)));
        match (frame, self.inbound.handle_record(opened)) {
            (Ok(_), false) => Err(ReadError::Unsealed),
            (frame, _) => frame,
        }
    }

    pub(super) async fn send<S: Stream>(
        &mut self,
        stream: &mut S,
        kind: FrameKind,
        text: &str,
    ) -> io::Result<()> {
        send(stream, Some(&mut self.seal), kind, text).await
    }
}

fn accept(
    keys: &Keys,
    inbound: &mut Inbound,
    hello: &[u8],
) -> Result<(TransportState, Vec<u8>), AuthRefusal> {
    let policy = &keys.policy;
    let (head, sealed) = AuthHelloHead::decode(hello).map_err(|_| AuthRefusal::Unopened)?;
    let key = inbound.handle_head(policy, head.version, &head.key)?;
    let read = &hello[..hello.len() - sealed.len()];
    let mut noise = keys.noise(key, read).and_then(|noise| noise.build_responder().ok());
    let opened = noise.as_mut().and_then(|noise| open(noise, sealed));
    let opened = opened.and_then(|hello| AuthHello::decode(&hello).ok());
    inbound.handle_hello(policy, opened)?;
    let own = AuthHello { from: policy.own().clone(), to: None };
    let answered = noise.and_then(|mut noise| {
        let answer = seal(&mut noise, &own.encode())?;
        Some((noise.into_transport_mode().ok()?, answer))
    });
    answered.ok_or(AuthRefusal::Unopened)
}

fn seal(noise: &mut HandshakeState, content: &[u8]) -> Option<Vec<u8>> {
    let mut sealed = vec![0; AUTH_MESSAGE_BYTES_MAX];
    let length = noise.write_message(content, &mut sealed).ok()?;
    sealed.truncate(length);
    Some(sealed)
}

fn open(noise: &mut HandshakeState, sealed: &[u8]) -> Option<Vec<u8>> {
    let mut content = vec![0; AUTH_MESSAGE_BYTES_MAX];
    let length = noise.read_message(sealed, &mut content).ok()?;
    content.truncate(length);
    Some(content)
}

fn open_answer(noise: &mut HandshakeState, answer: &[u8]) -> AnswerSeen {
    match answer.split_first() {
        Some((&ACCEPTED, sealed)) => {
            let opened = open(noise, sealed).and_then(|hello| AuthHello::decode(&hello).ok());
            opened.map_or(AnswerSeen::Unopened, |hello| AnswerSeen::Opened(hello.from))
        }
        Some((status, _)) => {
            let refusal = AuthRefusal::ALL.into_iter().find(|it| *it as u8 == *status);
            refusal.map_or(AnswerSeen::Nothing, AnswerSeen::Refused)
        }
        None => AnswerSeen::Nothing,
    }
}

/// A hello or an answer: the magic, a length and the parts.
fn message(parts: &[&[u8]]) -> Vec<u8> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let mut bytes = AUTH_MAGIC.to_vec();
    bytes.extend_from_slice(&u16::try_from(length).unwrap_or_default().to_le_bytes());
    parts.iter().for_each(|part| bytes.extend_from_slice(part));
    bytes
}

/// Reads a message after its magic.
async fn read_message<S: Stream>(stream: &mut S) -> Result<Vec<u8>, ReadError> {
    let mut length = [0; LENGTH_BYTES];
    stream.read_exact(&mut length).await?;
    let length = usize::from(u16::from_le_bytes(length));
    if length == 0 || length > AUTH_MESSAGE_BYTES_MAX {
        return Err(ReadError::Unsealed);
    }
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

/// Reads the answer to a hello; `None` if the peer ended the connection or speaks another protocol.
async fn receive_answer<S: Stream>(
    stream: &mut S,
    look: &Look,
) -> Result<Option<Vec<u8>>, DialError> {
    match super::frame::read_header(stream, look).await {
        Ok(AUTH_MAGIC) => {}
        Ok(_) | Err(_) => return Ok(None),
    }
    match read_message(stream).await {
        Ok(answer) => Ok(Some(answer)),
        Err(ReadError::Io(error)) => Err(DialError::Io(error)),
        Err(_) => Ok(None),
    }
}

async fn send<S: Stream>(
    stream: &mut S,
    seal: Option<&mut TransportState>,
    kind: FrameKind,
    text: &str,
) -> io::Result<()> {
    let frame = encode_frame(kind, text);
    let Some(seal) = seal else {
        stream.write_all(&frame).await?;
        return stream.flush().await;
    };
    let failed = |error: snow::Error| io::Error::other(error.to_string());
    let mut record = vec![0; LENGTH_BYTES + frame.len().min(CHUNK_BYTES_MAX) + TAG_BYTES];
    for chunk in frame.chunks(CHUNK_BYTES_MAX) {
        let length = seal.write_message(chunk, &mut record[LENGTH_BYTES..]).map_err(failed)?;
        let announced = u16::try_from(length).unwrap_or_default().to_le_bytes();
        record[..LENGTH_BYTES].copy_from_slice(&announced);
        stream.write_all(&record[..LENGTH_BYTES + length]).await?;
    }
    stream.flush().await
}

/// Reads a sealed frame. Memory grows with the records that arrive and open.
async fn receive<S: Stream>(
    stream: &mut S,
    seal: &mut TransportState,
    look: &Look,
    bytes_max: usize,
) -> Result<OwnedFrame, ReadError> {
    let mut frame = read_record(stream, seal, Some(look)).await?;
    let Some(header) = frame.first_chunk::<FRAME_HEADER_BYTES>() else {
        return Err(FrameError::Short { received: 0, expected: FRAME_HEADER_BYTES }.into());
    };
    let expected = FRAME_HEADER_BYTES + frame_length(*header, bytes_max)?;
    while frame.len() < expected {
        let record = read_record(stream, seal, None).await?;
        frame.extend_from_slice(&record);
    }
    if frame.len() > expected {
        return Err(ReadError::Unsealed);
    }
    let frame = decode_frame(&frame, bytes_max)?;
    Ok(OwnedFrame { kind: frame.kind, text: frame.text.to_owned() })
}

async fn read_record<S: Stream>(
    stream: &mut S,
    seal: &mut TransportState,
    look: Option<&Look>,
) -> Result<Vec<u8>, ReadError> {
    let mut length = [0; LENGTH_BYTES];
    let read = match look {
        Some(look) => look.read(stream, &mut length).await.map_err(ReadError::Nothing)?,
        None => stream.read(&mut length).await?,
    };
    match read {
        0 if look.is_some() => {
            return Err(ReadError::Nothing(io::ErrorKind::UnexpectedEof.into()));
        }
        0 => return Err(ReadError::Io(io::ErrorKind::UnexpectedEof.into())),
        _ => stream.read_exact(&mut length[read..]).await?,
    };
    let length = usize::from(u16::from_le_bytes(length));
    // A frame has content, so each of its records has.
    if length <= TAG_BYTES {
        return Err(ReadError::Unsealed);
    }
    let mut sealed = vec![0; length];
    stream.read_exact(&mut sealed).await?;
    let mut content = vec![0; length - TAG_BYTES];
    let opened = seal.read_message(&sealed, &mut content).map_err(|_| ReadError::Unsealed)?;
    content.truncate(opened);
    Ok(content)
}

#[cfg(test)]
mod tests;
