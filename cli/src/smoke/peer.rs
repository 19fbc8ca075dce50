//! Tests between this machine and another node.

use super::bytes::{SEGMENT_BYTES, Target};
use super::report::Report;
use super::{Smoke, devices, manager};
use crate::failure::{Failure, Outcome};
use crate::place::Place;
use handfast::rdma::RdmaOptions;
use handfast::{AuthOptions, Engine, Segment, TransportChoice};

/// The way of a lane whose connect has reached the port of the peer's connection manager.
const MANAGED: &str = ", through the peer's connection manager";

pub(super) async fn run(arguments: &Smoke, place: &Place, report: &mut Report) -> Outcome {
    let found = devices::all(&arguments.base);
    report.devices(found.clone())?;
    let options = arguments.base.clone().with(|it| {
        it.devices = arguments.device.first().cloned().into_iter().collect();
        it.address = arguments.gid.first().copied();
    });
    let auth = arguments.auth.as_deref();
    let Some(engine) = report.step("devices", start(&options, auth)).await? else {
        let rest = [manager::NAME, "handshake", "bytes", "reopen"];
        return report.skip(&rest, "there is no device to use");
    };
    let used = options.clone().with(|it| {
        it.devices = engine.devices().next().map(str::to_owned).into_iter().collect();
    });
    manager::run(report, &found, [used.clone(), used.clone()], arguments.timeout).await?;
    // The step before has connected the device to itself: the port of the peer is reached here.
    let way = if manager::is_used(&found, &used) { MANAGED } else { "" };
    let opened = async {
        let (segment, words) = open(&engine, place).await?;
        Ok((segment, words + way))
    };
    let Some(segment) = report.step("handshake", opened).await? else {
        engine.close().await;
        return report.skip(&["bytes", "reopen"], "the handshake failed");
    };
    let moved = async { Ok(((), target(&segment, place)?.exchange(1, arguments.timeout).await?)) };
    report.step("bytes", moved).await?;
    drop(segment);
    let again = async {
        engine.close().await;
        let (engine, _) = start(&options, auth).await?;
        let (segment, _) = open(&engine, place).await?;
        let words = target(&segment, place)?.exchange(101, arguments.timeout).await?;
        engine.close().await;
        Ok(((), format!("closed and opened again, {words}")))
    };
    report.step("reopen", again).await?;
    Ok(())
}

async fn start(options: &RdmaOptions, auth: Option<&str>) -> Result<(Engine, String), Failure> {
    let mut builder = Engine::builder().transport(TransportChoice::Rdma).rdma(options.clone());
    if let Some(source) = auth {
        builder = builder.auth(AuthOptions::from_source(source)?);
    }
    let engine = builder.start().await?;
    let device = engine.devices().next().unwrap_or("no device").to_owned();
    Ok((engine, device))
}

/// Opens a lane to the node and its segment.
async fn open(engine: &Engine, place: &Place) -> Result<(Segment, String), Failure> {
    let segment = engine.open(&place.segment).await?;
    if let Some(error) = engine.warm(&[segment.address()]).await.into_iter().next() {
        return Err(error.into());
    }
    let words = format!("{}/{}, {} bytes", segment.address(), segment.name(), segment.bytes());
    Ok((segment, words))
}

/// Returns the part of the segment that may be overwritten.
fn target<'a>(segment: &'a Segment, place: &Place) -> Result<Target<'a>, Failure> {
    let rest = segment.bytes().saturating_sub(place.offset);
    let bytes = place.length.unwrap_or_else(|| rest.min(SEGMENT_BYTES as u64));
    segment.check_range(place.offset, bytes)?;
    Ok(Target { segment, offset: place.offset, bytes })
}
