//! The announcement of a lifecycle's queue pairs that connect through the connection manager, as the
//! messages of the handshake carry it.

use super::{Announced, Token};
use crate::identity::{Incarnation, Lifecycle, Pair};
use core::fmt;
use core::net::SocketAddr;
use core::str::FromStr;

/// Longest text of an announcement, in bytes.
pub const ANNOUNCEMENT_BYTES_MAX: usize = 160;
/// A word of an announcement whose sender does not reach the receiver's address.
const ASKS: &str = "asks";
/// A word of an announcement of queue pairs of iWARP.
const IWARP: &str = "iwarp";
/// A word of an announcement whose address is in a partition, with the key behind it.
const PARTITION: &str = "pkey=";

/// Address and token of the queue pairs of a lifecycle.
///
/// In text: address, incarnation, lifecycle and token, `asks` where the sender cannot dial, `iwarp` for queue
/// pairs of iWARP, and `pkey=8001` on InfiniBand, with a space between them. Other words after the token are
/// ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Announcement {
    /// Address and port at which the sender takes connect requests.
    pub address: SocketAddr,
    /// The sender's opening of the device, and the lifecycle.
    pub pair: Pair,
    /// Drawn for this lifecycle; each queue pair has the one of [`Announcement::token`].
    pub token: Token,
    /// The sender cannot reach the receiver: the receiver is to dial.
    pub asks: bool,
    /// The queue pairs are iWARP's, which no connection joins with those of RoCE and InfiniBand.
    pub is_iwarp: bool,
    /// The key of the partition of the address, on InfiniBand.
    pub partition: Option<u16>,
}

/// The text is no announcement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an address, an incarnation, a lifecycle and a token")]
pub struct AnnouncementError;

impl Announcement {
    /// The token of the queue pair at a place: no other queue pair of the sender has it.
    pub fn token(&self, place: u16) -> Token {
        Token(self.token.0.wrapping_add(u128::from(place)))
    }

    /// The queue pair at a place, by its number.
    pub fn queue_pair(&self, place: u16, number: u32) -> Announced {
        Announced { pair: self.pair, place, number, token: self.token(place), asks: self.asks }
    }
}

impl fmt::Display for Announcement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Pair { incarnation, lifecycle } = self.pair;
        let (address, incarnation) = (self.address, incarnation.0);
        write!(f, "{address} {incarnation:032x} {} {:032x}", lifecycle.0, self.token.0)?;
        if self.asks {
            write!(f, " {ASKS}")?;
        }
        if self.is_iwarp {
            write!(f, " {IWARP}")?;
        }
        self.partition.map_or(Ok(()), |key| write!(f, " {PARTITION}{key:04x}"))
    }
}

impl FromStr for Announcement {
    type Err = AnnouncementError;

    fn from_str(text: &str) -> Result<Self, AnnouncementError> {
        if text.len() > ANNOUNCEMENT_BYTES_MAX {
            return Err(AnnouncementError);
        }
        let mut words = text.split(' ');
        let mut word = || words.next().ok_or(AnnouncementError);
        let address = word()?.parse().map_err(|_| AnnouncementError)?;
        let incarnation = Incarnation(number(word()?)?);
        let lifecycle = Lifecycle(word()?.parse().map_err(|_| AnnouncementError)?);
        let token = Token(number(word()?)?);
        let (mut asks, mut is_iwarp, mut partition) = (false, false, None);
        for word in words {
            asks |= word == ASKS;
            is_iwarp |= word == IWARP;
            if let Some(key) = word.strip_prefix(PARTITION) {
                let is_key = key.len() == 4 && key.bytes().all(|byte| byte.is_ascii_hexdigit());
                partition = u16::from_str_radix(key, 16).ok().filter(|_| is_key);
            }
        }
        let pair = Pair { incarnation, lifecycle };
        Ok(Self { address, pair, token, asks, is_iwarp, partition })
    }
}

