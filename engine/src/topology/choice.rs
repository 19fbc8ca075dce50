//! The choice of a NIC on each side.

use super::matrix::{Nics, PriorityMatrix};

/// A NIC of the peer, as its descriptor lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerNic<'a> {
    /// Its name.
    pub name: &'a str,
    /// It is in service: it has an address, and the memory in question has a key for it.
    pub in_service: bool,
}

/// Where bytes go from and to, and what is known of both sides.
#[derive(Clone, Copy, Debug)]
pub struct Ends<'a> {
    /// Our matrix.
    pub own: &'a PriorityMatrix,
    /// The location of our memory.
    pub own_location: &'a str,
    /// The peer's matrix.
    pub peer: &'a PriorityMatrix,
    /// The location of the peer's memory.
    pub peer_location: &'a str,
    /// The peer's NICs in the order of its descriptor.
    pub peer_nics: &'a [PeerNic<'a>],
    /// A NIC of ours prefers the peer's NIC of the same name, if that one is listed for the peer's
    /// memory: as many lanes as NICs instead of their product, and rails that do not reach each
    /// other are not tried.
    pub same_name_first: bool,
}

/// A NIC on each side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The name of ours.
    pub own: String,
    /// The name of the peer's.
    pub peer: String,
    /// Where the peer's stands in the list that it was given in.
    pub peer_index: usize,
    /// Both are preferred for the memory at their end.
    pub preferred: bool,
}

/// There is no way.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPath {
    /// Our matrix lists no NIC.
    #[error("this node has no NIC for memory at '{0}': its priority matrix lists none")]
    NoneOfOurs(String),
    /// The peer's matrix lists none that is in service.
    #[error(
        "the peer has no NIC in service for memory at '{0}': what its priority matrix lists has no \
         address or no key in its descriptor"
    )]
    NoneOfTheirs(String),
    /// Every pair of NICs is excluded at present.
    #[error("all {0} pairs of NICs to the peer are out of use at present")]
    AllOutOfUse(usize),
}

impl Ends<'_> {
    /// Chooses a NIC on each side for an attempt: 0 is the first, and any preferred NIC will do,
    /// which `draw` decides; each later one moves on through all NICs, preferred ones first. Only
    /// pairs that are `usable` are chosen.
    ///
    /// A pure function of its arguments: equal draws give equal choices.
    ///
    /// # Errors
    /// Why there is none.
    pub fn choose(
        &self,
        attempt: u32,
        draw: u64,
        usable: impl Fn(&str, &str) -> bool,
    ) -> Result<Choice, NoPath> {
        let own = self.own.nics(self.own_location);
        if own.is_empty() {
            return Err(NoPath::NoneOfOurs(self.own_location.to_owned()));
        }
        let peer = self.in_service();
        if peer.is_empty() {
            return Err(NoPath::NoneOfTheirs(self.peer_location.to_owned()));
        }
        // Independent halves, so that the choice on one side does not fix that on the other.
        let (own_draw, peer_draw) = (draw as u32 as usize, (draw >> 32) as usize);
        let later = attempt.checked_sub(1).map(|later| {
            let (round, turn) = (later as usize / own.len(), later as usize % own.len());
            (turn, round + turn)
        });
        for own_name in order(&own, later.map(|(own, _)| own), own_draw) {
            let mut peers = order(&peer, later.map(|(_, peer)| peer), peer_draw);
            if self.same_name_first {
                // Stable: the others keep their order.
                peers.sort_by_key(|name| *name != own_name);
            }
            let Some(peer_name) = peers.into_iter().find(|name| usable(own_name, name)) else {
                continue;
            };
            let listed = |nics: &Nics, name: &str| nics.preferred.iter().any(|nic| nic == name);
            return Ok(Choice {
                own: own_name.to_owned(),
                peer: peer_name.to_owned(),
                peer_index: self.place(peer_name).unwrap_or(0),
                preferred: listed(&own, own_name) && listed(&peer, peer_name),
            });
        }
        Err(NoPath::AllOutOfUse(own.len() * peer.len()))
    }

    /// What the peer lists for the location and has in service.
    fn in_service(&self) -> Nics {
        let mut nics = self.peer.nics(self.peer_location);
        nics.preferred.retain(|name| self.place(name).is_some());
        nics.available.retain(|name| self.place(name).is_some());
        nics
    }

    fn place(&self, name: &str) -> Option<usize> {
        self.peer_nics.iter().position(|nic| nic.name == name && nic.in_service)
    }
}

/// The NICs in the order in which an attempt tries them: the first one as drawn, a later one
/// beginning that many places on.
fn order(nics: &Nics, later: Option<usize>, draw: usize) -> Vec<&str> {
    let Some(places) = later else {
        return turned(&nics.preferred, draw).chain(turned(&nics.available, draw)).collect();
    };
    let mut all: Vec<&str> = nics.iter().collect();
    all.rotate_left(places % nics.len().max(1));
    all
}

/// All names, beginning with the one drawn.
fn turned(names: &[String], draw: usize) -> impl Iterator<Item = &str> {
    let first = draw % names.len().max(1);
    names[first..].iter().chain(&names[..first]).map(String::as_str)
}
