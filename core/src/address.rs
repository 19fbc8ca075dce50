//! Addresses as users write them: `HOST` and `HOST:PORT`.

use crate::excerpt::excerpt;
use alloc::string::String;
use core::net::Ipv6Addr;
use core::ops::RangeInclusive;

/// Ports that the driver erdma holds in compat mode, in every network namespace and without a process: 16
/// from its base, which is 30608 unless the module was loaded with another.
pub const PORTS_OF_ERDMA: RangeInclusive<u16> = 30_608..=30_623;

/// Whether a listener gives back a port: the kernel chose it for an address with port 0, and it is one of
/// [`PORTS_OF_ERDMA`]. The listener holds it and asks for another one.
pub fn is_given_back(asked: &str, given: u16) -> bool {
    with_port(asked).is_ok_and(|(_, port)| port == 0) && PORTS_OF_ERDMA.contains(&given)
}

/// Rejection of a text that should be `HOST` or `HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// The port is not a number up to 65535.
    #[error("'{text}': '{port}' is not a port, a number from 0 to 65535")]
    Port {
        /// The whole text, as an excerpt.
        text: String,
        /// The part after the colon.
        port: String,
    },
    /// The part before the port is not a host.
    #[error("'{0}' is not HOST or HOST:PORT; write IPv6 addresses before a port in brackets")]
    Host(String),
    /// The port is missing.
    #[error("'{0}' has no port; write HOST:PORT")]
    NoPort(String),
}

/// Splits `HOST` or `HOST:PORT`: `[::1]:7`, `::1`, `host:7`, `host`.
///
/// # Errors
/// [`AddressError::Host`] and [`AddressError::Port`].
pub fn host_and_port(text: &str) -> Result<(&str, Option<u16>), AddressError> {
    let no_host = || AddressError::Host(excerpt(text));
    let bracketed = match text.strip_prefix('[') {
        Some(rest) => Some(rest.split_once(']').ok_or_else(no_host)?),
        None => None,
    };
    let (host, port) = match (bracketed, text.rsplit_once(':')) {
        (Some((host, "")), _) => (host, None),
        (Some((host, rest)), _) => (host, Some(rest.strip_prefix(':').ok_or_else(no_host)?)),
        (None, Some((host, port))) if !host.contains(':') => (host, Some(port)),
        (None, _) => (text, None),
    };
    let is_address = host.parse::<Ipv6Addr>().is_ok();
    let separates = |letter: char| letter.is_whitespace() || letter.is_control();
    if host.is_empty() || host.contains(separates) || host.contains(['/', ',', '@', '[', ']']) {
        return Err(no_host());
    }
    // An address with a zone, `fe80::1%eth0`, is a host as well.
    if (bracketed.is_some() || host.contains(':')) && !is_address && !host.contains('%') {
        return Err(no_host());
    }
    let Some(port) = port else { return Ok((host, None)) };
    let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let number = port.parse().ok().filter(|_| digits);
    let wrong = || AddressError::Port { text: excerpt(text), port: excerpt(port) };
    Ok((host, Some(number.ok_or_else(wrong)?)))
}

/// Splits `HOST:PORT`.
///
/// # Errors
/// As [`host_and_port`], and [`AddressError::NoPort`].
pub fn with_port(text: &str) -> Result<(&str, u16), AddressError> {
    let (host, port) = host_and_port(text)?;
    Ok((host, port.ok_or_else(|| AddressError::NoPort(excerpt(text)))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_ports_are_told_apart() {
        for (text, host, port) in [
            ("10.0.0.1:7", "10.0.0.1", Some(7)),
            ("host", "host", None),
            ("[::1]:7", "::1", Some(7)),
            ("[::1]", "::1", None),
            ("::1", "::1", None),
            ("fe80::1%eth0", "fe80::1%eth0", None),
            ("host:65535", "host", Some(65_535)),
        ] {
            assert_eq!(host_and_port(text), Ok((host, port)), "{text}");
        }
    }

    /// Of the ports of erdma those that the kernel chose are given back; one that was asked for is kept.
    #[test]
    fn ports_of_erdma_that_the_kernel_chose_are_given_back() {
        for (asked, given, is_given) in [
            ("127.0.0.1:0", 30_607, false),
            ("127.0.0.1:0", 30_608, true),
            ("[::1]:0", 30_623, true),
            ("127.0.0.1:0", 30_624, false),
            ("127.0.0.1:30608", 30_608, false),
            ("host", 30_608, false),
        ] {
            assert_eq!(is_given_back(asked, given), is_given, "{asked} {given}");
        }
    }

    #[test]
    fn ports_that_are_none_and_texts_without_a_host_are_refused() {
        for text in ["host:port", "host:65536", "host:", "host:-1", "host:+1", "[::1]:x"] {
            assert!(matches!(host_and_port(text), Err(AddressError::Port { .. })), "{text}");
        }
        for text in ["", ":7", "a b", "a b:7", "[::1", "[::1]7", "a:b:7", "[a]:7", "h/x:7", "u@h:7"]
        {
            assert!(matches!(host_and_port(text), Err(AddressError::Host(_))), "{text}");
        }
        assert_eq!(with_port("host"), Err(AddressError::NoPort("host".into())));
        assert_eq!(with_port("host:7"), Ok(("host", 7)));
    }
}
