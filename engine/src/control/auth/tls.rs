//! A control connection through TLS. Bytes move here; `rustls` keeps the state.

use super::certificates::{Certificates, PROTOCOL};
use super::{ACCEPTED, DialError, message, read_message, refusal_of};
use crate::control::frame::{OwnedFrame, ReadError, read_header};
use handfast_core::auth::{
    AUTH_MAGIC, AUTH_MESSAGE_BYTES_MAX, AUTH_TLS, AnswerSeen, AuthHello, AuthHelloHead, AuthPolicy,
    AuthRefusal, CertificateFault, Inbound,
};
use handfast_core::wire::{FRAME_HEADER_BYTES, decode_frame, frame_length};
use handfast_transport_tcp::{Look, Stream};
use rustls::{AlertDescription, CertificateError, ClientConnection, Connection, ServerConnection};
use rustls_pki_types::{CertificateDer, ServerName};
use std::io::{self, Read, Write};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Bytes that are read at once.
const CHUNK_BYTES: usize = 4 << 10;
/// Bytes that are sealed at once, two records; fewer than a connection buffers.
const SENT_BYTES: usize = 32 << 10;
/// Most bytes that are read after a refusal, so that the refusal is not lost with them.
const DRAINED_BYTES_MAX: usize = 64 << 10;
/// Magic and length of a message inside of TLS.
const MESSAGE_HEADER_BYTES: usize = AUTH_MAGIC.len() + 2;

/// A peer's certificate, and those between it and an authority.
pub(super) type Chain = Vec<CertificateDer<'static>>;

/// The certificate of the peer itself.
pub(super) fn end_of(chain: &Chain) -> &[u8] {
    chain.first().map_or(&[], |end| end)
}

/// Plain text that `rustls` holds at most before it takes further bytes: that of one record.
const UNREAD_BYTES_MAX: usize = 16 << 10;

/// Both directions of one connection.
pub(super) struct Session {
    tls: Connection,
    /// Bytes that arrived and that `rustls` takes once the plain text before them is read.
    arrived: Vec<u8>,
}

impl Session {
    fn new(tls: impl Into<Connection>) -> Self {
        Self { tls: tls.into(), arrived: Vec::new() }
    }

    /// The dialling side: the handshake, this node's hello, and the answer as it was seen.
    pub(super) async fn dial<S: Stream>(
        stream: &mut S,
        certificates: &Certificates,
        hello: &AuthHello,
        look: &Look,
    ) -> Result<(Option<Self>, AnswerSeen), DialError> {
        // The name is compared once the peer has announced one.
        let unnamed = ServerName::try_from("handfast").map_err(|_| DialError::unproven())?;
        let connection = ClientConnection::new(certificates.client.clone(), unnamed);
        let mut session = Self::new(connection.map_err(|_| DialError::unproven())?);
        let mut first =
            message(&[&AuthHelloHead { version: AUTH_TLS, key: String::new() }.encode()]);
        session.take_pending(&mut first).map_err(DialError::Io)?;
        stream.write_all(&first).await.map_err(DialError::Io)?;
        stream.flush().await.map_err(DialError::Io)?;
        let header = match read_header(stream, look).await {
            Ok(AUTH_MAGIC) => {
                let answer = read_message(stream).await.ok();
                let status = answer.and_then(|answer| answer.first().copied());
                let seen =
                    status.and_then(refusal_of).map_or(AnswerSeen::Nothing, AnswerSeen::Refused);
                return Ok((None, seen));
            }
            Ok(header) => header,
            Err(_) => return Ok((None, AnswerSeen::Nothing)),
        };
        match session.greet(stream, certificates, hello, &header).await {
            Ok(seen) => Ok((Some(session), seen)),
            Err(TlsError::Io(error)) => Err(DialError::Io(error)),
            Err(TlsError::Tls(error)) => Ok((None, seen_of(&error, certificates))),
        }
    }

    async fn greet<S: Stream>(
        &mut self,
        stream: &mut S,
        certificates: &Certificates,
        hello: &AuthHello,
        header: &[u8],
    ) -> Result<AnswerSeen, TlsError> {
        self.arrived.extend(header);
        let fed = self.feed();
        self.flush_after(stream, fed).await?;
        self.handshake(stream).await?;
        if !self.has_protocol() {
            return Ok(AnswerSeen::Faulty(CertificateFault::Unusable));
        }
        self.tls.writer().write_all(&message(&[&hello.encode()]))?;
        self.flush(stream).await?;
        let answer = self.read_message(stream).await?;
        Ok(match answer.split_first() {
            Some((&ACCEPTED, answer)) => match AuthHello::decode(answer) {
                Ok(answer) => {
                    let chain = self.tls.peer_certificates().unwrap_or_default();
                    let names_peer = certificates.names(chain, &answer.from.name);
                    AnswerSeen::Certified(answer.from, names_peer)
                }
                Err(_) => AnswerSeen::Nothing,
            },
            Some((status, _)) => {
                refusal_of(*status).map_or(AnswerSeen::Nothing, AnswerSeen::Refused)
            }
            None => AnswerSeen::Nothing,
        })
    }

