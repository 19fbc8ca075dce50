//! Registrations with devices that only count.

use super::*;
use handfast_transport::{Access, DeviceId, DeviceMemory};
use std::sync::Barrier;
use std::sync::atomic::AtomicU32;

const BYTES: usize = 64 << 10;
const KEPT_MAX: u64 = 256 << 10;
/// Longest wait of a test.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(30);
/// Of a device without a limit.
const ENDLESS: u64 = u64::MAX;

/// The budget of a device, and what is registered with it.
struct Counting {
    device: DeviceId,
    room: u64,
    is_lost: bool,
    /// The device that came in its place while the first registration was made.
    replaced_by: Option<DeviceId>,
    calls: AtomicU32,
    live: Arc<Mutex<Live>>,
    /// Deregistrations fail.
    is_sticky: bool,
    /// Held by a test, deregistrations wait.
    gate: Arc<Mutex<()>>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Live {
    served: u32,
    local: u32,
    bytes: u64,
}

/// Holds its bytes, as a device's registration does.
struct Entry {
    live: Arc<Mutex<Live>>,
    span: Span,
    purpose: Purpose,
    is_sticky: bool,
    gate: Arc<Mutex<()>>,
}

impl Held for Entry {
    fn end(self) -> bool {
        drop(self.gate.lock());
        if self.is_sticky {
            std::mem::forget(self);
            return false;
        }
        true
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.span.copy_out(0, &mut [0]).unwrap();
        let mut live = self.live.lock();
        live.bytes -= self.span.len() as u64;
        *live.of(self.purpose) -= 1;
    }
}

impl Live {
    fn of(&mut self, purpose: Purpose) -> &mut u32 {
        if purpose == Purpose::Own { &mut self.local } else { &mut self.served }
    }
}

impl Devices for Counting {
    type Held = Entry;

    fn register(&self, span: &Span, purpose: Purpose) -> Result<OnDevices<Entry>, TransportError> {
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        let mut live = self.live.lock();
        let bytes = span.len() as u64;
        if live.bytes + bytes > self.room {
            let refused = failed("no room".to_owned());
            return Err(TransportError { code: libc::ENOMEM, ..refused });
        }
        live.bytes += bytes;
        *live.of(purpose) += 1;
        let cut = Cut::new(bytes, bytes, 0).unwrap();
        let keys = vec![DeviceKey { device: self.device, local: number, remote: number }];
        let (live, gate) = (Arc::clone(&self.live), Arc::clone(&self.gate));
        let held = Entry { live, span: span.clone(), purpose, is_sticky: self.is_sticky, gate };
        Ok(OnDevices { keys, cut, held: vec![vec![held]] })
    }

    fn register_at(&self, place: usize, span: &Span, purpose: Purpose, _: Cut) -> InPieces<Entry> {
        let OnDevices { mut keys, mut held, .. } = self.register(span, purpose)?;
        keys[0].device = self.replaced_by.unwrap_or(self.device);
        Ok((keys, held.swap_remove(place)))
    }

