//! Served regions, by name.

use crate::data::local::LocalRegion;
use crate::error::{Cause, Error, Stage};
use crate::time::Entropy;
use crate::topology::Location;
use handfast_core::Instant;
use handfast_core::policy::{
    Access, Grant, GrantError, Grants, KEY_GROUPS_MAX, KeyGroup, KeyGroupId, KeyGroups, Requester,
    TrustGroup, TrustGroups,
};
use handfast_core::wire::{REGION_NAME_BYTES_MAX, RegionDescriptor, SegmentGrants};
use handfast_transport::{
    Direction, Region, RegionError, RegionTable, RegionWatch, RegistrationError, Span,
};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, OnceLock};
use tokio::sync::Notify;

/// Maximum draws of a key before registration fails: even two collisions in a row do not happen by chance.
const KEY_DRAWS_MAX: usize = 4;

pub(crate) struct Regions {
    pub(crate) table: Arc<RegionTable>,
    named: Mutex<NamedRegions>,
    regions_max: usize,
    /// Notified of every change.
    pub(crate) changed: Arc<Notify>,
    /// Held during a change of grants.
    granting: Mutex<()>,
    /// Whether peers prove their names.
    proves_names: bool,
    trust: TrustGroups,
    /// Kept for the table.
    audit: OnceLock<Arc<dyn RegionWatch>>,
}

/// The served regions.
#[derive(Default)]
struct NamedRegions {
    /// In the order of registration.
    by_order: BTreeMap<u64, Named>,
    names: BTreeSet<Arc<str>>,
    /// Address and order of the regions that peers reach by address.
    by_address: BTreeSet<(u64, u64)>,
    /// Order of the next region.
    next: u64,
}

impl NamedRegions {
    fn insert(&mut self, named: Named) -> u64 {
        let order = self.next;
        self.next += 1;
        self.names.insert(named.name.clone());
        if named.reach == Reach::ByAddress {
            self.by_address.insert((named.region.address(), order));
        }
        self.by_order.insert(order, named);
        order
    }

    fn remove(&mut self, order: u64) -> Option<Named> {
        let named = self.by_order.remove(&order)?;
        self.names.remove(&named.name);
        self.by_address.remove(&(named.region.address(), order));
        Some(named)
    }
}

/// A served region.
struct Named {
    name: Arc<str>,
    region: Region,
    keys: DeviceKeys,
    reach: Reach,
    /// Location of its memory, if known.
    location: Option<Location>,
}

/// A region to be served.
pub(crate) struct ServedRegion {
    pub(crate) span: Span,
    pub(crate) grants: Grants,
    pub(crate) keys: DeviceKeys,
    pub(crate) reach: Reach,
    /// Location of its memory, if the user gave one.
    pub(crate) location: Option<Location>,
}

/// The registrations of a region with the RDMA devices: one for each key group, with what its grants
/// allow.
#[derive(Default)]
pub(crate) struct DeviceKeys {
    groups: KeyGroups,
    registered: BTreeMap<KeyGroupId, Arc<LocalRegion>>,
    /// Whether there are devices.
    has_devices: bool,
    /// Whether the log says that there is no room for another group, under the present grants.
    has_told_of_room: bool,
}

impl DeviceKeys {
    /// Registers for the first group, so that a device refuses memory when it is served. The others
    /// follow when a peer asks.
    pub(crate) fn new(
        (grants, trust): (&Grants, TrustGroups),
        has_devices: bool,
        register: impl FnOnce((TrustGroup, Access)) -> Result<Option<Arc<LocalRegion>>, Error>,
    ) -> Result<Self, Error> {
        let groups = KeyGroups::new(trust);
        let mut keys = Self { groups, has_devices, ..Self::default() };
        if let KeyGroup::New { group, access, trust, .. } = keys.groups.first(grants) {
            let registered = register((trust, access))?;
            keys.registered.extend(registered.map(|registered| (group, registered)));
        }
        Ok(keys)
    }

    /// The first registration.
    pub(crate) fn first(&self) -> Option<&Arc<LocalRegion>> {
        self.registered.values().next()
    }

    fn of(&self, grants: &Grants, requester: Requester<'_>) -> Option<&Arc<LocalRegion>> {
        self.registered.get(&self.groups.find(grants, requester)?)
    }

    fn take(&mut self, ended: impl IntoIterator<Item = KeyGroupId>) -> Vec<Arc<LocalRegion>> {
        ended.into_iter().filter_map(|group| self.registered.remove(&group)).collect()
    }
}

