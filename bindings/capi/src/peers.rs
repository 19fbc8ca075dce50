//! Functions of peers.

use crate::abi::{Engine, Peer, Segment};
use crate::engines::{Node, find};
use crate::errors::done;
use crate::memory::{granted, put_grants};
use handfast_compat::c::{place, text};
use handfast_compat::{Cause, Failure};
use std::ffi::c_char;
use std::sync::Arc;

impl Node {
    /// The name of an open peer.
    pub(crate) fn peer(&self, peer: Peer) -> Result<Arc<str>, Failure> {
        self.peers.read().get(peer).cloned().ok_or(Cause::NoSuchPeer(peer).into())
    }
}

/// Opens a peer by its address HOST:PORT, or by its name in the metadata store, and writes its
/// handle. Waits for the peer's answer.
///
/// # Safety
/// `name` is NULL, or ends with a null byte; `peer` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handfast_peer_open(
    engine: Engine,
    name: *const c_char,
    peer: *mut Peer,
) -> i32 {
    done(|| {
        let (node, out) = (find(engine)?, place(peer, "peer")?);
        // SAFETY: the caller's promise is passed on.
        let name = unsafe { text(name, "name")? };
        node.engine.open(name, &mut || false)?;
        let handle = node.peers.write().insert(name.into())?;
        // SAFETY: the place is writable, as the caller promises.
        unsafe { out.write(handle) };
        Ok(())
    })
}

/// Forgets a peer. Batches that are under way go on.
#[unsafe(no_mangle)]
pub extern "C" fn handfast_peer_close(engine: Engine, peer: Peer) -> i32 {
    done(|| {
        let node = find(engine)?;
        let mut peers = node.peers.write();
        let name = peers.remove(peer).ok_or(Cause::NoSuchPeer(peer))?;
        if !peers.values().any(|known| *known == name) {
            node.engine.close_peer(&name);
        }
        Ok(())
    })
}

/// Asks a peer for the memory that it serves under a name. HANDFAST_NOT_SERVED if there is none.
///
/// # Safety
/// `name` is NULL, or ends with a null byte; `segment` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handfast_peer_segment(
    engine: Engine,
    peer: Peer,
    name: *const c_char,
    segment: *mut Segment,
) -> i32 {
    done(|| {
        let (node, out) = (find(engine)?, place(segment, "segment")?);
        // SAFETY: the caller's promise is passed on.
        let name = unsafe { text(name, "name")? };
        let peer = node.peer(peer)?;
        let served = node.engine.segments(&peer, &mut || false)?;
        let found = served.into_iter().find(|known| known.name == name);
        let missing = || Cause::NoSuchSegment { name: name.into(), peer: (*peer).into() };
        let found = found.ok_or_else(missing)?;
        let (readable, writable) = (found.readable.into(), found.writable.into());
        let found = Segment { address: found.address, bytes: found.bytes, readable, writable };
        // SAFETY: the place is writable, as the caller promises.
        unsafe { out.write(found) };
        Ok(())
    })
}

/// Checks that a peer answers calls.
#[unsafe(no_mangle)]
pub extern "C" fn handfast_peer_probe(engine: Engine, peer: Peer) -> i32 {
    done(|| {
        let node = find(engine)?;
        node.engine.probe(&node.peer(peer)?, &mut || false)
    })
}

/// Waits until no earlier failed write to the peer can land in its memory any more. Fails if the
/// peer cannot be reached.
#[unsafe(no_mangle)]
pub extern "C" fn handfast_peer_fence(engine: Engine, peer: Peer) -> i32 {
    done(|| {
        let node = find(engine)?;
        node.engine.fence(&node.peer(peer)?, &mut || false)
    })
}

/// Writes the grants of the memory that a peer serves under a name, as handfast_memory_grants does. The
/// engine is an administrator of the peer: the peer's handfast_options.administrators, or its option
/// --administrators, names it.
///
/// # Safety
/// `segment` is NULL, or ends with a null byte; `text` is NULL and `size` 0, or `size` bytes can be
/// written; `needed` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handfast_peer_grants(
    engine: Engine,
    peer: Peer,
    segment: *const c_char,
    text: *mut c_char,
    size: usize,
    needed: *mut usize,
) -> i32 {
    done(|| {
        let (node, needed) = (find(engine)?, place(needed, "needed")?);
        // SAFETY: the caller's promise is passed on.
        let segment = unsafe { handfast_compat::c::text(segment, "segment")? };
        let peer = node.peer(peer)?;
        let listed = node.engine.peer_grants(&peer, Some(segment), &mut || false)?;
        let grants: Vec<_> = listed.into_values().flatten().collect();
        // SAFETY: both places are writable, as the caller promises.
        unsafe { put_grants(&grants, (text, size), needed) }
    })
}

/// Adds a grant to the memory that a peer serves under a name, as an administrator of the peer. In force
/// on return.
///
/// # Safety
/// `segment` and `peers` are NULL, or end with a null byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handfast_peer_grant(
    engine: Engine,
    peer: Peer,
    segment: *const c_char,
    peers: *const c_char,
    access: u32,
) -> i32 {
    done(|| {
        let node = find(engine)?;
        // SAFETY: the caller's promise is passed on.
        let (segment, grant) = unsafe { (text(segment, "segment")?, granted(peers, access)?) };
        node.engine.peer_grant(&node.peer(peer)?, segment, grant, &mut || false)
    })
}

/// Takes what a grant allows from a pattern of names in the memory that a peer serves under a name, as
/// an administrator of the peer; another pattern that covers a peer keeps its own. In force on return,
/// also for batches under way.
///
/// # Safety
/// As of handfast_peer_grant.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handfast_peer_revoke(
    engine: Engine,
    peer: Peer,
    segment: *const c_char,
    peers: *const c_char,
    access: u32,
) -> i32 {
    done(|| {
        let node = find(engine)?;
        // SAFETY: the caller's promise is passed on.
        let (segment, grant) = unsafe { (text(segment, "segment")?, granted(peers, access)?) };
        node.engine.peer_revoke(&node.peer(peer)?, segment, grant, &mut || false)
    })
}
