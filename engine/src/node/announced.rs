//! What peers announced: call addresses, and queue pairs for the connection manager.

use handfast_core::wire::{Body, Message, Op};
use handfast_core::{Incarnation, NicPath};
use std::collections::BTreeMap;

/// Incarnations of a NIC path whose addresses are kept.
const INCARNATIONS_MAX: usize = 4;

/// Call addresses by NIC path and incarnation. A sender chooses its incarnation: at a limit a path displaces
/// its own oldest address first, and then the oldest of all.
pub(crate) struct Announced {
    max: usize,
    next: u64,
    addresses: BTreeMap<(NicPath, Incarnation), (u64, String)>,
    by_age: BTreeMap<u64, (NicPath, Incarnation)>,
}

impl Announced {
    pub(crate) fn new(max: usize) -> Self {
        Self { max, next: 0, addresses: BTreeMap::new(), by_age: BTreeMap::new() }
    }

    pub(crate) fn note(&mut self, path: &NicPath, incarnation: Incarnation, address: &str) {
        let key = (path.clone(), incarnation);
        self.remove(&key);
        if self.of(path).count() >= INCARNATIONS_MAX {
            let oldest = self.of(path).min_by_key(|(_, (age, _))| *age);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                self.remove(&oldest);
            }
        } else if self.addresses.len() >= self.max
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.addresses.remove(&oldest);
        }
        self.by_age.insert(self.next, key.clone());
        self.addresses.insert(key, (self.next, address.to_owned()));
        self.next += 1;
    }

    pub(crate) fn get(&self, path: &NicPath, incarnation: Incarnation) -> Option<&String> {
        self.addresses.get(&(path.clone(), incarnation)).map(|(_, address)| address)
    }

    /// The address of the greatest incarnation.
    pub(crate) fn last(&self, path: &NicPath) -> Option<&String> {
        self.of(path).next_back().map(|(_, (_, address))| address)
    }

    pub(crate) fn forget(&mut self, path: &NicPath) {
        let keys: Vec<_> = self.of(path).map(|(key, _)| key.clone()).collect();
        keys.iter().for_each(|key| self.remove(key));
    }

    fn of(
        &self,
        path: &NicPath,
    ) -> impl DoubleEndedIterator<Item = (&(NicPath, Incarnation), &(u64, String))> {
        let (first, last) = (Incarnation(u128::MIN), Incarnation(u128::MAX));
        self.addresses.range((path.clone(), first)..=(path.clone(), last))
    }

    fn remove(&mut self, key: &(NicPath, Incarnation)) {
        if let Some((age, _)) = self.addresses.remove(key) {
            self.by_age.remove(&age);
        }
    }
}

/// The queue pairs that a request announced for the connection manager, until it is answered.
pub(crate) struct Requested(Option<Box<Body>>);

impl Requested {
    /// What a call announces; nothing unless it is a request.
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
            from: path("a"),
            to: path("b"),
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
        NicPath::parse(&format!("{name}@nic")).unwrap()
    }

    /// A sender of many incarnations displaces none but its own; one of many names the oldest.
    #[test]
    fn sender_displaces_its_own_addresses_first() {
        let (mut table, honest, loud) = (Announced::new(8), path("a"), path("z"));
        table.note(&honest, Incarnation(7), "a:1");
        for incarnation in 0..100_u128 {
            table.note(&loud, Incarnation(incarnation), &format!("z:{incarnation}"));
        }
        assert_eq!(table.get(&honest, Incarnation(7)).unwrap(), "a:1");
        assert_eq!(table.addresses.len(), 1 + INCARNATIONS_MAX);
        assert_eq!(table.last(&loud).unwrap(), "z:99");
        assert_eq!(table.get(&loud, Incarnation(95)), None);
        table.note(&honest, Incarnation(7), "a:2");
        for name in ["b", "c", "d", "e", "f", "g"] {
            table.note(&path(name), Incarnation(1), "it:1");
        }
        assert_eq!(table.addresses.len(), 8);
        assert_eq!(table.by_age.len(), 8);
        assert_eq!(table.get(&honest, Incarnation(7)).unwrap(), "a:2", "it was noted again");
        table.forget(&honest);
        assert_eq!((table.last(&honest), table.by_age.len()), (None, 7));
    }
}
