//! Registered memory of the caller.
#![allow(unsafe_code)]

use super::{ROLLBACK_WAIT, TransferEngine, UNREGISTER_WAIT, USE_INTERVAL};
use crate::failure::{Cause, Failure};
use crate::mapped::Mapped;
use crate::regions::LocalRegion;
use handfast::accelerators::device_memory;
use handfast::{Access, Grant, Memory};
use std::sync::Arc;
use std::time::{Duration, Instant};

impl TransferEngine {
    /// Registers memory: for transfers of this engine, and for peers, which may read and write it.
    /// `location` is one of Mooncake's, such as `cpu:0`; any other has no effect, and `*` is the device
    /// of memory on a CUDA device. Blocks while RDMA
    /// devices pin pages.
    ///
    /// # Safety
    /// The bytes stay valid for reads and writes until [`TransferEngine::unregister`] has succeeded
    /// for them or [`TransferEngine::close`] has, and no Rust reference to them exists meanwhile.
    ///
    /// # Errors
    /// They are not writable memory of this process, overlap registered memory, or exceed a limit.
    pub unsafe fn register(&self, address: u64, bytes: u64, location: &str) -> Result<(), Failure> {
        // SAFETY: the caller's promise is passed on.
        unsafe { self.register_all(&[(address, bytes)], location) }
    }

    /// Registers memory that peers find by its name.
    ///
    /// # Safety
    /// As of [`TransferEngine::register`].
    ///
    /// # Errors
    /// As of [`TransferEngine::register`], and a name that is invalid or in use.
    pub unsafe fn register_named(
        &self,
        name: &str,
        address: u64,
        bytes: u64,
        location: &str,
    ) -> Result<(), Failure> {
        let serve = |region| self.serve(region, name, location, None);
        // SAFETY: the caller's promise is passed on.
        unsafe { self.register_each(&[(address, bytes)], ROLLBACK_WAIT, serve) }
    }

    /// Registers memory for peers with a grant alone, which find it by a name, if it has one. Without
    /// grants no peer reaches it until [`TransferEngine::grant`].
    ///
    /// # Safety
    /// As of [`TransferEngine::register`].
    ///
    /// # Errors
    /// As of [`TransferEngine::register_named`]; too many grants, or one for names of peers that need
    /// not prove them ([`Options::auth`](crate::Options::auth)).
    pub unsafe fn register_granted(
        &self,
        name: Option<&str>,
        (address, bytes): (u64, u64),
        location: &str,
        grants: &[Grant],
    ) -> Result<(), Failure> {
        let own = name_of(address);
        let serve = |region| self.serve(region, name.unwrap_or(&own), location, Some(grants));
        // SAFETY: the caller's promise is passed on.
        unsafe { self.register_each(&[(address, bytes)], ROLLBACK_WAIT, serve) }
    }

    /// The grants of the memory that begins at `address`, one for each pattern of names.
    ///
    /// # Errors
    /// [`Cause::NotRegistered`].
    pub fn grants(&self, address: u64) -> Result<Vec<Grant>, Failure> {
        self.inner.process.check()?;
        let served = self.inner.regions.read().served(address)?;
        Ok(served.grants())
    }

    /// Adds a grant. Peers find it with their next transfer.
    ///
    /// # Errors
    /// As of [`TransferEngine::register_granted`]; nothing changed.
    pub fn grant(&self, address: u64, grant: Grant) -> Result<(), Failure> {
        self.inner.process.check()?;
        // The lock is not held while devices register.
        let served = self.inner.regions.read().served(address)?;
        let _entered = self.inner.runtime.enter();
        Ok(served.grant(grant)?)
    }

    /// Takes what a grant allows from its pattern of names: in force on return. Blocks while devices
    /// end registrations.
    ///
    /// # Errors
    /// [`Cause::NotRegistered`].
    pub fn revoke(&self, address: u64, grant: &Grant) -> Result<(), Failure> {
        self.inner.process.check()?;
        let served = self.inner.regions.read().served(address)?;
        let _entered = self.inner.runtime.enter();
        Ok(served.revoke(grant)?)
    }

