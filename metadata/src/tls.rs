//! TLS: the trusted authorities and the client certificate.

use crate::TlsFiles;
use crate::error::{StoreCause, TlsFailure, words};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, RootCertStore, StreamOwned,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use std::error::Error;
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::{fmt, io};

/// Longest file of certificates or keys, in bytes: several times the bundle of a system's authorities.
pub const TLS_FILE_BYTES_MAX: u64 = 1 << 20;

/// Certificates and keys, read and validated. Cheap to clone.
#[derive(Clone)]
pub struct Tls {
    pub(crate) config: Arc<ClientConfig>,
    #[cfg(feature = "etcd")]
    pub(crate) texts: Arc<Texts>,
}

/// The content of the files, for a client that takes PEM.
#[cfg(feature = "etcd")]
pub(crate) struct Texts {
    pub(crate) authority: Option<Vec<u8>>,
    pub(crate) identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl fmt::Debug for Tls {
    /// Omits the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    /// Reads the files, at most [`TLS_FILE_BYTES_MAX`] bytes each, and the system's authorities.
    ///
    /// # Errors
    /// [`StoreCause::Certificates`].
    pub fn load(files: &TlsFiles) -> Result<Self, StoreCause> {
        let authority = files.authority.as_deref().map(read).transpose()?;
        let identity = match &files.identity {
            Some((certificate, key)) => Some((read(certificate)?, read(key)?)),
            None => None,
        };
        let mut roots = RootCertStore::empty();
        match (&files.authority, &authority) {
            (Some(path), Some(text)) => {
                for certificate in certificates(path, text)? {
                    roots.add(certificate).map_err(|error| wrong(path, &error))?;
                }
            }
            // Some certificates of a system are malformed or expired.
            _ => drop(
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs),
            ),
        }
        if roots.is_empty() {
            let text =
                "the system trusts no authority, and no file with the store's authority is named";
            return Err(StoreCause::Certificates(text.into()));
        }
        let builder =
            ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| StoreCause::Certificates(error.to_string()))?;
        let builder = builder.with_root_certificates(roots);
        let config = match (&files.identity, &identity) {
            (Some((path, key_path)), Some((certificate, key))) => {
                let key = PrivateKeyDer::from_pem_slice(key);
                let key = key.map_err(|error| wrong(key_path, &error))?;
                let certificates = certificates(path, certificate)?;
                let config = builder.with_client_auth_cert(certificates, key);
                config.map_err(|error| wrong(path, &error))?
            }
            _ => builder.with_no_client_auth(),
        };
        Ok(Self {
            config: Arc::new(config),
            #[cfg(feature = "etcd")]
            texts: Arc::new(Texts { authority, identity }),
        })
    }
}

impl Tls {
    /// Performs the TLS handshake with the host of that name or address. Blocks.
    ///
    /// # Errors
    /// An error of the kind [`InvalidData`](io::ErrorKind::InvalidData) if the handshake fails, or that
    /// of the connection.
    pub fn connect<S: Read + Write>(
        &self,
        name: &str,
        mut stream: S,
    ) -> io::Result<StreamOwned<ClientConnection, S>> {
        let invalid = |error: &dyn fmt::Display| {
            io::Error::new(io::ErrorKind::InvalidData, words(&error.to_string()))
        };
        let name = ServerName::try_from(name.to_owned()).map_err(|error| invalid(&error))?;
        let connection = ClientConnection::new(self.config.clone(), name);
        let mut connection = connection.map_err(|error| invalid(&error))?;
        while connection.is_handshaking() {
            connection.complete_io(&mut stream)?;
        }
        Ok(StreamOwned::new(connection, stream))
    }
}

fn certificates(path: &Path, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, StoreCause> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    let all = all.map_err(|error| wrong(path, &error))?;
    match all.is_empty() {
        true => Err(wrong(path, &"no certificate in it")),
        false => Ok(all),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, StoreCause> {
    let mut text = Vec::new();
    let file = File::open(path).map_err(|error| wrong(path, &error))?;
    let bytes = file.take(TLS_FILE_BYTES_MAX + 1).read_to_end(&mut text);
    let bytes = bytes.map_err(|error| wrong(path, &error))?;
    match bytes as u64 > TLS_FILE_BYTES_MAX {
        true => Err(wrong(path, &format!("it is longer than {TLS_FILE_BYTES_MAX} bytes"))),
        false => Ok(text),
    }
}

fn wrong(path: &Path, why: &dyn fmt::Display) -> StoreCause {
    StoreCause::Certificates(words(&format!("{}: {why}", path.display())))
}

/// The TLS failure among an error's sources, if there is one.
pub(crate) fn failure(error: &(dyn Error + 'static)) -> Option<TlsFailure> {
    let mut next = Some(error);
    while let Some(error) = next {
        // So does `Arc::source`.
        let shared = error.downcast_ref::<Arc<dyn Error + Send + Sync>>();
        let error = shared.map_or(error, |shared| &**shared);
        // `io::Error::source` skips the error that it wraps.
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        let inner = inner.map(|inner| inner as &(dyn Error + 'static));
        if let Some(found) = inner.unwrap_or(error).downcast_ref() {
            return meaning(found);
        }
        next = inner.or_else(|| error.source());
    }
    None
}

fn meaning(error: &rustls::Error) -> Option<TlsFailure> {
    use CertificateError as Bad;
    Some(match error {
        rustls::Error::InvalidCertificate(bad) => match bad {
            Bad::UnknownIssuer | Bad::BadSignature => TlsFailure::UnknownAuthority,
            Bad::NotValidForName | Bad::NotValidForNameContext { .. } => TlsFailure::WrongName,
            Bad::Expired
            | Bad::ExpiredContext { .. }
            | Bad::NotValidYet
            | Bad::NotValidYetContext { .. } => TlsFailure::NotValidNow,
            _ => TlsFailure::BadCertificate,
        },
        rustls::Error::AlertReceived(alert) => match alert {
            AlertDescription::CertificateRequired | AlertDescription::NoCertificate => {
                TlsFailure::OursMissing
            }
            AlertDescription::UnknownCA
            | AlertDescription::AccessDenied
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::DecryptError => TlsFailure::OursRefused,
            AlertDescription::HandshakeFailure
            | AlertDescription::ProtocolVersion
            | AlertDescription::InsufficientSecurity
            | AlertDescription::NoApplicationProtocol => TlsFailure::NothingInCommon,
            _ => return None,
        },
        rustls::Error::InvalidMessage(_) => TlsFailure::NotSpoken,
        rustls::Error::PeerIncompatible(_) | rustls::Error::NoApplicationProtocol => {
            TlsFailure::NothingInCommon
        }
        _ => return None,
    })
}