    /// The accepting side, after the hello: the handshake, the peer's hello and the answer.
    ///
    /// # Errors
    /// The refusal, which was sent.
    pub(super) async fn accept<S: Stream>(
        stream: &mut S,
        certificates: &Certificates,
        policy: &AuthPolicy,
        inbound: &mut Inbound,
    ) -> Result<Self, ReadError> {
        let connection = ServerConnection::new(certificates.server.clone());
        let mut session = Self::new(connection.map_err(|_| ReadError::Unsealed)?);
        let hello = match session.receive_hello(stream).await {
            Ok(hello) => hello,
            Err(TlsError::Io(error)) => return Err(error.into()),
            Err(TlsError::Tls(error)) => {
                session.end(stream).await?;
                let Some(fault) = fault_of(&error) else { return Err(ReadError::Unsealed) };
                let refused = inbound.handle_certificate(policy, Err(fault));
                return Err(refused.map_or_else(ReadError::Refused, |()| ReadError::Unsealed));
            }
        };
        let presented = match AuthHello::decode(&hello) {
            Ok(hello) if session.has_protocol() => {
                let chain = session.tls.peer_certificates().unwrap_or_default();
                let names_peer = certificates.names(chain, &hello.from.name);
                Ok((hello, names_peer))
            }
            _ => Err(CertificateFault::Unusable),
        };
        match inbound.handle_certificate(policy, presented) {
            Ok(()) => {
                let own = AuthHello { from: policy.own().clone(), to: None };
                session.send(stream, &message(&[&[ACCEPTED], &own.encode()])).await?;
                Ok(session)
            }
            Err(refusal) => {
                session.send(stream, &message(&[&[refusal as u8]])).await?;
                session.end(stream).await?;
                Err(ReadError::Refused(refusal))
            }
        }
    }

    /// Whether both sides have named the protocol in the handshake.
    fn has_protocol(&self) -> bool {
        self.tls.alpn_protocol() == Some(PROTOCOL)
    }

    async fn receive_hello<S: Stream>(&mut self, stream: &mut S) -> Result<Vec<u8>, TlsError> {
        self.handshake(stream).await?;
        self.read_message(stream).await
    }

    /// The peer's certificate, and those between it and an authority.
    pub(super) fn chain(&self) -> Option<Chain> {
        self.tls.peer_certificates().map(<[_]>::to_vec)
    }

    pub(super) async fn send<S: Stream>(&mut self, stream: &mut S, bytes: &[u8]) -> io::Result<()> {
        for part in bytes.chunks(SENT_BYTES) {
            self.tls.writer().write_all(part)?;
            self.flush(stream).await?;
        }
        Ok(())
    }

    /// Seals a few bytes, for a test that changes them.
    pub(super) fn sealed(&mut self, bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut sealed = Vec::new();
        for part in bytes.chunks(SENT_BYTES) {
            self.tls.writer().write_all(part)?;
            self.take_pending(&mut sealed)?;
        }
        Ok(sealed)
    }

    /// Reads a frame. Memory grows with the bytes that arrive and open.
    pub(super) async fn receive<S: Stream>(
        &mut self,
        stream: &mut S,
        look: &Look,
        bytes_max: usize,
    ) -> Result<OwnedFrame, ReadError> {
        let mut frame = Vec::new();
        let begun = self.read_to(stream, Some(look), &mut frame, FRAME_HEADER_BYTES).await;
        begun.map_err(|error| match error {
            TlsError::Io(error) if frame.is_empty() => ReadError::Nothing(error),
            error => error.into_read_error(),
        })?;
        let header = frame.first_chunk().copied().unwrap_or_default();
        let expected = FRAME_HEADER_BYTES + frame_length(header, bytes_max)?;
        let read = self.read_to(stream, None, &mut frame, expected).await;
        read.map_err(TlsError::into_read_error)?;
        let frame = decode_frame(&frame, bytes_max)?;
        Ok(OwnedFrame { kind: frame.kind, text: frame.text.to_owned() })
    }

    async fn handshake<S: Stream>(&mut self, stream: &mut S) -> Result<(), TlsError> {
        while self.tls.is_handshaking() {
            self.flush(stream).await?;
            // The last flight of the dialling side leaves with its hello.
            if self.tls.is_handshaking() && self.fill(stream, None).await? == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
        }
        Ok(())
    }

    async fn read_message<S: Stream>(&mut self, stream: &mut S) -> Result<Vec<u8>, TlsError> {
        let invalid = || rustls::Error::General("no message of authentication".into());
        let mut bytes = Vec::new();
        self.read_to(stream, None, &mut bytes, MESSAGE_HEADER_BYTES).await?;
        let length = usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
        if bytes[..8] != AUTH_MAGIC || length == 0 || length > AUTH_MESSAGE_BYTES_MAX {
            return Err(invalid().into());
        }
        self.read_to(stream, None, &mut bytes, MESSAGE_HEADER_BYTES + length).await?;
        Ok(bytes.split_off(MESSAGE_HEADER_BYTES))
    }