    /// Registers memory at several places, or none of it.
    ///
    /// # Safety
    /// As of [`TransferEngine::register`], for each place.
    ///
    /// # Errors
    /// As of [`TransferEngine::register`]; [`Cause::InUse`] if a peer has begun a transfer of a place that
    /// was registered before another one was refused, and the transfer lasts for longer than 30 s. That
    /// memory stays in use until [`TransferEngine::unregister`] has succeeded.
    pub unsafe fn register_all(
        &self,
        places: &[(u64, u64)],
        location: &str,
    ) -> Result<(), Failure> {
        let serve = |region: LocalRegion| {
            let name = name_of(region.memory.address());
            self.serve(region, &name, location, None)
        };
        // SAFETY: the caller's promise is passed on.
        unsafe { self.register_each(places, ROLLBACK_WAIT, serve) }
    }

    /// Registers memory for transfers of this engine alone: peers cannot reach it.
    ///
    /// # Safety
    /// As of [`TransferEngine::register`].
    ///
    /// # Errors
    /// As of [`TransferEngine::register`].
    pub unsafe fn register_private(&self, address: u64, bytes: u64) -> Result<(), Failure> {
        let insert = |region| self.inner.regions.write().insert(region);
        // SAFETY: the caller's promise is passed on.
        unsafe { self.register_each(&[(address, bytes)], ROLLBACK_WAIT, insert) }
    }

    /// Registers memory at several places by `register`, or none of it: after a failure it waits for
    /// `rollback` until nothing uses the places before.
    ///
    /// # Safety
    /// As of [`TransferEngine::register`], for each place; `register` gives the region to the
    /// engine's, or drops it.
    unsafe fn register_each(
        &self,
        places: &[(u64, u64)],
        rollback: Duration,
        register: impl Fn(LocalRegion) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        self.inner.process.check()?;
        let mapped = Mapped::read()?;
        // SAFETY: the caller keeps the bytes valid while the blocks live: `unregister` drops the last
        // handle of one, and so does a close that has succeeded.
        let blocks =
            places.iter().map(|(address, bytes)| unsafe { block(&mapped, *address, *bytes) });
        let blocks: Vec<_> = blocks.collect::<Result<_, _>>()?;
        for (done, memory) in blocks.into_iter().enumerate() {
            if let Err(failure) = register(LocalRegion::new(memory)) {
                // A region that is still in use explains more than the refusal.
                self.undo(&places[..done], rollback)?;
                return Err(failure);
            }
        }
        Ok(())
    }

    /// Ends registrations of a call that failed. A peer may have found them already; without them that
    /// ends.
    fn undo(&self, places: &[(u64, u64)], wait: Duration) -> Result<(), Failure> {
        for (address, _) in places {
            // Another thread may have ended it.
            self.begin_end(*address).ok();
        }
        let started = Instant::now();
        let ended = places.iter().map(|(address, _)| self.wait_for_end(*address, started, wait));
        ended.fold(Ok(()), Result::and)
    }

    pub(super) fn serve(
        &self,
        region: LocalRegion,
        name: &str,
        location: &str,
        grants: Option<&[Grant]>,
    ) -> Result<(), Failure> {
        let inner = &self.inner;
        let memory = region.memory.clone();
        let address = memory.address();
        // Reserves the place; the lock is not held while pages are pinned.
        inner.regions.write().insert(region)?;
        let everybody = if grants.is_some() { Access::default() } else { Access::READ_WRITE };
        let mut register = inner.engine.register(name).access(everybody).mooncake();
        for grant in grants.unwrap_or_default() {
            register = register.grant(grant.clone());
        }
        if let Some(location) =
            Some(location).filter(|it| *it != "*").and_then(|it| it.parse().ok())
        {
            register = register.location(location);
        }
        let _entered = inner.runtime.enter();
        let served = register.serve(memory.whole());
        drop(memory);
        match served {
            Ok(served) => {
                // Not while the lock is held: a drop releases pages.
                let ended = inner.regions.write().set_served(address, served);
                drop(ended);
                Ok(())
            }
            Err(error) => {
                inner.regions.write().discard(address);
                Err(Failure::of_registration(error))
            }
        }
    }

    /// Ends the registration of the memory that begins at `address`, and waits until nothing of the
    /// engine touches it any more.
    ///
    /// # Errors
    /// [`Cause::NotRegistered`]; [`Cause::InUse`] when transfers use it for longer than
    /// [`UNREGISTER_WAIT`]: peers do not reach it any more, and the call may be repeated.
    pub fn unregister(&self, address: u64) -> Result<(), Failure> {
        self.inner.process.check()?;
        self.begin_end(address)?;
        self.wait_for_end(address, Instant::now(), UNREGISTER_WAIT)
    }

