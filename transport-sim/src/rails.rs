//! Nodes with several NICs: a site is a NIC, its host the site that holds the node, and a lane
//! leads over a rail from one NIC to another.

use crate::fabric::Target;
use crate::world::{Site, World};
use handfast_core::{Lifecycle, NicPath};

impl Site {
    /// Whether the path leads to this NIC over some rail.
    pub(crate) fn bears(&self, path: &NicPath) -> bool {
        let theirs = || path.rail().is_some_and(|(theirs, _)| self.path.nic.as_str() == theirs);
        self.path.node == path.node && (self.path.nic == path.nic || theirs())
    }

    /// Whether the path leads to the node of this NIC.
    pub(crate) fn is_reached_by(&self, path: &NicPath) -> bool {
        self.bears(path) || (path.rail().is_some() && self.path.node == path.node)
    }
}

/// A rail between two sites: the local NIC and the peer's.
pub(crate) type Rail = (usize, usize);

impl World {
    /// Returns the site that holds the node: with rails the first NIC of its process, otherwise the
    /// site itself.
    pub fn host(&self, site: usize) -> usize {
        self.fabric.host(site)
    }

    /// Returns the path by which the node of a site names a peer.
    pub(crate) fn way(&self, site: usize, peer: usize) -> NicPath {
        let (own, there) = (&self.sites[site].path, &self.sites[peer].path);
        if !self.setup.rails {
            return there.clone();
        }
        let rail = NicPath::over_rail(&there.node, there.nic.as_str(), own.nic.as_str());
        rail.unwrap_or_else(|_| there.clone())
    }

    /// Returns the NIC from which the node of `host` reaches a peer over this path.
    pub(crate) fn nic_of(&self, host: usize, path: &NicPath) -> usize {
        let Some((_, ours)) = path.rail() else { return host };
        let own =
            |site: &usize| self.host(*site) == host && self.sites[*site].path.nic.as_str() == ours;
        (0..self.sites.len()).find(own).unwrap_or(host)
    }

    /// Returns the rail of a lifecycle.
    pub(crate) fn rail_of(&self, host: usize, lifecycle: Lifecycle) -> Option<Rail> {
        self.rail_by(host, self.peer_of(host, lifecycle)?)
    }

    /// Returns the rail by which the node of `host` reaches a peer over this path.
    pub(crate) fn rail_by(&self, host: usize, path: &NicPath) -> Option<Rail> {
        let peer = self.sites.iter().position(|site| site.bears(path))?;
        Some((self.nic_of(host, path), peer))
    }

    /// Returns the NIC of a lifecycle.
    pub fn nic_of_lane(&self, host: usize, lifecycle: Lifecycle) -> usize {
        match self.fabric.of(host, lifecycle) {
            Some(qp) => qp.site,
            None => self.peer_of(host, lifecycle).map_or(host, |path| self.nic_of(host, path)),
        }
    }

    /// Returns the NICs at both ends of a connected lane.
    pub(crate) fn ends_of_lane(&self, host: usize, lifecycle: Lifecycle) -> Option<Rail> {
        let qp = self.fabric.of(host, lifecycle)?;
        qp.target.map(|Target { site, .. }| (qp.site, site))
    }

    /// Whether a link joins two NICs; of several, those with the same index in their nodes.
    pub(crate) fn are_joined(&self, site: usize, other: usize) -> bool {
        let place = |site: usize| {
            let host = self.host(site);
            (0..site).filter(|earlier| self.host(*earlier) == host).count()
        };
        !self.setup.rails || (self.host(site) != self.host(other) && place(site) == place(other))
    }
}
