//! The source of metadata, parsed from Mooncake's notation.

mod redis;

pub use redis::RedisUrl;

use crate::{HttpStore, Store, StoreError};
use handfast_core::excerpt::excerpt;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

/// The source in which a node looks up others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The nodes themselves: `P2PHANDSHAKE`, or `p2p`.
    Peers,
    /// An HTTP metadata server, by its URL, `http` or `https`.
    Http(String),
    /// An etcd, by its endpoints: `etcd://host:port,host:port`, or the endpoints alone; each begins with
    /// `https://` if the etcd speaks TLS.
    Etcd(Vec<String>),
    /// A Redis, by its URL: `redis://[USER[:PASSWORD]@]HOST[:PORT][/DATABASE]`, with `rediss` for TLS.
    Redis(RedisUrl),
}

/// The prefix of an endpoint of an etcd with TLS.
const ENCRYPTED: &str = "https://";
/// The optional prefix of an endpoint without TLS.
const PLAIN: &str = "http://";

/// Credentials for a store.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    /// Name and password, for an etcd or a Redis; those in the URL of a Redis precede.
    pub user: Option<(String, String)>,
    /// Number of the database of a Redis; that in its URL precedes.
    pub database: Option<u8>,
    /// Certificates, for a store that speaks TLS.
    pub tls: TlsFiles,
}

impl fmt::Debug for Credentials {
    /// Omits the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.user.as_ref().map(|(name, _)| name);
        write!(f, "Credentials({user:?}, {:?}, {:?})", self.database, self.tls)
    }
}

/// Files with certificates and a key, in PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificates of the trusted authorities; `None` for those of the system.
    pub authority: Option<PathBuf>,
    /// The client certificate, followed by its intermediates, and its key, for a store that requires one.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// The error of parsing a source.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// The kind of store is not supported.
    #[error(
        "'{0}' is not a metadata store: expected p2p, http[s]://HOST:PORT/PATH, \
         etcd://HOST:PORT[,HOST:PORT] or redis[s]://HOST[:PORT][/DATABASE]"
    )]
    Unknown(String),
    /// Some endpoints of an etcd begin with `https://` and some do not.
    #[error("'{0}' has {ENCRYPTED} before only some of its endpoints; write it before all or none")]
    Mixed(String),
    /// An endpoint has no host or port.
    #[error("'{0}' has no HOST:PORT")]
    NoHost(String),
    /// The user of a Redis is not UTF-8 with `%` escapes. The text is omitted: it has a password.
    #[error("the name or the password of the Redis is malformed; write special characters as %HH")]
    RedisUser,
    /// The database of a Redis is not a number, or too large.
    #[error("'{0}' is not a database of a Redis: expected 0 to 255")]
    RedisDatabase(String),
}

impl Source {
    /// The store; `None` for [`Source::Peers`].
    ///
    /// # Errors
    /// A malformed URL, unusable certificates, or
    /// [`StoreCause::NotBuilt`](crate::StoreCause::NotBuilt).
    pub fn open(&self, credentials: Credentials) -> Result<Option<Arc<dyn Store>>, StoreError> {
        match self {
            Self::Peers => Ok(None),
            #[cfg(feature = "tls")]
            Self::Http(base) if base.starts_with(ENCRYPTED) => {
                let tls = self.load(&credentials)?;
                Ok(Some(Arc::new(HttpStore::with_tls(base, &tls)?)))
            }
            Self::Http(base) => Ok(Some(Arc::new(HttpStore::new(base)?))),
            #[cfg(feature = "etcd")]
            Self::Etcd(endpoints) => {
                let encrypted = endpoints.iter().all(|it| it.starts_with(ENCRYPTED));
                let asked = encrypted || credentials.tls != TlsFiles::default();
                let tls = if asked { Some(self.load(&credentials)?) } else { None };
                let user = credentials.user;
                let options = crate::EtcdOptions { user, tls, ..crate::EtcdOptions::default() };
                Ok(Some(Arc::new(crate::EtcdStore::new(endpoints, options))))
            }
            #[cfg(feature = "redis")]
            Self::Redis(url) => {
                let asked = url.is_encrypted || credentials.tls != TlsFiles::default();
                let tls = if asked { Some(self.load(&credentials)?) } else { None };
                let options = crate::RedisOptions {
                    user: url.user.clone().or(credentials.user),
                    database: url.database.or(credentials.database).unwrap_or(0),
                    tls,
                    ..crate::RedisOptions::default()
                };
                Ok(Some(Arc::new(crate::RedisStore::new(&url.host, url.port, options))))
            }
            #[cfg(not(feature = "etcd"))]
            Self::Etcd(_) => {
                // The password stays out of messages.
                drop(credentials);
                Err(self.failed(crate::StoreCause::NotBuilt { feature: "etcd" }))
            }
            #[cfg(not(feature = "redis"))]
            Self::Redis(_) => Err(self.failed(crate::StoreCause::NotBuilt { feature: "redis" })),
        }
    }

