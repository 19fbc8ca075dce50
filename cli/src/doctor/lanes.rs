//! Lanes over RDMA between two doctors, opened as nodes open theirs.

use super::Doctor;
use crate::cure;
use crate::runtime;
use handfast::rdma::RdmaOptions;
use handfast::{Access, Engine, Error, Memory, Registration, Side as Blamed, TransportChoice};
use handfast_diagnosis::doctor::{LANE_BYTES, LaneFailure, LaneStep, Lanes, PacketClass};
use handfast_diagnosis::{Side, ids};
use handfast_environment::Environment;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

const SEGMENT: &str = "doctor";
/// Timeout of opening a lane, with all its attempts.
const CONNECT_MAX: Duration = Duration::from_secs(15);
/// Timeout of a write over it; a device's own retries are over before.
const WRITE_MAX: Duration = Duration::from_secs(5);
/// Timeout for the device of the accepting side to be ready.
const START_MAX: Duration = Duration::from_secs(5);
/// Bytes that fit into any packet.
const SHORT_BYTES: usize = 64;
/// Timeout of the whole check, including the device's start and the engine's end.
const ALL_MAX: Duration = Duration::from_secs(25);

/// Accepts lanes of other doctors while it exists.
pub(super) struct Answering {
    engine: Engine,
    _served: Registration,
    _runtime: Runtime,
}

impl Answering {
    /// Accepts lanes at an address of this host that the other hosts reach.
    ///
    /// # Errors
    /// The reason why no lane over RDMA is possible.
    pub(super) fn start(address: IpAddr, arguments: &Doctor) -> Result<Self, String> {
        // Runs while this thread waits for connections, even on a single processor.
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let started = runtime.block_on(async {
            let started = timeout(START_MAX, serving(address, arguments));
            started.await.unwrap_or_else(|_| {
                Err(format!("the device is not ready within {} s", START_MAX.as_secs()))
            })
        });
        match started {
            Ok((engine, served)) => Ok(Self { engine, _served: served, _runtime: runtime }),
            Err(text) => {
                // A device that hangs occupies a thread, which is not awaited.
                runtime.shutdown_background();
                Err(text)
            }
        }
    }

    pub(super) fn port(&self) -> Option<u16> {
        self.engine.address().rsplit_once(':')?.1.parse().ok()
    }
}

async fn serving(address: IpAddr, arguments: &Doctor) -> Result<(Engine, Registration), String> {
    let listen = SocketAddr::new(address, 0).to_string();
    let builder = Engine::builder().listen(&listen).transport(TransportChoice::Rdma);
    let engine = builder.rdma(options(arguments)).start().await;
    let engine = engine.map_err(|error| error.to_string())?;
    let memory = Memory::zeroed(LANE_BYTES).map_err(|error| error.to_string())?;
    let served = engine.register(SEGMENT).access(Access::READ_WRITE).serve(memory.whole());
    Ok((engine, served.map_err(|error| error.to_string())?))
}

/// Returns the options of a node here, from the command line and the environment.
fn options(arguments: &Doctor) -> RdmaOptions {
    let options = RdmaOptions::default().with(|it| {
        it.devices = arguments.device.clone();
        it.address = arguments.gid;
    });
    // A malformed environment is reported as its own finding.
    let options = match Environment::read() {
        Ok(environment) => environment.rdma(options),
        Err(_) => options,
    };
    arguments.tuning.apply(options)
}

/// Returns the class of a node's packets here.
pub(super) fn packets(arguments: &Doctor) -> PacketClass {
    let RdmaOptions { traffic_class, service_level, .. } = options(arguments);
    PacketClass { traffic_class, service_level }
}

/// Whether a node here connects all its queue pairs through the connection manager.
pub(super) fn connection_manager(arguments: &Doctor) -> bool {
    options(arguments).connection_manager
}

/// Opens lanes with the selected device.
pub(super) fn lanes(arguments: &Doctor) -> Lanes {
    let options = options(arguments);
    Box::new(move |address| {
        let runtime = runtime::build().map_err(|failure| LaneFailure {
            step: LaneStep::Device,
            id: ids::INTERNAL,
            side: Side::Local,
            text: failure.to_string(),
        })?;
        let tried = runtime.block_on(async {
            let tried = timeout(ALL_MAX, tried(options.clone(), address));
            tried.await.unwrap_or_else(|_| Err(overdue(address, ALL_MAX)))
        });
        runtime.shutdown_timeout(Duration::from_millis(100));
        tried
    })
}

async fn tried(options: RdmaOptions, address: SocketAddr) -> Result<(), LaneFailure> {
    let at = |step| move |error: Error| told(step, &error);
    let builder = Engine::builder().transport(TransportChoice::Rdma).rdma(options);
    let engine = builder.start().await.map_err(at(LaneStep::Device))?;
    let done = over(&engine, address).await;
    engine.close().await;
    done
}

async fn over(engine: &Engine, address: SocketAddr) -> Result<(), LaneFailure> {
    let at = |step| move |error: Error| told(step, &error);
    let place = format!("{address}/{SEGMENT}");
    let opened = timeout(CONNECT_MAX, async {
        let segment = engine.open(&place).await?;
        let failures = engine.warm(&[segment.address()]).await;
        failures.into_iter().next().map_or(Ok(segment), Err)
    });
    let opened = opened.await.map_err(|_| overdue(address, CONNECT_MAX))?;
    let segment = opened.map_err(at(LaneStep::Connect))?;
    let device = |error: handfast::MemoryError| told(LaneStep::Device, &error.into());
    let block = Memory::zeroed(LANE_BYTES).map_err(device)?;
    let short = block.span(0, SHORT_BYTES).map_err(device)?;
    // A lane is established once both sides confirm it over TCP; only the first packet shows that
    // packets arrive.
    for (step, span) in [(LaneStep::Short, short), (LaneStep::Write, block.whole())] {
        segment.write(&span, 0).timeout(WRITE_MAX).await.map_err(at(step))?;
    }
    Ok(())
}

fn overdue(address: SocketAddr, limit: Duration) -> LaneFailure {
    LaneFailure {
        step: LaneStep::Connect,
        id: ids::HS_FAILED,
        side: Side::Unknown,
        text: format!("no lane to {address} within {} s", limit.as_secs()),
    }
}

fn told(step: LaneStep, error: &Error) -> LaneFailure {
    let side = match error.side() {
        Blamed::Local => Side::Local,
        Blamed::Peer => Side::Remote,
        Blamed::Configuration | Blamed::Protection => Side::Both,
    };
    LaneFailure { step, id: error.diagnosis_id(), side, text: cure::text(error) }
}
