//! Creation and connection of lanes, from the announcements of both sides.

use super::completions::Reservation;
use super::config::{NicConfig, QUEUE_PAIRS_PER_LANE_MAX};
use super::context::mtu_number;
use super::lane::{Announced, Lane, LaneSetup};
use super::lanes::Refused;
use super::manager::Manager;
use super::nic::{Nic, is_iwarp};
use super::objects::{Numbers, Owner, Patience, QueuePair, Route};
use super::registration::Registration;
use crate::error::VerbsError;
use crate::gid::{ChosenGid, GidEntry, explained, gid_text, parse_gid, rank, table, usable_gids};
use crate::pairing::{KernelRoutes, is_one_family, moves_first};
use handfast_core::connection::AnnouncedLane;
use handfast_core::policy::TrustGroup;
use handfast_core::transport::Side;
use handfast_core::wire::{Body, ProbeByte};
use handfast_core::{Lifecycle, NicPath, Pair};
use handfast_transport::{LimitReached, NicLimit, RemoteSpan};
use std::net::Ipv6Addr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Packet sequence numbers have 24 bits.
const PSN_MAX: u32 = 0x00ff_ffff;
/// Queue-pair numbers have 24 bits.
const QUEUE_PAIR_NUMBER_MAX: u32 = 0x00ff_ffff;
/// Errors of drivers when the device, or this process' share of it, is exhausted.
const EXHAUSTED: [i32; 3] = [libc::ENOMEM, libc::ENOSPC, libc::EAGAIN];
/// Errors of addresses that cannot reach each other.
const UNREACHABLE: [i32; 4] =
    [libc::ETIMEDOUT, libc::ENETUNREACH, libc::EHOSTUNREACH, libc::EINVAL];

impl Nic {
    /// Creates a lane of one queue pair for each of `psns`, in INIT, and returns its announcement.
    /// `psns` are the first packet sequence numbers to send with: 24 random bits each, fresh for
    /// every lane, since they keep late packets of a former lane out.
    ///
    /// # Errors
    /// The lifecycle exists, a limit is reached ([`VerbsError::limit`] names it), the NIC is lost
    /// ([`Nic::lost`]) or a call failed; nothing is left of the lane.
    pub fn create(&self, lifecycle: Lifecycle, psns: &[u32]) -> Result<Body, VerbsError> {
        let to = (None, TrustGroup::default(), self.shared.manager.clone());
        let made = self.make(lifecycle, psns, to);
        made.inspect_err(|error| self.shared.suspect(error))
    }

    /// Like [`Nic::create`], for a peer that knows no connection manager: the queue pairs connect out of band
    /// also where those of other lanes connect through it by choice.
    ///
    /// # Errors
    /// As [`Nic::create`]; the device connects through the connection manager alone.
    pub fn create_out_of_band(
        &self,
        lifecycle: Lifecycle,
        psns: &[u32],
    ) -> Result<Body, VerbsError> {
        self.check_out_of_band()?;
        let made = self.make(lifecycle, psns, (None, TrustGroup::default(), None));
        made.inspect_err(|error| self.shared.suspect(error))
    }

    /// Like [`Nic::create`], but announces the local address that fits the peer's known addresses best.
    /// A message carries one address, so the next lane to this peer after a failed connect announces
    /// another address if one fits.
    ///
    /// # Errors
    /// As [`Nic::create`].
    pub fn create_for(
        &self,
        peer: &NicPath,
        lifecycle: Lifecycle,
        psns: &[u32],
    ) -> Result<Body, VerbsError> {
        self.create_in(TrustGroup::default(), peer, lifecycle, psns)
    }

    /// Like [`Nic::create_for`], in the protection domain of the peer's trust group.
    ///
    /// # Errors
    /// As [`Nic::create`]; the NIC was not opened for the group.
    pub fn create_in(
        &self,
        group: TrustGroup,
        peer: &NicPath,
        lifecycle: Lifecycle,
        psns: &[u32],
    ) -> Result<Body, VerbsError> {
        let to = (Some(peer.to_string()), group, self.shared.manager.clone());
        let made = self.make(lifecycle, psns, to);
        made.inspect_err(|error| self.shared.suspect(error))
    }

    /// Records a peer's address from its messages and descriptors, so that [`Nic::create_for`]
    /// announces a fitting local one. An invalid address is ignored here and reported by the
    /// connect.
    pub fn note_address(&self, peer: &NicPath, gid: &str, request: Option<Pair>) {
        if let Ok(address) = parse_gid(gid) {
            self.book.lock().on_seen(&peer.to_string(), address, request);
        }
    }

