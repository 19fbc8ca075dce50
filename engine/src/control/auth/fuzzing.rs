//! Sessions whose records a fuzz target makes.

use super::{Accepted, Channel, Keys, LENGTH_BYTES, Seal, noise};
use crate::api::auth::{AuthOptions, invalid};
use crate::error::Error;
use handfast_core::auth::Outbound;
use handfast_core::wire::{FRAME_BYTES_DEFAULT_MAX, FrameKind};
use handfast_core::{Incarnation, NodeName};
use handfast_transport_tcp::{Look, Stream};
use std::io;
use tokio::io::AsyncReadExt;

#[cfg(feature = "tls")]
pub use certified::{ListRead, revocation_list};

/// Longest plain part of a record of [`End::seal`].
pub const RECORD_PLAIN_BYTES_MAX: usize = noise::CHUNK_BYTES_MAX;

/// Two nodes that accept each other: the dialling one and the accepting one.
pub struct Nodes([Keys; 2]);

/// One end of a session.
pub struct End(Seal);

impl Nodes {
    /// Nodes with the same keys.
    ///
    /// # Errors
    /// As [`AuthOptions::psk`].
    pub fn with_keys(keys: &str) -> Result<Self, Error> {
        let options = AuthOptions::psk(keys)?;
        Self::new([("dialling", &options), ("accepting", &options)])
    }

    fn new(nodes: [(&str, &AuthOptions); 2]) -> Result<Self, Error> {
        let of = |(name, options): (&str, &AuthOptions), run| {
            let name = NodeName::new(name);
            let name = name.map_err(|error| invalid(error.to_string()))?;
            Keys::of(Some(options), &name, Incarnation(run))
        };
        let [dialling, accepting] = nodes;
        Ok(Self([of(dialling, 1)?, of(accepting, 2)?]))
    }

    /// Opens a session over the two sides of a connection. Returns its ends with their sides, the dialling one
    /// first; `None` if it does not open.
    pub async fn open<S: Stream>(&self, near: S, mut far: S) -> Option<[(End, S); 2]> {
        let ([dialling, accepting], look) = (&self.0, Look::never());
        let accepted = async {
            let mut magic = [0; 8];
            far.read_exact(&mut magic).await.ok()?;
            Accepted::begin(&mut far, accepting).await.ok()
        };
        let (dialled, accepted) =
            tokio::join!(Channel::dial(near, dialling, Outbound::new(None), &look), accepted);
        let (dialled, accepted) = (dialled.ok()?, accepted?);
        Some([(End(dialled.seal?), dialled.stream), (End(accepted.seal), far)])
    }
}

impl End {
    /// The records of a plain text: of a session by keys one, of a session through TLS as many as it takes.
    ///
    /// # Errors
    /// The text is longer than [`RECORD_PLAIN_BYTES_MAX`].
    pub fn seal(&mut self, plain: &[u8]) -> io::Result<Vec<u8>> {
        match &mut self.0 {
            Seal::Noise(state) => {
                let mut record = vec![0; LENGTH_BYTES + plain.len() + noise::TAG_BYTES];
                let sealed = state.write_message(plain, &mut record[LENGTH_BYTES..]);
                let length = sealed.map_err(|error| io::Error::other(error.to_string()))?;
                let length = u16::try_from(length).map_err(io::Error::other)?;
                record[..LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
                Ok(record)
            }
            Seal::Tls(session) => session.sealed(plain),
        }
    }

    /// Reads a frame, as the end does for each call.
    ///
    /// # Errors
    /// The text of the error.
    pub async fn receive<S: Stream>(
        &mut self,
        stream: &mut S,
    ) -> Result<(FrameKind, String), String> {
        let received = self.0.receive(stream, &Look::never(), FRAME_BYTES_DEFAULT_MAX).await;
        received.map(|frame| (frame.kind, frame.text)).map_err(|error| error.to_string())
    }
}

#[cfg(feature = "tls")]
mod certified {
    use super::super::certificates::{Certificates, Lists, Texts};
    use super::super::revocations::{Signers, public_key, signed};
    use super::Nodes;
    use crate::api::auth::{AuthOptions, Loaded, Part, invalid};
    use crate::error::Error;
    use rustls_pki_types::CertificateDer;
    use rustls_pki_types::pem::PemObject;
    use std::sync::Arc;
    use webpki::{CertRevocationList, OwnedCertRevocationList};

    impl Nodes {
        /// Nodes with certificates of one authority: name, certificate and private key of each, in PEM.
        ///
        /// # Errors
        /// As [`AuthOptions::tls`].
        pub fn with_certificates(
            authority: &str,
            nodes: [(&str, &str, &str); 2],
        ) -> Result<Self, Error> {
            let of = |(_, certificate, key): (&str, &str, &str)| {
                let texts = Texts {
                    authority: authority.into(),
                    certificate: certificate.into(),
                    key: key.into(),
                    revocations: Vec::new(),
                };
                let own = Certificates::new(&texts, Lists::Checked);
                let own = own.map_err(|(_, text)| invalid(text))?;
                let loaded = Loaded::Certificates(Arc::new(own));
                Ok::<_, Error>(AuthOptions { parts: vec![Part { loaded, source: None }] })
            };
            let options = [of(nodes[0])?, of(nodes[1])?];
            Self::new([(nodes[0].0, &options[0]), (nodes[1].0, &options[1])])
        }
    }

    /// Some bytes, read as a revocation list and as a public key.
    #[derive(Debug)]
    pub struct ListRead<'a> {
        /// Whether `webpki` takes them for a list.
        pub is_list: bool,
        /// The signed bytes, the identifier of the algorithm and the signature.
        pub signed: Option<[&'a [u8]; 3]>,
        /// The identifier of the algorithm of a key, and the key.
        pub key: Option<[&'a [u8]; 2]>,
        /// Of a list whether the authority has its issuer's name and has signed it, or the refusal.
        pub checked: Option<Result<bool, &'static str>>,
    }

    /// Reads bytes as a revocation list at a node that trusts an authority, in PEM.
    ///
    /// # Errors
    /// The fault of the authority.
    pub fn revocation_list<'a>(authority: &str, der: &'a [u8]) -> Result<ListRead<'a>, String> {
        let authority = CertificateDer::from_pem_slice(authority.as_bytes());
        let authority = authority.map_err(|error| error.to_string())?;
        let anchor = webpki::anchor_from_trusted_cert(&authority);
        let anchor = [anchor.map_err(|error| error.to_string())?];
        let algorithms = rustls::crypto::ring::default_provider().signature_verification_algorithms;
        let signers = Signers { authorities: &anchor, algorithms: algorithms.all };
        let list = OwnedCertRevocationList::from_der(der).ok().map(CertRevocationList::from);
        let checked = list.as_ref().map(|list| signers.check(der, list.issuer()));
        Ok(ListRead {
            is_list: list.is_some(),
            signed: signed(der).map(|(data, algorithm, signature)| [data, algorithm, signature]),
            key: public_key(der).map(|(algorithm, key)| [algorithm, key]),
            checked: checked.map(|checked| checked.map(|signer| signer.is_some())),
        })
    }
}
