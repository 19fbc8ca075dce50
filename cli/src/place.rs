//! The address of bytes on a node: `HOST:PORT[/SEGMENT][:OFFSET[,LENGTH]]`, as in `--help`
//! (`places.txt`).

use crate::size;
use std::str::FromStr;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// `HOST:PORT` or `HOST:PORT/SEGMENT`, as the engine opens it.
    pub(crate) segment: String,
    pub(crate) offset: u64,
    pub(crate) length: Option<u64>,
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is not HOST:PORT[/SEGMENT][:OFFSET[,LENGTH]]");
        let host_end = match text.strip_prefix('[') {
            Some(rest) => rest.find(']').map(|end| end + 2).ok_or_else(wrong)?,
            None => text.find(':').ok_or_else(wrong)?,
        };
        let after_host = text[host_end..].strip_prefix(':').ok_or_else(wrong)?;
        let port_digits =
            after_host.find(|c: char| !c.is_ascii_digit()).unwrap_or(after_host.len());
        let port = &after_host[..port_digits];
        if host_end == 0 || port.parse::<u16>().is_err() {
            return Err(format!("'{text}' has no HOST:PORT at its start"));
        }
        let address = &text[..host_end + 1 + port_digits];
        let (segment, range) = match &after_host[port_digits..] {
            "" => ("", None),
            rest if rest.starts_with(':') => ("", Some(&rest[1..])),
            rest => {
                let named = rest.strip_prefix('/').ok_or_else(wrong)?;
                match named.rsplit_once(':') {
                    Some((name, range)) => (name, Some(range)),
                    None => (named, None),
                }
            }
        };
        let (offset, length) = range.map_or(Ok((0, None)), parse_range)?;
        let segment =
            if segment.is_empty() { address.to_owned() } else { format!("{address}/{segment}") };
        Ok(Self { segment, offset, length })
    }
}

fn parse_range(range: &str) -> Result<(u64, Option<u64>), String> {
    match range.split_once(',') {
        None => Ok((size::parse(range)?, None)),
        Some((offset, length)) => Ok((size::parse(offset)?, Some(size::parse_positive(length)?))),
    }
}

#[cfg(test)]
mod tests {
    use super::Place;

    fn place(segment: &str, offset: u64, length: Option<u64>) -> Result<Place, String> {
        Ok(Place { segment: segment.into(), offset, length })
    }

    #[test]
    fn places_are_read_with_and_without_their_optional_parts() {
        assert_eq!("h:1".parse(), place("h:1", 0, None));
        assert_eq!("h:1:64K".parse(), place("h:1", 65_536, None));
        assert_eq!("h:1/cache".parse(), place("h:1/cache", 0, None));
        assert_eq!("h:1/cache:5,1M".parse(), place("h:1/cache", 5, Some(1 << 20)));
        assert_eq!("[::1]:7411/a:0,1".parse(), place("[::1]:7411/a", 0, Some(1)));
        assert_eq!("[::1]:7411".parse(), place("[::1]:7411", 0, None));
    }

    #[test]
    fn what_is_not_a_place_is_refused_in_words() {
        for wrong in
            ["", "host", ":1", "h:", "h:port", "h:99999", "h:1x", "[::1", "h:1:x", "h:1:0,0"]
        {
            assert!(wrong.parse::<Place>().is_err(), "{wrong}");
        }
    }
}
