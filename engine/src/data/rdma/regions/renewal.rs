//! Regions whose devices are lost or opened again.
//!
//! A region keeps its registrations with the devices that work. Those with a lost device end, and
//! once the device is open again the region is registered with it, before a lane over it can name a
//! key.

use super::{Devices, Held, Kept, LIVE_MIN, Live, LocalRegions, OnDevices, Region, Registrations};
use crate::data::local::LocalRegion;
use crate::topology::Location;
use handfast_core::transport::TransportError;
use handfast_transport::{Access, DeviceMemory, Span};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::runtime::Handle;

impl<H: Held> LocalRegions<H> {
    /// Ends the registrations with lost devices, and registers all regions with those that were
    /// opened again. Blocks while their pages are pinned.
    ///
    /// # Errors
    /// That of the first registration that failed. Regions before it are registered.
    pub(in crate::data::rdma) fn renew(
        &self,
        devices: &impl Devices<Held = H>,
    ) -> Result<(), TransportError> {
        let regions = self.0.live.lock().regions.clone();
        // All of them: registrations with a lost device end also where another device refuses more.
        let renewed = regions.iter().map(|region| self.renew_one(devices, region));
        renewed.fold(Ok(()), Result::and)
    }

    /// A region of what was registered, known to [`LocalRegions::renew`].
    pub(super) fn region(
        &self,
        devices: &impl Devices<Held = H>,
        span: &Span,
        access: Access,
        made: OnDevices<H>,
        location: Location,
        background: Option<Handle>,
    ) -> Result<Kept<H>, TransportError> {
        let OnDevices { keys, cut, held } = made;
        let (held, counted, kept) = (Mutex::new(held), OnceLock::new(), AtomicBool::new(false));
        let registrations =
            Arc::new(Registrations { held, counted, kept, span: span.clone(), access, background });
        let memory = DeviceMemory::in_pieces(span, cut, keys, Arc::clone(&registrations));
        let region = Arc::new(LocalRegion::new(memory, location));
        let live = Region {
            memory: Arc::downgrade(region.memory()),
            registrations: Arc::downgrade(&registrations),
        };
        self.0.live.lock().insert(live.clone());
        // A device may have been lost, or opened again, since the registration began.
        self.renew_one(devices, &live)?;
        Ok(Kept { region, registrations })
    }

    fn renew_one(
        &self,
        devices: &impl Devices<Held = H>,
        region: &Region<H>,
    ) -> Result<(), TransportError> {
        let (Some(memory), Some(registrations)) =
            (region.memory.upgrade(), region.registrations.upgrade())
        else {
            return Ok(());
        };
        let Registrations { held, kept, span, access, .. } = &*registrations;
        let mut held = held.lock();
        for (place, device) in devices.present().into_iter().enumerate() {
            if device.is_some() && memory.device(place) == device {
                continue;
            }
            let Some(of_place) = held.get_mut(place) else { continue };
            for held in of_place.drain(..) {
                if !held.end() {
                    kept.store(true, Ordering::Relaxed);
                }
            }
            if device.is_some() {
                let (keys, made) = devices.register_at(place, span, *access, memory.cut())?;
                self.count(made.len());
                memory.renew(place, keys);
                *of_place = made;
            }
        }
        Ok(())
    }
}

impl<H: Held> Live<H> {
    fn insert(&mut self, region: Region<H>) {
        if self.regions.len() >= self.prune_at {
            self.regions.retain(|region| region.registrations.strong_count() > 0);
            self.prune_at = LIVE_MIN.max(2 * self.regions.len());
        }
        self.regions.push(region);
    }
}
