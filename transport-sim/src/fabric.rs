//! The ground truth: the existing queue pairs and their connections.

use crate::backend::Backend;
use crate::copy::copied;
use crate::setup::{Devices, Setup};
use crate::verbs::{
    self, Access, Attributes, Call, Errno, Gid, GidKind, ManagedSettings, QpState, Rebirth,
    VerbsError, WorkCompletion,
};
use handfast_core::{Lifecycle, Pair};
use std::sync::Arc;

/// The first sequence numbers of both sides of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Psns {
    pub(crate) ours: u32,
    pub(crate) theirs: u32,
}

/// Destination of a connected queue pair: a number at a site, and the lifecycle expected there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// The site.
    pub site: usize,
    /// The queue-pair number there.
    pub number: u32,
    /// The pair that the connecting side expects to reach.
    pub believed: Pair,
}

/// One queue pair. Numbers are the smallest free ones of a site, so they are reused after a retire
/// and after a restart, as on real devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueuePair {
    /// The site that owns it.
    pub site: usize,
    /// The site that holds the node of the owner.
    pub host: usize,
    /// Its number.
    pub number: u32,
    /// Its lifecycle.
    pub lifecycle: Lifecycle,
    /// Destination, once connected.
    pub target: Option<Target>,
    /// Whether it is in the error state.
    pub broken: bool,
    /// Whether it was published: work may be outstanding on it until it is destroyed.
    pub published: bool,
    /// Whether it was revoked after that.
    pub revoked: bool,
    /// Whether it was revoked and no posted work is outstanding.
    pub drained: bool,
}

/// Maximum outstanding work on a queue pair.
const SEND_DEPTH: u32 = 16;
/// Outstanding reads of a queue pair that the connection manager connects.
const READS: u8 = 16;

/// The queue pairs of all sites from their owners' view, and the devices that hold them. The
/// devices decide the outcome; `sim-tests` shows that both agree.
#[derive(Debug)]
pub(crate) struct Fabric {
    pub(crate) table: Vec<QueuePair>,
    /// One NIC per site, with the site's index.
    pub(crate) verbs: verbs::Fabric,
    pub(crate) backend: Backend,
    /// Queue pairs kept by a backend for reuse: site and number.
    spare: Vec<(usize, u32)>,
    /// The site that holds the node of each site.
    hosts: Arc<[usize]>,
    /// The devices have state that the table does not show.
    pub(crate) devices_differ: bool,
    /// The devices would add nothing to the table, and have no queue pairs.
    is_table: bool,
}

copied!(Fabric { shared: hosts; lists: ; rest: table, verbs, backend, spare, devices_differ, is_table });

impl Fabric {
    pub(crate) fn new(setup: &Setup) -> Self {
        let Devices { profile, backend, .. } = setup.devices;
        let mut verbs = verbs::Fabric::default();
        let hosts: Arc<[usize]> = (0..setup.sites.len()).map(|site| setup.host(site)).collect();
        for host in hosts.iter() {
            let nic = verbs.add_nic(profile);
            verbs.share_memory(nic, *host);
        }
        let devices_differ = setup.devices_differ();
        let is_table = !devices_differ && backend == Backend::Shipping;
        Self {
            table: Vec::new(),
            verbs,
            backend,
            spare: Vec::new(),
            hosts,
            devices_differ,
            is_table,
        }
    }

    /// Whether the devices have the queue pairs of the table.
    pub(crate) fn has_devices(&self) -> bool {
        !self.is_table
    }

    /// Returns the site that holds the node of a site.
    pub(crate) fn host(&self, site: usize) -> usize {
        self.hosts.get(site).copied().unwrap_or(site)
    }

    /// Creates a queue pair and moves it to INIT. If that fails, it is destroyed.
    pub(crate) fn create(&mut self, site: usize, lifecycle: Lifecycle) -> Result<u32, VerbsError> {
        if self.is_table {
            return self.add(site, lifecycle, |_, _| true);
        }
        let spare = self.spare.iter().position(|(owner, _)| *owner == site);
        let number = match spare {
            Some(index) => self.spare.remove(index).1,
            None => self.verbs.create_queue_pair(site, SEND_DEPTH, 1)?,
        };
        self.initialise(site, number, lifecycle)
    }

    /// Like [`Fabric::create`], with a number that no other queue pair targets: a node that skips a
    /// random count of queue pairs gets one, and the probe detects one that did not skip.
    pub(crate) fn create_fresh(
        &mut self,
        site: usize,
        lifecycle: Lifecycle,
    ) -> Result<u32, VerbsError> {
        if self.is_table {
            return self.add(site, lifecycle, |own, number| !own.is_aimed_at(site, number));
        }
        let mut skipped = Vec::new();
        let fresh = loop {
            match self.verbs.create_queue_pair(site, SEND_DEPTH, 1) {
                Ok(number) if self.is_aimed_at(site, number) => skipped.push(number),
                other => break other,
            }
        };
        for number in skipped {
            self.verbs.destroy_queue_pair(site, number)?;
        }
        self.initialise(site, fresh?, lifecycle)
    }