    /// Records what a peer announced in a request that is accepted, so that its connection is accepted
    /// before this side connects. `from` is the peer of [`Nic::create_for`], and none for a lane of
    /// [`Nic::create`]. An announcement that cannot be read is reported by the connect.
    pub fn note_request(&self, from: Option<&NicPath>, peer: &Body) {
        if let (Some(manager), Some(Ok(peer))) = (&self.shared.manager, AnnouncedLane::of(peer)) {
            manager.note(from.map(NicPath::to_string).as_deref(), peer);
        }
    }

    fn make(
        &self,
        lifecycle: Lifecycle,
        psns: &[u32],
        (peer, group, manager): (Option<String>, TrustGroup, Option<Arc<Manager>>),
    ) -> Result<Body, VerbsError> {
        let context = &self.shared.context;
        let refused = |detail| context.error(Side::Local, "bring_up", 0, detail);
        let pairs = psns.len();
        if psns.is_empty() || pairs > QUEUE_PAIRS_PER_LANE_MAX {
            return Err(refused(format!(
                "1 to {QUEUE_PAIRS_PER_LANE_MAX} queue pairs, not {pairs}"
            )));
        }
        if psns.iter().any(|psn| *psn > PSN_MAX) {
            return Err(refused("a packet sequence number has 24 bits".to_owned()));
        }
        let of_group = self.domains.of(group, "bring_up")?;
        self.shared.not_lost()?;
        self.check_manager_address()?;
        let port = context.port_facts(self.config.port)?;
        let chosen = self.announce(peer.as_deref())?;
        tracing::debug!(lane = lifecycle.0, peer, gid = chosen.why, "address announced");
        let fresh = self.fresh(lifecycle, pairs, group)?;
        let setup = LaneSetup {
            serial: fresh.serial,
            announced: Announced { gid: chosen.entry, peer },
            domain: Arc::clone(&of_group.domain),
            sink: Arc::clone(&self.shared.sink),
            counts: Arc::clone(&self.shared.counts),
            depth: self.config.depth,
            message_max: port.message_max,
            call_bytes_max: self.shared.profile.call_bytes_max,
            place: self.place,
            hidden_refusals: self.shared.profile.hidden_refusals,
            broken_sends: self.shared.profile.broken_sends,
            completes_early: is_iwarp(self.shared.profile),
            refusals: Arc::clone(&self.shared.refusals),
            probing: Arc::clone(&self.shared.probing),
            scratch: of_group.scratch.clone(),
            manager,
        };
        let lane = Lane::new(lifecycle, psns, fresh, setup);
        let connection_manager = match self.announce_to_manager(&lane) {
            Ok(connection_manager) => connection_manager,
            Err(error) => {
                self.give_up(lane);
                return Err(error);
            }
        };
        let body = Body {
            connection_manager,
            queue_pairs: lane.numbers.clone(),
            psns: psns.to_vec(),
            gid: gid_text(chosen.entry.address),
            lid: u32::from(port.lid),
            mtu: port.mtu.min(self.config.mtu_max),
            rd_atomic: u32::from(self.rd_atomic),
            probe: Some(probe_byte(&of_group.scratch)),
            ..Body::default()
        };
        let is_managed = body.connection_manager.is_some();
        self.insert(lane).inspect_err(|_| {
            if is_managed {
                self.forget_in_manager(lifecycle);
            }
        })?;
        Ok(body)
    }

    /// Inserts a lane, unless the NIC or the lane's completion queue failed during its creation.
    fn insert(&self, lane: Lane) -> Result<(), VerbsError> {
        let mut lanes = self.shared.lanes.lock();
        // A failure before this was noted before, and a later one finds the lane.
        if let Err(error) = self.shared.usable(&lane.shard) {
            // First, since the queue pairs are destroyed here.
            drop(lanes);
            self.give_up(lane);
            return Err(error);
        }
        lanes.insert(Arc::new(lane));
        let is_first = !self.shared.has_lanes.swap(true, Ordering::Relaxed);
        drop(lanes);
        if is_first {
            // The poller sleeps without a timeout while there is no lane.
            self.shared.queues.wake();
        }
        Ok(())
    }

    /// Gives the places of a lane back that is not inserted, and destroys its queue pairs.
    fn give_up(&self, lane: Lane) {
        self.shared.lanes.lock().give_up(lane.lifecycle, lane.numbers.len());
        if let Some(fresh) = lane.into_fresh() {
            self.shared.destroy(fresh);
        }
    }

