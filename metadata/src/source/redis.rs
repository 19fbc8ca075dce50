//! The URL of a Redis.

use super::SourceError;
use handfast_core::excerpt::excerpt;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use std::fmt;
use std::net::Ipv6Addr;

/// The port of a Redis whose URL names none.
const PORT: u16 = 6_379;
/// Characters of a name or a password that need no escape: RFC 3986, section 2.3.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The address of a Redis, and credentials if the URL has them.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisUrl {
    /// Host or address, without brackets.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Whether the Redis speaks TLS: `rediss`.
    pub is_encrypted: bool,
    /// Name and password; an empty name is Redis's default user.
    pub user: Option<(String, String)>,
    /// Number of the database.
    pub database: Option<u8>,
}

impl RedisUrl {
    /// Parses the text after `redis://` or `rediss://`.
    pub(super) fn parse(rest: &str, is_encrypted: bool) -> Result<Self, SourceError> {
        let (user, place) = match rest.rsplit_once('@') {
            Some((user, place)) => (Some(user), place),
            None => (None, rest),
        };
        let decoded = |text| {
            let text = percent_decode_str(text).decode_utf8();
            text.map(String::from).map_err(|_| SourceError::RedisUser)
        };
        let user = user.map(|user| {
            let (name, password) = user.split_once(':').unwrap_or((user, ""));
            Ok((decoded(name)?, decoded(password)?))
        });
        let (address, database) = match place.split_once('/') {
            Some((address, database)) => (address, database),
            None => (place, ""),
        };
        let database = match database {
            "" => None,
            number => {
                let invalid = |_| SourceError::RedisDatabase(excerpt(number));
                Some(number.parse().map_err(invalid)?)
            }
        };
        let (host, port) =
            host_and_port(address).ok_or_else(|| SourceError::NoHost(excerpt(place)))?;
        let user = user.transpose()?;
        Ok(Self { host: host.to_owned(), port, is_encrypted, user, database })
    }

    /// Returns the URL with its password, which [`Display`](fmt::Display) omits.
    pub fn with_password(&self) -> String {
        let user = self.user.as_ref().map(|(name, password)| {
            let [name, password] = [name, password].map(|it| utf8_percent_encode(it, PLAIN));
            format!("{name}:{password}@")
        });
        self.text(&user.unwrap_or_default())
    }

    /// Returns the URL with `user` before the host.
    fn text(&self, user: &str) -> String {
        let Self { host, port, is_encrypted, database, .. } = self;
        let scheme = if *is_encrypted { "rediss" } else { "redis" };
        let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        let database = database.map(|it| format!("/{it}")).unwrap_or_default();
        format!("{scheme}://{user}{host}:{port}{database}")
    }
}

impl fmt::Display for RedisUrl {
    /// Omits the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.user.as_ref().map(|(name, _)| name).filter(|name| !name.is_empty());
        let name = name.map(|name| format!("{}@", utf8_percent_encode(name, PLAIN)));
        f.write_str(&self.text(&name.unwrap_or_default()))
    }
}

impl fmt::Debug for RedisUrl {
    /// Omits the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisUrl({self})")
    }
}

/// Splits `HOST`, `HOST:PORT`, `[ADDRESS]` or `[ADDRESS]:PORT`.
fn host_and_port(text: &str) -> Option<(&str, u16)> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']')?;
            address.parse::<Ipv6Addr>().ok()?;
            (address, if port.is_empty() { None } else { Some(port.strip_prefix(':')?) })
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let is_host = !host.is_empty() && !host.contains([',', ';']);
    let is_host = is_host && !host.contains(|letter: char| letter.is_whitespace());
    let port = port.map_or(Some(PORT), |port| port.parse().ok().filter(|port| *port != 0))?;
    is_host.then_some((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Source;

    fn parsed(text: &str) -> Result<RedisUrl, SourceError> {
        match text.parse()? {
            Source::Redis(url) => Ok(url),
            other => panic!("{text} is {other:?}"),
        }
    }

    #[test]
    fn redis_url_has_user_database_and_tls() {
        let plain = RedisUrl {
            host: "h".into(),
            port: 6_379,
            is_encrypted: false,
            user: None,
            database: None,
        };
        assert_eq!(parsed("redis://h"), Ok(plain.clone()));
        assert_eq!(parsed("redis://h:6379/"), Ok(plain.clone()));
        let whole = RedisUrl {
            is_encrypted: true,
            user: Some(("ann".into(), "a:b@/".into())),
            database: Some(255),
            ..plain.clone()
        };
        assert_eq!(parsed("rediss://ann:a%3Ab%40%2F@h/255"), Ok(whole.clone()));
        assert_eq!(parsed(&whole.with_password()), Ok(whole.clone()));
        let default = RedisUrl { user: Some((String::new(), "x".into())), ..plain.clone() };
        assert_eq!(parsed("redis://:x@h:6379"), Ok(default));
        let address = RedisUrl { host: "::1".into(), port: 7, ..plain };
        assert_eq!(parsed("redis://[::1]:7"), Ok(address.clone()));
        assert_eq!(address.to_string(), "redis://[::1]:7");
    }

    #[test]
    fn password_is_in_no_text_of_a_source() {
        let source: Source = "redis://ann:secret@h:7/2".parse().unwrap();
        assert_eq!(source.to_string(), "redis://ann@h:7/2");
        assert!(!format!("{source:?}").contains("secret"));
        for text in ["redis://ann:secret@", "redis://ann:secret@h/x", "redis://ann:secret%ff@h"] {
            let error = text.parse::<Source>().unwrap_err();
            assert!(!format!("{error} {error:?}").contains("secret"), "{error}");
        }
    }

    #[test]
    fn malformed_redis_url_is_refused() {
        for (text, place) in [
            ("redis://", ""),
            ("redis://:6379", ":6379"),
            ("redis://h:0", "h:0"),
            ("redis://h:65536", "h:65536"),
            ("redis://[h]:1", "[h]:1"),
            ("redis://[::1]7", "[::1]7"),
            ("redis://a:1,b:2", "a:1,b:2"),
            ("redis://a b", "a b"),
        ] {
            assert_eq!(parsed(text), Err(SourceError::NoHost(place.into())), "{text}");
        }
        assert_eq!(parsed("redis://%ff@h"), Err(SourceError::RedisUser));
        for number in ["256", "-1", "x", "1/2"] {
            let text = format!("redis://h/{number}");
            assert_eq!(parsed(&text), Err(SourceError::RedisDatabase(number.into())));
        }
    }
}