/// A registration for a key group, to make before its peers are answered.
pub(crate) struct MissingKey {
    order: u64,
    group: KeyGroupId,
    pub(crate) span: Span,
    /// The peers of a trust group, with these permissions.
    pub(crate) to: (TrustGroup, Access),
    pub(crate) location: Option<Location>,
    /// The registration that makes room for this one. A device may take its time to end it.
    pub(crate) evicted: Vec<Arc<LocalRegion>>,
}

/// Requirements for a peer to reach a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Its key.
    ByKey,
    /// Its address alone, as in Mooncake's TCP data protocol.
    ByAddress,
}

/// Failures to reach bytes by address alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ReachError {
    #[error("no region reachable by address contains {length} bytes at {address:#x}")]
    Nowhere { address: u64, length: u64 },
    #[error(transparent)]
    Region(#[from] RegionError),
}

/// Memory that peers may reach until this is dropped. A running transfer then ends early on the
/// peer's side. The piece being copied at that moment is still copied, so reuse the bytes only once
/// [`Memory::holders`](crate::Memory::holders) shows no holder; the memory stays mapped until then.
pub struct Registration {
    regions: Arc<Regions>,
    name: Arc<str>,
    region: Region,
    order: u64,
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration")
            .field("name", &self.name)
            .field("bytes", &self.region.bytes())
            .finish_non_exhaustive()
    }
}

impl Registration {
    /// Returns the name of the segment.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the registered memory.
    pub fn span(&self) -> &Span {
        self.region.span()
    }

    /// Returns the grants in force, one for each pattern of names.
    pub fn grants(&self) -> Vec<Grant> {
        let named = self.regions.named.lock();
        let of = |named: &Named| named.region.grants().iter().collect();
        named.by_order.get(&self.order).map(of).unwrap_or_default()
    }

    /// Adds a grant. Peers that opened the segment before find it with their next batch.
    ///
    /// # Errors
    /// [`Cause::Grant`] at [`GRANTS_MAX`](crate::auth::GRANTS_MAX) patterns, or for a pattern other
    /// than `*` on an engine without keys; writing to read-only memory. Nothing changed.
    pub fn grant(&self, grant: Grant) -> Result<(), Error> {
        self.regions.regrant(self, |grants| grants.add(grant))
    }

    /// Takes what a grant allows from its pattern of names. Another pattern that covers a peer keeps
    /// what it allows.
    ///
    /// In force on return: over TCP the next piece of a slice is refused; peers on this host that
    /// run have let the memory go; the keys that RDMA devices had for the peers of the pattern are
    /// no longer registered. Other peers of these keys fetch new ones. Blocks while a
    /// device ends a registration, and 20 ms at most for peers on this host; one that is stopped
    /// keeps its map ([`Memory::holders`](crate::Memory::holders)).
    ///
    /// # Errors
    /// None while the memory is served.
    pub fn revoke(&self, grant: &Grant) -> Result<(), Error> {
        self.regions.regrant(self, |grants| {
            grants.revoke(grant);
            Ok(())
        })
    }

    /// Replaces all grants at once, as [`Registration::grant`] and [`Registration::revoke`].
    ///
    /// # Errors
    /// As [`Registration::grant`]; nothing changed.
    pub fn set_grants(&self, all: impl IntoIterator<Item = Grant>) -> Result<(), Error> {
        self.regions.regrant(self, |grants| {
            *grants = Grants::default();
            all.into_iter().try_for_each(|grant| grants.add(grant))
        })
    }
}

fn failed(cause: impl Into<Cause>) -> Error {
    Error::local(Stage::Registration, cause)
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.regions.table.unregister(self.region.key());
        let gone = self.regions.named.lock().remove(self.order);
        // Here peers lose the device's key. The lock is not held, since this releases pages.
        drop(gone);
        self.regions.changed.notify_one();
    }
}

impl Regions {
    /// `proves_names`: whether peers prove their names; `trust` has their trust groups.
    pub(crate) fn new(regions_max: usize, proves_names: bool, trust: TrustGroups) -> Arc<Self> {
        Arc::new(Self {
            table: Arc::new(RegionTable::new()),
            named: Mutex::default(),
            regions_max,
            changed: Arc::new(Notify::new()),
            granting: Mutex::default(),
            proves_names,
            trust,
            audit: OnceLock::new(),
        })
    }

    /// The trust groups of peers.
    pub(crate) fn trust(&self) -> &TrustGroups {
        &self.trust
    }

