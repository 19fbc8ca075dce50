//! Opens lost devices again, and follows the addresses of those that work.

#[cfg(test)]
mod tests;

use super::device::{self, failure, of_device};
use super::nics::Nics;
use super::notices::{Notice, Notices};
use super::regions::LocalRegions;
use super::reopening::Reopening;
use super::watch::Watch;
use crate::data::devices::Devices;
use crate::data::transport::RdmaOptions;
use crate::error::{Error, Stage};
use crate::time::Clock;
use handfast_core::transport::{Side, TransportError};
use handfast_core::wire::DeviceDescriptor;
use handfast_transport_rdma::{
    Nic, RdmaTransport, RegisterOptions, Registration, VerbsError, gid_text,
};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use tracing::{debug, info, warn};

/// The subjects of the keeper.
pub(super) struct Site {
    pub(super) rdma: RdmaTransport,
    pub(super) regions: LocalRegions<Registration>,
    pub(super) register: RegisterOptions,
    /// Maximum bytes of one registration with each NIC.
    pub(super) region_bytes_max: u64,
    pub(super) devices: Arc<Devices>,
    pub(super) watch: Arc<Watch>,
    pub(super) options: RdmaOptions,
    /// The engine serves no read-only memory and keeps none registered, since a driver lets peers
    /// write to all of it.
    pub(super) is_restricted: bool,
    /// GUIDs of the devices that have one of their own, by the names that the node uses.
    pub(super) guids: Mutex<BTreeMap<String, u64>>,
    /// Lanes of a NIC, and slices of a queue pair.
    pub(super) limits: (usize, u32),
    /// Notified when the announcement changes.
    pub(super) changed: Arc<Notify>,
}

/// The devices as the keeper acts on them. Calls block, and may panic: the keeper goes on.
pub(super) trait Subjects: Send + Sync + 'static {
    /// Opens a lost device again.
    fn reopen(&self, device: &str) -> Result<(), Error>;

    /// Takes a lost device out.
    fn release(&self, device: &str);

    /// Follows the addresses of a device.
    fn refresh(&self, device: &str);

    /// Whether the device is in use and lost.
    fn is_lost(&self, device: &str) -> bool;

    /// Takes the error of an attempt.
    fn on_failed(&self, device: &str, error: Error);
}

/// The keeper's task, which ends when this is dropped.
pub(super) struct Keeper(AbortHandle);

impl Drop for Keeper {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Keeper {
    pub(super) fn start<S: Subjects>(
        site: &Arc<S>,
        notices: Arc<Notices>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let site = Arc::downgrade(site);
        Self(tokio::spawn(keep(site, notices, clock)).abort_handle())
    }
}

/// An attempt to open a device, with its result.
type Attempt = (String, Result<(), Error>);

async fn keep<S: Subjects>(site: Weak<S>, notices: Arc<Notices>, clock: Arc<dyn Clock>) {
    let mut machine = Reopening::default();
    let mut attempts: JoinSet<Attempt> = JoinSet::new();
    loop {
        while let Some(device) = machine.poll_due(clock.now()) {
            let Some(site) = site.upgrade() else { return };
            attempts.spawn_blocking(move || {
                let opened = catch_unwind(AssertUnwindSafe(|| site.reopen(&device)));
                // The panic was printed; the next attempt follows.
                let result = opened.unwrap_or_else(|_| Err(panicked(&device)));
                (device, result)
            });
        }
        let next = machine.poll_timeout();
        let due = async {
            match next {
                Some(at) => clock.sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = notices.changed.notified() => {
                for (device, notice) in notices.take() {
                    let Some(site) = site.upgrade() else { return };
                    on_notice(&site, &mut machine, &*clock, device, notice).await;
                }
            }
            Some(ended) = attempts.join_next(), if !attempts.is_empty() => {
                let (Some(site), Ok((device, result))) = (site.upgrade(), ended) else { return };
                on_attempt(&site, &mut machine, &*clock, device, result).await;
            }
            () = due => {}
        }
    }
}

async fn on_notice<S: Subjects>(
    site: &Arc<S>,
    machine: &mut Reopening,
    clock: &dyn Clock,
    device: String,
    notice: Notice,
) {
    if notice.is_lost {
        on_lost(site, machine, clock, device).await;
    } else if notice.is_changed {
        on_blocking_thread(site, move |site| site.refresh(&device)).await;
    }
}

async fn on_attempt<S: Subjects>(
    site: &Arc<S>,
    machine: &mut Reopening,
    clock: &dyn Clock,
    device: String,
    result: Result<(), Error>,
) {
    match result {
        Ok(()) => {
            machine.handle_opened(clock.now(), &device);
            info!(device, "the RDMA device is open again");
            // The notice of a loss before this was for nobody.
            if site.is_lost(&device) {
                on_lost(site, machine, clock, device).await;
            }
        }
        Err(error) => {
            let pause = machine.handle_failed(clock.now(), &device);
            let pause_ms = pause.map(|pause| pause.nanos() / 1_000_000);
            debug!(device, %error, pause_ms, "the RDMA device cannot be opened again yet");
            site.on_failed(&device, error);
        }
    }
}

async fn on_lost<S: Subjects>(
    site: &Arc<S>,
    machine: &mut Reopening,
    clock: &dyn Clock,
    device: String,
) {
    if machine.handle_lost(clock.now(), &device) {
        on_blocking_thread(site, move |site| site.release(&device)).await;
    }
}

async fn on_blocking_thread<S: Subjects>(site: &Arc<S>, act: impl FnOnce(&S) + Send + 'static) {
    let site = Arc::clone(site);
    // A panic was printed where it happened, and the next notice is handled.
    let _ = tokio::task::spawn_blocking(move || act(&site)).await;
}

impl Site {
    pub(super) fn nics(&self) -> Nics<'_> {
        let Self { rdma, register: options, region_bytes_max, .. } = self;
        let groups = self.options.trust_groups.count();
        Nics { rdma, options: *options, region_bytes_max: *region_bytes_max, groups }
    }

    /// The NIC of a device, unless it was taken out.
    fn nic(&self, device: &str) -> Option<Arc<Nic>> {
        let mut nics = self.rdma.nics().into_iter().flatten();
        nics.find(|nic| nic.device() == device)
    }

    fn end_registrations(&self) {
        // Of a device that was opened again meanwhile too, which its attempt then finds done.
        if let Err(error) = self.regions.renew(&self.nics()) {
            warn!(%error, "memory is not registered with an RDMA device that was opened again");
        }
    }
}

impl Subjects for Site {
    /// Takes a lost NIC out, and ends its registrations.
    fn release(&self, device: &str) {
        let lost = self.nic(device).and_then(|nic| nic.lost().cloned());
        let Some(lost) = lost else { return };
        self.devices.on_failed(device, of_device(lost.clone()));
        drop(self.rdma.remove_nic(device, lost));
        self.end_registrations();
    }

