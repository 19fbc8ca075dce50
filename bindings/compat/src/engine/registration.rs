//! Registered memory of the caller.
#![allow(unsafe_code)]

use super::{ROLLBACK_TRIES, TransferEngine, UNREGISTER_WAIT, USE_INTERVAL};
use crate::failure::{Cause, Failure};
use crate::mapped::Mapped;
use crate::regions::LocalRegion;
use handfast::accelerators::device_memory;
use handfast::{Access, Grant, Memory};
use std::sync::Arc;
use std::time::Instant;

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
        unsafe { self.register_each(&[(address, bytes)], serve) }
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
        unsafe { self.register_each(&[(address, bytes)], serve) }
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
    /// As of [`TransferEngine::register`].
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
        unsafe { self.register_each(places, serve) }
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
        unsafe { self.register_each(&[(address, bytes)], insert) }
    }

    /// Registers memory at several places by `register`, or none of it.
    ///
    /// # Safety
    /// As of [`TransferEngine::register`], for each place; `register` gives the region to the
    /// engine's, or drops it.
    unsafe fn register_each(
        &self,
        places: &[(u64, u64)],
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
                for (address, _) in &places[..done] {
                    // A peer may have found it already; without its registration that ends.
                    let in_use = |ended: &Result<(), Failure>| {
                        ended.as_ref().is_err_and(|it| matches!(it.cause(), Cause::InUse { .. }))
                    };
                    (0..ROLLBACK_TRIES).map(|_| self.unregister(*address)).find(|it| !in_use(it));
                }
                return Err(failure);
            }
        }
        Ok(())
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
        let served = self.inner.regions.write().begin_end(address)?;
        let _entered = self.inner.runtime.enter();
        drop(served);
        let started = Instant::now();
        while !self.inner.regions.write().remove_unused(address) {
            if started.elapsed() >= UNREGISTER_WAIT {
                return Err(Cause::InUse { address, waited: UNREGISTER_WAIT }.into());
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