    fn present(&self, _: Purpose) -> Vec<Option<DeviceId>> {
        vec![(!self.is_lost).then_some(self.replaced_by.unwrap_or(self.device))]
    }
}

/// A peer's key ends with its segment, although a transfer of this node moves the same memory.
#[test]
fn served_key_ends_while_own_transfer_runs() {
    let (regions, devices, memory) = (LocalRegions::new(KEPT_MAX), devices(ENDLESS), block());
    let served = regions.serve(&devices, &memory.whole(), Access::READ_WRITE, None).unwrap();
    assert!(regions.find(&memory.whole()).is_none(), "not for local use");
    let running = regions.prepare(&devices, &memory.whole(), None).unwrap();
    let posted = Arc::clone(running.memory());
    assert_eq!(devices.live(), (1, 1));
    drop(served);
    assert_eq!(devices.live(), (0, 1), "peers lose the key at once");
    assert!(posted.local_key(devices.device, &memory.whole()).is_some());
}

/// The second transfer from a block makes no call to a device, from whichever bytes.
#[test]
fn second_transfer_from_a_block_registers_nothing() {
    let (regions, devices, memory) = (LocalRegions::new(KEPT_MAX), devices(ENDLESS), block());
    drop(regions.prepare(&devices, &memory.span(100, 50).unwrap(), None).unwrap());
    for (offset, length) in [(100, 50), (0, 1), (0, BYTES)] {
        let span = memory.span(offset, length).unwrap();
        let found = regions.find(&span).unwrap();
        assert_eq!((found.memory().address(), found.memory().bytes()), (memory.address(), KIB_64));
        assert!(Arc::ptr_eq(&found, &regions.prepare(&devices, &span, None).unwrap()));
    }
    assert_eq!(devices.calls.load(Ordering::Relaxed), 1);
    let counters = regions.counters();
    assert_eq!((counters.registrations, counters.kept_bytes, counters.evictions), (1, KIB_64, 0));
}

/// Two first transfers from one block, at the same time, register it once.
#[test]
fn concurrent_users_register_a_block_once() {
    let (regions, devices, memory) = (LocalRegions::new(KEPT_MAX), devices(ENDLESS), block());
    let begin = Barrier::new(4);
    std::thread::scope(|scope| {
        for place in 0..4 {
            let (regions, devices, begin) = (&regions, &devices, &begin);
            let span = memory.span(place * 16, 16).unwrap();
            scope.spawn(move || {
                begin.wait();
                let region = regions.prepare(devices, &span, None).unwrap();
                assert!(region.memory().covers(&span));
            });
        }
    });
    assert_eq!(devices.calls.load(Ordering::Relaxed), 1);
}

/// A registration is no holder of its block, and ends when the block is freed.
#[test]
fn freed_block_is_registered_no_longer() {
    let (regions, devices, memory) = (LocalRegions::new(KEPT_MAX), devices(ENDLESS), block());
    drop(regions.prepare(&devices, &memory.whole(), None).unwrap());
    assert_eq!((memory.holders(), devices.live()), (1, (0, 1)));
    drop(memory);
    assert_eq!((devices.live(), regions.counters().kept_bytes), ((0, 0), 0));
    let other = block();
    drop(regions.prepare(&devices, &other.whole(), None).unwrap());
    drop(regions);
    assert_eq!(devices.live(), (0, 0), "the end of the engine");
    drop(other);
}

/// Without a budget a registration ends with its transfer.
#[test]
fn registration_past_the_budget_ends_with_its_transfer() {
    let (regions, devices, memory) = (LocalRegions::new(KIB_64 - 1), devices(ENDLESS), block());
    let passing = regions.prepare(&devices, &memory.whole(), None).unwrap();
    assert!(Arc::ptr_eq(&passing, &regions.find(&memory.whole()).unwrap()));
    drop(passing);
    assert_eq!((devices.live(), regions.counters().kept_bytes), ((0, 0), 0));
    assert!(regions.find(&memory.whole()).is_none());
    drop(regions.prepare(&devices, &memory.span(0, 100).unwrap(), None).unwrap());
    assert_eq!((devices.live(), regions.counters().kept_bytes), ((0, 1), 100), "that has room");
}

/// A device has less room than the budget: what is kept without use gives way, also to a segment.
#[test]
fn kept_registrations_give_way_when_the_device_refuses() {
    let (regions, devices, first) = (LocalRegions::new(KEPT_MAX), devices(KIB_64 + 10), block());
    drop(regions.prepare(&devices, &first.whole(), None).unwrap());
    let second = block();
    let alone = regions.prepare(&devices, &second.span(0, 10).unwrap(), None).unwrap();
    assert_eq!((devices.live(), alone.memory().bytes()), ((0, 2), 10), "its bytes have room");
    drop(alone);
    let served = regions.serve(&devices, &second.whole(), Access::READ, None).unwrap();
    assert_eq!((devices.live(), regions.counters().evictions), ((1, 0), 2));
    let refused = regions.prepare(&devices, &first.whole(), None);
    assert_eq!(refused.err().map(|error| error.detail), Some("no room".to_owned()));
    drop(served);
    assert!(regions.prepare(&devices, &first.whole(), None).is_ok(), "nothing waits for ever");
}

/// A registration that a transfer uses does not give way.
#[test]
fn registration_in_use_does_not_give_way() {
    let (regions, devices, first) = (LocalRegions::new(KEPT_MAX), devices(KIB_64), block());
    let region = regions.prepare(&devices, &first.whole(), None).unwrap();
    let in_flight = Arc::clone(region.memory());
    drop(region);
    assert!(regions.prepare(&devices, &block().whole(), None).is_err());
    assert_eq!(devices.live(), (0, 1));
    drop(in_flight);
    assert!(regions.prepare(&devices, &block().whole(), None).is_ok());
}

/// The location that a user gives is used while the result is held.
#[test]
fn users_location_comes_first_while_it_is_held() {
    let (regions, devices, memory) = (LocalRegions::new(KEPT_MAX), devices(ENDLESS), block());
    drop(regions.prepare(&devices, &memory.whole(), None).unwrap());
    let there: Location = "cpu:7".parse().unwrap();
    let prepared = regions.prepare(&devices, &memory.whole(), Some(there.clone())).unwrap();
    let location = |regions: &LocalRegions<Entry>| {
        regions.find(&memory.span(1, 2).unwrap()).unwrap().location().clone()
    };
    assert_eq!(location(&regions), there);
    drop(prepared);
    assert_ne!(location(&regions), there);
    assert_eq!(devices.live(), (0, 1));
}

/// Registrations for single transfers are bounded, and those that ended do not count.
#[test]
fn passing_registrations_are_bounded() {
    let memory = block();
    let region = || {
        let memory = DeviceMemory::new(&memory.whole(), Vec::new(), ());
        Arc::new(LocalRegion::new(memory, Location::Anywhere))
    };
    let id = || Memory::zeroed(1).unwrap().id();
    let (mut passing, live) = (Passing::default(), region());
    for _ in 1..REGISTRATIONS_MAX {
        passing.insert(id(), &live).unwrap();
    }
    passing.insert(id(), &region()).unwrap();
    passing.insert(id(), &live).unwrap();
    let error = passing.insert(id(), &live).unwrap_err();
    assert!(error.detail.contains("the limit of 16384 registrations"), "{error}");
    drop(live);
    passing.insert(id(), &region()).unwrap();
    assert_eq!(passing.entries, 1);
}

/// A device that has no room for a block is not asked for it again with each range.
#[test]
fn refused_block_is_not_tried_with_each_range() {
    let (regions, devices, memory) = (LocalRegions::new(KEPT_MAX), devices(KIB_64 - 1), block());
    for place in 0..3 {
        let span = memory.span(place * 100, 10).unwrap();
        let region = regions.prepare(&devices, &span, None).unwrap();
        assert_eq!(region.memory().bytes(), 10);
    }
    assert_eq!(devices.calls.load(Ordering::Relaxed), 4, "the whole once, and each range");
}

/// A freed block counts in the budget until the device has let it go.
#[test]
fn block_counts_until_its_deregistration_ends() {
    let (regions, devices, memory) = (LocalRegions::new(KIB_64), devices(ENDLESS), block());
    drop(regions.prepare(&devices, &memory.whole(), None).unwrap());
    let next = block();
    let held = devices.gate.lock();
    std::thread::scope(|scope| {
        let freed = scope.spawn(|| drop(memory));
        while !regions.0.state.lock().watched.is_empty() {
            std::thread::yield_now();
        }
        assert_eq!(regions.counters().kept_bytes, KIB_64, "it is not deregistered yet");
        let found = regions.0.state.lock().kept.decide(
            Block { id: next.id(), bytes: KIB_64 },
            &(0..KIB_64),
            Cover::Exact,
        );
        assert!(matches!(found, Decision::Pass), "nothing else has room");
        drop(held);
        freed.join().unwrap();
    });
    assert_eq!(regions.counters().kept_bytes, 0);
    drop(regions.prepare(&devices, &next.whole(), None).unwrap());
    assert!(regions.find(&next.whole()).is_some(), "it has room now");
}

/// A registration that the device does not end counts in the budget for ever.
#[test]
fn failed_deregistration_counts_for_ever() {
    let sticky = Counting { is_sticky: true, ..devices(ENDLESS) };
    let (regions, memory) = (LocalRegions::new(KIB_64), block());
    drop(regions.prepare(&sticky, &memory.whole(), None).unwrap());
    drop(memory);
    assert_eq!((sticky.live(), regions.counters().kept_bytes), ((0, 1), KIB_64));
    let next = block();
    drop(regions.prepare(&devices(ENDLESS), &next.whole(), None).unwrap());
    assert!(regions.find(&next.whole()).is_none(), "no other is kept");
}

const KIB_64: u64 = BYTES as u64;

/// Memory keeps its registrations with the devices that work. Those with a lost one end, and the
/// one that is opened again gets all regions, in use or kept, also those that were made in its
/// absence.
#[test]
fn regions_follow_a_device_that_is_opened_again() {
    let (regions, mut devices) = (LocalRegions::new(KEPT_MAX), devices(ENDLESS));
    let (memory, later) = (block(), block());
    let served = regions.serve(&devices, &memory.whole(), Access::READ_WRITE, None).unwrap();
    let used = regions.prepare(&devices, &memory.whole(), None).unwrap();
    drop(regions.prepare(&devices, &later.whole(), None).unwrap());
    let before = served.remote_keys();
    devices.is_lost = true;
    regions.renew(&devices).unwrap();
    assert_eq!(devices.live(), (0, 0), "none with the lost device");
    assert!(regions.find(&later.whole()).is_some(), "the memory is known");
    (devices.is_lost, devices.device) = (false, DeviceId::next());
    regions.renew(&devices).unwrap();
    assert_eq!(devices.live(), (1, 2));
    assert_ne!(served.remote_keys(), before);
    assert!(used.memory().local_key(devices.device, &memory.whole()).is_some());
    regions.renew(&devices).unwrap();
    assert_eq!((devices.live(), regions.counters().registrations), ((1, 2), 6), "nothing to do");
    drop(served);
    assert_eq!(devices.live(), (0, 2), "peers lose the new key at once");
}

/// A region that was registered while its device was opened again has the key of the new one.
#[test]
fn region_made_during_a_reopening_has_the_new_key() {
    let (regions, mut devices) = (LocalRegions::new(KEPT_MAX), devices(ENDLESS));
    let old = devices.device;
    devices.replaced_by = Some(DeviceId::next());
    let region = regions.prepare(&devices, &block().whole(), None).unwrap();
    assert_ne!(region.memory().device(0), Some(old));
    assert_eq!(devices.live(), (0, 1), "that with the old one has ended");
}

/// Two devices. Registrations with the second one, once it was opened again, wait for a test.
struct Two {
    first: Counting,
    second: Counting,
    began: Barrier,
    gate: Mutex<()>,
}

impl Devices for Two {
    type Held = Entry;

