//! Authenticated control connections: by a Noise handshake with a pre-shared key, or through TLS with
//! certificates. `handfast_core::auth` decides; `docs/wire.md` is the layout.

use super::frame::{OwnedFrame, ReadError};
use crate::api::auth::{AuthOptions, Loaded, Secret};
use crate::error::{Cause, Error, Stage};
use handfast_core::auth::{
    AUTH_MAGIC, AUTH_MESSAGE_BYTES_MAX, AUTH_TLS, AuthFailure, AuthPolicy, AuthRefusal, Identity,
    Inbound, KeyRule, Outbound, ProofLook,
};
use handfast_core::policy::{Administrators, TrustGroups};
use handfast_core::transport::Side;
use handfast_core::wire::{FrameKind, encode_frame};
use handfast_core::{Incarnation, NodeName};
use handfast_transport_tcp::{Look, Stream};
use parking_lot::RwLock;
use snow::TransportState;
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};

#[cfg(feature = "tls")]
pub(crate) mod certificates;
pub(crate) mod fuzzing;
mod noise;
mod proven;
pub(crate) mod reload;
#[cfg(feature = "tls")]
mod revocations;
#[cfg(feature = "tls")]
mod tls;
#[cfg(not(feature = "tls"))]
#[path = "auth/tls_absent.rs"]
mod tls;

#[cfg(not(feature = "tls"))]
pub(crate) use tls::certificates;

use certificates::Certificates;
pub(crate) use proven::Member;
use proven::{Proved, Proven, Withdrawn};

/// Bytes of a length field.
const LENGTH_BYTES: usize = 2;
/// Status of an answer that is no refusal.
const ACCEPTED: u8 = 0;

/// The keys or the certificate of this node, or neither. They are replaced when their files change.
pub(crate) struct Keys {
    is_open: bool,
    current: RwLock<Arc<Material>>,
    proven: Proven,
}

/// The keys or the certificate at one time.
pub(crate) struct Material {
    pub(crate) policy: AuthPolicy,
    secrets: Vec<Secret>,
    certificates: Option<Arc<Certificates>>,
}

impl Material {
    /// Keys, certificates or both; the node dials by the first.
    fn new(
        own: Identity,
        loaded: Vec<Loaded>,
        epoch: u64,
    ) -> Result<Self, handfast_core::auth::KeyRuleError> {
        let first = loaded.first().map(Loaded::method);
        let (mut rules, mut secrets, mut certificates) = (Vec::new(), Vec::new(), None);
        for part in loaded {
            match part {
                Loaded::Certificates(part) => certificates = Some(part),
                Loaded::Keys(keys) => (rules, secrets) = keys.into_iter().unzip(),
            }
        }
        let mut policy = AuthPolicy::new(own, rules)?;
        if let (Some(_), Some(first)) = (&certificates, first) {
            policy = policy.with_certificates(first);
        }
        Ok(Self { policy: policy.at_epoch(epoch), secrets, certificates })
    }

    /// The proof of a session with a key.
    fn proved(&self, key: usize) -> Option<Proved> {
        let (rule, secret) = (self.policy.keys().get(key)?, self.secrets.get(key)?);
        Some(Proved::Key { rule: rule.clone(), secret: secret.clone() })
    }
}

impl Keys {
    /// The keys of the node of a name; none: it is open.
    fn new(
        name: NodeName,
        incarnation: Incarnation,
        options: Option<&AuthOptions>,
    ) -> Result<Self, handfast_core::auth::KeyRuleError> {
        let parts = options.map_or(&[][..], |options| &options.parts);
        let loaded = parts.iter().map(|part| part.loaded.clone()).collect();
        let material = Material::new(Identity { name, incarnation }, loaded, 0)?;
        let is_open = material.policy.is_open();
        let current = RwLock::new(Arc::new(material));
        Ok(Self { is_open, current, proven: Proven::default() })
    }