    /// Reports refusals to a watch.
    pub(crate) fn audit_by(&self, audit: Arc<dyn RegionWatch>) {
        self.table.watch(Arc::downgrade(&audit));
        let _ = self.audit.set(audit);
    }

    /// The name of the region with a key.
    pub(crate) fn name_of(&self, key: u64) -> Option<Arc<str>> {
        let named = self.named.lock();
        let found = named.by_order.values().find(|named| named.region.key() == key);
        found.map(|named| named.name.clone())
    }

    fn check_names(&self, grants: &Grants) -> Result<(), Error> {
        match self.proves_names {
            true => Ok(()),
            false => grants.check_unproven().map_err(failed),
        }
    }

    fn regrant(
        &self,
        of: &Registration,
        change: impl FnOnce(&mut Grants) -> Result<(), GrantError>,
    ) -> Result<(), Error> {
        self.regrant_region(of.order, change)
    }

    /// Changes the grants of a segment, and returns those that are in force then.
    pub(crate) fn regrant_named(
        &self,
        name: &str,
        change: impl FnOnce(&mut Grants) -> Result<(), GrantError>,
    ) -> Result<Vec<Grant>, Error> {
        let order_of = |named: &BTreeMap<u64, Named>| {
            named.iter().find(|(_, named)| *named.name == *name).map(|(order, _)| *order)
        };
        let order = order_of(&self.named.lock().by_order);
        let order = order.ok_or_else(|| failed(RegistrationError::Gone))?;
        self.regrant_region(order, change)?;
        let named = self.named.lock();
        let now = named.by_order.get(&order).map(|named| named.region.grants().iter().collect());
        now.ok_or_else(|| failed(RegistrationError::Gone))
    }

    /// The grants of each segment, or of one.
    pub(crate) fn grants_of(&self, segment: Option<&str>) -> SegmentGrants {
        let named = self.named.lock();
        let asked = |named: &&Named| segment.is_none_or(|segment| *named.name == *segment);
        let all = named.by_order.values().filter(asked);
        all.map(|it| (it.name.to_string(), it.region.grants().iter().collect())).collect()
    }

    fn regrant_region(
        &self,
        order: u64,
        change: impl FnOnce(&mut Grants) -> Result<(), GrantError>,
    ) -> Result<(), Error> {
        let _one_at_a_time = self.granting.lock();
        let gone = || failed(RegistrationError::Gone);
        let named = self.named.lock();
        let named_of = named.by_order.get(&order).ok_or_else(gone)?;
        let key = named_of.region.key();
        let before = named_of.region.grants().clone();
        drop(named);
        let mut grants = before.clone();
        change(&mut grants).map_err(failed)?;
        self.check_names(&grants)?;
        if grants == before {
            // Peers keep what they have been given.
            return Ok(());
        }
        let region = self.table.regrant(key, grants).map_err(failed)?;
        let mut named = self.named.lock();
        let named_of = named.by_order.get_mut(&order).ok_or_else(gone)?;
        named_of.keys.has_told_of_room = false;
        let ended = named_of.keys.groups.on_changed(region.grants());
        let ended = named_of.keys.take(ended);
        named_of.region = region;
        drop(named);
        // Here peers lose the device's keys. The lock is not held, since this releases pages.
        drop(ended);
        self.changed.notify_one();
        Ok(())
    }

    /// The registrations that a requester's descriptor lacks. Those that are not made are put back by
    /// [`Regions::put_key`].
    pub(crate) fn missing_keys(&self, requester: Requester<'_>, now: Instant) -> Vec<MissingKey> {
        let mut named = self.named.lock();
        let mut missing = Vec::new();
        for (order, Named { name, region, keys, location, .. }) in &mut named.by_order {
            if !keys.has_devices || keys.of(region.grants(), requester).is_some() {
                continue;
            }
            match keys.groups.group_of(region.grants(), requester, now) {
                KeyGroup::New { group, access, trust, evicted: old } => {
                    let evicted = keys.take(old);
                    let (span, location) = (region.span().clone(), location.clone());
                    let to = (trust, access);
                    missing.push(MissingKey { order: *order, group, span, to, location, evicted });
                }
                KeyGroup::Full if !std::mem::replace(&mut keys.has_told_of_room, true) => {
                    let max = KEY_GROUPS_MAX;
                    tracing::warn!(
                        target: "handfast::audit", segment = %name, max,
                        "peers of a further key group have no key for RDMA: other grants, or fewer \
                         patterns, make room"
                    );
                }
                _ => {}
            }
        }
        missing
    }

