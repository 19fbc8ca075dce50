//! The certificate of a node, and the authorities that it trusts.

use super::revocations::{Revocations, Signers};
use crate::api::auth::CertificateFile;
use handfast_core::NodeName;
use handfast_core::auth::{AuthFailure, CertificateFault, Proof, certified_part, spiffe_domain};
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::server::NoServerSessionStorage;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, PeerIncompatible,
    ServerConfig, SignatureScheme,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, TrustAnchor, UnixTime};
use std::fmt;
use std::sync::Arc;
use webpki::{EndEntityCert, KeyUsage, RevocationOptionsBuilder, UnknownStatusPolicy};

/// Protocol that both sides name in the handshake, so that no other use of the certificates fits. TLS itself
/// refuses a side that names others, and none that names nothing.
pub(super) const PROTOCOL: &[u8] = b"handfast";
/// Maximum certificates of a chain.
const CHAIN_MAX: usize = 8;
/// Maximum bytes of a chain. It is remembered as long as its peer.
const CHAIN_BYTES_MAX: usize = 16 << 10;
/// Maximum authorities of a node.
const AUTHORITIES_MAX: usize = 256;

/// Contents of the files, in PEM.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Texts {
    pub(crate) authority: Vec<u8>,
    pub(crate) certificate: Vec<u8>,
    pub(crate) key: Vec<u8>,
    /// Empty without revocation lists.
    pub(crate) revocations: Vec<u8>,
}

/// The check of revocation lists when they are parsed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lists {
    /// Each has the signature of its authority, if that is known.
    Checked,
    /// They were checked with other authorities. Those of authorities that are gone revoke nothing.
    Earlier,
}

/// A node's certificate and private key, and the authorities that it trusts.
pub(crate) struct Certificates {
    authorities: Arc<Authorities>,
    pub(super) own: Vec<CertificateDer<'static>>,
    /// Trust domain of this node's own SPIFFE id.
    domain: Option<String>,
    pub(super) client: Arc<ClientConfig>,
    pub(super) server: Arc<ServerConfig>,
}

impl fmt::Debug for Certificates {
    /// Omits the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Certificates")
    }
}

