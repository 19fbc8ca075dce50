//! The announcement of a lane: where its side listens, and a number that proves a peer.

use std::fmt;

/// Longest name of a socket, in bytes: the kernel takes 108, with a directory.
pub(crate) const NAME_BYTES_MAX: usize = 64;

/// Place of a socket, as peers know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A name without a file, of the network namespace.
    Abstract(String),
    /// A file in the directory that both sides configure, wherever each of them mounts it.
    Directory(String),
}

/// The text of the key `shared_memory`: `KNOCK ANSWER HOST PLACE NAME`, the first three sixteen
/// hexadecimal digits, the place `@` or `/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Announcement {
    /// The number that a dialling peer shows.
    pub(crate) knock: u64,
    /// The number that this side shows to it.
    pub(crate) answer: u64,
    /// The running kernel's number: two that differ need no attempt. It proves nothing.
    pub(crate) host: u64,
    pub(crate) place: Place,
}

impl fmt::Display for Announcement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sign, name) = match &self.place {
            Place::Abstract(name) => ('@', name),
            Place::Directory(name) => ('/', name),
        };
        let Self { knock, answer, host, .. } = self;
        write!(f, "{knock:016x}{answer:016x}{host:016x}{sign}{name}")
    }
}

impl Announcement {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let number = |text: Option<&str>| u64::from_str_radix(text?, 16).ok();
        let (knock, answer) = (number(text.get(..16))?, number(text.get(16..32))?);
        let (host, name) = (number(text.get(32..48))?, text.get(49..)?);
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(plain) {
            return None;
        }
        let place = match text.get(48..49)? {
            "@" => Place::Abstract(name.into()),
            "/" => Place::Directory(name.into()),
            _ => return None,
        };
        Some(Self { knock, answer, host, place })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An announcement is read as it was written; names that leave the directory are none.
    #[test]
    fn announcements_name_no_other_place() {
        for place in [Place::Abstract("handfast-1".into()), Place::Directory("handfast-1".into())] {
            let one = Announcement { knock: 7, answer: u64::MAX, host: 3, place };
            assert_eq!(Announcement::parse(&one.to_string()), Some(one));
        }
        let numbers = "0".repeat(48);
        let long = "a".repeat(NAME_BYTES_MAX + 1);
        for name in ["", "@", "/", "/..", "/a/b", "@a b", "#a", &format!("@{long}"), "@\u{e9}"] {
            assert_eq!(Announcement::parse(&format!("{numbers}{name}")), None, "{name}");
        }
        for text in ["", "0", "\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}", "x@a"] {
            assert_eq!(Announcement::parse(text), None, "{text}");
        }
    }
}
