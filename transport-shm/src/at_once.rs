//! Copies within the call of the submitting thread, without slices: all requests of a batch or none.

use crate::lane::{After, Lane, Link, SHARED, State};
use crate::map::Map;
use handfast_core::sharing::{Begun, GrantId, Wanted};
use handfast_transport::{Direction, MemoryKind, RemoteSpan, Span};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A request, and its bytes on both sides.
type Request<'a> = (Direction, &'a Span, RemoteSpan);

/// A copy that has begun.
struct Copy {
    grant: GrantId,
    map: Arc<Map>,
    offset: u64,
}

impl Lane {
    /// Copies `count` requests, or begins none of them: without a channel, a map, or where a copy can
    /// fail in the middle. Their bytes are at most those of one piece, so that a revocation waits no
    /// longer than for a slice.
    pub(crate) fn copy_at_once<'a>(
        self: &Arc<Self>,
        count: usize,
        request: &dyn Fn(usize) -> Request<'a>,
    ) -> bool {
        let mut after = After::default();
        let mut state = self.state.lock();
        let mut copies = Vec::with_capacity(count);
        let is_begun = (0..count).all(|number| match begin(&mut state, request(number)) {
            Some(copy) => {
                copies.push(copy);
                true
            }
            None => false,
        });
        if !is_begun {
            self.end_copies(&mut state, copies.into_iter().map(|copy| copy.grant), &mut after);
            self.settle(state, after);
            return false;
        }
        drop(state);
        let (mut bytes, mut is_copied) = (0, true);
        let mut grants = Vec::with_capacity(count);
        for (number, Copy { grant, map, offset }) in copies.into_iter().enumerate() {
            let (direction, local, _) = request(number);
            is_copied &= map.copy(direction, local, offset).is_ok();
            bytes += local.len() as u64;
            // Before the machine learns that the copy has ended: it may have the map removed.
            drop(map);
            grants.push(grant);
        }
        debug_assert!(is_copied, "a copy between two maps that permit it does not fail");
        if self.last.load(Ordering::Relaxed) != SHARED {
            self.last.store(SHARED, Ordering::Relaxed);
        }
        let mut state = self.state.lock();
        self.end_copies(&mut state, grants.into_iter(), &mut after);
        self.settle(state, after);
        if is_copied {
            self.shared.counts.copied(count as u64, bytes);
        }
        is_copied
    }

    fn end_copies(
        &self,
        state: &mut State,
        grants: impl Iterator<Item = GrantId>,
        after: &mut After,
    ) {
        if let Link::Up(channel) = &mut state.link {
            grants.for_each(|grant| channel.machine.end(grant));
            channel.drain(&self.shared.regions, after);
        }
    }
}

/// Begins the copy of a request between memory that this process maps; `None` where it takes another
/// way, after which the machine's outputs are to be drained.
fn begin(state: &mut State, (direction, local, remote): Request<'_>) -> Option<Copy> {
    let Link::Up(channel) = &mut state.link else { return None };
    let is_writable = direction == Direction::Write || local.is_writable();
    let is_plain = local.kind() == MemoryKind::Host && !local.memory().is_file();
    if state.retired || !is_writable || !is_plain {
        return None;
    }
    let wanted =
        Wanted { key: remote.key, address: remote.address, length: local.len() as u64, direction };
    let Begun::Copy { grant, offset } = channel.machine.begin(&wanted) else { return None };
    let map = Arc::clone(&channel.maps[&grant]);
    if !map.is_mapped() {
        drop(map);
        channel.machine.end(grant);
        return None;
    }
    Some(Copy { grant, map, offset })
}
