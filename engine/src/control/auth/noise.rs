//! Sessions by a Noise handshake with a pre-shared key, and their records.

use super::{ACCEPTED, DialError, LENGTH_BYTES, Material, message, read_message, refusal_of};
use crate::control::frame::{OwnedFrame, ReadError};
use handfast_core::auth::{
    AUTH_MAGIC, AUTH_MESSAGE_BYTES_MAX, AUTH_VERSION, AnswerSeen, AuthHello, AuthHelloHead,
    AuthRefusal, Inbound,
};
use handfast_core::wire::{FRAME_HEADER_BYTES, FrameError, decode_frame, frame_length};
use handfast_transport_tcp::{Look, Stream};
use snow::params::NoiseParams;
use snow::{Builder as Noise, HandshakeState, TransportState};
use std::io;
use std::sync::LazyLock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// The handshake: ephemeral keys of both sides, mixed with a key that they share. `docs/adr/0011-pre-shared-keys.md`.
const NOISE: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// Bytes that sealing adds.
pub(super) const TAG_BYTES: usize = 16;
/// Longest record, its tag included.
const RECORD_BYTES_MAX: usize = u16::MAX as usize;
/// Longest plain part of a record.
pub(super) const CHUNK_BYTES_MAX: usize = RECORD_BYTES_MAX - TAG_BYTES;

/// The handshake with a key. The readable head of the hello is bound to it.
pub(super) fn noise<'keys>(
    material: &'keys Material,
    key: usize,
    head: &'keys [u8],
) -> Option<Noise<'keys>> {
    static PARAMS: LazyLock<Option<NoiseParams>> = LazyLock::new(|| NOISE.parse().ok());
    let builder = Noise::new(PARAMS.clone()?).prologue(head).ok()?;
    builder.psk(0, &material.secrets.get(key)?.0).ok()
}

/// The dialling side: the hello under a key, and the answer as it was seen.
pub(super) async fn dial<S: Stream>(
    stream: &mut S,
    material: &Material,
    (key, hello): (usize, &AuthHello),
    look: &Look,
) -> Result<(HandshakeState, AnswerSeen), DialError> {
    let id = material.policy.keys()[key].id().to_owned();
    let head = AuthHelloHead { version: AUTH_VERSION, key: id }.encode();
    let noise = noise(material, key, &head).and_then(|noise| noise.build_initiator().ok());
    let mut noise = noise.ok_or_else(DialError::unproven)?;
    let sealed = seal(&mut noise, &hello.encode()).ok_or_else(DialError::unproven)?;
    stream.write_all(&message(&[&head, &sealed])).await.map_err(DialError::Io)?;
    stream.flush().await.map_err(DialError::Io)?;
    let seen = match receive_answer(stream, look).await? {
        Some(answer) => open_answer(&mut noise, &answer),
        None => AnswerSeen::Nothing,
    };
    Ok((noise, seen))
}

/// The session of an accepted hello, the place of its key, and the answer.
pub(super) fn accept(
    material: &Material,
    inbound: &mut Inbound,
    hello: &[u8],
) -> Result<(TransportState, usize, Vec<u8>), AuthRefusal> {
    let policy = &material.policy;
    let (head, sealed) = AuthHelloHead::decode(hello).map_err(|_| AuthRefusal::Unopened)?;
    let key = inbound.handle_head(policy, head.version, &head.key)?;
    let read = &hello[..hello.len() - sealed.len()];
    let mut noise = noise(material, key, read).and_then(|noise| noise.build_responder().ok());
    let opened = noise.as_mut().and_then(|noise| open(noise, sealed));
    let opened = opened.and_then(|hello| AuthHello::decode(&hello).ok());
    inbound.handle_hello(policy, opened)?;
    let own = AuthHello { from: policy.own().clone(), to: None };
    let answered = noise.and_then(|mut noise| {
        let answer = seal(&mut noise, &own.encode())?;
        Some((noise.into_transport_mode().ok()?, key, answer))
    });
    answered.ok_or(AuthRefusal::Unopened)
}

pub(super) fn seal(noise: &mut HandshakeState, content: &[u8]) -> Option<Vec<u8>> {
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

pub(super) fn open_answer(noise: &mut HandshakeState, answer: &[u8]) -> AnswerSeen {
    match answer.split_first() {
        Some((&ACCEPTED, sealed)) => {
            let opened = open(noise, sealed).and_then(|hello| AuthHello::decode(&hello).ok());
            opened.map_or(AnswerSeen::Unopened, |hello| AnswerSeen::Opened(hello.from))
        }
        Some((status, _)) => refusal_of(*status).map_or(AnswerSeen::Nothing, AnswerSeen::Refused),
        None => AnswerSeen::Nothing,
    }
}

/// Reads the answer to a hello; `None` if the peer ended the connection or speaks another protocol.
async fn receive_answer<S: Stream>(
    stream: &mut S,
    look: &Look,
) -> Result<Option<Vec<u8>>, DialError> {
    match crate::control::frame::read_header(stream, look).await {
        Ok(AUTH_MAGIC) => {}
        Ok(_) | Err(_) => return Ok(None),
    }
    match read_message(stream).await {
        Ok(answer) => Ok(Some(answer)),
        Err(ReadError::Io(error)) => Err(DialError::Io(error)),
        Err(_) => Ok(None),
    }
}

pub(super) async fn send<S: Stream>(
    stream: &mut S,
    seal: &mut TransportState,
    frame: &[u8],
) -> io::Result<()> {
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
pub(super) async fn receive<S: Stream>(
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
