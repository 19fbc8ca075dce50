//! The revocation lists of the authorities that a node trusts.

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{
    CertificateDer, CertificateRevocationListDer, SignatureVerificationAlgorithm, TrustAnchor,
};
use webpki::{CertRevocationList, EndEntityCert, OwnedCertRevocationList};

/// Maximum revocation lists of a node.
const LISTS_MAX: usize = 256;
/// Tags of DER.
const SEQUENCE: u8 = 0x30;
const BIT_STRING: u8 = 0x03;

/// The authorities whose lists are checked, and the algorithms of signatures.
pub(super) struct Signers<'a> {
    pub(super) authorities: &'a [TrustAnchor<'a>],
    pub(super) algorithms: &'a [&'a dyn SignatureVerificationAlgorithm],
}

/// Revocation lists.
#[derive(Debug)]
pub(super) struct Revocations {
    groups: Vec<Group>,
}

/// Lists of one issuer, of which several authorities may have the name.
#[derive(Debug)]
struct Group {
    /// The place among the [`Signers`] of the authority that has signed them, if it is known.
    signer: Option<usize>,
    lists: Vec<CertRevocationList<'static>>,
}

impl Revocations {
    /// Parses the lists, and checks them with `signers`.
    ///
    /// # Errors
    /// There are too many, or the list and its fault.
    pub(super) fn new(text: &[u8], signers: Option<&Signers<'_>>) -> Result<Self, String> {
        let mut groups: Vec<Group> = Vec::new();
        let mut known: Vec<CertificateRevocationListDer<'_>> = Vec::new();
        for (number, list) in CertificateRevocationListDer::pem_slice_iter(text).enumerate() {
            if number == LISTS_MAX {
                return Err(format!("it has more than {LISTS_MAX} revocation lists"));
            }
            let of = |error: String| format!("list {}: {error}", number + 1);
            let list = list.map_err(|error| of(error.to_string()))?;
            let parsed = OwnedCertRevocationList::from_der(&list);
            let parsed: CertRevocationList<'_> =
                parsed.map_err(|error| of(error.to_string()))?.into();
            let signer = match signers {
                Some(signers) => {
                    signers.check(&list, parsed.issuer()).map_err(|it| of(it.into()))?
                }
                None => None,
            };
            if known.contains(&list) {
                continue;
            }
            known.push(list);
            let is_alike =
                |group: &&mut Group| group.signer == signer && group.issuer() == parsed.issuer();
            match groups.iter_mut().find(is_alike) {
                Some(group) => group.lists.push(parsed),
                None => groups.push(Group { signer, lists: vec![parsed] }),
            }
        }
        // A list in another form would revoke nothing.
        if known.is_empty() && !text.trim_ascii().is_empty() {
            return Err("it has no revocation list in PEM".into());
        }
        Ok(Self { groups })
    }

