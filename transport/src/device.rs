//! Memory registered with devices.

use crate::block::Span;
use handfast_core::wire::Cut;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Identifies a device that this process has opened. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(u64);

impl DeviceId {
    /// Allocates the number of a newly opened device.
    pub fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// The keys of memory at one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceKey {
    /// The device.
    pub device: DeviceId,
    /// The key in requests of this node.
    pub local: u32,
    /// The key in requests of peers.
    pub remote: u32,
}

/// The place of a device among the keys of memory, where it was last: one of many slices is found without a search.
#[derive(Debug, Default)]
pub struct KeyPlace(AtomicUsize);

/// Memory registered with devices, which may read and write it until this is dropped.
pub struct DeviceMemory {
    address: u64,
    bytes: u64,
    cut: Cut,
    /// The keys of the first piece, one for each device, then those of the next.
    keys: Vec<DeviceKey>,
    /// Keys of a piece.
    devices: usize,
    renewed: RenewedKeys,
    _registrations: Box<dyn Send + Sync>,
}

/// The keys of devices that were opened again since the registration, one for each piece, by the
/// device's place. Clones share them, and hold no memory.
#[derive(Clone, Default)]
pub struct RenewedKeys(Arc<RwLock<BTreeMap<usize, Vec<DeviceKey>>>>);

impl RenewedKeys {
    /// Replaces the keys at a place by those of a device that was opened again: `keys` has one for
    /// each piece. The holder of the registrations holds those of `keys` too.
    pub fn replace(&self, place: usize, keys: Vec<DeviceKey>) {
        self.0.write().insert(place, keys);
    }
}

impl DeviceMemory {
    /// Creates the registration of `span` with each device of `keys`. `registrations` hold it, keep
    /// the memory mapped, and are dropped with this.
    pub fn new(
        span: &Span,
        keys: Vec<DeviceKey>,
        registrations: impl Send + Sync + 'static,
    ) -> Self {
        let bytes = span.len() as u64;
        let cut = Cut::whole(bytes);
        Self::in_pieces(span, cut, keys, registrations)
    }

    /// Like [`DeviceMemory::new`], of a registration in pieces: `keys` has those of the first piece,
    /// one for each device, then those of the next.
    pub fn in_pieces(
        span: &Span,
        cut: Cut,
        keys: Vec<DeviceKey>,
        registrations: impl Send + Sync + 'static,
    ) -> Self {
        let (address, bytes) = (span.address(), span.len() as u64);
        let (renewed, registrations) = (RenewedKeys::default(), Box::new(registrations));
        let pieces = usize::try_from(cut.count()).unwrap_or(usize::MAX).max(1);
        let devices = keys.len() / pieces;
        Self { address, bytes, cut, keys, devices, renewed, _registrations: registrations }
    }

    /// Address of the first byte.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The cut into pieces; one piece as a rule.
    pub fn cut(&self) -> Cut {
        self.cut
    }

    /// The keys at the registration, one for each device; for memory in pieces those of one piece
    /// after the other.
    pub fn keys(&self) -> &[DeviceKey] {
        &self.keys
    }

    /// The present keys in requests of peers, one for each device; for memory in pieces those of
    /// one piece after the other.
    pub fn remote_keys(&self) -> Vec<u32> {
        let (devices, renewed) = (self.devices(), self.renewed.0.read());
        let key = |(at, key): (usize, &DeviceKey)| {
            let later = renewed.get(&(at % devices)).and_then(|keys| keys.get(at / devices));
            later.unwrap_or(key).remote
        };
        self.keys.iter().enumerate().map(key).collect()
    }

    /// Number of devices.
    pub fn devices(&self) -> usize {
        self.devices
    }

    /// The device whose keys are at a place among the keys of a piece.
    pub fn device(&self, place: usize) -> Option<DeviceId> {
        let renewed = self.renewed.0.read();
        let later = renewed.get(&place).and_then(|keys| keys.first());
        later.or_else(|| self.keys.get(place)).map(|key| key.device)
    }

