//! Which store is meant, from the text that users of Mooncake write.

use crate::{HttpStore, Store, StoreError};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Where a node finds others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// By asking them: `P2PHANDSHAKE`, or `p2p`.
    Peers,
    /// An HTTP metadata server, by its URL.
    Http(String),
    /// An etcd, by its endpoints: `etcd://host:port,host:port`, or the endpoints alone.
    Etcd(Vec<String>),
}

/// Why a text names no store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// A kind of store that is not spoken to.
    #[error(
        "'{0}' is no metadata store that handfast speaks to: p2p, http://HOST:PORT/PATH or \
         etcd://HOST:PORT[,HOST:PORT]"
    )]
    Unknown(String),
    /// No host in it.
    #[error("'{0}' names no HOST:PORT")]
    NoHost(String),
}

impl Source {
    /// The store; `None` where nodes are asked themselves. `user` is name and password for an etcd.
    ///
    /// # Errors
    /// A URL that is none, or [`StoreCause::NotBuilt`](crate::StoreCause::NotBuilt).
    pub fn open(
        &self,
        user: Option<(String, String)>,
    ) -> Result<Option<Arc<dyn Store>>, StoreError> {
        match self {
            Self::Peers => Ok(None),
            Self::Http(base) => Ok(Some(Arc::new(HttpStore::new(base)?))),
            #[cfg(feature = "etcd")]
            Self::Etcd(endpoints) => {
                let options = crate::EtcdOptions { user, ..crate::EtcdOptions::default() };
                Ok(Some(Arc::new(crate::EtcdStore::new(endpoints, options))))
            }
            #[cfg(not(feature = "etcd"))]
            Self::Etcd(endpoints) => {
                // Nobody is told the password.
                drop(user);
                Err(StoreError {
                    store: format!("etcd://{}", endpoints.join(",")),
                    operation: crate::StoreOperation::Connect,
                    cause: crate::StoreCause::NotBuilt,
                })
            }
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Peers => f.write_str("p2p"),
            Self::Http(base) => f.write_str(base),
            Self::Etcd(endpoints) => write!(f, "etcd://{}", endpoints.join(",")),
        }
    }
}

impl FromStr for Source {
    type Err = SourceError;

    fn from_str(text: &str) -> Result<Self, SourceError> {
        let unknown = || SourceError::Unknown(text.to_owned());
        if text == "P2PHANDSHAKE" || text == "p2p" {
            return Ok(Self::Peers);
        }
        let (scheme, rest) = text.split_once("://").unwrap_or(("etcd", text));
        match scheme {
            "http" if rest.is_empty() || rest.starts_with('/') => {
                Err(SourceError::NoHost(text.to_owned()))
            }
            "http" => Ok(Self::Http(text.to_owned())),
            "etcd" => {
                let endpoints: Vec<String> =
                    rest.split([',', ';']).map(str::trim).map(str::to_owned).collect();
                let named = |endpoint: &String| {
                    endpoint
                        .rsplit_once(':')
                        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
                };
                match endpoints.iter().all(named) {
                    true => Ok(Self::Etcd(endpoints)),
                    false => Err(SourceError::NoHost(text.to_owned())),
                }
            }
            _ => Err(unknown()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_are_named_as_users_of_mooncake_name_them() {
        assert_eq!("P2PHANDSHAKE".parse(), Ok(Source::Peers));
        assert_eq!("http://h:1/metadata".parse(), Ok(Source::Http("http://h:1/metadata".into())));
        let two = Source::Etcd(vec!["a:1".into(), "b:2".into()]);
        for text in ["a:1,b:2", "etcd://a:1;b:2", "a:1, b:2"] {
            assert_eq!(text.parse(), Ok(two.clone()), "{text}");
        }
    }

    #[test]
    fn what_names_no_store_is_refused_in_words() {
        for text in ["redis://h:1", "https://h:1/metadata", "file:///tmp"] {
            assert_eq!(text.parse::<Source>(), Err(SourceError::Unknown(text.into())));
        }
        for text in ["", "http://", "http:///metadata", "etcd://", "a:1,,b:2", "host"] {
            assert_eq!(text.parse::<Source>(), Err(SourceError::NoHost(text.into())), "{text}");
        }
    }
}
