//! Removes secrets from a document, and replaces hosts and addresses by placeholders.

use crate::doctor::probes::without_secrets;
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Maximum placeholders; further values are omitted.
const NAMES_MAX: usize = 65_536;
/// Replaces an omitted value.
pub(super) const LEFT_OUT: &str = "(left out)";

/// A text to hide, and the one in its place.
pub(super) type Secret = (String, &'static str);

/// Assigns placeholders, equal ones to equal values.
pub(super) struct Redactor {
    /// Users and passwords that end at no certain place in a text.
    secrets: Vec<Secret>,
    hosts: Vec<String>,
    /// Hosts whose names may be ordinary words: they are replaced before a port, behind a scheme, and as a whole value.
    words: Vec<String>,
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
        let (secrets, words, networks) = (Vec::new(), Vec::new(), BTreeMap::new());
        Self { secrets, hosts: names, words, networks, names: BTreeMap::new() }
    }

    /// Hides texts wherever they are, in their order.
    pub(super) fn hiding(mut self, secrets: impl IntoIterator<Item = Secret>) -> Self {
        self.secrets.extend(secrets);
        self
    }

    /// Replaces further hosts, by their names.
    pub(super) fn naming(mut self, hosts: impl IntoIterator<Item = String>) -> Self {
        for host in hosts {
            let host = host.to_lowercase();
            let short = host.split_once('.').map(|(short, _)| short.to_owned());
            let short = short.filter(|short| short.len() > 2);
            for name in [Some(host), short].into_iter().flatten() {
                let is_ordinary = name.bytes().all(|byte| byte.is_ascii_alphabetic());
                let names = if is_ordinary { &mut self.words } else { &mut self.hosts };
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
        self
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
                    entries.insert(self.replaced(&name, false), entry);
                }
            }
            _ => {}
        }
    }

    fn text(&mut self, text: &str) -> String {
        self.replaced(text, true)
    }

    /// `is_value`: a text that is one word may be the name of a host.
    fn replaced(&mut self, text: &str, is_value: bool) -> String {
        let text = without_user(&self.without_secrets(text));
        let mut out = String::new();
        let mut rest = text.as_str();
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | ':' | '_' | '-');
        while let Some(start) = rest.find(is_part) {
            let (before, after) = rest.split_at(start);
            let end = after.find(|c| !is_part(c)).unwrap_or(after.len());
            let (word, after) = after.split_at(end);
            out.push_str(before);
            let is_address = out.ends_with("//") || is_value && word == text;
            out.push_str(&self.word(word, is_address));
            rest = after;
        }
        out + rest
    }

    fn without_secrets(&self, text: &str) -> String {
        let hidden = |text: String, (secret, shown): &Secret| text.replace(secret, shown);
        self.secrets.iter().fold(text.to_owned(), hidden)
    }

    /// Redacts a word, which may end a sentence or precede a port.
    fn word(&mut self, word: &str, is_address: bool) -> String {
        let bare = word.trim_end_matches(['.', ':']);
        let tail = &word[bare.len()..];
        if let Some(named) = self.name(bare) {
            return named + tail;
        }
        if is_address && let Some(named) = self.ordinary(bare) {
            return named + tail;
        }
        if let Some((host, port)) = bare.rsplit_once(':')
            && let Some(named) = self.name(host).or_else(|| self.ordinary(host))
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

    fn ordinary(&self, word: &str) -> Option<String> {
        let lower = word.to_lowercase();
        let at = self.words.iter().position(|host| *host == lower)?;
        Some(format!("host-{}", self.hosts.len() + at + 1))
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

/// The user of an address and its password, if they have a character at which [`without_user`] ends; also as `Debug`
/// writes them.
pub(super) fn secrets_of(address: &str) -> Vec<Secret> {
    let rest = address.split_once("://").map_or(address, |(_, rest)| rest);
    let Some((user, _)) = rest.rsplit_once('@').filter(|(user, _)| user.contains(ENDS)) else {
        return Vec::new();
    };
    let password = user.split_once(':').map(|(_, password)| password);
    let password = password.filter(|password| password.contains(ENDS) && password.len() > 2);
    let user = (format!("{user}@"), "");
    let secrets = [Some(user), password.map(|password| (password.to_owned(), LEFT_OUT))];
    let forms = secrets.into_iter().flatten().flat_map(|(secret, shown)| {
        let quoted = format!("{secret:?}");
        let escaped = quoted[1..quoted.len() - 1].to_owned();
        [(secret, shown), (escaped, shown)]
    });
    forms.collect()
}

/// The hosts in a list of addresses or URLs, by their names; numeric addresses are none.
pub(super) fn hosts_of(list: &str) -> Vec<String> {
    named_in(list, |_, _| true)
}

/// The hosts in the value of a variable: those of URLs, and names with a domain.
pub(super) fn hosts_in(value: &str) -> Vec<String> {
    named_in(value, |host, is_url| {
        let domain = host.rsplit_once('.').map(|(_, last)| last);
        let is_domain = |last: &str| last.bytes().all(|byte| byte.is_ascii_alphabetic());
        is_url || !host.contains('_') && domain.is_some_and(is_domain)
    })
}

/// The names in a list that `is_host`, of a name and whether it is a URL's, accepts.
fn named_in(list: &str, is_host: impl Fn(&str, bool) -> bool) -> Vec<String> {
    let list = without_user(list);
    let parts = list.split([',', ';', ' ']).map(|part| {
        let (is_url, rest) = match part.rsplit_once("://") {
            Some((_, rest)) => (true, rest),
            None => (false, part),
        };
        let rest = rest.split(['/', '?']).next().unwrap_or_default();
        let port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
        let host = rest.rsplit_once(':').filter(|(_, it)| port(it)).map_or(rest, |(host, _)| host);
        (host.to_owned(), is_url)
    });
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    let is_name = |host: &str| {
        let has_letter = host.bytes().any(|byte| byte.is_ascii_alphabetic());
        // Short names may be ordinary words; `localhost` identifies nobody.
        host.len() > 2 && host != "localhost" && has_letter && host.bytes().all(is_part)
    };
    let named = parts.filter(|(host, is_url)| is_name(host) && is_host(host, *is_url));
    named.map(|(host, _)| host).collect()
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

/// Characters that end a URL in a text.
const ENDS: [char; 3] = [' ', '"', '\''];

/// Removes name and password before the host of a URL: all up to the last `@` before a blank or a quotation
/// mark, since a password may have any other character. Those that have one of these are [`secrets_of`] the request.
fn without_user(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("://") {
        let end = after.find(ENDS).unwrap_or(after.len());
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
        let mut redactor = Redactor::new(["node-a"].into_iter()).naming(hosts_of(
            "etcd://me:se@cr@etcd:2379,etcd-1.corp.example:2379;10.1.0.9:1,[2001:db8::7]:2379,rack",
        ));
        let mut of = |text: &str| redactor.text(text);
        assert_eq!(of("etcd://ETCD:2379, the etcd"), "etcd://host-4:2379, the etcd");
        assert_eq!(of("etcd-1"), "host-3");
        assert_eq!(of("node-a of rack"), "host-1 of rack");
        assert_eq!(of("rack"), "host-5");
        let quoted = "at 'redis://me:p/a,s@s=@10.1.0.7:6379' it failed";
        assert_eq!(of(quoted), "at 'redis://ipv4-net1-host-1:6379' it failed");
    }

    /// A password may have the characters that end a URL in a text.
    #[test]
    fn password_with_a_blank_is_hidden_where_it_is_repeated() {
        for password in ["hun ter2", "h@ un'ter", "say \"please\""] {
            let address = format!("etcd://root:{password}@10.1.0.9:2379");
            let none: [&str; 0] = [];
            let mut redactor = Redactor::new(none.into_iter()).hiding(secrets_of(&address));
            let text = format!("no answer at {address}, as {address:?} says, with '{password}'");
            let shown = "no answer at etcd://ipv4-net1-host-1:2379, as \
                \"etcd://ipv4-net1-host-1:2379\" says, with '(left out)'";
            assert_eq!(redactor.text(&text), shown);
        }
        assert!(secrets_of("etcd://root:hunter2@10.1.0.9:2379").is_empty());
        assert!(secrets_of("10.1.0.9:2379 10.1.0.10:2379").is_empty());
    }

    /// A variable may name hosts, also in a list; words that look like ones stay.
    #[test]
    fn hosts_of_a_variable_are_those_of_urls_and_domains() {
        let hosts = |value: &str| hosts_in(value).join(" ");
        assert_eq!(hosts("http://proxy:3128"), "proxy");
        assert_eq!(hosts("a.corp.example:1,b.corp.example"), "a.corp.example b.corp.example");
        for none in ["mlx5_0:1", "C.UTF-8", "en_US.UTF-8", "10.1.0.7:1", "4096", "/opt/lib.d/x"] {
            assert_eq!(hosts(none), "", "{none}");
        }
    }
}