    /// Adds a queue pair to the table alone, with the smallest free number that is allowed.
    fn add(
        &mut self,
        site: usize,
        lifecycle: Lifecycle,
        allows: impl Fn(&Self, u32) -> bool,
    ) -> Result<u32, VerbsError> {
        let profile = self.verbs.nic(site).profile();
        let full = VerbsError::new(Call::CreateQueuePair, Errno::Enomem);
        let own = self.table.iter().filter(|qp| qp.site == site);
        if own.count() as u32 >= profile.queue_pairs_max {
            return Err(full);
        }
        let is_free = |number: &u32| self.at(site, *number).is_none() && allows(self, *number);
        let number = (profile.numbers.first()..).find(is_free).ok_or(full)?;
        self.enter(site, number, lifecycle);
        Ok(number)
    }

    fn is_aimed_at(&self, site: usize, number: u32) -> bool {
        let aims =
            |qp: &QueuePair| qp.target.is_some_and(|to| (to.site, to.number) == (site, number));
        self.table.iter().any(aims)
    }

    fn initialise(
        &mut self,
        site: usize,
        number: u32,
        lifecycle: Lifecycle,
    ) -> Result<u32, VerbsError> {
        let init = Attributes::to_init(Access::ALL);
        if let Err(error) = self.verbs.modify(site, number, &init) {
            self.verbs.destroy_queue_pair(site, number)?;
            return Err(error);
        }
        self.enter(site, number, lifecycle);
        Ok(number)
    }

    fn enter(&mut self, site: usize, number: u32, lifecycle: Lifecycle) {
        let place = self.table.partition_point(|qp| (qp.site, qp.number) < (site, number));
        let made = QueuePair {
            site,
            host: self.host(site),
            number,
            lifecycle,
            target: None,
            broken: false,
            published: false,
            revoked: false,
            drained: false,
        };
        self.table.insert(place, made);
    }

    /// Moves a queue pair to RTR and RTS. From RTR on it accepts packets, even if RTS fails.
    pub(crate) fn connect(
        &mut self,
        site: usize,
        lifecycle: Lifecycle,
        target: Target,
        psns: Psns,
    ) -> Result<(), VerbsError> {
        let is_table = self.is_table;
        if let Some(qp) = self.of_mut(site, lifecycle).filter(|_| is_table) {
            if qp.broken {
                return Err(VerbsError::new(Call::Modify(QpState::Rtr), Errno::Einval));
            }
            qp.target = Some(target);
            return Ok(());
        }
        let Some(&QueuePair { site, number, .. }) = self.of(site, lifecycle) else { return Ok(()) };
        let index = self.verbs.nic(site).profile().gid_index.unwrap_or(0);
        let own = self.verbs.nic(site).gids().get(usize::from(index)).copied().flatten();
        let (kind, version) = own.map_or((GidKind::Ipv4, 2), |own| (own.kind, own.version));
        let dgid = Gid { kind, host: target.site as u16, version };
        let rtr = Attributes::to_rtr(index, dgid, target.number, psns.theirs);
        self.verbs.modify(site, number, &rtr)?;
        // Some devices return 0 without connecting.
        let bound = self.verbs.queue_pair(site, number).is_some_and(|qp| qp.bond().is_some());
        if let Some(qp) = self.of_mut(site, lifecycle) {
            qp.target = Some(target).filter(|_| bound);
        }
        // A single try suffices: time is an event here, and a second try adds no world.
        let rts = Attributes { retry_count: Some(0), ..Attributes::to_rts(psns.ours) };
        self.verbs.modify(site, number, &rts)
    }

    /// Connects a queue pair as the kernel's connection manager does. Returns whether it was connected.
    pub(crate) fn connect_managed(
        &mut self,
        site: usize,
        lifecycle: Lifecycle,
        target: Target,
        Psns { ours, theirs }: Psns,
    ) -> bool {
        let Some(qp) = self.of_mut(site, lifecycle).filter(|qp| !qp.broken) else { return false };
        let (site, number) = (qp.site, qp.number);
        // A single try, as of queue pairs that are connected out of band.
        let settings = ManagedSettings {
            reads: READS,
            peer_reads: READS,
            timeout: None,
            retries: 0,
            psns: (ours, theirs),
        };
        let peer = (target.site, target.number);
        let is_connected = self.verbs.connect_managed(site, number, peer, settings);
        if let Some(qp) = self.of_mut(self.host(site), lifecycle).filter(|_| is_connected) {
            qp.target = Some(target);
        }
        is_connected
    }