    /// Verifies a chain with `verify` against the lists: against each that has one of its certificates,
    /// and of the others against one of each issuer, which shows that the issuer may sign lists. A list
    /// that another key than the issuer's has signed is of an authority of the same name, and revokes
    /// nothing of this issuer.
    ///
    /// # Errors
    /// The fault of the chain.
    pub(super) fn verify(
        &self,
        chain: &[CertificateDer<'_>],
        verify: impl Fn(&[&CertRevocationList<'_>]) -> Result<(), webpki::Error>,
    ) -> Result<(), webpki::Error> {
        // A malformed certificate is left to the verification.
        let read = |one| EndEntityCert::try_from(one).ok();
        let chain: Vec<EndEntityCert<'_>> = chain.iter().filter_map(read).collect();
        let has_one = |list: &CertRevocationList<'_>| {
            let mut of_issuer = chain.iter().filter(|it| it.issuer() == list.issuer());
            of_issuer.any(|it| !matches!(list.find_serial(it.serial()), Ok(None)))
        };
        let is_concerned = |group: &&Group| chain.iter().any(|it| it.issuer() == group.issuer());
        let concerned: Vec<&Group> = self.groups.iter().filter(is_concerned).collect();
        let first: Vec<_> = concerned.iter().map(|group| &group.lists[0]).collect();
        // Of several lists of one issuer webpki consults the first alone.
        let groups_of = |issuer: &[u8]| first.iter().filter(|it| it.issuer() == issuer).count();
        let is_single = first.iter().all(|list| groups_of(list.issuer()) == 1);
        if is_single && !concerned.iter().flat_map(|group| &group.lists).any(has_one) {
            let verified = verify(&first);
            if verified.is_ok() || first.is_empty() {
                return verified;
            }
        }
        verify(&[])?;
        for group in concerned {
            let mut is_shown = false;
            for list in &group.lists {
                if is_shown && !has_one(list) {
                    continue;
                }
                match verify(&[list]) {
                    Ok(()) => is_shown = true,
                    // The others of a known authority have the same key.
                    Err(error) if is_of_other_key(&error) => is_shown |= group.signer.is_some(),
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }
}

impl Group {
    fn issuer(&self) -> &[u8] {
        self.lists[0].issuer()
    }
}

/// Whether a chain that is valid without a list fails with it since the list has another key's signature.
fn is_of_other_key(error: &webpki::Error) -> bool {
    use webpki::Error::{
        InvalidCrlSignatureForPublicKey, InvalidSignatureForPublicKey,
        UnsupportedCrlSignatureAlgorithmForPublicKeyContext,
        UnsupportedSignatureAlgorithmForPublicKeyContext,
    };
    // The last two are of a path through the other authority of the name.
    matches!(
        error,
        InvalidCrlSignatureForPublicKey
            | UnsupportedCrlSignatureAlgorithmForPublicKeyContext(_)
            | InvalidSignatureForPublicKey
            | UnsupportedSignatureAlgorithmForPublicKeyContext(_)
    )
}

impl Signers<'_> {
    /// Checks that an authority with the name of the list's issuer has signed it, and returns its place. Of
    /// a list whose issuer is unknown, which may be between a peer and a trusted authority, it checks the
    /// kind of signature.
    pub(super) fn check(&self, list: &[u8], issuer: &[u8]) -> Result<Option<usize>, &'static str> {
        let (data, algorithm, signature) = signed(list).ok_or("it is malformed")?;
        let of_kind = || self.algorithms.iter().filter(|it| *it.signature_alg_id() == *algorithm);
        if of_kind().next().is_none() {
            return Err("its kind of signature is not supported");
        }
        let has_signed = |authority: &TrustAnchor<'_>| {
            public_key(&authority.subject_public_key_info).is_some_and(|(kind, key)| {
                of_kind().any(|it| {
                    *it.public_key_alg_id() == *kind
                        && it.verify_signature(key, data, signature).is_ok()
                })
            })
        };
        let authorities = self.authorities.iter().enumerate();
        let mut named = authorities.filter(|(_, it)| it.subject.as_ref() == issuer).peekable();
        if named.peek().is_none() {
            return Ok(None);
        }
        let signer = named.find(|(_, it)| has_signed(it)).map(|(place, _)| place);
        signer.map(Some).ok_or("the authority of its name has not signed it")
    }
}

/// The signed bytes of a list, the identifier of the signature's algorithm, and the signature.
pub(super) fn signed(list: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (list, _) = value(SEQUENCE, list)?;
    let (_, after) = value(SEQUENCE, list)?;
    let (algorithm, signature) = value(SEQUENCE, after)?;
    Some((&list[..list.len() - after.len()], algorithm, bits(signature)?))
}

/// The identifier of the algorithm of a key, and the key.
pub(super) fn public_key(info: &[u8]) -> Option<(&[u8], &[u8])> {
    let (algorithm, key) = value(SEQUENCE, info)?;
    Some((algorithm, bits(key)?))
}

fn bits(bytes: &[u8]) -> Option<&[u8]> {
    // The first byte counts the unused bits of the last.
    value(BIT_STRING, bytes)?.0.strip_prefix(&[0])
}

/// The value at the beginning of some DER, and what follows it.
fn value(tag: u8, bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let ([first, length], rest) = bytes.split_first_chunk::<2>()?;
    let (length, rest) = match length {
        0..=0x7f => (usize::from(*length), rest),
        0x81..=0x84 => {
            let (length, rest) = rest.split_at_checked(usize::from(length & 0x7f))?;
            (length.iter().fold(0, |all, byte| all << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    rest.split_at_checked(length).filter(|_| *first == tag)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::auth::tests::certificates::issuing::{Authority, Issued};
    use std::cell::Cell;

    /// A list is refused at its parsing if the authority of its name has not signed it, or with a kind of
    /// signature that is not supported; one of an unknown issuer is taken.
    #[test]
    fn list_without_its_authoritys_signature_is_refused() {
        let (fleet, same, other) =
            (Authority::new("fleet"), Authority::new("fleet"), Authority::new("other"));
        let algorithms = rustls::crypto::ring::default_provider().signature_verification_algorithms;
        let check = |trusted: &[&Authority], list: &[u8]| {
            let ders: Vec<_> = trusted
                .iter()
                .map(|it| CertificateDer::from_pem_slice(it.pem.as_bytes()).unwrap())
                .collect();
            let authorities: Vec<_> =
                ders.iter().map(|it| webpki::anchor_from_trusted_cert(it).unwrap()).collect();
            let signers = Signers { authorities: &authorities, algorithms: algorithms.all };
            let issuer = OwnedCertRevocationList::from_der(list).unwrap();
            signers.check(list, CertRevocationList::from(issuer).issuer())
        };
        let list = CertificateRevocationListDer::from_pem_slice(fleet.revoke(&[]).as_bytes());
        let list = list.unwrap();
        assert_eq!(check(&[&fleet], &list), Ok(Some(0)));
        assert_eq!(check(&[&same, &fleet], &list), Ok(Some(1)), "one of two of the name");
        assert_eq!(check(&[&other], &list), Ok(None), "unknown");
        let unsigned = check(&[&other, &same], &list).unwrap_err();
        assert!(unsigned.contains("has not signed it"), "{unsigned}");
        // ECDSA with SHA-512 in place of SHA-256.
        let (sha256, sha512) = ([0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2], 4);
        let mut strange = list.to_vec();
        for at in 0..strange.len() - sha256.len() {
            if strange[at..].starts_with(&sha256) {
                strange[at + sha256.len() - 1] = sha512;
            }
        }
        for trusted in [&fleet, &other] {
            let unsupported = check(&[trusted], &strange).unwrap_err();
            assert!(unsupported.contains("not supported"), "{unsupported}");
        }
    }

    /// However many lists an authority has, a chain is verified once if none has one of its certificates.
    /// Otherwise it is verified without lists, with one, and with those that have one.
    #[test]
    fn chain_is_verified_for_the_lists_that_have_it() {
        let (fleet, other) = (Authority::new("fleet"), Authority::new("other"));
        let (a, b, c) = (fleet.issue(&["a"]), fleet.issue(&["b"]), other.issue(&["c"]));
        let of_fleet = (1..LISTS_MAX).map(|_| fleet.revoke(&[&c])).chain([fleet.revoke(&[&a])]);
        let lists = Revocations::new(of_fleet.collect::<String>().as_bytes(), None).unwrap();
        let calls = |issued: &Issued| {
            let chain = [CertificateDer::from_pem_slice(issued.certificate.as_bytes()).unwrap()];
            let end = EndEntityCert::try_from(&chain[0]).unwrap();
            let calls = Cell::new(0);
            let verified = lists.verify(&chain, |asked| {
                calls.set(calls.get() + 1);
                let has_it = |list: &&CertRevocationList<'_>| {
                    let of_it = list.issuer() == end.issuer();
                    of_it && list.find_serial(end.serial()).unwrap().is_some()
                };
                if asked.iter().any(has_it) {
                    return Err(webpki::Error::CertRevoked);
                }
                Ok(())
            });
            (verified, calls.get())
        };
        assert_eq!(calls(&b), (Ok(()), 1));
        assert_eq!(calls(&c), (Ok(()), 1), "a serial number of another authority");
        assert_eq!(calls(&a), (Err(webpki::Error::CertRevoked), 3));
    }

    /// Cut and changed bytes of a list are an error, and no panic.
    #[test]
    fn malformed_bytes_are_an_error() {
        let list = Authority::new("fleet").revoke(&[]);
        let list = CertificateRevocationListDer::from_pem_slice(list.as_bytes()).unwrap();
        assert!(signed(&list).is_some());
        for end in 0..list.len() {
            assert!(signed(&list[..end]).is_none(), "{end}");
        }
        for (at, with) in (0..list.len()).flat_map(|at| [0, 0x80, 0x84, 0xff].map(|it| (at, it))) {
            let mut changed = list.to_vec();
            changed[at] = with;
            let _ = signed(&changed).map(|(data, ..)| assert!(data.len() < changed.len()));
        }
    }
}