    /// The keys or the certificate that the options name.
    ///
    /// # Errors
    /// [`Stage::Configuration`]: the certificate is not valid, or has another name than this node.
    pub(crate) fn of(
        options: Option<&AuthOptions>,
        name: &NodeName,
        incarnation: Incarnation,
    ) -> Result<Self, Error> {
        let invalid = |cause| Error::new(Side::Configuration, Stage::Configuration, cause);
        if let Some(own) = options.and_then(AuthOptions::certificates) {
            own.check(name).map_err(|failure| invalid(Cause::Auth(failure)))?;
        }
        let keys = Self::new(name.clone(), incarnation, options);
        keys.map_err(|error| Error::local(Stage::Configuration, Cause::Invalid(error.to_string())))
    }

    /// Whether the node has neither keys nor a certificate, which no change of files changes.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open
    }

    /// The keys or the certificate now.
    pub(crate) fn current(&self) -> Arc<Material> {
        self.current.read().clone()
    }

    /// Warnings of a key whose holders can call themselves administrators, and of one whose holders can choose
    /// their trust group.
    pub(crate) fn warnings(
        &self,
        administrators: &Administrators,
        trust: &TrustGroups,
    ) -> impl Iterator<Item = String> {
        let material = self.current();
        let id = |can_choose: &dyn Fn(&KeyRule) -> bool| {
            let key = material.policy.keys().iter().find(|key| can_choose(key))?;
            Some(key.id().to_owned())
        };
        let administrator = id(&|key| administrators.can_be_chosen_with(key)).map(|key| {
            format!(
                "each holder of the key {key} can call itself an administrator: its line has no names, or those \
                 of others too; write the names of its holders after its secret"
            )
        });
        let group = id(&|key| trust.can_be_chosen_with(key)).map(|key| {
            format!(
                "each holder of the key {key} can choose its trust group: its line has no names, or those of \
                 several groups; write the names of its holders after its secret"
            )
        });
        administrator.into_iter().chain(group)
    }

    /// Peers that have proven what is not accepted any more, as [`Proven::take_withdrawn`].
    fn take_withdrawn(&self, look: ProofLook) -> Withdrawn {
        self.proven.take_withdrawn(self.current(), look)
    }

    /// Whether it is remembered what a peer with a lane proved, as [`Proven::keeps`].
    fn keeps(&self, peer: &NodeName) -> bool {
        self.proven.keeps(peer)
    }

    /// Replaces them, for new connections and for the next call of each present one.
    fn replace(&self, loaded: Vec<Loaded>) -> Result<(), handfast_core::auth::KeyRuleError> {
        let before = self.current();
        let own = before.policy.own().clone();
        let next = Material::new(own, loaded, before.policy.epoch() + 1)?;
        *self.current.write() = Arc::new(next);
        Ok(())
    }

    /// Lets each session be checked at its next call, as after a change.
    fn look_again(&self) {
        let before = self.current();
        let policy = before.policy.clone().at_epoch(before.policy.epoch() + 1);
        let (secrets, certificates) = (before.secrets.clone(), before.certificates.clone());
        *self.current.write() = Arc::new(Material { policy, secrets, certificates });
    }
}

/// Failures of the dialling side.
#[derive(Debug)]
pub(super) enum DialError {
    Auth(AuthFailure),
    Io(io::Error),
}

impl DialError {
    fn unproven() -> Self {
        Self::Auth(AuthFailure::Unproven)
    }
}

/// The cipher of a connection.
enum Seal {
    Noise(Box<TransportState>),
    Tls(Box<tls::Session>),
}

impl Seal {
    async fn send<S: Stream>(
        &mut self,
        stream: &mut S,
        kind: FrameKind,
        text: &str,
    ) -> io::Result<()> {
        let frame = encode_frame(kind, text);
        match self {
            Self::Noise(state) => noise::send(stream, state, &frame).await,
            Self::Tls(session) => session.send(stream, &frame).await,
        }
    }

    async fn receive<S: Stream>(
        &mut self,
        stream: &mut S,
        look: &Look,
        bytes_max: usize,
    ) -> Result<OwnedFrame, ReadError> {
        match self {
            Self::Noise(state) => noise::receive(stream, state, look, bytes_max).await,
            Self::Tls(session) => session.receive(stream, look, bytes_max).await,
        }
    }
}

