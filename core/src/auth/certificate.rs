//! Certificates of nodes: their faults, and the names that they give to a node.

use crate::identity::NodeName;

/// Scheme of the ids that SPIFFE gives to workloads.
const SPIFFE: &str = "spiffe://";

/// Reasons to refuse a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum CertificateFault {
    /// Its validity has ended.
    #[error("the certificate has expired")]
    Expired,
    /// Its validity has not begun.
    #[error("the certificate is not valid yet")]
    NotYetValid,
    /// No trusted authority issued it: another fleet's, or one that was removed.
    #[error("no trusted authority issued the certificate")]
    UnknownAuthority,
    /// Its authority has revoked it.
    #[error("the certificate has been revoked")]
    Revoked,
    /// It is missing, malformed, or made for another purpose than both ends of a connection.
    #[error("the certificate cannot be used by a node")]
    Unusable,
}

/// The part of a node's name that its certificate has: the SPIFFE id of `spiffe://domain/path:text`,
/// the host of `host:port`, the address of `[address]:port`, or the whole name.
pub fn certified_part(name: &NodeName) -> &str {
    let text = name.as_str();
    if let Some(id) = text.strip_prefix(SPIFFE) {
        // Neither a trust domain nor a path has a colon, and no host is such a name.
        let length = id.find(':').unwrap_or(id.len());
        return &text[..SPIFFE.len() + length];
    }
    if let Some((address, port)) = text.strip_prefix('[').and_then(|rest| rest.split_once(']'))
        && address.contains(':')
        && (port.is_empty() || port.starts_with(':'))
    {
        return address;
    }
    match text.split_once(':') {
        Some((host, port)) if !port.contains(':') => host,
        _ => text,
    }
}

/// The trust domain of a SPIFFE id of a workload, which has a path.
pub fn spiffe_domain(uri: &str) -> Option<&str> {
    let (domain, path) = uri.strip_prefix(SPIFFE)?.split_once('/')?;
    let is_path = path.split('/').all(|segment| !segment.is_empty());
    (!domain.is_empty() && is_path && !uri[SPIFFE.len()..].contains(':')).then_some(domain)
}