impl Certificates {
    /// Parses the files.
    ///
    /// # Errors
    /// The file and the reason.
    pub(crate) fn new(texts: &Texts, lists: Lists) -> Result<Self, (CertificateFile, String)> {
        let roots = certificates(CertificateFile::Authority, &texts.authority)?;
        if roots.len() > AUTHORITIES_MAX {
            let text = format!("it has more than {AUTHORITIES_MAX} authorities");
            return Err((CertificateFile::Authority, text));
        }
        let anchor = |root: &CertificateDer<'static>| {
            let anchor = webpki::anchor_from_trusted_cert(root).map(|anchor| anchor.to_owned());
            anchor.map_err(|error| (CertificateFile::Authority, error.to_string()))
        };
        let roots = roots.iter().map(anchor).collect::<Result<Vec<_>, _>>()?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let algorithms = provider.signature_verification_algorithms;
        let own = certificates(CertificateFile::Certificate, &texts.certificate)?;
        let between = own[1..].iter().filter_map(|it| webpki::anchor_from_trusted_cert(it).ok());
        let mut known: Vec<TrustAnchor<'_>> = roots.clone();
        known.extend(between);
        let signers = Signers { authorities: &known, algorithms: algorithms.all };
        let signers = Some(&signers).filter(|_| lists == Lists::Checked);
        let revocations = Revocations::new(&texts.revocations, signers)
            .map_err(|error| (CertificateFile::Revocations, error))?;
        let authorities = Arc::new(Authorities { roots, revocations, algorithms });
        if lists == Lists::Checked && authorities.may_not_sign(&own) {
            let text = "an authority of this node's certificate signs lists without the right to \
                        (key usage cRLSign)";
            return Err((CertificateFile::Revocations, text.into()));
        }
        let key = PrivateKeyDer::from_pem_slice(&texts.key);
        let key = key.map_err(|error| (CertificateFile::Key, error.to_string()))?;
        let (client, server) = configs(&provider, &authorities, &own, &key).map_err(|error| {
            (CertificateFile::Certificate, format!("the certificate and its key: {error}"))
        })?;
        let domain = spiffe_id(&own[0]).and_then(|id| spiffe_domain(&id).map(str::to_owned));
        Ok(Self { authorities, own, domain, client, server })
    }

    /// Whether this node's own certificate is valid at both ends of a connection, and has its name.
    ///
    /// # Errors
    /// The fault, or [`AuthFailure::OwnName`].
    pub(crate) fn check(&self, name: &NodeName) -> Result<(), AuthFailure> {
        match self.fault_now() {
            Some(fault) => Err(AuthFailure::Own(fault)),
            None if !self.names(&self.own, name) => Err(AuthFailure::OwnName),
            None => Ok(()),
        }
    }

    /// The fault of this node's own certificate at the present time.
    pub(crate) fn fault_now(&self) -> Option<CertificateFault> {
        let verify = |usage| self.authorities.verify(&self.own, UnixTime::now(), usage);
        verify(KeyUsage::client_auth()).and_then(|()| verify(KeyUsage::server_auth())).err()
    }

    /// A host for which this node's own certificate is, if it has one that is no pattern or address, or
    /// its SPIFFE id.
    pub(crate) fn host(&self) -> Option<String> {
        let end = EndEntityCert::try_from(self.own.first()?).ok()?;
        let mut hosts = end.valid_dns_names().filter(|host| !host.starts_with('*'));
        hosts.next().map(str::to_owned).or_else(|| spiffe_id(&self.own[0]))
    }

    /// The name of a node with an address and no other name: the address, or this node's SPIFFE id and
    /// the address if the certificate has the id alone.
    pub(crate) fn listening_name(&self, address: &str) -> String {
        let named = NodeName::new(address).is_ok_and(|name| self.names(&self.own, &name));
        let id = spiffe_id(&self.own[0]).filter(|_| !named);
        id.map_or_else(|| address.to_owned(), |id| format!("{id}:{address}"))
    }

    /// Whether a peer's chain is valid at the present time.
    pub(super) fn is_valid(&self, chain: &[CertificateDer<'_>]) -> bool {
        self.authorities.verify(chain, UnixTime::now(), KeyUsage::client_auth()).is_ok()
    }

    /// The proof of a peer's chain, if it is valid.
    pub(super) fn proof(&self, chain: &[CertificateDer<'_>], peer: &NodeName) -> Proof {
        Proof::Certificate { names_peer: self.names(chain, peer) }
    }

    /// Whether a certificate has a name: the host of the name is among its DNS names and addresses, or
    /// the name has the SPIFFE id of the certificate, of this node's own trust domain.
    pub(super) fn names(&self, chain: &[CertificateDer<'_>], name: &NodeName) -> bool {
        let Some(end) = chain.first() else { return false };
        let Ok(parsed) = EndEntityCert::try_from(end) else { return false };
        let part = certified_part(name);
        let is_host = ServerName::try_from(part)
            .is_ok_and(|host| parsed.verify_is_valid_for_subject_name(&host).is_ok());
        let is_workload = |id: String| {
            let domain = spiffe_domain(&id);
            domain.is_some() && domain == self.domain.as_deref() && id == part
        };
        is_host || spiffe_id(end).is_some_and(is_workload)
    }
}

/// The SPIFFE id of a certificate. One with several URIs has none: an SVID has exactly one.
fn spiffe_id(certificate: &CertificateDer<'_>) -> Option<String> {
    let end = EndEntityCert::try_from(certificate).ok()?;
    let mut uris = end.valid_uri_names();
    let id = uris.next().filter(|uri| spiffe_domain(uri).is_some())?.to_owned();
    uris.next().is_none().then_some(id)
}

fn certificates(
    file: CertificateFile,
    text: &[u8],
) -> Result<Vec<CertificateDer<'static>>, (CertificateFile, String)> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    match all {
        Ok(all) if all.is_empty() => Err((file, "it has no certificate".into())),
        Ok(all) => Ok(all),
        Err(error) => Err((file, error.to_string())),
    }
}