/// A connection for calls, plain or sealed.
pub(super) struct Channel<S> {
    stream: S,
    seal: Option<Seal>,
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
    /// Begins a connection: with keys or certificates, both sides prove one.
    pub(super) async fn dial(
        mut stream: S,
        keys: &Keys,
        mut outbound: Outbound,
        look: &Look,
    ) -> Result<Self, DialError> {
        let material = keys.current();
        let policy = &material.policy;
        let Some((key, hello)) = outbound.hello(policy) else {
            return Ok(Self { stream, seal: None, outbound });
        };
        let (seal, proved) = match (key, &material.certificates) {
            (Some(key), _) => {
                let dialled = noise::dial(&mut stream, &material, (key, &hello), look).await?;
                outbound.handle_answer(policy, dialled.1).map_err(DialError::Auth)?;
                let state = dialled.0.into_transport_mode().map_err(|_| DialError::unproven())?;
                (Seal::Noise(Box::new(state)), material.proved(key))
            }
            (None, Some(certificates)) => {
                let dialled = tls::Session::dial(&mut stream, certificates, &hello, look).await?;
                outbound.handle_answer(policy, dialled.1).map_err(DialError::Auth)?;
                let session = dialled.0.ok_or_else(DialError::unproven)?;
                let proved = session.chain().map(Proved::Certificate);
                (Seal::Tls(Box::new(session)), proved)
            }
            (None, None) => return Err(DialError::unproven()),
        };
        if let (Some(peer), Some(proved)) = (outbound.peer(), proved) {
            keys.proven.note(&peer.name, Arc::new(proved));
        }
        Ok(Self { stream, seal: Some(seal), outbound })
    }

    /// A connection that needs no proof: to a Mooncake node, from a node without keys.
    pub(super) fn plain(stream: S) -> Self {
        Self { stream, seal: None, outbound: Outbound::new(None) }
    }

    /// Whether a call to the node of a name may use this connection: under the present keys, and to
    /// its peer alone.
    pub(super) fn leads_to(&self, keys: &Keys, name: &NodeName) -> bool {
        let is_peer = |peer: &Identity| {
            peer.name == *name && self.outbound.is_current(&keys.current().policy)
        };
        self.outbound.peer().is_none_or(is_peer)
    }

    /// The authenticated peer of a sealed connection.
    pub(super) fn peer(&self) -> Option<&Identity> {
        self.outbound.peer()
    }

    pub(super) async fn send(&mut self, kind: FrameKind, text: &str) -> io::Result<()> {
        let Some(seal) = &mut self.seal else {
            self.stream.write_all(&encode_frame(kind, text)).await?;
            return self.stream.flush().await;
        };
        seal.send(&mut self.stream, kind, text).await
    }

    pub(super) async fn receive(
        &mut self,
        look: &Look,
        bytes_max: usize,
    ) -> Result<OwnedFrame, ReadError> {
        match &mut self.seal {
            Some(seal) => seal.receive(&mut self.stream, look, bytes_max).await,
            None => {
                let header = super::frame::read_header(&mut self.stream, look).await?;
                super::frame::read_frame(&mut self.stream, header, bytes_max).await
            }
        }
    }
}

/// The peer of an accepted connection.
#[derive(Clone, Copy)]
pub(crate) struct Caller<'a> {
    pub(super) inbound: &'a Inbound,
    /// Its proof, on a sealed connection.
    proved: Option<&'a Proved>,
}

impl<'a> Caller<'a> {
    /// The peer of a plain connection.
    pub(super) fn plain(inbound: &'a Inbound) -> Self {
        Self { inbound, proved: None }
    }

    /// The holders of the key or certificate that it proved.
    pub(super) fn member(self) -> Option<Member> {
        self.proved.map(Proved::member)
    }
}

/// The accepting side of a sealed connection.
pub(super) struct Accepted {
    seal: Seal,
    /// The proof of the peer.
    proved: Arc<Proved>,
    is_noted: bool,
    material: Arc<Material>,
    pub(super) inbound: Inbound,
}