    fn register(&self, span: &Span, purpose: Purpose) -> Result<OnDevices<Entry>, TransportError> {
        let (mut all, second) =
            (self.first.register(span, purpose)?, self.second.register(span, purpose)?);
        all.keys.extend(second.keys);
        all.held.extend(second.held);
        Ok(all)
    }

    fn register_at(
        &self,
        place: usize,
        span: &Span,
        purpose: Purpose,
        cut: Cut,
    ) -> InPieces<Entry> {
        assert_eq!(place, 1, "the first is in use");
        self.began.wait();
        drop(self.gate.lock());
        self.second.register_at(0, span, purpose, cut)
    }

    fn present(&self, purpose: Purpose) -> Vec<Option<DeviceId>> {
        [&self.first, &self.second].iter().flat_map(|device| device.present(purpose)).collect()
    }
}

/// A segment that is dropped while it is registered with a device that was opened again is gone at
/// once, and what the device registers afterwards ends.
#[test]
fn segment_dropped_during_a_renewal_is_gone_at_once() {
    let (first, second) = (devices(ENDLESS), devices(ENDLESS));
    let mut two = Two { first, second, began: Barrier::new(2), gate: Mutex::new(()) };
    let (regions, memory) = (LocalRegions::new(KEPT_MAX), block());
    let served = regions.serve(&two, &memory.whole(), Access::READ_WRITE, None).unwrap();
    assert_eq!((two.first.live(), two.second.live()), ((1, 0), (1, 0)));
    two.second.replaced_by = Some(DeviceId::next());
    let held = two.gate.lock();
    std::thread::scope(|scope| {
        let renewed = scope.spawn(|| regions.renew(&two));
        two.began.wait();
        assert_eq!(two.second.live(), (0, 0), "that with the lost device has ended");
        drop(served);
        assert_eq!(two.first.live(), (0, 0), "peers lose the key at once");
        drop(held);
        renewed.join().unwrap().unwrap();
    });
    assert_eq!(two.second.live(), (0, 0));
}

/// A device refuses a region after it was opened again: the error is reported, and other regions
/// are registered. The next renewal registers the rest.
#[test]
fn failed_renewal_leaves_the_region_for_the_next() {
    let (regions, mut devices) = (LocalRegions::new(KEPT_MAX), devices(2 * KIB_64));
    let blocks = [block(), block()];
    let serve = |memory: &Memory| regions.serve(&devices, &memory.whole(), Access::READ, None);
    let served = [serve(&blocks[0]).unwrap(), serve(&blocks[1]).unwrap()];
    devices.is_lost = true;
    regions.renew(&devices).unwrap();
    assert_eq!(devices.live(), (0, 0));
    (devices.is_lost, devices.device, devices.room) = (false, DeviceId::next(), KIB_64);
    assert_eq!(regions.renew(&devices).unwrap_err().code, libc::ENOMEM);
    assert_eq!(devices.live(), (1, 0), "one of them has room");
    devices.room = 2 * KIB_64;
    regions.renew(&devices).unwrap();
    assert_eq!(devices.live(), (2, 0));
    for (served, memory) in served.iter().zip(&blocks) {
        assert!(served.memory().local_key(devices.device, &memory.whole()).is_some());
    }
}

fn block() -> Memory {
    Memory::zeroed(BYTES).unwrap()
}

fn devices(room: u64) -> Counting {
    Counting {
        device: DeviceId::next(),
        room,
        is_lost: false,
        replaced_by: None,
        calls: AtomicU32::new(0),
        live: Arc::default(),
        is_sticky: false,
        gate: Arc::default(),
    }
}

impl Counting {
    /// Number of registrations for peers, and for transfers of this node.
    fn live(&self) -> (u32, u32) {
        let live = self.live.lock();
        (live.served, live.local)
    }
}

/// The next transfer from a block finds its registration while another thread holds the lock of all. One
/// at a location of the user's is found first, also then.
#[test]
fn registration_is_found_again_without_the_lock() {
    let (regions, devices, memory) = (LocalRegions::new(KEPT_MAX), devices(ENDLESS), block());
    let kept = regions.prepare(&devices, &memory.whole(), None).unwrap();
    let span = memory.span(100, 50).unwrap();
    assert!(Arc::ptr_eq(&regions.find(&span).unwrap(), &kept), "with the lock");
    let (told, found) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let held = regions.0.state.lock();
        scope.spawn(|| told.send(regions.find(&span)).unwrap());
        let found = found.recv_timeout(PATIENCE);
        drop(held);
        assert!(Arc::ptr_eq(&found.expect("no wait").unwrap(), &kept));
    });
    let placed = regions.prepare(&devices, &memory.whole(), Some(Location::Anywhere)).unwrap();
    assert!(Arc::ptr_eq(&regions.find(&span).unwrap(), &placed));
}

/// A block that is found without the lock alone is as recently used as one with it: the other is
/// evicted.
#[test]
fn block_found_without_the_lock_is_not_evicted() {
    let (regions, devices) = (LocalRegions::new(2 * KIB_64), devices(ENDLESS));
    let blocks = [(); 3].map(|()| block());
    let prepare = |place: usize| regions.prepare(&devices, &blocks[place].whole(), None).unwrap();
    drop(prepare(0));
    drop(regions.find(&blocks[0].whole()).unwrap());
    drop(prepare(1));
    drop(regions.find(&blocks[0].whole()).unwrap());
    drop(prepare(2));
    assert!(regions.find(&blocks[0].whole()).is_some());
    assert!(regions.find(&blocks[1].whole()).is_none(), "the least recent one");
}
