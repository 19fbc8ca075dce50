//! The words of a step.

use crate::arm::{Address, Change, Key, Own, Towards};
use handfast_transport_sim::verbs::{Access, QpState};

/// The defect of a step.
pub(crate) type Wrong = String;

/// The words of a line, consumed one by one; remaining words are an error.
pub(crate) struct Words<'a> {
    plain: std::vec::IntoIter<&'a str>,
    named: Vec<(&'a str, &'a str)>,
}

impl<'a> Words<'a> {
    pub(crate) fn of(line: &'a str) -> Self {
        let (named, plain): (Vec<&str>, Vec<&str>) =
            line.split_whitespace().partition(|word| word.contains('='));
        let named = named.into_iter().filter_map(|word| word.split_once('=')).collect();
        Self { plain: plain.into_iter(), named }
    }

    /// Returns the next unnamed word.
    pub(crate) fn next(&mut self) -> Result<&'a str, Wrong> {
        self.plain.next().ok_or_else(|| "a word is missing".to_owned())
    }

    /// Consumes the next word if it is this one.
    pub(crate) fn has(&mut self, word: &str) -> bool {
        let is_next = self.plain.as_slice().first() == Some(&word);
        if is_next {
            self.plain.next();
        }
        is_next
    }

    pub(crate) fn next_number<T: std::str::FromStr>(&mut self) -> Result<T, Wrong> {
        number(self.next()?)
    }

    /// Returns the value of a name, if given.
    pub(crate) fn named(&mut self, name: &str) -> Option<&'a str> {
        let place = self.named.iter().position(|(known, _)| *known == name)?;
        Some(self.named.remove(place).1)
    }

    pub(crate) fn named_or(&mut self, name: &str, default: &'a str) -> &'a str {
        self.named(name).unwrap_or(default)
    }

    pub(crate) fn number_or<T: std::str::FromStr>(
        &mut self,
        name: &str,
        default: T,
    ) -> Result<T, Wrong> {
        self.named(name).map_or(Ok(default), number)
    }

    pub(crate) fn key(&mut self, name: &str) -> Result<Key, Wrong> {
        match self.named(name) {
            None => Ok(Key::Right),
            Some("wrong") => Ok(Key::Wrong),
            Some("unknown") => Ok(Key::Unknown),
            Some("zero") => Ok(Key::Zero),
            Some(other) => Err(format!("no key is '{other}'")),
        }
    }

    /// Returns the named permissions without consuming them.
    pub(crate) fn rights(&self) -> Result<Option<Access>, Wrong> {
        let named = self.named.iter().find(|(name, _)| *name == "rights");
        let Some((_, list)) = named else { return Ok(None) };
        let mut rights = Access::default();
        for word in list.split(',') {
            match word {
                "local" => rights.local_write = true,
                "read" => rights.remote_read = true,
                "write" => rights.remote_write = true,
                "none" => {}
                other => return Err(format!("no right is '{other}'")),
            }
        }
        Ok(Some(rights))
    }

    /// Checks that no word remains.
    pub(crate) fn finish(mut self) -> Result<(), Wrong> {
        match (self.plain.next(), self.named.first()) {
            (None, None) => Ok(()),
            (Some(word), _) => Err(format!("'{word}' is not understood")),
            (None, Some((name, _))) => Err(format!("'{name}=' is not understood")),
        }
    }

    /// Overrides the given attributes by the named ones, and removes those after `without`.
    pub(crate) fn settings(&mut self, change: &mut Change) -> Result<(), Wrong> {
        let attributes = &mut change.attributes;
        over(&mut attributes.access, self.rights()?);
        let without: Vec<&str> =
            self.named("without").into_iter().flat_map(|list| list.split(',')).collect();
        macro_rules! settings {
            ($($name:literal $field:ident)*) => {
                $(self.over($name, &mut attributes.$field)?;)*
                for name in &without {
                    match *name {
                        $($name => attributes.$field = None,)*
                        "rights" => attributes.access = None,
                        "number" => attributes.dest_number = None,
                        "address" => {}
                        other => return Err(format!("no attribute is '{other}'")),
                    }
                }
            };
        }
        settings! {
            "pkey" pkey_index "port" port "mtu" path_mtu "receive_psn" rq_psn
            "max_dest_reads" max_dest_rd_atomic "rnr_timer" min_rnr_timer "timeout" timeout
            "retries" retry_count "rnr_retries" rnr_retry "send_psn" sq_psn
            "max_reads" max_rd_atomic
        }
        self.address(change)?;
        change.address = change.address.filter(|_| !without.contains(&"address"));
        Ok(())
    }

    /// Applies a setting to the states that have it; to other states only if marked with `+`.
    fn over<T: std::str::FromStr>(
        &mut self,
        name: &str,
        field: &mut Option<T>,
    ) -> Result<(), Wrong> {
        let surplus = self.named(&format!("+{name}")).map(number).transpose()?;
        if let Some(place) = self.named.iter().find(|(known, _)| *known == name) {
            let value = number(place.1)?;
            over(field, Some(value));
        }
        *field = surplus.or(field.take());
        Ok(())
    }

    fn address(&mut self, change: &mut Change) -> Result<(), Wrong> {
        let find = |name: &str| self.named.iter().find(|(known, _)| *known == name);
        let own = find("own").map(|(_, value)| match *value {
            "link-local" => Ok(Own::LinkLocal),
            "empty" => Ok(Own::Empty),
            other => Err(format!("no local address is '{other}'")),
        });
        let to = find("to").map(|(_, value)| match *value {
            "link-local" => Ok(Towards::PeerLinkLocal),
            "itself" => Ok(Towards::Itself),
            "nobody" => Ok(Towards::Nobody),
            other => Err(format!("no address of the peer is '{other}'")),
        });
        let port = find("address_port").map(|(_, value)| number(value));
        let global = find("global").map(|(_, value)| *value == "yes");
        let (own, to, port) = (own.transpose()?, to.transpose()?, port.transpose()?);
        if let Some(address) = &mut change.address {
            let Address { port: old_port, own: old_own, to: old_to, is_global } = *address;
            *address = Address {
                port: port.unwrap_or(old_port),
                own: own.unwrap_or(old_own),
                to: to.unwrap_or(old_to),
                is_global: global.unwrap_or(is_global),
            };
        }
        Ok(())
    }

    /// Consumes the names read by [`Words::settings`], once all states of a path have read them.
    pub(crate) fn forget_settings(&mut self) {
        const SETTINGS: &str = "pkey port mtu receive_psn max_dest_reads rnr_timer timeout \
            retries rnr_retries send_psn max_reads own to address_port global rights";
        self.named.retain(|(name, _)| !SETTINGS.split(' ').any(|setting| setting == *name));
    }
}

/// Replaces a value if another is given.
fn over<T>(field: &mut Option<T>, value: Option<T>) {
    if field.is_some() && value.is_some() {
        *field = value;
    }
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, Wrong> {
    text.parse().map_err(|_| format!("'{text}' is not a number that fits"))
}

/// Parses the name of a state.
pub(crate) fn state(name: &str) -> Result<QpState, Wrong> {
    let mut states = QpState::ALL.into_iter();
    states.find(|state| state.to_string() == name).ok_or_else(|| format!("no state is '{name}'"))
}