/// A number of thirty-two hexadecimal digits.
fn number(word: &str) -> Result<u128, AnnouncementError> {
    let is_digit = |byte: u8| byte.is_ascii_hexdigit();
    if word.len() != 32 || !word.bytes().all(is_digit) {
        return Err(AnnouncementError);
    }
    u128::from_str_radix(word, 16).map_err(|_| AnnouncementError)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::borrow::ToOwned;
    use alloc::string::ToString;

    fn announcement() -> Announcement {
        Announcement {
            address: "10.0.0.2:18515".parse().unwrap(),
            pair: Pair { incarnation: Incarnation(0xabc), lifecycle: Lifecycle(7) },
            token: Token(u128::MAX),
            asks: false,
            is_iwarp: false,
            partition: None,
        }
    }

    /// The text of a release is read by the next one, and words that it does not know are ignored.
    #[test]
    fn announcement_keeps_its_text() {
        let text = "10.0.0.2:18515 00000000000000000000000000000abc 7 \
                    ffffffffffffffffffffffffffffffff";
        assert_eq!(announcement().to_string(), text);
        assert_eq!(text.parse(), Ok(announcement()));
        let asking = Announcement { asks: true, ..announcement() };
        assert_eq!(asking.to_string().parse(), Ok(asking));
        assert_eq!((asking.to_string() + " later words").parse(), Ok(asking));
        let iwarp = Announcement { is_iwarp: true, ..announcement() };
        assert_eq!(iwarp.to_string(), text.to_owned() + " iwarp");
        assert_eq!((iwarp.to_string() + " later").parse(), Ok(iwarp));
        let both = Announcement { asks: true, ..iwarp };
        assert_eq!(both.to_string().parse(), Ok(both));
        let partition = Some(0x8001);
        for it in
            [Announcement { partition, ..asking }, Announcement { partition, ..announcement() }]
        {
            assert_eq!(it.to_string().parse(), Ok(it));
        }
        let unknown = announcement().to_string() + " pkey=+801";
        assert_eq!(unknown.parse(), Ok(announcement()));
    }

    /// The longest announcement fits the limit of a message.
    #[test]
    fn longest_announcement_fits() {
        let scope = core::net::SocketAddrV6::new(u128::MAX.into(), u16::MAX, 0, u32::MAX);
        let pair = Pair { incarnation: Incarnation(u128::MAX), lifecycle: Lifecycle(u64::MAX) };
        let of = |is_iwarp, partition| Announcement {
            address: scope.into(),
            pair,
            token: Token(u128::MAX),
            asks: true,
            is_iwarp,
            partition,
        };
        // Partitions are InfiniBand's.
        for longest in [of(true, None), of(false, Some(u16::MAX))] {
            let text = longest.to_string();
            assert!(text.len() <= ANNOUNCEMENT_BYTES_MAX, "{}", text.len());
            assert_eq!(text.parse(), Ok(longest));
            let padded = alloc::format!("{text:width$}", width = ANNOUNCEMENT_BYTES_MAX + 1);
            assert_eq!(padded.parse::<Announcement>(), Err(AnnouncementError));
        }
    }

    #[test]
    fn malformed_announcements_are_refused() {
        for text in [
            "",
            "10.0.0.2 0 7 0",
            "10.0.0.2:1 abc 7 00000000000000000000000000000000",
            "10.0.0.2:1 00000000000000000000000000000000 -7 00000000000000000000000000000000",
            "10.0.0.2:1 00000000000000000000000000000000 7 +0000000000000000000000000000000",
            "10.0.0.2:1 00000000000000000000000000000000 7",
            "name:1 00000000000000000000000000000000 7 00000000000000000000000000000000",
        ] {
            assert_eq!(text.parse::<Announcement>(), Err(AnnouncementError), "{text}");
        }
    }

    /// Queue pairs of a lifecycle have different tokens.
    #[test]
    fn token_is_of_one_queue_pair() {
        let of = announcement();
        assert_ne!(of.token(0), of.token(1));
        assert_eq!(of.queue_pair(1, 9).token, of.token(1));
    }
}