    /// Creates a queue pair without a lane.
    pub(super) fn queue_pair(&self, reservation: &Reservation) -> Result<QueuePair, VerbsError> {
        let queue = Arc::clone(&reservation.shard.queue);
        let domain = Arc::clone(&self.domains.first.domain);
        QueuePair::new(domain, queue, 1, self.place, Owner::Nobody)
            .map_err(|error| self.exhausted(error))
    }

    /// Adds the limit to the failed creation of a queue pair or a completion queue.
    pub(super) fn exhausted(&self, error: VerbsError) -> VerbsError {
        let queue_pairs = self.shared.lanes.lock().queue_pairs();
        exhausted(error, queue_pairs, self.shared.queues.load())
    }

    /// The error of a lane that is not begun.
    pub(super) fn refused(&self, why: Refused) -> VerbsError {
        let (detail, limit) = match why {
            Refused::Exists => ("the lifecycle exists".to_owned(), None),
            Refused::Limit(limit) => {
                (format!("the limit of {} {} is reached", limit.max, limit.limit), Some(limit))
            }
        };
        VerbsError { limit, ..self.shared.context.error(Side::Local, "bring_up", 0, detail) }
    }

    /// The address to announce, chosen from the port's current ones.
    pub(super) fn announce(&self, peer: Option<&str>) -> Result<ChosenGid, VerbsError> {
        let context = &self.shared.context;
        let entries = context.gids(self.config.port)?;
        let none = |error: String| context.error(Side::Local, "bring_up", 0, error);
        let usable = usable_gids(&entries, self.config.gid, self.shared.profile)
            .map_err(|error| none(error.to_string()))?;
        match peer {
            None => {
                // The address chosen at open, while it exists.
                let own = &self.gid.entry;
                let same = |e: &&GidEntry| (e.address, e.kind) == (own.address, own.kind);
                let entry = usable.iter().find(same).unwrap_or(&usable[0]);
                Ok(explained(*entry, &entries, self.config.gid))
            }
            Some(peer) => self
                .book
                .lock()
                .announce(peer, &usable, &KernelRoutes)
                .ok_or_else(|| none("the port has no usable address".to_owned())),
        }
    }

    /// Connects the lane to the queue pairs that `peer` announced: RTR and RTS with the smaller MTU
    /// and number of outstanding reads of both. Happens once per lifecycle. The lane takes slices
    /// as soon as this returns, even before the peer has connected; work posted before that costs a
    /// whole time-out, and waits for the peer where queue pairs connect through the connection
    /// manager: there one side dials, and blocks until the peer has accepted, and the other does not
    /// wait. It has to know the peer's request by then ([`Nic::note_request`]), or to connect too. Blocks for up to a second where the kernel looks for a silent peer's
    /// address; the first queue pair that fails ends it.
    ///
    /// # Errors
    /// The lane is not connected; it accepts no slices and must be retired. Addresses that do not fit
    /// are charged to the peer, and so worth another lane, where [`Nic::create_for`] has another
    /// address to try or the peer is the one to change its own.
    pub fn connect(&self, lifecycle: Lifecycle, peer: &Body) -> Result<(), VerbsError> {
        let lane = self.known(lifecycle, "wire")?;
        if let Some(manager) = lane.setup.manager.clone() {
            drop(lane);
            return self.connect_managed(&manager, lifecycle, peer);
        }
        if peer.connection_manager.is_some() {
            let is_iwarp = AnnouncedLane::of(peer)
                .is_some_and(|peer| peer.is_ok_and(|peer| peer.announcement.is_iwarp));
            let cure = if is_iwarp {
                "the peer's are iWARP's, which connect to iWARP alone: use TCP"
            } else {
                "force it here too (--rdma-cm, RdmaOptions::connection_manager), or use TCP"
            };
            let detail = format!(
                "the peer's queue pairs connect through the connection manager, and ours out of band \
                 ({}); {cure}",
                self.recognised.profile.name
            );
            return Err(self.shared.context.error(Side::Configuration, "wire", 0, detail));
        }
        let (route, numbers, patience) = self.route_to(&lane, peer)?;
        let place = || self.place(&lane.setup.announced.gid);
        let byte =
            peer.probe.map(|byte| RemoteSpan { key: byte.key.into(), address: byte.address });
        let connected = lane.connect(&route, (&numbers, byte), patience, place);
        self.learn(&lane.setup.announced, route.peer_gid, connected)
    }