    /// The keys of devices that were opened again since.
    pub fn renewed(&self) -> &RenewedKeys {
        &self.renewed
    }

    /// Returns the key of `span` in requests of this node to a device; `None` if the memory is not
    /// registered with it, or no piece has the whole span.
    pub fn local_key(&self, device: DeviceId, span: &Span) -> Option<u32> {
        self.local_key_at(device, span, &KeyPlace::default())
    }

    /// Like [`DeviceMemory::local_key`], for many slices of one device: memory that has its key at `place` is not
    /// searched, however many devices and pieces it has.
    pub fn local_key_at(&self, device: DeviceId, span: &Span, place: &KeyPlace) -> Option<u32> {
        let offset = span.address().checked_sub(self.address)?;
        let piece = usize::try_from(self.cut.piece_of(offset, span.len() as u64)?).ok()?;
        let known = self.place_of(device, place);
        let key = known.and_then(|known| self.keys.get(piece * self.devices + known).copied());
        Some(key.or_else(|| self.renewed_key(device, piece))?.local)
    }

    fn place_of(&self, device: DeviceId, place: &KeyPlace) -> Option<usize> {
        let first = self.keys.get(..self.devices)?;
        let is_it = |key: &DeviceKey| key.device == device;
        let known = place.0.load(Ordering::Relaxed);
        if first.get(known).is_some_and(is_it) {
            return Some(known);
        }
        let found = first.iter().position(is_it)?;
        place.0.store(found, Ordering::Relaxed);
        Some(found)
    }

    /// Locks, but for memory that is older than the opening of its device alone.
    fn renewed_key(&self, device: DeviceId, piece: usize) -> Option<DeviceKey> {
        let renewed = self.renewed.0.read();
        let mut keys = renewed.values().filter_map(|keys| keys.get(piece));
        keys.find(|key| key.device == device).copied()
    }

    /// Whether all bytes of `span` are in this memory.
    pub fn covers(&self, span: &Span) -> bool {
        let first = span.address();
        self.address <= first && first + span.len() as u64 <= self.address + self.bytes
    }
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceMemory({} bytes)", self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;

    /// The keys of one device are not another's, and bytes outside the registered span are not
    /// covered.
    #[test]
    fn keys_belong_to_one_device_and_one_span() {
        let (block, other) = (Memory::zeroed(64).unwrap(), Memory::zeroed(64).unwrap());
        let [first, second, unknown] = std::array::from_fn(|_| DeviceId::next());
        let key = |device, local| DeviceKey { device, local, remote: 10 * local };
        let span = block.span(16, 32).unwrap();
        let keys = vec![key(first, 1), key(second, 2)];
        let memory = DeviceMemory::new(&span, keys, span.clone());
        assert_eq!(memory.local_key(first, &span), Some(1));
        assert_eq!(memory.local_key(second, &block.span(40, 8).unwrap()), Some(2));
        assert_eq!(memory.local_key(second, &block.span(40, 9).unwrap()), None);
        assert_eq!(memory.local_key(unknown, &span), None);
        assert!(memory.covers(&block.span(16, 32).unwrap()));
        assert!(!memory.covers(&block.span(15, 2).unwrap()));
        assert!(!memory.covers(&block.span(40, 9).unwrap()));
        assert!(!memory.covers(&other.span(16, 32).unwrap()));
    }

