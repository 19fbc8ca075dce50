//! Removes secrets from a document, and replaces hosts and addresses by placeholders.

use crate::doctor::probes::without_secrets;
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Maximum placeholders; further values are omitted.
const NAMES_MAX: usize = 65_536;
/// Replaces an omitted value.
const LEFT_OUT: &str = "(left out)";

/// Assigns placeholders, equal ones to equal values.
pub(super) struct Redactor {
    hosts: Vec<String>,
    networks: BTreeMap<[u8; 3], usize>,
    names: BTreeMap<String, String>,
}

/// Returns the value of a variable without its secrets.
pub(super) fn value_of(name: &str, value: &str) -> String {
    without_secrets(name, value)
}

impl Redactor {
    pub(super) fn new<'a>(hosts: impl Iterator<Item = &'a str>) -> Self {
        // Short names may be ordinary words; `localhost` identifies nobody.
        let hosts = hosts.filter(|host| host.len() > 2 && *host != "localhost");
        let mut names: Vec<String> = Vec::new();
        for host in hosts {
            names.push(host.to_lowercase());
            names.extend(host.split_once('.').map(|(short, _)| short.to_lowercase()));
        }
        Self { hosts: names, networks: BTreeMap::new(), names: BTreeMap::new() }
    }

    /// Redacts all texts of the document, and the names of its entries.
    pub(super) fn redact(&mut self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.text(text),
            Value::Array(items) => items.iter_mut().for_each(|item| self.redact(item)),
            Value::Object(entries) => {
                let old = std::mem::take(entries);
                for (name, mut entry) in old {
                    self.redact(&mut entry);
                    entries.insert(self.text(&name), entry);
                }
            }
            _ => {}
        }
    }

    fn text(&mut self, text: &str) -> String {
        let text = without_user(text);
        let mut out = String::new();
        let mut rest = text.as_str();
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | ':' | '_' | '-');
        while let Some(start) = rest.find(is_part) {
            let (before, after) = rest.split_at(start);
            let end = after.find(|c| !is_part(c)).unwrap_or(after.len());
            let (word, after) = after.split_at(end);
            out.push_str(before);
            out.push_str(&self.word(word));
            rest = after;
        }
        out + rest
    }

    /// Redacts a word, which may end a sentence or precede a port.
    fn word(&mut self, word: &str) -> String {
        let bare = word.trim_end_matches(['.', ':']);
        let tail = &word[bare.len()..];
        if let Some(named) = self.name(bare) {
            return named + tail;
        }
        if let Some((host, port)) = bare.rsplit_once(':')
            && let Some(named) = self.name(host)
        {
            return format!("{named}:{port}{tail}");
        }
        word.to_owned()
    }

    fn name(&mut self, word: &str) -> Option<String> {
        if let Ok(address) = word.parse::<IpAddr>() {
            return Some(self.address(address));
        }
        let lower = word.to_lowercase();
        if let Some(at) = self.hosts.iter().position(|host| *host == lower) {
            return Some(format!("host-{}", at + 1));
        }
        is_hardware(word).then(|| self.numbered("hardware", word))
    }

    /// Loopback addresses, unset addresses and masks identify nobody.
    fn address(&mut self, address: IpAddr) -> String {
        match address {
            IpAddr::V4(ip) if says_nothing(ip) => ip.to_string(),
            IpAddr::V4(ip) => self.ipv4(ip),
            IpAddr::V6(ip) if ip.is_loopback() || ip.is_unspecified() => ip.to_string(),
            IpAddr::V6(ip) => match ip.to_ipv4_mapped() {
                Some(ip) => format!("::ffff:{}", self.address(ip.into())),
                None => self.ipv6(ip),
            },
        }
    }

    /// Addresses of one network of 256 stay recognisable as such.
    fn ipv4(&mut self, ip: Ipv4Addr) -> String {
        let [a, b, c, _] = ip.octets();
        let next = self.networks.len() + 1;
        let network = *self.networks.entry([a, b, c]).or_insert(next);
        self.numbered(&format!("ipv4-net{network}-host"), &ip.to_string())
    }

    fn ipv6(&mut self, ip: Ipv6Addr) -> String {
        let kind = if ip.is_unicast_link_local() { "ipv6-link-local" } else { "ipv6" };
        self.numbered(kind, &ip.to_string())
    }

    fn numbered(&mut self, kind: &str, word: &str) -> String {
        if let Some(name) = self.names.get(word) {
            return name.clone();
        }
        if self.names.len() >= NAMES_MAX {
            return LEFT_OUT.to_owned();
        }
        let name = format!("{kind}-{}", self.names.len() + 1);
        self.names.insert(word.to_owned(), name.clone());
        name
    }
}

/// Whether the address is loopback, unset, broadcast or a mask.
fn says_nothing(ip: Ipv4Addr) -> bool {
    let bits = ip.to_bits();
    let is_mask = bits.leading_ones() + bits.trailing_zeros() >= 32;
    ip.is_loopback() || is_mask && (bits == 0 || bits.leading_ones() >= 8)
}

/// Whether the word is six or eight pairs of hexadecimal digits, an Ethernet or InfiniBand address.
fn is_hardware(word: &str) -> bool {
    let pairs: Vec<&str> = word.split([':', '-']).collect();
    let is_pair =
        |pair: &&str| pair.len() == 2 && pair.bytes().all(|byte| byte.is_ascii_hexdigit());
    matches!(pairs.len(), 6 | 8 | 20) && pairs.iter().all(is_pair)
}

/// Removes name and password before the host of a URL: all up to the last `@` before a blank or a quotation
/// mark, since a password may have any other character.
fn without_user(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("://") {
        let end = after.find([' ', '"', '\'']).unwrap_or(after.len());
        let (host, tail) = after.split_at(end);
        out.push_str(before);
        out.push_str("://");
        out.push_str(host.rsplit_once('@').map_or(host, |(_, host)| host));
        rest = tail;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_names_somebody_has_another_name_and_the_rest_stays() {
        let mut redactor = Redactor::new(["node-a.corp.example", "node-b"].into_iter());
        let mut of = |text: &str| redactor.text(text);
        assert_eq!(of("node-a, NODE-B and nodes"), "host-2, host-3 and nodes");
        assert_eq!(of("10.1.0.7:7411 at 10.1.0.8."), "ipv4-net1-host-1:7411 at ipv4-net1-host-2.");
        assert_eq!(of("10.2.0.7/24"), "ipv4-net2-host-3/24");
        assert_eq!(of("::ffff:10.1.0.7"), "::ffff:ipv4-net1-host-1");
        assert_eq!(of("fe80::1 2001:db8::7"), "ipv6-link-local-4 ipv6-5");
        assert_eq!(of("00:16:3e:aa:bb:cc"), "hardware-6");
        for kept in ["127.0.0.1:7411", "0.0.0.0", "255.255.255.0", "::1", "0000:5e:00.0", "mlx5_0"]
        {
            assert_eq!(of(kept), kept);
        }
        assert_eq!(of("etcd://me:pa:ss@10.1.0.7:2379/x"), "etcd://ipv4-net1-host-1:2379/x");
        let quoted = "at 'redis://me:p/a,s@s=@10.1.0.7:6379' it failed";
        assert_eq!(of(quoted), "at 'redis://ipv4-net1-host-1:6379' it failed");
    }
}
