//! The protection domains of a NIC, one for each trust group.

use super::lane::SCRATCH_BYTES;
use super::nic::granted;
use super::objects::Domain;
use super::registration::{RegisterOptions, Registration};
use crate::error::VerbsError;
use crate::profile::DeviceProfile;
use handfast_core::policy::TrustGroup;
use handfast_core::transport::Side;
use handfast_transport::{Access, Memory};
use std::sync::Arc;

/// The protection domain of a trust group.
pub(super) struct GroupDomain {
    pub(super) domain: Arc<Domain>,
    /// Memory of probes, ours and those of peers of the group; it has no content.
    pub(super) scratch: Registration,
}

impl GroupDomain {
    fn new(domain: Domain, profile: &DeviceProfile) -> Result<Self, VerbsError> {
        let domain = Arc::new(domain);
        let scratch = scratch(&domain, profile)?;
        Ok(Self { domain, scratch })
    }
}

/// The domains of a NIC, by trust group.
pub(super) struct Domains {
    /// That of the peers in no named group.
    pub(super) first: GroupDomain,
    others: Vec<GroupDomain>,
}

impl Domains {
    /// Creates as many domains as there are groups, the first of which exists.
    pub(super) fn new(
        first: Domain,
        groups: usize,
        profile: &DeviceProfile,
    ) -> Result<Self, VerbsError> {
        let other = |_| GroupDomain::new(first.beside()?, profile);
        let others = (1..groups).map(other).collect::<Result<_, _>>()?;
        Ok(Self { first: GroupDomain::new(first, profile)?, others })
    }

    /// The domain of a group.
    ///
    /// # Errors
    /// There is no such group.
    pub(super) fn of(
        &self,
        group: TrustGroup,
        call: &'static str,
    ) -> Result<&GroupDomain, VerbsError> {
        let Some(other) = group.place().checked_sub(1) else { return Ok(&self.first) };
        self.others.get(other).ok_or_else(|| {
            let (place, count) = (group.place(), 1 + self.others.len());
            let detail = format!("no trust group {place}: the NIC was opened for {count}");
            self.first.domain.context.error(Side::Configuration, call, 0, detail)
        })
    }
}

fn scratch(domain: &Arc<Domain>, profile: &DeviceProfile) -> Result<Registration, VerbsError> {
    let context = &domain.context;
    let memory = Memory::zeroed(SCRATCH_BYTES)
        .map_err(|error| context.error(Side::Local, "open", 0, error.to_string()))?;
    let nobody = Access { remote_read: false, remote_write: false };
    let options = RegisterOptions::default();
    let span = memory.whole();
    // The sink of our probes, and the source of the peers' where they read a byte.
    let granted = Access { remote_read: true, ..granted(nobody, &span, profile) };
    Registration::new(Arc::clone(domain), span, nobody, granted, options)
}
