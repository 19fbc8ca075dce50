//! Announcements of peers: call addresses, and queue pairs for the connection manager.

use handfast_core::wire::{Body, Message, Op};
use handfast_core::{Incarnation, NicPath, NodeName};
use std::collections::BTreeMap;

/// Addresses of one node that are kept: those of four runs of a node with 16 NICs.
const ADDRESSES_OF_NODE_MAX: usize = 64;

type Key = (NicPath, Incarnation);

/// Call addresses by NIC path and incarnation. A sender chooses both, but not its node: at a limit a node
/// displaces its own oldest address first, and then the oldest of all.
pub(crate) struct Announced {
    max: usize,
    next: u64,
    addresses: BTreeMap<NodeName, BTreeMap<Key, (u64, String)>>,
    by_age: BTreeMap<u64, Key>,
}

impl Announced {
    pub(crate) fn new(max: usize) -> Self {
        Self { max, next: 0, addresses: BTreeMap::new(), by_age: BTreeMap::new() }
    }

    pub(crate) fn note(&mut self, path: &NicPath, incarnation: Incarnation, address: &str) {
        let key = (path.clone(), incarnation);
        self.remove(&key);
        let of_node = self.addresses.get(&path.node);
        let oldest = match of_node.filter(|of_node| of_node.len() >= ADDRESSES_OF_NODE_MAX) {
            Some(of_node) => of_node.values().map(|(age, _)| age).min().copied(),
            None if self.by_age.len() >= self.max => self.by_age.keys().next().copied(),
            None => None,
        };
        if let Some(key) = oldest.and_then(|age| self.by_age.get(&age).cloned()) {
            self.remove(&key);
        }
        self.by_age.insert(self.next, key.clone());
        let of_node = self.addresses.entry(path.node.clone()).or_default();
        of_node.insert(key, (self.next, address.to_owned()));
        self.next += 1;
    }

    pub(crate) fn get(&self, path: &NicPath, incarnation: Incarnation) -> Option<&String> {
        let (_, address) = self.addresses.get(&path.node)?.get(&(path.clone(), incarnation))?;
        Some(address)
    }

    /// The address of the greatest incarnation.
    pub(crate) fn last(&self, path: &NicPath) -> Option<&String> {
        self.of(path).next_back().map(|(_, (_, address))| address)
    }

    pub(crate) fn forget(&mut self, path: &NicPath) {
        let keys: Vec<_> = self.of(path).map(|(key, _)| key.clone()).collect();
        keys.iter().for_each(|key| self.remove(key));
    }

    fn of(&self, path: &NicPath) -> impl DoubleEndedIterator<Item = (&Key, &(u64, String))> {
        let all = (path.clone(), Incarnation(u128::MIN))..=(path.clone(), Incarnation(u128::MAX));
        self.addresses.get(&path.node).into_iter().flat_map(move |it| it.range(all.clone()))
    }

    fn remove(&mut self, key: &Key) {
        let Some(of_node) = self.addresses.get_mut(&key.0.node) else { return };
        if let Some((age, _)) = of_node.remove(key) {
            self.by_age.remove(&age);
        }
        if of_node.is_empty() {
            self.addresses.remove(&key.0.node);
        }
    }
}

/// The queue pairs that a request announced for the connection manager, until it is answered.
pub(crate) struct Requested(Option<Box<Body>>);

impl Requested {
    /// The announcement of a call; none unless it is a request.
    pub(crate) fn by(call: &Message) -> Self {
        let announces = call.op == Op::Request && call.body.connection_manager.is_some();
        Self(announces.then(|| Box::new(call.body.clone())))
    }

    /// The announcement if the answer permits the peer to connect: one that was refused may be a stranger's,
    /// in the name of a peer whose own it would displace.
    pub(crate) fn accepted_by(self, answer: &Message) -> Option<Box<Body>> {
        self.0.filter(|_| answer.op == Op::Reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handfast_core::{Lifecycle, Pair};

    /// A message with or without an announcement for the connection manager.
    fn message(op: Op, announcement: Option<&str>) -> Message {
        let connection_manager = announcement.map(Into::into);
        Message {
            op,
            from: path("a@nic"),
            to: path("b@nic"),
            sender: Pair { incarnation: Incarnation(1), lifecycle: Lifecycle(1) },
            echo: None,
            body: Body { connection_manager, ..Body::default() },
            refusal: None,
        }
    }

    /// A request that is refused announces nothing; one that has a reply announces its queue pairs.
    #[test]
    fn refused_request_announces_nothing() {
        let request = message(Op::Request, Some("announced"));
        let accepted = |call: &Message, answer| {
            Requested::by(call).accepted_by(&message(answer, Some("own"))).map(|body| *body)
        };
        assert_eq!(accepted(&request, Op::Refuse), None);
        assert_eq!(accepted(&request, Op::Reply), Some(request.body.clone()));
        assert_eq!(accepted(&message(Op::Request, None), Op::Reply), None);
        assert_eq!(accepted(&message(Op::Ready, Some("announced")), Op::Reply), None);
    }

    fn path(name: &str) -> NicPath {
        NicPath::parse(name).unwrap()
    }

    /// A sender of many incarnations or NICs displaces none but its own; one of many names the oldest.
    #[test]
    fn sender_displaces_its_own_addresses_first() {
        let max = ADDRESSES_OF_NODE_MAX + 4;
        let (mut table, honest, loud) = (Announced::new(max), path("a@nic"), path("z@nic"));
        table.note(&honest, Incarnation(7), "a:1");
        for number in 0..200_u128 {
            table.note(&loud, Incarnation(number), &format!("z:{number}"));
            table.note(&path(&format!("z@nic{number}")), Incarnation(1), "z:1");
        }
        assert_eq!(table.get(&honest, Incarnation(7)).unwrap(), "a:1");
        assert_eq!(table.by_age.len(), 1 + ADDRESSES_OF_NODE_MAX);
        assert_eq!(table.last(&loud).unwrap(), "z:199");
        assert_eq!(table.get(&loud, Incarnation(150)), None);
        table.note(&honest, Incarnation(7), "a:2");
        for name in ["b", "c", "d", "e", "f", "g"] {
            table.note(&path(&format!("{name}@nic")), Incarnation(1), "it:1");
        }
        assert_eq!(table.by_age.len(), max);
        let kept: usize = table.addresses.values().map(BTreeMap::len).sum();
        assert_eq!(kept, max);
        assert_eq!(table.get(&honest, Incarnation(7)).unwrap(), "a:2", "it was noted again");
        table.forget(&honest);
        assert_eq!((table.last(&honest), table.by_age.len()), (None, max - 1));
    }
}
