//! Choice of a port's address, with the reason.

use crate::profile::{DeviceProfile, STRICT};
use std::fmt;
use std::net::Ipv6Addr;

/// Bytes of a GID in text: sixteen times two digits, joined by colons.
const TEXT_BYTES: usize = 47;

/// Packet kind of a GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand.
    InfiniBand,
    /// RoCE v1: Ethernet frames that no router forwards. Never chosen.
    RoceV1,
    /// RoCE v2: UDP.
    RoceV2,
    /// A number this version does not know. Never chosen.
    Unknown(u32),
}

/// An entry of a port's GID table. Indices change when addresses are added or removed, so
/// only the address and the kind identify it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Current index in the table.
    pub index: u32,
    /// The address; an IPv4 address is mapped into it.
    pub address: Ipv6Addr,
    /// The kind.
    pub kind: GidKind,
    /// Number of the network interface it belongs to; 0 where the kernel names none, which is so
    /// for interfaces of another network namespace.
    pub interface: u32,
}

/// The configured choice of a GID.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GidWanted {
    /// The best usable entry.
    #[default]
    Automatic,
    /// This address, IPv4 mapped.
    Address(Ipv6Addr),
    /// The present entry at this index of the port's table. A reboot may change it.
    Index(u8),
}

/// A choice and its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChosenGid {
    /// The entry.
    pub entry: GidEntry,
    /// Reason for the choice, for people.
    pub why: String,
}

/// Reasons for having no usable GID.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GidError {
    /// The wanted address is not in the table, or not of a usable kind.
    #[error("the port has no usable GID {wanted}; it has: {table}")]
    NotThere {
        /// The wanted address.
        wanted: Ipv6Addr,
        /// The table.
        table: String,
    },
    /// The entry at the wanted index is empty or unusable.
    #[error("the port has no usable GID at index {index}; it has: {table}")]
    NotAtIndex {
        /// The wanted index.
        index: u8,
        /// The table.
        table: String,
    },
    /// The table has no usable entry.
    #[error("the port has no usable GID, so it has no address peers can reach; it has: {table}")]
    None {
        /// The table.
        table: String,
    },
    /// A peer's text is not a GID.
    #[error("'{0}' is not a GID of sixteen hexadecimal bytes joined by colons")]
    Malformed(String),
}

impl fmt::Display for GidEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            GidKind::InfiniBand => "InfiniBand",
            GidKind::RoceV1 => "RoCE v1",
            GidKind::RoceV2 => "RoCE v2",
            GidKind::Unknown(_) => "of an unknown kind",
        };
        write!(f, "index {} {} {kind}", self.index, self.address)
    }
}

/// Chooses among the entries of a port, in the order of [`usable_gids`].
///
/// # Errors
/// No entry fits; the error lists all.
pub fn choose_gid(entries: &[GidEntry], wanted: GidWanted) -> Result<ChosenGid, GidError> {
    let usable = usable_gids(entries, wanted, &STRICT)?;
    Ok(explained(usable[0], entries, wanted))
}

/// The usable entries for a device of the profile, best first; at least one. Packets must be of a
/// kind that routers carry; then IPv4 comes before global IPv6 before unique local before
/// link-local, which works within one layer-2 network alone; then the lower index. Private IPv4
/// ranges rank like others: data centres use them.
///
/// # Errors
/// No entry fits; the error lists all.
pub fn usable_gids(
    entries: &[GidEntry],
    wanted: GidWanted,
    profile: &DeviceProfile,
) -> Result<Vec<GidEntry>, GidError> {
    let usable = |entry: &&GidEntry| match rank(entry) {
        None => false,
        Some((RANK_LINK_LOCAL, _)) => profile.takes_link_local && profile.takes_ipv6,
        Some((RANK_GLOBAL | RANK_UNIQUE_LOCAL, _)) => profile.takes_ipv6,
        Some(_) => true,
    };
    let mut usable: Vec<_> = entries.iter().filter(usable).copied().collect();
    usable.sort_by_key(|entry| (rank(entry), entry.index));
    match wanted {
        GidWanted::Address(address) => {
            usable.retain(|entry| entry.address == address);
            usable.truncate(1);
            let missing = || GidError::NotThere { wanted: address, table: table(entries) };
            if usable.is_empty() { Err(missing()) } else { Ok(usable) }
        }
        GidWanted::Index(index) => {
            usable.retain(|entry| entry.index == u32::from(index));
            let missing = || GidError::NotAtIndex { index, table: table(entries) };
            if usable.is_empty() { Err(missing()) } else { Ok(usable) }
        }
        GidWanted::Automatic if usable.is_empty() => Err(GidError::None { table: table(entries) }),
        GidWanted::Automatic => Ok(usable),
    }
}

