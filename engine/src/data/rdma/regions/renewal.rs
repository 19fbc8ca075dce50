//! Regions whose devices are lost or opened again.
//!
//! A region keeps its registrations with the devices that work. Those with a lost device end, and
//! once the device is open again the region is registered with it, before a lane over it can name a
//! key.

use super::{
    Devices, Held, Holder, Kept, LIVE_MIN, Live, LocalRegions, OnDevices, Place, Places, Region,
    Registrations,
};
use crate::data::local::LocalRegion;
use crate::data::transport::Purpose;
use crate::topology::Location;
use handfast_core::transport::TransportError;
use handfast_transport::{DeviceId, DeviceMemory, Span};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::runtime::Handle;

impl<H: Held> LocalRegions<H> {
    /// Ends the registrations with lost devices, and registers all regions with those that were
    /// opened again. Blocks while their pages are pinned.
    ///
    /// # Errors
    /// That of the first registration that failed. The other regions are registered.
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
        purpose: Purpose,
        made: OnDevices<H>,
        location: Location,
        background: Option<Handle>,
    ) -> Result<Kept<H>, TransportError> {
        let OnDevices { keys, cut, held } = made;
        let place = |(held, key): (Vec<H>, _)| Place { device: Some(key), held };
        // The first keys are those of the first piece.
        let of_place = held.into_iter().zip(keys.iter().map(|key| key.device));
        let places = Places { all: of_place.map(place).collect(), has_ended: false };
        let registrations = Arc::new(Registrations {
            places: Mutex::new(places),
            renewing: Mutex::new(()),
            kept: AtomicBool::new(false),
            span: span.clone(),
            purpose,
            cut,
        });
        let known = Arc::downgrade(&registrations);
        let holder = Arc::new(Holder { registrations, counted: OnceLock::new(), background });
        let memory = DeviceMemory::in_pieces(span, cut, keys, Arc::clone(&holder));
        let live = Region { registrations: known, keys: memory.renewed().clone() };
        let region = Arc::new(LocalRegion::new(memory, location));
        self.0.live.lock().insert(live.clone());
        // A device may have been lost, or opened again, since the registration began.
        self.renew_one(devices, &live)?;
        Ok(Kept { region, holder })
    }

    /// Renews the registrations of a region, unless they end meanwhile: their holder waits for no
    /// device.
    fn renew_one(
        &self,
        devices: &impl Devices<Held = H>,
        region: &Region<H>,
    ) -> Result<(), TransportError> {
        let Some(registrations) = region.registrations.upgrade() else { return Ok(()) };
        let _one_at_a_time = registrations.renewing.lock();
        for (place, device) in devices.present(registrations.purpose).into_iter().enumerate() {
            let Some(ended) = registrations.take_former(place, device) else { continue };
            registrations.end(ended);
            if device.is_some() {
                let Registrations { span, purpose, cut, .. } = &*registrations;
                let (keys, made) = devices.register_at(place, span, *purpose, *cut)?;
                self.count(made.len());
                let device = keys.first().map(|key| key.device);
                match registrations.put(place, Place { device, held: made }) {
                    Ok(()) => region.keys.replace(place, keys),
                    Err(made) => registrations.end(made),
                }
            }
        }
        Ok(())
    }
}

impl<H: Held> Registrations<H> {
    /// Takes the registrations out of a place where another device is now, or none; `None` where
    /// the present one is, or after the end.
    fn take_former(&self, place: usize, device: Option<DeviceId>) -> Option<Vec<H>> {
        let mut places = self.places.lock();
        if places.has_ended {
            return None;
        }
        let place = places.all.get_mut(place)?;
        if device.is_some() && place.device == device {
            return None;
        }
        Some(std::mem::take(&mut place.held))
    }

    /// Puts new registrations in a place; gives them back after the end.
    fn put(&self, place: usize, new: Place<H>) -> Result<(), Vec<H>> {
        let mut places = self.places.lock();
        if places.has_ended {
            return Err(new.held);
        }
        match places.all.get_mut(place) {
            Some(place) => *place = new,
            None => return Err(new.held),
        }
        Ok(())
    }

    /// Ends registrations.
    fn end(&self, all: Vec<H>) {
        for held in all {
            if !held.end() {
                self.kept.store(true, Ordering::Relaxed);
            }
        }
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