/// TLS 1.3 alone, with a certificate at both ends, and without resumption, which would outlast
/// a certificate.
fn configs(
    provider: &Arc<CryptoProvider>,
    authorities: &Arc<Authorities>,
    own: &[CertificateDer<'static>],
    key: &PrivateKeyDer<'static>,
) -> Result<(Arc<ClientConfig>, Arc<ServerConfig>), rustls::Error> {
    let client = ClientConfig::builder_with_provider(provider.clone());
    let client = client.with_protocol_versions(&[&TLS13])?;
    let client = client.dangerous().with_custom_certificate_verifier(authorities.clone());
    let mut client = client.with_client_auth_cert(own.to_vec(), key.clone_key())?;
    client.resumption = Resumption::disabled();
    client.enable_sni = false;
    client.alpn_protocols = vec![PROTOCOL.to_vec()];
    let server = ServerConfig::builder_with_provider(provider.clone());
    let server = server.with_protocol_versions(&[&TLS13])?;
    let server = server.with_client_cert_verifier(authorities.clone());
    let mut server = server.with_single_cert(own.to_vec(), key.clone_key())?;
    server.session_storage = Arc::new(NoServerSessionStorage {});
    server.send_tls13_tickets = 0;
    server.alpn_protocols = vec![PROTOCOL.to_vec()];
    Ok((Arc::new(client), Arc::new(server)))
}

/// The authorities that a node trusts. Names are compared later, since a node that dials an address
/// does not know which node has it.
#[derive(Debug)]
struct Authorities {
    roots: Vec<TrustAnchor<'static>>,
    revocations: Revocations,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Authorities {
    fn verify(
        &self,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
        usage: KeyUsage,
    ) -> Result<(), CertificateFault> {
        let bytes: usize = chain.iter().map(|one| one.len()).sum();
        if chain.len() > CHAIN_MAX || bytes > CHAIN_BYTES_MAX {
            return Err(CertificateFault::Unusable);
        }
        self.verified(chain, now, usage).map_err(|error| match error {
            webpki::Error::CertExpired { .. } => CertificateFault::Expired,
            webpki::Error::CertNotValidYet { .. } => CertificateFault::NotYetValid,
            webpki::Error::CertRevoked => CertificateFault::Revoked,
            webpki::Error::UnknownIssuer | webpki::Error::InvalidSignatureForPublicKey => {
                CertificateFault::UnknownAuthority
            }
            _ => CertificateFault::Unusable,
        })
    }

    /// Whether a list of an authority of a chain counts for nothing, since that may not sign lists.
    fn may_not_sign(&self, chain: &[CertificateDer<'_>]) -> bool {
        let verified = self.verified(chain, UnixTime::now(), KeyUsage::client_auth());
        matches!(verified, Err(webpki::Error::IssuerNotCrlSigner))
    }

    fn verified(
        &self,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
        usage: KeyUsage,
    ) -> Result<(), webpki::Error> {
        let (end, intermediates) = chain.split_first().ok_or(webpki::Error::UnknownIssuer)?;
        let end = EndEntityCert::try_from(end)?;
        let (algorithms, roots) = (self.algorithms.all, &self.roots);
        self.revocations.verify(chain, |lists| {
            // An authority without a list revokes nothing, and a list counts past its next update.
            let revoked = RevocationOptionsBuilder::new(lists).ok();
            let revoked =
                revoked.map(|it| it.with_status_policy(UnknownStatusPolicy::Allow).build());
            end.verify_for_usage(algorithms, roots, intermediates, now, usage, revoked, None)
                .map(drop)
        })
    }

    fn verify_end(
        &self,
        end: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
        usage: KeyUsage,
    ) -> Result<(), rustls::Error> {
        let chain: Vec<_> = std::iter::once(end).chain(intermediates).cloned().collect();
        self.verify(&chain, now, usage).map_err(|fault| {
            rustls::Error::InvalidCertificate(match fault {
                CertificateFault::Expired => CertificateError::Expired,
                CertificateFault::NotYetValid => CertificateError::NotValidYet,
                CertificateFault::UnknownAuthority => CertificateError::UnknownIssuer,
                CertificateFault::Revoked => CertificateError::Revoked,
                CertificateFault::Unusable => CertificateError::InvalidPurpose,
            })
        })
    }
}

const ONLY_TLS13: rustls::Error =
    rustls::Error::PeerIncompatible(PeerIncompatible::Tls13RequiredForQuic);

impl ServerCertVerifier for Authorities {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.verify_end(end_entity, intermediates, now, KeyUsage::server_auth())?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(ONLY_TLS13)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

impl ClientCertVerifier for Authorities {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.verify_end(end_entity, intermediates, now, KeyUsage::client_auth())?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(ONLY_TLS13)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
