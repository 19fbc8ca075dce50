//! Copies within the call of the submitting thread, without slices: all requests of a batch or none.

use crate::lane::{After, Lane, Link, SHARED, State};
use crate::map::Map;
use handfast_core::sharing::{GrantId, Wanted};
use handfast_transport::{Direction, MemoryKind, RemoteSpan, Span};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A request, and its bytes on both sides.
type Request<'a> = (Direction, &'a Span, RemoteSpan);

/// Copies that have begun, in the order of their requests.
struct Copies {
    begun: Vec<(GrantId, u64)>,
    /// The map of each, without the repetitions of the one before.
    maps: Vec<(GrantId, Arc<Map>)>,
}

impl Lane {
    /// Copies `count` requests, or begins none of them: without a channel or a map, or where a copy can
    /// fail in the middle.
    pub(crate) fn copy_at_once<'a>(
        self: &Arc<Self>,
        count: usize,
        request: &dyn Fn(usize) -> Request<'a>,
    ) -> bool {
        let mut after = After::default();
        let mut state = self.state.lock();
        let Some(Copies { begun, maps }) = begin(&mut state, count, request) else {
            if let Link::Up(channel) = &mut state.link {
                channel.drain(&self.shared.regions, &mut after);
            }
            self.settle(state, after);
            return false;
        };
        drop(state);
        let (mut bytes, mut is_copied) = (0, true);
        let mut rest = maps.iter();
        let mut map = rest.next();
        for (number, (grant, offset)) in begun.iter().enumerate() {
            if map.is_some_and(|(of, _)| of != grant) {
                map = rest.next();
            }
            let Some((_, map)) = map else { break };
            let (direction, local, _) = request(number);
            is_copied &= map.copy(direction, local, *offset).is_ok();
            bytes += local.len() as u64;
        }
        // Before the machine learns that the copies have ended: it may have maps removed.
        drop(maps);
        debug_assert!(is_copied, "a copy between two maps that permit it does not fail");
        if self.last.load(Ordering::Relaxed) != SHARED {
            self.last.store(SHARED, Ordering::Relaxed);
        }
        let mut state = self.state.lock();
        if let Link::Up(channel) = &mut state.link {
            begun.iter().for_each(|(grant, _)| channel.machine.end(*grant));
            channel.drain(&self.shared.regions, &mut after);
        }
        self.settle(state, after);
        if is_copied {
            self.shared.counts.copied(count as u64, bytes);
        }
        is_copied
    }
}

/// Begins the copies of all requests, or of none.
fn begin<'a>(
    state: &mut State,
    count: usize,
    request: &dyn Fn(usize) -> Request<'a>,
) -> Option<Copies> {
    let Link::Up(channel) = &mut state.link else { return None };
    let is_plain = |number: usize| {
        let (direction, local, _) = request(number);
        let is_writable = direction == Direction::Write || local.is_writable();
        is_writable && local.kind() == MemoryKind::Host && !local.memory().is_file()
    };
    if !(0..count).all(is_plain) {
        return None;
    }
    let wanted = |number: usize| {
        let (direction, local, remote) = request(number);
        let RemoteSpan { key, address } = remote;
        Wanted { key, address, length: local.len() as u64, direction }
    };
    let mut begun = Vec::with_capacity(count);
    if !channel.machine.begin_at_once((0..count).map(wanted), &mut begun) {
        return None;
    }
    let mut maps: Vec<(GrantId, Arc<Map>)> = Vec::new();
    for (grant, _) in &begun {
        if maps.last().is_none_or(|(last, _)| last != grant) {
            maps.push((*grant, Arc::clone(&channel.maps[grant])));
        }
    }
    if maps.iter().all(|(_, map)| map.is_mapped()) {
        return Some(Copies { begun, maps });
    }
    begun.iter().for_each(|(grant, _)| channel.machine.end(*grant));
    None
}
