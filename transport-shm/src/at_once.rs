//! Copies within the call of the submitting thread, without slices: all requests of a batch or none.

use crate::after::After;
use crate::lane::{Lane, Link, SHARED, State};
use crate::map::{CopyError, Map};
use handfast_core::sharing::{GrantId, Wanted};
use handfast_core::transport::{Side, TransportError};
use handfast_transport::{AtOnce, COPY_CALL, Direction, MemoryKind, RemoteSpan, Span};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A request, and its bytes on both sides.
type Request<'a> = (Direction, &'a Span, RemoteSpan);

/// Copies that have begun, in the order of their requests. A lane keeps the last ones' room for the next.
#[derive(Default)]
pub(crate) struct Copies {
    begun: Vec<(GrantId, u64)>,
    /// The map of each, without the repetitions of the one before.
    maps: Vec<(GrantId, Arc<Map>)>,
}

impl Lane {
    /// Copies `count` requests, or begins none of them: without a channel or a map. Those of a region that
    /// is reached by calls are copied by one, which can fail in the middle.
    pub(crate) fn copy_at_once<'a>(
        self: &Arc<Self>,
        count: usize,
        request: &dyn Fn(usize) -> Request<'a>,
    ) -> AtOnce {
        let mut after = After::default();
        let mut state = self.state.lock();
        let mut copies = std::mem::take(&mut state.copies);
        if !begin(&mut state, count, request, &mut copies) {
            if let Link::Up(channel) = &mut state.link {
                channel.drain(&self.shared.regions, &mut after);
            }
            self.settle(state, after);
            return AtOnce::NotBegun;
        }
        drop(state);
        let (bytes, copied) = copy(&copies.begun, &copies.maps, request);
        // Before the machine learns that the copies have ended: it may have maps removed.
        copies.maps.clear();
        if copied == AtOnce::Copied && self.last.load(Ordering::Relaxed) != SHARED {
            self.last.store(SHARED, Ordering::Relaxed);
        }
        let mut state = self.state.lock();
        if let Link::Up(channel) = &mut state.link {
            copies.begun.iter().for_each(|(grant, _)| channel.machine.end(*grant));
            channel.drain(&self.shared.regions, &mut after);
        }
        state.copies = copies;
        self.settle(state, after);
        if copied == AtOnce::Copied {
            self.shared.counts.copied(count as u64, bytes);
        }
        copied
    }
}

/// Copies what has begun. Returns the bytes of all requests.
fn copy<'a>(
    begun: &[(GrantId, u64)],
    maps: &[(GrantId, Arc<Map>)],
    request: &dyn Fn(usize) -> Request<'a>,
) -> (u64, AtOnce) {
    if let [(_, map)] = maps
        && !map.is_mapped()
    {
        return copy_by_call(begun, map, request);
    }
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
    debug_assert!(is_copied, "a copy between two maps that permit it does not fail");
    (bytes, if is_copied { AtOnce::Copied } else { AtOnce::NotBegun })
}

/// Copies by one call of the kernel. Bytes that were only read may be read again.
fn copy_by_call<'a>(
    begun: &[(GrantId, u64)],
    map: &Map,
    request: &dyn Fn(usize) -> Request<'a>,
) -> (u64, AtOnce) {
    let pieces = begun.iter().enumerate().map(|(number, (_, offset))| {
        let (_, local, _) = request(number);
        (local, 0..local.len(), *offset)
    });
    let bytes = pieces.clone().map(|(local, ..)| local.len() as u64).sum();
    let (direction, local, _) = request(0);
    let copied = match begun {
        [(_, offset)] => map.copy(direction, local, *offset),
        _ => match map.copy_together(direction, pieces) {
            copied if copied as u64 == bytes => Ok(()),
            copied => Err(CopyError::Remote { error: io::ErrorKind::WriteZero.into(), copied }),
        },
    };
    let ended = match copied {
        Ok(()) => AtOnce::Copied,
        Err(CopyError::Remote { error, copied }) if copied > 0 && direction == Direction::Write => {
            let detail = format!("the peer's memory failed in the middle of a copy: {error}");
            let error = TransportError::new(Side::Peer, COPY_CALL, detail);
            AtOnce::Partly { bytes: copied as u64, error }
        }
        // The path of slices has the error, or another one.
        Err(_) => AtOnce::NotBegun,
    };
    (bytes, ended)
}

/// Begins the copies of all requests, or of none.
fn begin<'a>(
    state: &mut State,
    count: usize,
    request: &dyn Fn(usize) -> Request<'a>,
    Copies { begun, maps }: &mut Copies,
) -> bool {
    let Link::Up(channel) = &mut state.link else { return false };
    let is_plain = |number: usize| {
        let (direction, local, _) = request(number);
        let is_writable = direction == Direction::Write || local.is_writable();
        is_writable && local.kind() == MemoryKind::Host && !local.memory().is_file()
    };
    if !(0..count).all(is_plain) {
        return false;
    }
    let wanted = |number: usize| {
        let (direction, local, remote) = request(number);
        let RemoteSpan { key, address } = remote;
        Wanted { key, address, length: local.len() as u64, direction }
    };
    if !channel.machine.begin_at_once((0..count).map(wanted), begun) {
        return false;
    }
    for (grant, _) in &*begun {
        if maps.last().is_none_or(|(last, _)| last != grant) {
            maps.push((*grant, Arc::clone(&channel.maps[grant])));
        }
    }
    let is_of_one_call = || {
        let (first, ..) = request(0);
        let is_called = maps.len() == 1 && !maps[0].1.is_opened();
        is_called && (1..count).all(|number| request(number).0 == first)
    };
    if maps.iter().all(|(_, map)| map.is_mapped()) || is_of_one_call() {
        return true;
    }
    maps.clear();
    begun.iter().for_each(|(grant, _)| channel.machine.end(*grant));
    false
}