    /// Reads until there are `length` bytes, and none beyond.
    async fn read_to<S: Stream>(
        &mut self,
        stream: &mut S,
        look: Option<&Look>,
        bytes: &mut Vec<u8>,
        length: usize,
    ) -> Result<(), TlsError> {
        let ended = || TlsError::Io(io::ErrorKind::UnexpectedEof.into());
        while bytes.len() < length {
            let begun = bytes.len();
            bytes.resize(length.min(begun + CHUNK_BYTES), 0);
            let read = self.tls.reader().read(&mut bytes[begun..]);
            bytes.truncate(begun + *read.as_ref().unwrap_or(&0));
            match read {
                Ok(0) => return Err(ended()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if self.fill(stream, look).await? == 0 {
                        return Err(ended());
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Takes what has arrived, at least one byte; 0 is the end of the stream.
    async fn fill<S: Stream>(
        &mut self,
        stream: &mut S,
        look: Option<&Look>,
    ) -> Result<usize, TlsError> {
        if self.arrived.is_empty() {
            let mut chunk = vec![0; CHUNK_BYTES];
            let read = match look {
                Some(look) => look.read(stream, &mut chunk).await?,
                None => stream.read(&mut chunk).await?,
            };
            chunk.truncate(read);
            self.arrived = chunk;
        }
        let held = self.arrived.len();
        let fed = self.feed();
        self.flush_after(stream, fed).await?;
        Ok(held)
    }

    /// Gives `rustls` the bytes that have arrived, until it holds the plain text of a record.
    fn feed(&mut self) -> Result<(), TlsError> {
        let arrived = std::mem::take(&mut self.arrived);
        let mut rest = &arrived[..];
        let mut unread = 0;
        while !rest.is_empty() && unread < UNREAD_BYTES_MAX {
            if self.tls.read_tls(&mut rest)? == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            unread = self.tls.process_new_packets()?.plaintext_bytes_to_read();
        }
        self.arrived = rest.to_vec();
        Ok(())
    }

    /// An alert says why the connection ends.
    async fn flush_after<S: Stream>(
        &mut self,
        stream: &mut S,
        fed: Result<(), TlsError>,
    ) -> Result<(), TlsError> {
        if fed.is_err() {
            self.flush(stream).await?;
        }
        fed
    }

    fn take_pending(&mut self, bytes: &mut Vec<u8>) -> io::Result<()> {
        while self.tls.wants_write() {
            self.tls.write_tls(bytes)?;
        }
        Ok(())
    }

    async fn flush<S: Stream>(&mut self, stream: &mut S) -> io::Result<()> {
        let mut pending = Vec::new();
        self.take_pending(&mut pending)?;
        if !pending.is_empty() {
            stream.write_all(&pending).await?;
            stream.flush().await?;
        }
        Ok(())
    }

    /// Ends a connection that was refused. Bytes that nobody reads would discard the refusal on its way.
    async fn end<S: Stream>(&mut self, stream: &mut S) -> io::Result<()> {
        stream.shutdown().await?;
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut drained = 0;
        while drained < DRAINED_BYTES_MAX {
            match stream.read(&mut chunk).await {
                Ok(0) | Err(_) => break,
                Ok(read) => drained += read,
            }
        }
        Ok(())
    }
}

enum TlsError {
    Io(io::Error),
    Tls(rustls::Error),
}

impl From<io::Error> for TlsError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<rustls::Error> for TlsError {
    fn from(error: rustls::Error) -> Self {
        Self::Tls(error)
    }
}

impl TlsError {
    fn into_read_error(self) -> ReadError {
        match self {
            Self::Io(error) => ReadError::Io(error),
            Self::Tls(_) => ReadError::Unsealed,
        }
    }
}

/// The fault of the peer's certificate, if that is the error.
fn fault_of(error: &rustls::Error) -> Option<CertificateFault> {
    match error {
        rustls::Error::InvalidCertificate(CertificateError::Expired) => {
            Some(CertificateFault::Expired)
        }
        rustls::Error::InvalidCertificate(CertificateError::NotValidYet) => {
            Some(CertificateFault::NotYetValid)
        }
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            Some(CertificateFault::UnknownAuthority)
        }
        rustls::Error::InvalidCertificate(CertificateError::Revoked) => {
            Some(CertificateFault::Revoked)
        }
        rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented => {
            Some(CertificateFault::Unusable)
        }
        _ => None,
    }
}

/// A failed handshake as the dialling side sees it. One alert stands for both ends of a validity: this
/// node's own clock decides.
fn seen_of(error: &rustls::Error, certificates: &Certificates) -> AnswerSeen {
    let rustls::Error::AlertReceived(alert) = error else {
        return fault_of(error).map_or(AnswerSeen::Unopened, AnswerSeen::Faulty);
    };
    AnswerSeen::Refused(match alert {
        AlertDescription::CertificateExpired => match certificates.fault_now() {
            Some(CertificateFault::NotYetValid) => AuthRefusal::NotYetValid,
            _ => AuthRefusal::Expired,
        },
        AlertDescription::CertificateRevoked => AuthRefusal::Revoked,
        AlertDescription::UnknownCA => AuthRefusal::UnknownAuthority,
        _ => AuthRefusal::Unusable,
    })
}