    /// Notes the queue pairs that are in error on their devices.
    pub(crate) fn note_errors(&mut self) {
        let Self { table, verbs, hosts, .. } = self;
        for site in 0..hosts.len() {
            let queue_pairs = verbs.nic(site).queue_pairs();
            for (number, _) in queue_pairs.filter(|(_, qp)| qp.state() == QpState::Err) {
                let place = table.binary_search_by_key(&(site, number), |qp| (qp.site, qp.number));
                place.into_iter().for_each(|place| table[place].broken = true);
            }
        }
    }

    /// Moves a queue pair to error, as its device does on its own.
    pub(crate) fn break_down(&mut self, site: usize, lifecycle: Lifecycle) {
        let Some(qp) = self.of_mut(site, lifecycle) else { return };
        qp.broken = true;
        let (site, number) = (qp.site, qp.number);
        if self.is_table {
            return;
        }
        self.verbs.break_queue_pair(site, number);
        while self.verbs.next_event(site).is_some() {}
    }

    /// Moves a queue pair to ERR, adds its completions to `drained`, and destroys it. Errors do not
    /// stop the sequence.
    pub(crate) fn destroy(
        &mut self,
        site: usize,
        lifecycle: Lifecycle,
        drained: &mut Vec<WorkCompletion>,
    ) -> Result<(), VerbsError> {
        let Some(qp) = self.of_mut(site, lifecycle) else { return Ok(()) };
        let (site, number) = (qp.site, qp.number);
        if self.is_table {
            self.table.retain(|qp| qp.site != site || qp.lifecycle != lifecycle);
            return Ok(());
        }
        if self.backend.resets() {
            self.verbs.modify(site, number, &Attributes::to(QpState::Reset))?;
            self.table.retain(|qp| qp.site != site || qp.lifecycle != lifecycle);
            self.spare.push((site, number));
            return Ok(());
        }
        if self.backend.drops_work() {
            self.verbs.destroy_queue_pair(site, number)?;
            self.table.retain(|qp| qp.site != site || qp.lifecycle != lifecycle);
            return Ok(());
        }
        self.verbs.modify(site, number, &Attributes::to(QpState::Err))?;
        if let Some(qp) = self.of_mut(site, lifecycle) {
            qp.broken = true;
        }
        drained.extend(self.verbs.poll_queue_pair(site, number));
        self.verbs.destroy_queue_pair(site, number)?;
        self.table.retain(|qp| qp.site != site || qp.lifecycle != lifecycle);
        Ok(())
    }

    /// Returns the queue pair of a lifecycle of a site's node, on any NIC.
    pub(crate) fn of(&self, site: usize, lifecycle: Lifecycle) -> Option<&QueuePair> {
        self.table.get(self.place_of(site, lifecycle)?)
    }

    pub(crate) fn of_mut(&mut self, site: usize, lifecycle: Lifecycle) -> Option<&mut QueuePair> {
        let place = self.place_of(site, lifecycle)?;
        self.table.get_mut(place)
    }

    /// The table is ordered by site, and a host is the first of its sites.
    fn place_of(&self, site: usize, lifecycle: Lifecycle) -> Option<usize> {
        let host = self.host(site);
        let first = self.table.partition_point(|qp| qp.site < host);
        let is = |qp: &QueuePair| qp.host == host && qp.lifecycle == lifecycle;
        self.table[first..].iter().position(is).map(|place| first + place)
    }

    /// Removes everything that a device had for the dead process of a site.
    pub(crate) fn forget_site(&mut self, site: usize, rebirth: Rebirth) {
        self.table.retain(|qp| qp.site != site);
        self.spare.retain(|(owner, _)| *owner != site);
        if !self.is_table {
            self.verbs.crash(site, rebirth);
        }
    }

    pub(crate) fn at(&self, site: usize, number: u32) -> Option<&QueuePair> {
        let place = self.table.binary_search_by_key(&(site, number), |qp| (qp.site, qp.number));
        place.ok().and_then(|place| self.table.get(place))
    }

    /// Whether bytes flow: both queue pairs are connected to each other and neither is in error.
    pub(crate) fn intact(&self, qp: &QueuePair) -> bool {
        let Some(target) = qp.target else { return false };
        let back = self.at(target.site, target.number);
        let returns = |back: &QueuePair| {
            !back.broken
                && back.target.is_some_and(|to| (to.site, to.number) == (qp.site, qp.number))
        };
        !qp.broken && back.is_some_and(returns)
    }
}