    /// Opens a device again. All memory is registered with it before a lane can use it.
    fn reopen(&self, device: &str) -> Result<(), Error> {
        let counts = self.rdma.counts(device);
        let guids = self.guids.lock().clone();
        let nic =
            device::reopen((device, &guids), &self.options, self.limits, &self.watch, &counts);
        let (nic, guid) = nic.map_err(|error| of_device(still_lost(error)))?;
        let nic = Arc::new(nic);
        let grants = nic.recognised().profile.grants_remote_write;
        if grants && !self.is_restricted && !self.options.accepts_exposed_memory {
            return Err(of_device(exposing(device)));
        }
        let descriptor = describe(&nic).map_err(of_device)?;
        self.rdma.put_nic(Arc::clone(&nic));
        let renewed = self.regions.renew(&self.nics());
        let renewed = renewed.map_err(|error| Error::new(error.side, Stage::Registration, error));
        let works = nic.lost().cloned().map_or(renewed, |lost| Err(of_device(lost)));
        if let Err(error) = works {
            let lost = failure(device, error.side(), error.to_string());
            drop(nic);
            drop(self.rdma.remove_nic(device, lost));
            self.end_registrations();
            return Err(error);
        }
        nic.count_reopening();
        if let Some(guid) = guid {
            self.guids.lock().insert(device.to_owned(), guid);
        }
        self.rdma.admit_lanes(device);
        self.devices.on_working(descriptor);
        // Keys changed too.
        self.changed.notify_one();
        self.watch.on_reopened(device);
        Ok(())
    }

    /// Fails the lanes whose address has left the port, and announces the present one.
    fn refresh(&self, device: &str) {
        let Some(nic) = self.nic(device) else { return };
        let described = nic.fail_unaddressed().and_then(|_| describe(&nic));
        match described {
            Ok(descriptor) => {
                if self.devices.on_working(descriptor) {
                    self.changed.notify_one();
                }
            }
            Err(error) if nic.lost().is_none() => self.devices.on_failed(device, of_device(error)),
            // The notice of the loss comes.
            Err(_) => {}
        }
    }

    fn is_lost(&self, device: &str) -> bool {
        self.nic(device).is_some_and(|nic| nic.lost().is_some())
    }

    fn on_failed(&self, device: &str, error: Error) {
        self.devices.on_failed(device, error);
    }
}

/// Announces a NIC with its present address.
pub(super) fn describe(nic: &Nic) -> Result<DeviceDescriptor, VerbsError> {
    let (gid, lid) = nic.present_address()?;
    let name = nic.device().to_owned();
    Ok(DeviceDescriptor { gid: gid_text(gid.address), lid: lid.into(), name })
}

/// The error of a lost device that cannot be opened yet, whatever its absence is called at the
/// start.
fn still_lost(error: VerbsError) -> VerbsError {
    let detail = format!("the device was lost, and cannot be opened again yet: {}", error.detail);
    VerbsError { side: Side::Local, detail, ..error }
}

/// The error of a device whose driver has become one that lets peers write to all memory.
fn exposing(device: &str) -> VerbsError {
    let detail = "its driver lets peers write to all registered memory now: start the node again, \
                  which then serves no read-only memory";
    failure(device, Side::Configuration, detail.to_owned())
}

/// The error of an attempt that panicked.
fn panicked(device: &str) -> Error {
    of_device(failure(device, Side::Local, "the attempt to open it panicked".to_owned()))
}

/// The end of a lane over TCP whose device is open again.
pub(super) fn moved(device: &str) -> TransportError {
    let detail = format!("{device} is open again: the lane moves from TCP to it");
    TransportError::new(Side::Local, "reopen", detail)
}
