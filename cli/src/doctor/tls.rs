//! Connections of the doctor's to metadata services that speak TLS.

use super::Doctor;
use crate::environment::Environment;
use handfast_diagnosis::doctor::{Channel, Encrypt, Timed};
use handfast_metadata::{Tls, TlsFiles};
use std::io;

/// Uses the certificates that a node would use: options precede variables. Errors in them are
/// reported at the first use, errors in variables elsewhere.
pub(super) fn encrypt(arguments: &Doctor) -> Encrypt {
    let is_http = arguments.metadata.as_deref().is_some_and(|url| url.starts_with("http"));
    let mut files = match is_http {
        true => TlsFiles::default(),
        false => {
            let told = Environment::read().and_then(|set| set.etcd_credentials());
            told.map(|credentials| credentials.tls).unwrap_or_default()
        }
    };
    if arguments.metadata_ca.is_some() {
        files.authority.clone_from(&arguments.metadata_ca);
    }
    if let (Some(certificate), Some(key)) = (&arguments.metadata_cert, &arguments.metadata_key) {
        files.identity = Some((certificate.clone(), key.clone()));
    }
    Box::new(move |name: &str, stream: Timed| {
        let tls = Tls::load(&files);
        let tls =
            tls.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
        Ok(Box::new(tls.connect(name, stream)?) as Box<dyn Channel>)
    })
}