/// A choice with its reason.
pub(crate) fn explained(entry: GidEntry, entries: &[GidEntry], wanted: GidWanted) -> ChosenGid {
    if wanted != GidWanted::Automatic {
        return ChosenGid { why: format!("{entry}: it was asked for"), entry };
    }
    let words = rank(&entry).map_or("", |(_, words)| words);
    let others: Vec<_> = entries.iter().filter(|other| **other != entry).copied().collect();
    let others = if others.is_empty() { "none".to_owned() } else { table(&others) };
    ChosenGid { why: format!("{entry}: {words}; passed over: {others}"), entry }
}

const RANK_GLOBAL: u8 = 2;
const RANK_UNIQUE_LOCAL: u8 = 3;
const RANK_LINK_LOCAL: u8 = 4;

/// Rank and name of an entry; `None` if it is unusable.
pub(crate) fn rank(entry: &GidEntry) -> Option<(u8, &'static str)> {
    if entry.address.is_unspecified() {
        return None;
    }
    match entry.kind {
        GidKind::InfiniBand => Some((0, "an InfiniBand address")),
        GidKind::RoceV1 | GidKind::Unknown(_) => None,
        GidKind::RoceV2 if entry.interface == 0 => None,
        GidKind::RoceV2 => Some(match entry.address {
            address if address.to_ipv4_mapped().is_some() => (1, "an IPv4 address"),
            address if address.is_unicast_link_local() => {
                (RANK_LINK_LOCAL, "link-local, one network alone")
            }
            address if address.is_unique_local() => {
                (RANK_UNIQUE_LOCAL, "a unique local IPv6 address")
            }
            _ => (RANK_GLOBAL, "a global IPv6 address"),
        }),
    }
}

