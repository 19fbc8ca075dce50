//! An authority and the certificates that it issues, for tests.

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
    RevokedCertParams, SanType, SerialNumber, date_time_ymd,
};
use std::sync::atomic::{AtomicU64, Ordering};

/// Serial number of the next certificate.
static SERIAL: AtomicU64 = AtomicU64::new(1);

/// An authority.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) pem: String,
}

/// A certificate of a node and its private key, in PEM.
#[derive(Clone)]
pub(crate) struct Issued {
    pub(crate) certificate: String,
    pub(crate) key: String,
    serial: u64,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// A certificate for hosts, addresses and SPIFFE ids, valid in these days and centuries.
    pub(crate) fn issue(&self, names: &[&str]) -> Issued {
        self.issue_with(names, |_| {})
    }

    pub(crate) fn expired(&self, names: &[&str]) -> Issued {
        self.issue_with(names, |it| it.not_after = date_time_ymd(2001, 1, 1))
    }

    pub(crate) fn not_yet_valid(&self, names: &[&str]) -> Issued {
        self.issue_with(names, |it| it.not_before = date_time_ymd(4000, 1, 1))
    }

    /// A certificate for the listening side of a connection alone.
    pub(crate) fn for_servers(&self, names: &[&str]) -> Issued {
        let usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.issue_with(names, |it| it.extended_key_usages = usages)
    }

    /// A list that revokes certificates, in PEM.
    pub(crate) fn revoke(&self, certificates: &[&Issued]) -> String {
        let revoked = |issued: &&Issued| RevokedCertParams {
            serial_number: SerialNumber::from(issued.serial),
            revocation_time: date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: date_time_ymd(2020, 1, 2),
            crl_number: SerialNumber::from(1_u64),
            issuing_distribution_point: None,
            revoked_certs: certificates.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.issuer).unwrap().pem().unwrap()
    }

    fn issue_with(&self, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> Issued {
        let (ids, hosts): (Vec<&str>, Vec<&str>) =
            names.iter().copied().partition(|name| name.contains("://"));
        let hosts: Vec<String> = hosts.into_iter().map(str::to_owned).collect();
        let mut params = CertificateParams::new(hosts).unwrap();
        for id in ids {
            params.subject_alt_names.push(SanType::URI(id.try_into().unwrap()));
        }
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        params.serial_number = Some(SerialNumber::from(serial));
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        Issued { certificate, key: key.serialize_pem(), serial }
    }
}
