//! An authority, and certificates it vouches for, in files of a test.

use handfast_metadata::TlsFiles;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    date_time_ymd,
};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use tempfile::TempDir;

/// Certificates of one authority: its own, one of a server at 127.0.0.1 and one of a client.
#[derive(Clone)]
pub(crate) struct Certificates {
    folder: Arc<TempDir>,
}

impl Certificates {
    pub(crate) fn make() -> Self {
        Self::make_for("127.0.0.1", 4096)
    }

    /// For another name, and valid until that year.
    pub(crate) fn make_for(host: &str, last_year: i32) -> Self {
        let made = Self { folder: Arc::new(tempfile::tempdir().unwrap()) };
        let mut authority = CertificateParams::new(Vec::new()).unwrap();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let name = made.folder.path().display().to_string();
        authority.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let certificate = authority.self_signed(&key).unwrap();
        fs::write(made.authority(), certificate.pem()).unwrap();
        let issuer = Issuer::new(authority, key);
        for (name, usage) in [
            ("server", ExtendedKeyUsagePurpose::ServerAuth),
            ("client", ExtendedKeyUsagePurpose::ClientAuth),
        ] {
            let mut params = CertificateParams::new(vec![host.to_owned()]).unwrap();
            params.not_after = date_time_ymd(last_year, 1, 1);
            params.extended_key_usages = vec![usage, ExtendedKeyUsagePurpose::ClientAuth];
            let key = KeyPair::generate().unwrap();
            let certificate = params.signed_by(&key, &issuer).unwrap();
            let (certificate_path, key_path) = made.pair(name);
            fs::write(certificate_path, certificate.pem()).unwrap();
            fs::write(key_path, key.serialize_pem()).unwrap();
        }
        made
    }

    pub(crate) fn authority(&self) -> PathBuf {
        self.folder.path().join("authority.pem")
    }

    /// Certificate and key of the server.
    pub(crate) fn server(&self) -> (PathBuf, PathBuf) {
        self.pair("server")
    }

    /// The files of a client.
    pub(crate) fn client(&self) -> TlsFiles {
        TlsFiles { authority: Some(self.authority()), identity: Some(self.pair("client")) }
    }

    fn pair(&self, name: &str) -> (PathBuf, PathBuf) {
        let folder = self.folder.path();
        (folder.join(format!("{name}.pem")), folder.join(format!("{name}.key")))
    }
}