    /// The key of a slice is that of its piece and its device.
    #[test]
    fn keys_of_pieces_are_told_apart() {
        let block = Memory::zeroed(64).unwrap();
        let [first, second] = std::array::from_fn(|_| DeviceId::next());
        let cut = Cut::new(32, 20, 4).unwrap();
        assert_eq!(cut.pieces().collect::<Vec<_>>(), [0..20, 16..32]);
        let key = |device, local| DeviceKey { device, local, remote: 10 * local };
        let keys = vec![key(first, 1), key(second, 2), key(first, 3), key(second, 4)];
        let span = block.span(8, 32).unwrap();
        let memory = DeviceMemory::in_pieces(&span, cut, keys, ());
        let at = |offset: usize, length| block.span(8 + offset, length).unwrap();
        assert_eq!(memory.local_key(first, &at(0, 20)), Some(1));
        assert_eq!(memory.local_key(second, &at(15, 4)), Some(2));
        assert_eq!(memory.local_key(first, &at(16, 4)), Some(3));
        assert_eq!(memory.local_key(second, &at(28, 4)), Some(4));
        assert_eq!(memory.local_key(first, &at(10, 11)), None, "over a boundary");
        assert_eq!(memory.local_key(first, &block.span(0, 4).unwrap()), None);
    }

    /// A remembered place is of one device: memory with the device elsewhere, or without it, is searched.
    #[test]
    fn remembered_place_names_no_other_key() {
        let block = Memory::zeroed(64).unwrap();
        let [first, second, unknown] = std::array::from_fn(|_| DeviceId::next());
        let key = |device, local| DeviceKey { device, local, remote: 10 * local };
        let (span, place) = (block.span(8, 32).unwrap(), KeyPlace::default());
        let one = DeviceMemory::new(&span, vec![key(first, 1), key(second, 2)], ());
        let other = DeviceMemory::new(&span, vec![key(second, 3), key(first, 4)], ());
        let short = DeviceMemory::new(&span, vec![key(second, 5)], ());
        let empty = DeviceMemory::new(&span, Vec::new(), ());
        for _ in 0..2 {
            for (memory, expected) in [(&one, Some(2)), (&other, Some(3)), (&short, Some(5))] {
                assert_eq!(memory.local_key_at(second, &span, &place), expected);
            }
            assert_eq!(short.local_key_at(first, &span, &place), None);
            assert_eq!(empty.local_key_at(second, &span, &place), None);
            assert_eq!(one.local_key_at(unknown, &span, &place), None);
        }
    }

    /// A search would find the first key of a device; a remembered place is looked at before.
    #[test]
    fn remembered_place_is_looked_at_first() {
        let block = Memory::zeroed(64).unwrap();
        let (other, device) = (DeviceId::next(), DeviceId::next());
        let key = |device, local| DeviceKey { device, local, remote: 10 * local };
        let (span, keys) = (block.whole(), vec![key(other, 1), key(device, 2), key(device, 3)]);
        let memory = DeviceMemory::new(&span, keys, ());
        let found = |place| memory.local_key_at(device, &span, &KeyPlace(AtomicUsize::new(place)));
        assert_eq!([0, 1, 2, 3].map(found), [2, 2, 3, 2].map(Some));
    }

    /// A device that is opened again has other keys in its place, and the keys of others stay.
    #[test]
    fn renewed_keys_replace_those_of_their_place() {
        let block = Memory::zeroed(64).unwrap();
        let [first, second, later] = std::array::from_fn(|_| DeviceId::next());
        let key = |device, local| DeviceKey { device, local, remote: 10 * local };
        let keys = vec![key(first, 1), key(second, 2), key(first, 3), key(second, 4)];
        let span = block.span(8, 32).unwrap();
        let memory = DeviceMemory::in_pieces(&span, Cut::new(32, 20, 4).unwrap(), keys, ());
        let at = |offset: usize, length| block.span(8 + offset, length).unwrap();
        assert_eq!(memory.remote_keys(), [10, 20, 30, 40]);
        assert_eq!(memory.local_key(later, &at(0, 20)), None);
        memory.renewed().replace(1, vec![key(later, 5), key(later, 6)]);
        assert_eq!(memory.remote_keys(), [10, 50, 30, 60]);
        assert_eq!((memory.device(0), memory.device(1)), (Some(first), Some(later)));
        assert_eq!(memory.local_key(later, &at(0, 20)), Some(5));
        assert_eq!(memory.local_key(later, &at(28, 4)), Some(6));
        assert_eq!(memory.local_key(first, &at(28, 4)), Some(3));
    }
}