    /// Destination of a lane's queue pairs, from the peer's announcement.
    pub(super) fn route_to(
        &self,
        lane: &Lane,
        peer: &Body,
    ) -> Result<(Route, Vec<Numbers>, Patience), VerbsError> {
        let context = &self.shared.context;
        let unusable = |detail: String| context.error(Side::Peer, "wire", 0, detail);
        let numbers = announced(peer, lane.numbers.len()).map_err(unusable)?;
        let port = context.port_facts(self.config.port)?;
        let peer_gid = parse_gid(&peer.gid).map_err(|error| unusable(error.to_string()))?;
        let mtu = port.mtu.min(self.config.mtu_max).min(peer.mtu);
        let mtu_number = mtu_number(mtu)
            .ok_or_else(|| unusable(format!("a path MTU of {} bytes does not exist", peer.mtu)))?;
        let rd_atomic = u32::from(self.rd_atomic).min(peer.rd_atomic);
        let rd_atomic = u8::try_from(rd_atomic).unwrap_or(u8::MAX);
        if rd_atomic == 0 {
            // With zero a read would never complete, and one kernel crashes.
            return Err(unusable("the peer accepts no outstanding read".to_owned()));
        }
        let peer_lid = u16::try_from(peer.lid).map_err(|_| unusable("LIDs have 16 bits".into()))?;
        if port.is_ethernet {
            self.check_family(&lane.setup.announced, peer_gid)?;
        } else if peer.lid != 0 {
            check_subnet(lane.setup.announced.gid.address, peer_gid).map_err(unusable)?;
        }
        let route = Route {
            port: self.config.port,
            own_gid_index: self.place(&lane.setup.announced.gid)?,
            peer_gid,
            peer_lid,
            is_global: port.is_ethernet || port.requires_gids || peer.lid == 0,
            mtu_number,
            rd_atomic,
            traffic_class: self.config.traffic_class,
            service_level: self.config.service_level,
            is_ethernet: port.is_ethernet,
        };
        let NicConfig { timeout_exponent, retries, .. } = self.config;
        Ok((route, numbers, Patience { timeout_exponent, retries }))
    }

    /// Rejects addresses that no device can connect, before the driver is called.
    fn check_family(&self, own: &Announced, peer: Ipv6Addr) -> Result<(), VerbsError> {
        let address = own.gid.address;
        if is_one_family(address, peer) {
            return Ok(());
        }
        let context = &self.shared.context;
        let entries = context.gids(self.config.port).unwrap_or_default();
        let others = usable_gids(&entries, self.config.gid, self.shared.profile);
        let can_move = own.peer.is_some()
            && others.is_ok_and(|all| all.iter().any(|e| is_one_family(e.address, peer)));
        if let Some(name) = &own.peer {
            self.book.lock().on_failed(name, address, peer);
        }
        let (side, next) = if can_move {
            (Side::Peer, "; the next lane announces another address of ours")
        } else if moves_first(&own.gid, peer) {
            let next = "; none of ours is of the peer's: give both ports addresses of one family, or use TCP";
            (Side::Configuration, next)
        } else {
            (Side::Peer, "; the peer may have another")
        };
        let ours = table(&entries);
        let detail = format!(
            "{peer} of the peer and {} of ours are of different families{next}; the port has: {ours}",
            own.gid
        );
        Err(context.error(side, "wire", 0, detail))
    }

    /// Records the outcome of a pair of addresses, and charges a failure to the side at fault.
    fn learn(
        &self,
        own: &Announced,
        peer: Ipv6Addr,
        connected: Result<(), VerbsError>,
    ) -> Result<(), VerbsError> {
        let address = own.gid.address;
        let Err(error) = connected else {
            if let Some(name) = &own.peer {
                self.book.lock().on_connected(name, address, peer);
            }
            return Ok(());
        };
        if !UNREACHABLE.contains(&error.code) {
            return Err(error);
        }
        let port = self.shared.context.port_facts(self.config.port);
        if port.is_ok_and(|port| !port.is_active) {
            let detail = format!("{}; our own port is down", error.detail);
            return Err(VerbsError { side: Side::Local, detail, ..error });
        }
        if let Some(name) = &own.peer {
            self.book.lock().on_failed(name, address, peer);
        }
        let words = rank(&own.gid).map_or("", |(_, words)| words);
        let detail = format!("{}; from {}: {words}", error.detail, own.gid);
        Err(VerbsError { detail, ..error })
    }