    /// Whether [`Regions::missing_keys`] has any, or another answer makes them.
    pub(crate) fn lacks_keys(&self, requester: Requester<'_>, now: Instant) -> bool {
        let named = self.named.lock();
        named.by_order.values().any(|Named { region, keys, .. }| {
            if !keys.has_devices || region.access_of(requester).is_none() {
                return false;
            }
            let group = keys.groups.find(region.grants(), requester);
            match group {
                // The log has a lack of room once.
                None => {
                    let has_room = keys.groups.has_room_for(region.grants(), requester);
                    has_room || !keys.has_told_of_room
                }
                Some(group) => {
                    !keys.registered.contains_key(&group) && !keys.groups.is_pausing(group, now)
                }
            }
        })
    }

    /// Takes what came of a registration. One whose grants were revoked meanwhile ends.
    pub(crate) fn put_key(
        &self,
        key: &MissingKey,
        registered: Option<Arc<LocalRegion>>,
        now: Instant,
    ) {
        let mut named = self.named.lock();
        let of = named.by_order.get_mut(&key.order).filter(|it| it.keys.groups.has(key.group));
        let unused = match (of, registered) {
            (Some(of), Some(registered)) => of.keys.registered.insert(key.group, registered),
            (Some(of), None) => {
                of.keys.groups.on_failed(key.group, now);
                None
            }
            (None, registered) => registered,
        };
        drop(named);
        drop(unused);
    }

    /// Returns the number of served regions.
    pub(crate) fn len(&self) -> usize {
        self.named.lock().by_order.len()
    }

    pub(crate) fn register(
        self: &Arc<Self>,
        name: &str,
        served: ServedRegion,
        entropy: &dyn Entropy,
    ) -> Result<Registration, Error> {
        let ServedRegion { span, grants, keys, reach, location } = served;
        self.check_names(&grants)?;
        let plain = |c: char| !c.is_control() && !matches!(c, '/' | ':' | ',');
        if name.is_empty() || name.len() > REGION_NAME_BYTES_MAX || !name.chars().all(plain) {
            let text = format!(
                "a segment's name has 1 to {REGION_NAME_BYTES_MAX} bytes, and none of '/', \
                 ':', ',' and control characters"
            );
            return Err(failed(Cause::Invalid(text)));
        }
        if span.is_empty() {
            return Err(failed(Cause::Invalid("a segment has at least one byte".into())));
        }
        let mut named = self.named.lock();
        if named.names.contains(name) {
            return Err(failed(Cause::Invalid(format!("the segment '{name}' is served already"))));
        }
        if named.by_order.len() >= self.regions_max {
            return Err(failed(Cause::Limit { name: "regions_max", value: self.regions_max }));
        }
        let mut draws = (0..KEY_DRAWS_MAX)
            .map(|_| self.table.register(span.clone(), grants.clone(), entropy.next_u64()));
        let region = draws
            .find(|drawn| !matches!(drawn, Err(RegistrationError::KeyTaken)))
            .unwrap_or(Err(RegistrationError::KeyTaken))
            .map_err(failed)?;
        let name: Arc<str> = name.into();
        let found = || keys.first().map(|known| known.location().clone());
        let location = location.or_else(found).filter(|place| *place != Location::Anywhere);
        let order = named.insert(Named {
            name: name.clone(),
            region: region.clone(),
            keys,
            reach,
            location,
        });
        drop(named);
        self.changed.notify_one();
        Ok(Registration { regions: self.clone(), name, region, order })
    }

    /// Describes the regions that `reach` permits and in which the requester may do anything, with what
    /// it may do; access by key reaches all.
    pub(crate) fn describe(&self, reach: Reach, requester: Requester<'_>) -> Vec<RegionDescriptor> {
        let reached = |named: &&Named| reach == Reach::ByKey || named.reach == reach;
        let describe = |Named { name, region, keys, location, .. }: &Named| {
            let access = region.access_of(requester);
            let registered = keys.of(region.grants(), requester);
            (!access.is_none()).then(|| RegionDescriptor {
                name: name.to_string(),
                key: region.key(),
                remote_keys: registered.map_or_else(Vec::new, |known| known.remote_keys()),
                cut: registered.and_then(|known| known.cut()),
                address: region.address(),
                bytes: region.bytes(),
                readable: access.remote_read,
                writable: access.remote_write,
                location: location.as_ref().map(Location::to_string),
                needs_flush: region.span().memory().needs_flush(),
            })
        };
        self.named.lock().by_order.values().filter(reached).filter_map(describe).collect()
    }

