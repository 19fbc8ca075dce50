//! The state of an etcd: entries, leases, tokens and watches.

use crate::grpc::Outlet;
use crate::messages::{
    Compare, Compared, Event, EventKind, Header, KeyValue, PutRequest, WatchResponse,
};
use std::collections::{BTreeMap, BTreeSet};

/// A lease, with the second of its end.
struct Lease {
    seconds: u64,
    ends_ms: u64,
}

struct Watch {
    first: Vec<u8>,
    end: Vec<u8>,
    outlet: Outlet,
}

/// The table of an etcd. Entries and leases survive a restart; tokens and watches do not.
#[derive(Default)]
pub(crate) struct Table {
    /// An etcd before 3.5.
    pub(crate) is_earlier: bool,
    pub(crate) now_ms: u64,
    pub(crate) revision: i64,
    entries: BTreeMap<Vec<u8>, KeyValue>,
    leases: BTreeMap<i64, Lease>,
    leases_granted: i64,
    tokens: BTreeSet<String>,
    tokens_given: u64,
    watches: Vec<Watch>,
}

impl Table {
    pub(crate) fn header(&self) -> Option<Header> {
        Some(Header { revision: self.revision })
    }

    /// The process starts: its clients ask for tokens and watches again, and every lease has its time.
    pub(crate) fn restart(&mut self) {
        self.tokens.clear();
        self.watches.clear();
        for lease in self.leases.values_mut() {
            lease.ends_ms = self.now_ms + lease.seconds * 1_000;
        }
    }

    /// The disk is lost; later leases have other ids than earlier ones.
    pub(crate) fn lose(&mut self) {
        self.entries.clear();
        self.leases.clear();
        self.revision = 0;
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<&KeyValue> {
        self.entries.get(key)
    }

    /// The keys whose lease lives.
    pub(crate) fn live_keys(&self) -> Vec<String> {
        let live = self.entries.values().filter(|it| self.leases.contains_key(&it.lease));
        live.map(|it| String::from_utf8_lossy(&it.key).into_owned()).collect()
    }

    pub(crate) fn keys(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn leases(&self) -> usize {
        self.leases.len()
    }

    pub(crate) fn holds(&self, compare: &Compare) -> bool {
        let Some(entry) = self.entries.get(&compare.key) else { return false };
        match &compare.compared {
            Some(Compared::Value(value)) => entry.value == *value,
            Some(Compared::Lease(lease)) => entry.lease == *lease,
            None => false,
        }
    }

    /// Writes an entry; false if its lease is unknown.
    pub(crate) fn put(&mut self, put: PutRequest) -> bool {
        if !self.leases.contains_key(&put.lease) {
            return false;
        }
        self.revision += 1;
        let PutRequest { key, value, lease } = put;
        let entry = KeyValue { key: key.clone(), mod_revision: self.revision, value, lease };
        self.entries.insert(key, entry.clone());
        self.notify(EventKind::Put, entry);
        true
    }

    pub(crate) fn remove(&mut self, key: &[u8]) -> bool {
        let Some(removed) = self.entries.remove(key) else { return false };
        self.revision += 1;
        let gone = KeyValue { key: removed.key, mod_revision: self.revision, ..Default::default() };
        self.notify(EventKind::Delete, gone);
        true
    }

    pub(crate) fn grant(&mut self, seconds: u64) -> i64 {
        self.leases_granted += 1;
        let ends_ms = self.now_ms + seconds * 1_000;
        self.leases.insert(self.leases_granted, Lease { seconds, ends_ms });
        self.leases_granted
    }

    /// Returns the seconds that a lease has from now on; 0 if it is unknown.
    pub(crate) fn keep_alive(&mut self, id: i64) -> u64 {
        let Some(lease) = self.leases.get_mut(&id) else { return 0 };
        lease.ends_ms = self.now_ms + lease.seconds * 1_000;
        lease.seconds
    }

    /// Revokes the leases that have ended, or all.
    pub(crate) fn revoke(&mut self, all: bool) {
        let now_ms = self.now_ms;
        self.leases.retain(|_, lease| !all && lease.ends_ms > now_ms);
        let leases = &self.leases;
        let ended = self.entries.values().filter(|it| !leases.contains_key(&it.lease));
        let ended: Vec<Vec<u8>> = ended.map(|it| it.key.clone()).collect();
        for key in &ended {
            self.remove(key);
        }
    }

    pub(crate) fn give_token(&mut self) -> String {
        self.tokens_given += 1;
        let token = format!("token-{}", self.tokens_given);
        self.tokens.insert(token.clone());
        token
    }

    pub(crate) fn knows_token(&self, token: Option<&str>) -> bool {
        token.is_some_and(|token| self.tokens.contains(token))
    }

    /// Forgets the tokens of all users, and ends the watches that were begun with them.
    pub(crate) fn forget_tokens(&mut self) {
        self.tokens.clear();
        let header = self.header();
        for watch in self.watches.drain(..) {
            watch.outlet.send(&WatchResponse { header, canceled: true, ..Default::default() });
        }
    }

    /// Watches that are still read.
    pub(crate) fn watches(&self) -> usize {
        self.watches.iter().filter(|watch| !watch.outlet.is_closed()).count()
    }

    /// Sends a response without a change to each watch, as an etcd does for its progress: a connection whose end was
    /// lost in a partition is reset by it.
    pub(crate) fn tell_progress(&self) {
        let header = self.header();
        for watch in &self.watches {
            watch.outlet.send(&WatchResponse { header, ..Default::default() });
        }
    }

    /// Sends the changes of keys from `first` to `end` until the connection ends.
    pub(crate) fn watch(&mut self, first: Vec<u8>, end: Vec<u8>, outlet: Outlet) {
        let header = self.header();
        outlet.send(&WatchResponse { header, created: true, ..Default::default() });
        self.watches.push(Watch { first, end, outlet });
    }

    fn notify(&mut self, kind: EventKind, entry: KeyValue) {
        let header = self.header();
        self.watches.retain(|watch| {
            if !(watch.first.as_slice()..watch.end.as_slice()).contains(&&*entry.key) {
                return true;
            }
            let event = Event { kind: kind as i32, kv: Some(entry.clone()) };
            let events = vec![event];
            watch.outlet.send(&WatchResponse { header, events, ..Default::default() })
        });
    }
}
