//! Oracles of fleets.

use super::network::Network;
use super::site::Power;
use handfast_core::{Lifecycle, Pair};
use handfast_transport_sim::Oracle;

impl Network {
    /// The timers of a node whose outputs are drained (H8).
    pub(super) fn check_waits(&mut self, site: u32) {
        let at = &mut self.sites[site as usize];
        if let Some(violation) = at.waits.end(&at.node) {
            self.violated(violation.oracle, format!("node {site}: {}", violation.detail));
        }
    }

    /// A queue pair is connected at most once (O2).
    pub(super) fn check_connect(&mut self, site: u32, local: Pair, remote: Pair) {
        let known = self.sites[site as usize].queue_pairs.get(&local.lifecycle).copied();
        if known.is_none_or(|known| known.remote.is_some()) {
            let detail = format!("node {site} connects {local:?} to {remote:?}, and has {known:?}");
            self.violated(Oracle::FabricLaw, detail);
        }
    }

    /// The peer of a published lane has connected to it, if it still lives (O1).
    pub(super) fn check_publish(&mut self, site: u32, local: Pair, to: u32, remote: Pair) {
        let peer = &self.sites[to as usize];
        if peer.power != Power::Running || peer.node.incarnation() != remote.incarnation {
            return;
        }
        // Without an entry it was retired: lifecycles are never used again.
        let target = peer.queue_pairs.get(&remote.lifecycle).map(|other| other.remote);
        if target.is_some_and(|target| target != Some(local)) {
            let detail = format!(
                "node {site} publishes {local:?} with {remote:?} of node {to}, which is connected to {target:?}"
            );
            self.violated(Oracle::Agreement, detail);
        }
    }

    /// A lane between two nodes that nothing has happened to does not end.
    pub(super) fn check_revoke(&mut self, site: u32, to: u32) {
        let disturbed = |at: u32| self.sites[at as usize].disturbed;
        if !disturbed(site) && !disturbed(to) {
            let detail = format!("the lane from node {site} to node {to} ends without a cause");
            self.violated(Oracle::Unjustified, detail);
        }
    }

    /// At rest every demand of a running node is met, both halves of a lane agree, and there is one
    /// lifecycle for each lane (O1, O5, O8).
    pub(super) fn check_rest(&mut self) {
        let broken = (0..).zip(&self.sites).find_map(|(at, site)| self.unrest(at, site));
        if let Some((oracle, detail)) = broken {
            self.violated(oracle, detail);
        }
    }

    fn unrest(&self, at: u32, site: &super::site::Site) -> Option<(Oracle, String)> {
        if site.power != Power::Running {
            return None;
        }
        let lanes = site.peers.iter().filter_map(|peer| Some((peer.site, peer.lane?)));
        let unmet = site.peers.iter().find(|peer| peer.wanted && peer.lane.is_none());
        if let Some(peer) = unmet {
            let detail = format!("node {at} has no lane to node {}", peer.site);
            return Some((Oracle::Liveness, detail));
        }
        let (lives, published) = (site.node.lifecycles().count(), lanes.clone().count());
        if (lives, site.queue_pairs.len()) != (published, published) {
            let queue_pairs = site.queue_pairs.len();
            let detail = format!(
                "node {at} has {published} lanes, {lives} lifecycles and {queue_pairs} queue pairs"
            );
            return Some((Oracle::Liveness, detail));
        }
        let stray = lanes.clone().find(|(to, own)| !self.agrees(at, *own, *to));
        stray.map(|(to, own)| {
            let detail = format!("{own:?} of node {at} and node {to} have different partners");
            (Oracle::Agreement, detail)
        })
    }

    /// Whether the queue pair of a lane is connected to one of the peer that is connected to it.
    fn agrees(&self, at: u32, own: Lifecycle, to: u32) -> bool {
        let (site, peer) = (&self.sites[at as usize], &self.sites[to as usize]);
        let local = Pair { incarnation: site.node.incarnation(), lifecycle: own };
        let remote = site.queue_pairs.get(&own).and_then(|own| own.remote);
        remote.is_some_and(|remote| {
            let back = peer.queue_pairs.get(&remote.lifecycle).and_then(|other| other.remote);
            peer.node.incarnation() == remote.incarnation && back == Some(local)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::network::{Network, Occurrence};
    use super::super::{Incident, Plan};
    use handfast_core::{Incarnation, Lifecycle, Pair};
    use handfast_transport_sim::Oracle;

    fn at_rest() -> Network {
        let mut network = Network::new(Plan { incident: Incident::None, ..Plan::new(6, 4, 1) });
        network.rest();
        assert_eq!(network.violation, None);
        network
    }

    fn first_lane(network: &Network) -> Lifecycle {
        network.sites[0].peers[0].lane.expect("a lane")
    }

    fn broken(network: &Network) -> Option<Oracle> {
        network.violation.as_ref().map(|violation| violation.oracle)
    }

    /// The error of a device that nothing has happened to ends a lane without a cause.
    #[test]
    fn lane_that_ends_without_a_cause_is_found() {
        let mut network = at_rest();
        let (run, lifecycle) = (network.sites[0].run, first_lane(&network));
        network.at(network.now, Occurrence::LaneFailed { site: 0, run, lifecycle });
        network.rest();
        assert_eq!(broken(&network), Some(Oracle::Unjustified));
    }

    #[test]
    fn demand_without_a_lane_at_rest_is_found() {
        let mut network = at_rest();
        network.sites[0].peers[0].lane = None;
        network.check_rest();
        assert_eq!(broken(&network), Some(Oracle::Liveness));
    }

    #[test]
    fn queue_pair_of_no_lane_at_rest_is_found() {
        let mut network = at_rest();
        let other = network.sites[0].queue_pairs[&first_lane(&network)];
        network.sites[0].queue_pairs.insert(Lifecycle(u64::MAX), other);
        network.check_rest();
        assert_eq!(broken(&network), Some(Oracle::Liveness));
    }

    #[test]
    fn lane_to_a_stranger_is_found() {
        let mut network = at_rest();
        let lane = first_lane(&network);
        let stranger = Pair { incarnation: Incarnation(7), lifecycle: Lifecycle(7) };
        let queue_pair = network.sites[0].queue_pairs.get_mut(&lane).expect("its queue pair");
        queue_pair.remote = Some(stranger);
        network.check_rest();
        assert_eq!(broken(&network), Some(Oracle::Agreement));
    }

    #[test]
    fn queue_pair_connected_twice_is_found() {
        let mut network = at_rest();
        let lifecycle = first_lane(&network);
        let local = Pair { incarnation: network.sites[0].node.incarnation(), lifecycle };
        network.check_connect(0, local, local);
        assert_eq!(broken(&network), Some(Oracle::FabricLaw));
    }

    #[test]
    fn lane_that_its_peer_does_not_aim_at_is_found() {
        let mut network = at_rest();
        let to = network.sites[0].peers[0].site;
        let remote = network.sites[0].queue_pairs[&first_lane(&network)].remote.expect("a peer");
        let other = Pair { incarnation: Incarnation(7), lifecycle: Lifecycle(7) };
        network.check_publish(0, other, to, remote);
        assert_eq!(broken(&network), Some(Oracle::Agreement));
    }
}