    /// Finds bytes by their address alone, in one region that allows it.
    pub(crate) fn reach(
        &self,
        address: u64,
        length: u64,
        direction: Direction,
    ) -> Result<Span, ReachError> {
        let nowhere = ReachError::Nowhere { address, length };
        let end = address.checked_add(length).filter(|_| length > 0).ok_or(nowhere)?;
        let holds = |named: &&Named| end - named.region.address() <= named.region.bytes();
        let named = self.named.lock();
        // Regions may overlap: the nearest one that begins before need not hold the bytes.
        let before = named.by_address.range(..=(address, u64::MAX)).rev();
        let found = before.filter_map(|(_, order)| named.by_order.get(order)).find(holds);
        let key = found.map(|named| named.region.key()).ok_or(nowhere)?;
        drop(named);
        Ok(self.table.lookup(key, (address, length), direction, Requester::Anybody)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handfast_core::NodeName;
    use handfast_core::policy::KEY_RETRY_INTERVAL;
    use handfast_transport::Memory;

    struct Drawn;

    impl Entropy for Drawn {
        fn next_u64(&self) -> u64 {
            7
        }
    }

    /// A registration that failed is not tried for another request within the pause, by any number of
    /// them, and is tried once after it; for other grants at once.
    #[test]
    fn failed_registration_is_not_tried_at_each_request() {
        let regions = Regions::new(1, true, TrustGroups::default());
        let keys = DeviceKeys { has_devices: true, ..DeviceKeys::default() };
        let served = ServedRegion {
            span: Memory::zeroed(4096).unwrap().whole(),
            grants: Access::READ.into(),
            keys,
            reach: Reach::ByKey,
            location: None,
        };
        let served = regions.register("cache", served, &Drawn).unwrap();
        let asks = |now: Instant| {
            let lacks = regions.lacks_keys(Requester::Anybody, now);
            let missing = regions.missing_keys(Requester::Anybody, now);
            assert_eq!(lacks, !missing.is_empty());
            missing
        };
        let [missing] = &asks(Instant(1))[..] else { panic!("there is no registration") };
        assert!(regions.lacks_keys(Requester::Anybody, Instant(1)), "the next one waits for it");
        assert!(regions.missing_keys(Requester::Anybody, Instant(1)).is_empty());
        regions.put_key(missing, None, Instant(2));
        let later = Instant(2) + KEY_RETRY_INTERVAL;
        for now in [Instant(2), Instant(3), Instant(later.0 - 1)] {
            assert!(asks(now).is_empty(), "at {now:?}");
        }
        let [missing] = &asks(later)[..] else { panic!("the pause is over") };
        regions.put_key(missing, None, later);
        assert!(asks(later).is_empty());
        served.grant(Grant::write("*").unwrap()).unwrap();
        assert_eq!(asks(later).len(), 1, "other grants");
    }

    /// One key group more than there may be registrations has none, and asks without an effect on the
    /// others, which keep theirs in every round.
    #[test]
    fn group_past_the_limit_takes_no_key_from_others() {
        let regions = Regions::new(1, true, TrustGroups::default());
        let names: Vec<_> = (0..=KEY_GROUPS_MAX).map(|at| format!("n{at}")).collect();
        let mut grants = Grants::default();
        names.iter().for_each(|name| grants.add(Grant::read(name).unwrap()).unwrap());
        let keys = DeviceKeys { has_devices: true, ..DeviceKeys::default() };
        let span = Memory::zeroed(4096).unwrap().whole();
        let served = ServedRegion { span, grants, keys, reach: Reach::ByKey, location: None };
        let served = regions.register("cache", served, &Drawn).unwrap();
        let mut made = Vec::new();
        for _ in 0..3 {
            for text in &names {
                let name = NodeName::new(text).unwrap();
                let missing = regions.missing_keys(Requester::Peer(&name), Instant(0));
                made.extend(missing.iter().map(|_| text.clone()));
            }
        }
        assert_eq!(made, names[..KEY_GROUPS_MAX], "each once");
        let last = NodeName::new(&names[KEY_GROUPS_MAX]).unwrap();
        assert!(!regions.lacks_keys(Requester::Peer(&last), Instant(0)), "it waits for none");
        served.revoke(&Grant::read("n3").unwrap()).unwrap();
        assert!(regions.lacks_keys(Requester::Peer(&last), Instant(0)));
        assert_eq!(regions.missing_keys(Requester::Peer(&last), Instant(0)).len(), 1, "room");
    }
}