    /// Ends the registrations of several places, each by its first byte: of all first, before it waits.
    ///
    /// # Errors
    /// As of [`TransferEngine::unregister`], after all were tried; memory in use before memory that is not
    /// registered.
    pub fn unregister_all(&self, addresses: &[u64]) -> Result<(), Failure> {
        self.inner.process.check()?;
        let (mut begun, mut ended) = (Ok(()), Ok(()));
        for address in addresses {
            begun = begun.and(self.begin_end(*address));
        }
        let started = Instant::now();
        for address in addresses {
            ended = ended.and(self.wait_for_end(*address, started, UNREGISTER_WAIT));
        }
        ended.and(begun)
    }

    /// Takes memory from peers and from new transfers.
    fn begin_end(&self, address: u64) -> Result<(), Failure> {
        let served = self.inner.regions.write().begin_end(address)?;
        let _entered = self.inner.runtime.enter();
        drop(served);
        Ok(())
    }

    /// Waits until nothing uses memory whose end has begun.
    fn wait_for_end(&self, address: u64, started: Instant, wait: Duration) -> Result<(), Failure> {
        while !self.inner.regions.write().remove_unused(address) {
            let waited = started.elapsed();
            if waited >= wait {
                return Err(Cause::InUse { address, waited }.into());
            }
            std::thread::sleep(USE_INTERVAL);
        }
        Ok(())
    }

    /// Number of registered pieces of memory; 0 in a forked child.
    pub fn registered(&self) -> usize {
        self.inner.process.check().map_or(0, |()| self.inner.regions.read().len())
    }
}

/// The name of memory that has none.
fn name_of(address: u64) -> String {
    format!("{address:016x}")
}

/// Makes a block of the caller's memory, wherever it is. The driver of CUDA devices is asked first, if
/// this process has one: what it allocates looks mapped to no processor.
///
/// # Safety
/// As of [`TransferEngine::register`], until the block has ended.
unsafe fn block(mapped: &Mapped, address: u64, bytes: u64) -> Result<Memory, Failure> {
    let length = usize::try_from(bytes)
        .map_err(|_| Failure::argument(format!("{bytes} bytes exceed the address space")))?;
    // SAFETY: the caller's promise is passed on.
    let found = unsafe { device_memory(address, length, Arc::new(())) };
    if let Some(memory) = found.map_err(handfast::Error::from)? {
        return Ok(memory);
    }
    mapped.check(address, bytes)?;
    let start = std::ptr::with_exposed_provenance_mut(address as usize);
    // SAFETY: the caller's promise is passed on.
    let memory = unsafe { Memory::from_raw(start, length, Arc::new(())) };
    Ok(memory.map_err(handfast::Error::from)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use std::cell::RefCell;

    /// A peer that has begun to use the first place keeps it: the caller, to whom the refusal of the second
    /// one says that nothing is registered, would free it.
    #[test]
    fn failed_registration_names_memory_in_use() {
        let options = Options::new("127.0.0.1", "P2PHANDSHAKE", "tcp", "").unwrap();
        let engine = TransferEngine::start(&options).unwrap();
        let mut bytes = vec![0_u8; 2 << 12];
        let first = bytes.as_mut_ptr().expose_provenance() as u64;
        let places = [(first, 1 << 12), (first + (1 << 12), 1 << 12)];
        let held = RefCell::new(None);
        let register = |region: LocalRegion| {
            if held.borrow().is_some() {
                return Err(Failure::argument("refused"));
            }
            *held.borrow_mut() = Some(region.memory.clone());
            engine.serve(region, "first", "*", None)
        };
        // SAFETY: the bytes live longer than the engine's use of them.
        let failed = unsafe { engine.register_each(&places, Duration::ZERO, register) };
        let error = failed.unwrap_err();
        assert!(matches!(error.cause(), Cause::InUse { address, .. } if *address == first));
        assert_eq!((error.code(), engine.registered()), (-4, 1));
        held.take();
        engine.unregister(first).unwrap();
        // SAFETY: as above.
        let failed = unsafe {
            engine.register_each(&places, UNREGISTER_WAIT, |region| match region.memory.address() {
                address if address == first => engine.serve(region, "first", "*", None),
                _ => Err(Failure::argument("refused")),
            })
        };
        assert!(matches!(failed.unwrap_err().cause(), Cause::Argument(_)));
        assert_eq!(engine.registered(), 0);
        engine.close().unwrap();
    }
}