impl Accepted {
    /// Handles the rest of a connection that began with [`AUTH_MAGIC`]: reads the hello and answers it.
    ///
    /// # Errors
    /// The refusal, which was sent.
    pub(super) async fn begin<S: Stream>(stream: &mut S, keys: &Keys) -> Result<Self, ReadError> {
        let (material, hello) = (keys.current(), read_message(stream).await?);
        let mut inbound = Inbound::default();
        if hello.first() == Some(&AUTH_TLS) {
            return Self::begin_tls(stream, material, inbound).await;
        }
        match noise::accept(&material, &mut inbound, &hello) {
            Ok((state, key, answer)) => {
                stream.write_all(&message(&[&[ACCEPTED], &answer])).await?;
                stream.flush().await?;
                let proved = material.proved(key).ok_or(ReadError::Unsealed)?;
                Ok(Self::new(Seal::Noise(Box::new(state)), proved, material, inbound))
            }
            Err(refusal) => Err(refuse(stream, refusal).await?),
        }
    }

    async fn begin_tls<S: Stream>(
        stream: &mut S,
        material: Arc<Material>,
        mut inbound: Inbound,
    ) -> Result<Self, ReadError> {
        let policy = &material.policy;
        if let Err(refusal) = inbound.handle_tls(policy, AUTH_TLS) {
            return Err(refuse(stream, refusal).await?);
        }
        let Some(certificates) = &material.certificates else { return Err(ReadError::Unsealed) };
        let session = tls::Session::accept(stream, certificates, policy, &mut inbound).await?;
        let proved = session.chain().map(Proved::Certificate).ok_or(ReadError::Unsealed)?;
        Ok(Self::new(Seal::Tls(Box::new(session)), proved, material, inbound))
    }

    /// The peer.
    pub(super) fn caller(&self) -> Caller<'_> {
        Caller { inbound: &self.inbound, proved: Some(&self.proved) }
    }

    fn new(seal: Seal, proved: Proved, material: Arc<Material>, inbound: Inbound) -> Self {
        Self { seal, proved: Arc::new(proved), is_noted: false, material, inbound }
    }

    /// Reads a frame. The first proves that the hello was no repetition. A change of the files since
    /// the last one ends the session if what the peer proved is not accepted any more.
    pub(super) async fn receive<S: Stream>(
        &mut self,
        stream: &mut S,
        keys: &Keys,
        look: &Look,
        bytes_max: usize,
    ) -> Result<OwnedFrame, ReadError> {
        let frame = self.seal.receive(stream, look, bytes_max).await;
        // The end of the connection proves nothing; a frame that is too long opened.
        let opened = matches!(frame, Ok(_) | Err(ReadError::Frame(_)));
        let current = keys.current();
        if current.policy.epoch() != self.material.policy.epoch() {
            let peer = self.inbound.announced();
            let proof = peer.and_then(|peer| self.proved.under(&current, &peer.name));
            self.inbound.handle_change(&current.policy, proof);
            self.material = current;
            // A proof that was not accepted for a time is forgotten.
            self.is_noted = false;
        }
        if !self.inbound.handle_record(&self.material.policy, opened) {
            return frame.and(Err(ReadError::Withdrawn));
        }
        if let (false, Some(peer)) = (self.is_noted, self.inbound.peer()) {
            keys.proven.note(&peer.name, self.proved.clone());
            self.is_noted = true;
        }
        frame
    }

    pub(super) async fn send<S: Stream>(
        &mut self,
        stream: &mut S,
        kind: FrameKind,
        text: &str,
    ) -> io::Result<()> {
        self.seal.send(stream, kind, text).await
    }
}

/// Sends a refusal that is not sealed. It ends the connection and changes nothing else.
async fn refuse<S: Stream>(stream: &mut S, refusal: AuthRefusal) -> io::Result<ReadError> {
    stream.write_all(&message(&[&[refusal as u8]])).await?;
    stream.shutdown().await?;
    Ok(ReadError::Refused(refusal))
}

fn refusal_of(status: u8) -> Option<AuthRefusal> {
    AuthRefusal::ALL.into_iter().find(|it| *it as u8 == status)
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

#[cfg(test)]
mod tests;
