//! The unfinished batches, by the slots of their names: no allocation once the table has grown.

use super::Batch;
use handfast_core::transfer::BatchId;
use std::collections::BTreeMap;

#[derive(Default)]
pub(super) struct Batches {
    slots: Vec<Option<(BatchId, Batch)>>,
    /// Batches whose end is not reported yet, while a later one has their slot.
    ended: BTreeMap<BatchId, Batch>,
    count: usize,
}

impl Batches {
    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds a batch that was just submitted.
    pub(super) fn insert(&mut self, id: BatchId, batch: Batch) {
        let slot = id.slot();
        if slot >= self.slots.len() {
            self.slots.resize_with(slot + 1, || None);
        }
        self.count += 1;
        self.ended.extend(self.slots[slot].replace((id, batch)));
    }

    pub(super) fn get(&self, id: BatchId) -> Option<&Batch> {
        match self.slots.get(id.slot())? {
            Some((known, batch)) if *known == id => Some(batch),
            _ => self.ended.get(&id),
        }
    }

    pub(super) fn remove(&mut self, id: BatchId) -> Option<Batch> {
        let slot = self.slots.get_mut(id.slot())?;
        let removed = match slot.take_if(|(known, _)| *known == id) {
            Some((_, batch)) => Some(batch),
            None => self.ended.remove(&id),
        };
        self.count -= usize::from(removed.is_some());
        removed
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Batch> {
        let in_slots = self.slots.iter().flatten().map(|(_, batch)| batch);
        in_slots.chain(self.ended.values())
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handfast_core::Instant;
    use handfast_core::transfer::{
        Direction, LocalSpan, RemoteSpan, Request, TransferLimits, Transfers,
    };
    use tokio::sync::oneshot;

    fn batch(memory: u32) -> Batch {
        Batch { memory, report: oneshot::channel().0, direction: Direction::Write, bytes: 0 }
    }

    /// A batch that has ended and is not reported keeps its entry when a later one has its slot.
    #[test]
    fn batches_of_one_slot_are_told_apart() {
        let mut transfers = Transfers::new(TransferLimits::default());
        // It ends at once.
        let empty = Request {
            direction: Direction::Write,
            local: LocalSpan { region: 0, offset: 0 },
            remote: RemoteSpan { key: 0, address: 0 },
            length: 0,
        };
        let mut submit = || transfers.submit(Instant(0), &[empty], None).unwrap();
        let names = [submit(), submit(), submit()];
        assert!(names.iter().all(|name| name.slot() == names[0].slot()), "{names:?}");
        let mut batches = Batches::default();
        assert!(batches.get(names[0]).is_none() && batches.remove(names[0]).is_none());
        (0..).zip(names).for_each(|(memory, name)| batches.insert(name, batch(memory)));
        assert_eq!((batches.len(), batches.all().count()), (3, 3));
        for (memory, name) in [0, 1, 2].into_iter().zip(names).rev() {
            assert_eq!(batches.get(name).map(|batch| batch.memory), Some(memory));
            assert_eq!(batches.remove(name).map(|batch| batch.memory), Some(memory));
            assert!(batches.get(name).is_none() && batches.remove(name).is_none());
        }
        assert!(batches.is_empty());
        batches.insert(names[0], batch(7));
        batches.clear();
        assert!(batches.is_empty() && batches.get(names[0]).is_none());
    }
}