    /// Returns the current index of an address in the port's table, since indices change.
    fn place(&self, wanted: &GidEntry) -> Result<u8, VerbsError> {
        let context = &self.shared.context;
        let error = |detail| context.error(Side::Local, "wire", 0, detail);
        let entries = context.gids(self.config.port)?;
        let same = |entry: &&GidEntry| entry.address == wanted.address && entry.kind == wanted.kind;
        let found = entries.iter().find(same);
        let found = found
            .ok_or_else(|| error(format!("our address {} has left the port", wanted.address)))?;
        u8::try_from(found.index).map_err(|_| error("the GID's index exceeds 255".to_owned()))
    }
}

/// Adds the limit to the failed creation of a queue pair or a completion queue, with the number in
/// use and the largest number of both.
fn exhausted(error: VerbsError, queue_pairs: (u64, u64), entries: (u64, u64)) -> VerbsError {
    let (limit, (in_use, max)) = match error.call {
        "ibv_create_qp" => (NicLimit::QueuePairs, queue_pairs),
        "ibv_create_cq" => (NicLimit::CompletionEntries, entries),
        _ => return error,
    };
    if !EXHAUSTED.contains(&error.code) {
        return error;
    }
    VerbsError { limit: Some(LimitReached { limit, in_use, max }), ..error }
}

/// Rejects a peer of another InfiniBand subnet, where its LID is none or another port's.
fn check_subnet(own: Ipv6Addr, peer: Ipv6Addr) -> Result<(), String> {
    let prefix = |address: Ipv6Addr| {
        let [a, b, c, d, ..] = address.segments();
        Ipv6Addr::from([a, b, c, d, 0, 0, 0, 0])
    };
    let (own, peer) = (prefix(own), prefix(peer));
    match own == peer {
        true => Ok(()),
        false => Err(format!(
            "the peer's port is in the InfiniBand subnet {peer} and ours in {own}; connect ports of \
             one subnet"
        )),
    }
}

/// The queue pairs that a peer announced, at most as many as the local ones.
fn announced(peer: &Body, pairs: usize) -> Result<Vec<Numbers>, String> {
    if peer.queue_pairs.is_empty() {
        return Err("the peer announced no queue pair".to_owned());
    }
    if peer.psns.len() != peer.queue_pairs.len() {
        let (psns, numbers) = (peer.psns.len(), peer.queue_pairs.len());
        return Err(format!(
            "the peer announced {numbers} queue pairs and {psns} sequence numbers"
        ));
    }
    let numbers = peer.queue_pairs.iter().zip(&peer.psns).take(pairs);
    let numbers: Vec<_> =
        numbers.map(|(pair, psn)| Numbers { queue_pair: *pair, psn: *psn }).collect();
    let wide = |n: &&Numbers| n.queue_pair > QUEUE_PAIR_NUMBER_MAX || n.psn > PSN_MAX;
    match numbers.iter().find(wide) {
        Some(n) => Err(format!("{} or {} exceeds 24 bits", n.queue_pair, n.psn)),
        None => Ok(numbers),
    }
}

/// The byte that peers may read, of the memory of probes.
fn probe_byte(scratch: &Registration) -> ProbeByte {
    ProbeByte { address: scratch.span().address(), key: scratch.key().remote }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// LIDs are a subnet's own.
    #[test]
    fn peer_of_another_subnet_is_refused_by_prefix() {
        let gid = |text: &str| text.parse::<Ipv6Addr>().unwrap();
        assert_eq!(check_subnet(gid("fe80::1"), gid("fe80::2")), Ok(()));
        let error = check_subnet(gid("fe80::1"), gid("fe80:0:0:1::2")).unwrap_err();
        assert!(error.contains("subnet fe80:0:0:1:: and ours in fe80::"), "{error}");
    }

    #[test]
    fn what_a_peer_announces_is_checked_before_a_device_sees_it() {
        let body = |queue_pairs: &[u32], psns: &[u32]| Body {
            queue_pairs: queue_pairs.to_vec(),
            psns: psns.to_vec(),
            ..Body::default()
        };
        assert_eq!(announced(&body(&[17, 18, 19], &[1, 2, 3]), 2).unwrap().len(), 2);
        assert_eq!(announced(&body(&[PSN_MAX], &[PSN_MAX]), 2).unwrap().len(), 1);
        for wrong in [
            body(&[], &[]),
            body(&[17], &[]),
            body(&[17], &[1, 2]),
            body(&[PSN_MAX + 1], &[1]),
            body(&[17], &[PSN_MAX + 1]),
        ] {
            assert!(announced(&wrong, 2).is_err(), "{wrong:?}");
        }
    }
}
