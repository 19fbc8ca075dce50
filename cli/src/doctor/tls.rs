//! The doctor's connections to metadata services that use TLS.

use super::Doctor;
use handfast_diagnosis::doctor::{Channel, Encrypt, Timed};
use handfast_environment::Environment;
use handfast_metadata::Tls;
use std::io;

/// Uses the certificates that a node would use: options precede variables. Errors in them are
/// reported at the first use, errors in variables elsewhere.
pub(super) fn encrypt(arguments: &Doctor) -> Encrypt {
    let other = |url: &str| ["http", "redis"].iter().any(|scheme| url.starts_with(scheme));
    let is_other = arguments.metadata.as_deref().is_some_and(other);
    let of_etcd = || Environment::read().ok()?.etcd_credentials().ok();
    let variables = if is_other { None } else { of_etcd() };
    let files = arguments.certificates.over(variables.unwrap_or_default().tls);
    Box::new(move |name: &str, stream: Timed| {
        let tls = Tls::load(&files);
        let tls =
            tls.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
        Ok(Box::new(tls.connect(name, stream)?) as Box<dyn Channel>)
    })
}