pub(crate) fn table(entries: &[GidEntry]) -> String {
    if entries.is_empty() {
        return "nothing".to_owned();
    }
    entries.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// A GID as control messages carry it: sixteen hexadecimal bytes joined by colons.
pub fn gid_text(address: Ipv6Addr) -> String {
    address.octets().map(|byte| format!("{byte:02x}")).join(":")
}

/// The inverse of [`gid_text`].
///
/// # Errors
/// [`GidError::Malformed`] with the beginning of the text.
pub fn parse_gid(text: &str) -> Result<Ipv6Addr, GidError> {
    // A message bounds the text's length; of a long text only the beginning is quoted.
    let malformed = || GidError::Malformed(text.chars().take(TEXT_BYTES + 1).collect());
    if text.len() != TEXT_BYTES {
        return Err(malformed());
    }
    let mut octets = [0; 16];
    let mut parts = text.split(':');
    for octet in &mut octets {
        let part = parts.next().filter(|part| part.bytes().all(|b| b.is_ascii_hexdigit()));
        let part = part.filter(|part| part.len() == 2).ok_or_else(malformed)?;
        *octet = u8::from_str_radix(part, 16).map_err(|_| malformed())?;
    }
    if parts.next().is_some() { Err(malformed()) } else { Ok(octets.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u32, address: &str, kind: GidKind) -> GidEntry {
        GidEntry { index, address: address.parse().unwrap(), kind, interface: 2 }
    }

    /// The IPv4 address is chosen, and the reason names the alternatives.
    #[test]
    fn ipv4_gid_is_preferred_with_a_reason() {
        let table = [
            entry(0, "fe80::1", GidKind::RoceV1),
            entry(1, "fe80::1", GidKind::RoceV2),
            entry(2, "::ffff:10.0.0.1", GidKind::RoceV1),
            entry(3, "::ffff:10.0.0.1", GidKind::RoceV2),
            entry(4, "2001:db8::1", GidKind::RoceV2),
        ];
        let chosen = choose_gid(&table, GidWanted::Automatic).unwrap();
        assert_eq!(chosen.entry.index, 3);
        assert!(chosen.why.contains("an IPv4 address; passed over: index 0 fe80::1 RoCE v1"));
    }

    #[test]
    fn every_class_of_address_gives_way_to_the_one_before_it() {
        let mut table = vec![
            entry(3, "::ffff:192.168.0.1", GidKind::RoceV2),
            entry(2, "2001:db8::1", GidKind::RoceV2),
            entry(1, "fd00::1", GidKind::RoceV2),
            entry(0, "fe80::1", GidKind::RoceV2),
        ];
        while !table.is_empty() {
            let best = table[0];
            assert_eq!(choose_gid(&table, GidWanted::Automatic).unwrap().entry, best);
            table.remove(0);
        }
    }

    #[test]
    fn a_foreign_namespaces_address_and_an_unset_one_are_not_used() {
        let foreign = GidEntry { interface: 0, ..entry(1, "::ffff:10.0.0.1", GidKind::RoceV2) };
        let unset = entry(0, "::", GidKind::RoceV2);
        let odd = entry(2, "::ffff:10.0.0.2", GidKind::Unknown(9));
        let error = choose_gid(&[unset, foreign, odd], GidWanted::Automatic).unwrap_err();
        assert!(error.to_string().contains("10.0.0.1"), "{error}");
        let wanted = GidWanted::Address("::ffff:10.0.0.1".parse().unwrap());
        assert!(matches!(choose_gid(&[foreign], wanted), Err(GidError::NotThere { .. })));
    }

    #[test]
    fn the_address_asked_for_is_taken_even_if_a_better_one_exists() {
        let table =
            [entry(0, "::ffff:10.0.0.1", GidKind::RoceV2), entry(1, "fe80::1", GidKind::RoceV2)];
        let wanted = GidWanted::Address("fe80::1".parse().unwrap());
        assert_eq!(choose_gid(&table, wanted).unwrap().entry.index, 1);
        assert_eq!(choose_gid(&table, GidWanted::Index(1)).unwrap().entry, table[1]);
    }

    /// A requested GID index must hold a usable address.
    #[test]
    fn requested_gid_index_must_be_usable() {
        let table =
            [entry(0, "fe80::1", GidKind::RoceV1), entry(1, "::ffff:10.0.0.1", GidKind::RoceV2)];
        assert_eq!(choose_gid(&table, GidWanted::Index(1)).unwrap().entry.index, 1);
        for index in [0, 2] {
            let error = choose_gid(&table, GidWanted::Index(index)).unwrap_err().to_string();
            assert!(error.contains(&format!("index {index}; it has: index 0 fe80::1")), "{error}");
        }
    }

    /// A device that connects over IPv4 alone is not reached at another address.
    #[test]
    fn ipv4_only_device_needs_an_ipv4_peer() {
        use crate::profile::ERDMA_COMPAT;
        let table =
            [entry(0, "fe80::1", GidKind::RoceV2), entry(1, "2001:db8::1", GidKind::RoceV2)];
        assert!(usable_gids(&table, GidWanted::Automatic, &ERDMA_COMPAT).is_err());
        assert_eq!(usable_gids(&table, GidWanted::Automatic, &STRICT).unwrap().len(), 2);
        let ipv4 = entry(7, "::ffff:10.0.0.1", GidKind::RoceV2);
        let table = [table[0], table[1], ipv4];
        assert_eq!(usable_gids(&table, GidWanted::Automatic, &ERDMA_COMPAT), Ok(vec![ipv4]));
    }

    #[test]
    fn a_gid_comes_back_from_its_text_and_other_texts_are_refused() {
        let address: Ipv6Addr = "::ffff:10.0.0.2".parse().unwrap();
        let text = gid_text(address);
        assert_eq!(text, "00:00:00:00:00:00:00:00:00:00:ff:ff:0a:00:00:02");
        assert_eq!(parse_gid(&text), Ok(address));
        let plus = text.replacen("00", "+0", 1);
        let long = format!("{text}:00");
        let short = &text[..44];
        let joined = text.replace(':', "0");
        for wrong in ["", "fe80::1", &plus, &long, short, &joined, &"é".repeat(40)] {
            assert!(parse_gid(wrong).is_err(), "{wrong}");
        }
    }
}
