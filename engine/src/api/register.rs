//! Registration of memory: for peers, and for transfers of this engine.

use crate::api::engine::Engine;
use crate::api::segment::Prepared;
use crate::data::regions::{DeviceKeys, Reach, Registration, ServedRegion};
use crate::error::{Cause, Error, Stage};
use crate::topology::Location;
use handfast_core::policy::{Grant, Grants};
use handfast_core::wire::REGION_LOCATION_BYTES_MAX;
use handfast_transport::{Access, Span};
use std::future::{Future, IntoFuture};
use std::pin::Pin;

/// Serves memory under a name, made by [`Engine::register`].
#[derive(Debug)]
#[must_use = "memory is served by `serve`"]
pub struct Register<'a> {
    engine: &'a Engine,
    name: &'a str,
    access: Option<Access>,
    grants: Vec<Grant>,
    reach: Reach,
    location: Option<Location>,
}

impl<'a> Register<'a> {
    pub(crate) fn new(engine: &'a Engine, name: &'a str) -> Self {
        Self { engine, name, access: None, grants: Vec::new(), reach: Reach::ByKey, location: None }
    }

    /// Access of every peer. Default: [`Access::READ`], or with a [`grant`](Self::grant) none.
    pub fn access(mut self, access: Access) -> Self {
        self.access = Some(access);
        self
    }

    /// Grants access to the peers whose names a pattern covers; a peer may do what any grant for it
    /// allows. Others do not see the memory. A pattern other than `*` needs keys
    /// ([`Builder::auth`](crate::Builder::auth)), by which peers prove their names.
    ///
    /// ```
    /// # use handfast::{AuthOptions, Engine, Grant, Memory};
    /// # #[tokio::main] async fn main() -> Result<(), handfast::Error> {
    /// # let keys = AuthOptions::psk(&format!("fleet {:064x}", 7))?;
    /// let engine = Engine::builder().listen("127.0.0.1:0").auth(keys).start().await?;
    /// let cache = Memory::zeroed(1 << 20)?;
    /// let register = engine.register("kv").grant(Grant::read("decode-*")?);
    /// let served = register.grant(Grant::write("trainer-1")?).serve(cache.whole())?;
    /// served.revoke(&Grant::write("trainer-1")?)?;
    /// # drop(served); engine.close().await; Ok(()) }
    /// ```
    pub fn grant(mut self, grant: Grant) -> Self {
        self.grants.push(grant);
        self
    }

    /// Location of the memory. Peers that reach this node over several RDMA devices use those near
    /// it. Default: the accelerator that has it, such as `cuda:0`, else the NUMA node of its pages, as
    /// the kernel reports it.
    pub fn location(mut self, location: Location) -> Self {
        self.location = Some(location);
        self
    }

    /// Lets Mooncake nodes reach the memory too ([`Builder::mooncake`](crate::Builder::mooncake)):
    /// over their TCP data protocol, which names bytes by address and has no keys, and over RDMA with
    /// a key that every client can read.
    pub fn mooncake(mut self) -> Self {
        self.reach = Reach::ByAddress;
        self
    }

    /// Serves `span` until the registration is dropped.
    ///
    /// Blocks while an RDMA device, if there is one, pins the pages: about a tenth of a second per
    /// gibibyte.
    ///
    /// # Errors
    /// [`Stage::Registration`]: an invalid or taken name, too many regions, remote writes to
    /// read-only memory, or a refusal of the device; [`Cause::Grant`] for a name as a pattern without
    /// keys, or too many patterns; [`Cause::Closed`]; [`Cause::Invalid`] if the location is too
    /// long, or if memory is served to Mooncake nodes by an engine that serves none.
    pub fn serve(self, span: Span) -> Result<Registration, Error> {
        let Self { engine, name, access, grants: named, reach, location } = self;
        let invalid = |text| Err(Error::local(Stage::Registration, Cause::Invalid(text)));
        if engine.check_open().is_err() {
            return Err(Error::local(Stage::Registration, Cause::Closed));
        }
        let shared = engine.shared();
        if reach == Reach::ByAddress && !shared.answers.is_open {
            let text = "only Mooncake nodes reach memory by address; configure the engine to \
                        listen and to serve them";
            return invalid(text.into());
        }
        let location = location.or_else(|| Location::of_kind(span.kind()));
        let text = location.as_ref().map(Location::to_string).unwrap_or_default();
        if text.len() > REGION_LOCATION_BYTES_MAX {
            return invalid(format!(
                "a location has more than {REGION_LOCATION_BYTES_MAX} bytes: {text}"
            ));
        }
        let access = access.or(named.is_empty().then_some(Access::READ));
        let mut grants = Grants::everybody(access.unwrap_or_default());
        let mut adding = named.into_iter().map(|grant| grants.add(grant));
        let added = adding.try_for_each(|added| added);
        added.map_err(|error| Error::local(Stage::Registration, error))?;
        let has_devices = shared.answers.offer.transports.rdma && !span.is_empty();
        let of = (&grants, shared.answers.regions.trust().clone());
        let keys = DeviceKeys::new(of, has_devices, |to| match has_devices {
            true => shared.transport.register(&span, to, location.clone()),
            false => Ok(None),
        })?;
        if let Some(cut) = keys.first().and_then(|registered| registered.cut())
            && reach == Reach::ByAddress
        {
            let max = cut.piece_bytes();
            return invalid(format!(
                "the RDMA device registers at most {max} bytes at once, and Mooncake nodes know one \
                 key for a segment: serve parts of at most that"
            ));
        }
        let region = ServedRegion { span, grants, keys, reach, location };
        shared.answers.regions.register(name, region, &*shared.entropy)
    }
}

/// Registers memory with the RDMA device ahead of transfers, made by [`Engine::prepare`]. Awaiting it
/// registers.
#[derive(Debug)]
#[must_use = "memory is registered when this is awaited"]
pub struct Prepare<'a> {
    engine: &'a Engine,
    span: &'a Span,
    location: Option<Location>,
}

impl<'a> Prepare<'a> {
    pub(crate) fn new(engine: &'a Engine, span: &'a Span) -> Self {
        Self { engine, span, location: None }
    }

    /// Location of the memory. With several RDMA devices, transfers use those near it. Default: the
    /// accelerator that has it, else the NUMA node of its pages, as the kernel reports it.
    pub fn location(mut self, location: Location) -> Self {
        self.location = Some(location);
        self
    }
}

impl<'a> IntoFuture for Prepare<'a> {
    type Output = Result<Prepared, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { engine, span, location } = self;
        Box::pin(async move {
            let prepared = engine.prepare_for(span, location).await;
            prepared.map(|registered| Prepared::new(span, registered))
        })
    }
}
