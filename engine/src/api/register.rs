//! Registration of memory: for peers, and for transfers of this engine.

use crate::api::engine::Engine;
use crate::api::segment::Prepared;
use crate::data::regions::{Reach, Registration, ServedRegion};
use crate::error::{Cause, Error, Stage};
use crate::topology::Location;
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
    access: Access,
    reach: Reach,
    location: Option<Location>,
}

impl<'a> Register<'a> {
    pub(crate) fn new(engine: &'a Engine, name: &'a str) -> Self {
        Self { engine, name, access: Access::READ, reach: Reach::ByKey, location: None }
    }

    /// Access of peers. Default: [`Access::READ`].
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
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
    /// read-only memory, or a refusal of the device; [`Cause::Invalid`] if the location is too
    /// long, or if memory is served to Mooncake nodes by an engine that serves none.
    pub fn serve(self, span: Span) -> Result<Registration, Error> {
        let Self { engine, name, access, reach, location } = self;
        let invalid = |text| Err(Error::local(Stage::Registration, Cause::Invalid(text)));
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
        let registered = match span.is_empty() {
            true => None,
            false => shared.transport.register(&span, access, location.clone())?,
        };
        if let Some(cut) = registered.as_ref().and_then(|registered| registered.cut())
            && reach == Reach::ByAddress
        {
            let max = cut.piece_bytes();
            return invalid(format!(
                "the RDMA device registers at most {max} bytes at once, and Mooncake nodes know one \
                 key for a segment: serve parts of at most that"
            ));
        }
        let region = ServedRegion { span, access, registered, reach, location };
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