    #[cfg(feature = "tls")]
    fn load(&self, credentials: &Credentials) -> Result<crate::Tls, StoreError> {
        crate::Tls::load(&credentials.tls).map_err(|cause| self.failed(cause))
    }

    #[cfg(any(feature = "tls", not(feature = "redis")))]
    fn failed(&self, cause: crate::StoreCause) -> StoreError {
        StoreError::new(&self.to_string(), crate::StoreOperation::Connect, cause)
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Peers => f.write_str("p2p"),
            Self::Http(base) => f.write_str(base),
            Self::Etcd(endpoints) => write!(f, "etcd://{}", endpoints.join(",")),
            Self::Redis(url) => url.fmt(f),
        }
    }
}

impl FromStr for Source {
    type Err = SourceError;

    fn from_str(text: &str) -> Result<Self, SourceError> {
        // Also an unknown store may have a password in its name.
        let shown =
            text.rsplit_once('@').map_or(excerpt(text), |(_, it)| format!("...@{}", excerpt(it)));
        let unknown = || SourceError::Unknown(shown.clone());
        if text == "P2PHANDSHAKE" || text == "p2p" {
            return Ok(Self::Peers);
        }
        let (scheme, rest) = text.split_once("://").unwrap_or(("etcd", text));
        match scheme {
            "http" | "https" if rest.is_empty() || rest.starts_with('/') => {
                Err(SourceError::NoHost(shown))
            }
            "http" | "https" => Ok(Self::Http(text.to_owned())),
            "etcd" => endpoints(rest, &shown).map(Self::Etcd),
            "redis" | "rediss" => RedisUrl::parse(rest, scheme == "rediss").map(Self::Redis),
            _ => Err(unknown()),
        }
    }
}

/// The endpoints of an etcd; `text` is the whole source, for errors.
fn endpoints(rest: &str, text: &str) -> Result<Vec<String>, SourceError> {
    let bare = |endpoint: &str| endpoint.strip_prefix(PLAIN).unwrap_or(endpoint).to_owned();
    let endpoints: Vec<String> = rest.split([',', ';']).map(str::trim).map(bare).collect();
    let named = |endpoint: &String| {
        let endpoint = endpoint.strip_prefix(ENCRYPTED).unwrap_or(endpoint);
        let parts = endpoint.rsplit_once(':');
        parts.is_some_and(|(host, port)| {
            !host.is_empty() && !host.contains('/') && port.parse::<u16>().is_ok()
        })
    };
    if !endpoints.iter().all(named) {
        return Err(SourceError::NoHost(text.to_owned()));
    }
    match endpoints.iter().filter(|it| it.starts_with(ENCRYPTED)).count() {
        0 => Ok(endpoints),
        all if all == endpoints.len() => Ok(endpoints),
        _ => Err(SourceError::Mixed(text.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_show_no_password() {
        for text in [
            "valkey://ann:secret@h",
            "Redis://ann:secret@h",
            "redis:/ann:secret@h:x",
            "ann:secret@h",
        ] {
            let error = text.parse::<Source>().unwrap_err().to_string();
            assert!(!error.contains("secret") && error.contains("...@h"), "{error}");
        }
    }

    #[test]
    fn stores_are_named_as_users_of_mooncake_name_them() {
        assert_eq!("P2PHANDSHAKE".parse(), Ok(Source::Peers));
        assert_eq!("http://h:1/metadata".parse(), Ok(Source::Http("http://h:1/metadata".into())));
        let two = Source::Etcd(vec!["a:1".into(), "b:2".into()]);
        for text in ["a:1,b:2", "etcd://a:1;b:2", "a:1, b:2"] {
            assert_eq!(text.parse(), Ok(two.clone()), "{text}");
        }
        let encrypted = Source::Etcd(vec!["https://a:1".into(), "https://b:2".into()]);
        assert_eq!("etcd://https://a:1,https://b:2".parse(), Ok(encrypted.clone()));
        assert_eq!(encrypted.to_string().parse(), Ok(encrypted));
        assert_eq!("etcd://http://a:1,b:2".parse(), Ok(two));
        assert_eq!("https://h:1/m".parse(), Ok(Source::Http("https://h:1/m".into())));
    }

    #[test]
    fn what_names_no_store_is_refused_in_words() {
        for text in ["consul://h:1", "file:///tmp"] {
            assert_eq!(text.parse::<Source>(), Err(SourceError::Unknown(text.into())));
        }
        for text in ["", "http://", "https:///metadata", "etcd://", "a:1,,b:2", "host", "a/b:1"] {
            assert_eq!(text.parse::<Source>(), Err(SourceError::NoHost(text.into())), "{text}");
        }
        let mixed = "etcd://https://a:1,b:2";
        assert_eq!(mixed.parse::<Source>(), Err(SourceError::Mixed(mixed.into())));
    }
}
