//! Measurements of what a profile assumes of a device, between two queue pairs of one device or of
//! two.
//!
//! Nothing here is for lanes: queue pairs are reset, connected with wrong numbers and broken on
//! purpose. Every measurement has its own queue pairs and its own limit of time, and none touches a
//! byte that is not its own.

mod assumption;
mod bench;
mod expected;
mod figures;
mod outcome;
mod steps;

pub use assumption::Assumption;
pub use outcome::{Behaviour, Expected, Measured, Observed, Proof, ProvenDevice, Verdict};

use super::nic::recognised;
use crate::error::VerbsError;
use crate::profile::{Connecting, DeviceProfile};
use bench::Bench;
use expected::expected;
use handfast_core::transport::Side;
use std::time::Instant;

/// Measures every assumption on a device with itself, or on two of one profile. Blocks for the sum
/// of all limits at most, and as a rule for a few seconds.
///
/// # Errors
/// The devices cannot be used at all: the library, a device, its address or its memory is missing,
/// or their profiles differ.
pub fn prove(first: &str, second: &str) -> Result<Proof, VerbsError> {
    let began = Instant::now();
    let profiles = [first, second].map(|name| recognised(name).profile);
    if profiles[0] != profiles[1] {
        let [one, other] = profiles.map(|profile| profile.name);
        return Err(VerbsError {
            side: Side::Configuration,
            call: "the choice of devices",
            code: 0,
            device: format!("{first}, {second}"),
            detail: format!("one is {one}, the other {other}"),
            limit: None,
        });
    }
    let mut bench = Bench::open([first, second])?;
    let connects = measure(&mut bench, profiles[0], Assumption::Connects)?;
    let unconnected = unconnected(&mut bench, profiles[0], &connects);
    let mut measured = vec![connects];
    for assumption in Assumption::ALL.into_iter().filter(|it| *it != Assumption::Connects) {
        let of_manager = assumption.set_by_manager().filter(|_| bench.is_dialling());
        let why_not = unconnected.clone().or(of_manager.map(str::to_owned));
        measured.push(match why_not {
            None => measure(&mut bench, profiles[0], assumption)?,
            Some(why_not) => Measured {
                assumption,
                expected: expected(profiles[0], assumption),
                outcome: Err(why_not),
                detail: String::new(),
                took: std::time::Duration::ZERO,
            },
        });
    }
    let devices = bench.devices()?;
    Ok(Proof { devices, measured, took: began.elapsed() })
}

/// Connects queue pairs as the device needs it from now on. Returns why nothing else can be measured, if
/// nothing can.
fn unconnected(bench: &mut Bench, profile: &DeviceProfile, connects: &Measured) -> Option<String> {
    match connects.outcome {
        Ok(Observed::Behaviour(Behaviour::OutOfBand)) => None,
        Ok(_) if matches!(profile.connecting, Connecting::Manager(_)) => {
            bench.begin(Assumption::Connects.limit());
            steps::dials(bench).err()
        }
        _ => Some("its queue pairs do not connect out of band".to_owned()),
    }
}

/// # Errors
/// The device cannot be measured any further.
fn measure(
    bench: &mut Bench,
    profile: &DeviceProfile,
    assumption: Assumption,
) -> Result<Measured, VerbsError> {
    let began = Instant::now();
    bench.begin(assumption.limit());
    let outcome = match assumption {
        Assumption::Connects => steps::connects(bench)?,
        Assumption::Reset => steps::reset(bench),
        Assumption::ReadSink => steps::read_sink(bench),
        Assumption::EmptyRead => steps::read_of(bench, 0),
        Assumption::ByteRead => steps::read_of(bench, 1),
        Assumption::LatePost => steps::late_post(bench),
        Assumption::WrongKey => steps::wrong_key(bench),
        Assumption::LocalKey => steps::local_key(bench),
        Assumption::Psn => steps::psn(bench),
        Assumption::StaleRead => steps::stale_read(bench),
        Assumption::LinkLocal => steps::address(bench, true),
        Assumption::Ipv6 => steps::address(bench, false),
        Assumption::SilentPeer => steps::silent_peer(bench),
        Assumption::SevenRetries => steps::seven_retries(bench),
        Assumption::LargerMtu => steps::larger_mtu(bench),
        Assumption::ErrorEvent => steps::error_event(bench),
        Assumption::Numbers => steps::numbers(bench),
        Assumption::ActiveMtu => Ok(Observed::Bytes(bench.path_mtu().into())),
        Assumption::SmallWrites => figures::small_writes(bench),
        Assumption::LargeWrite => figures::large(bench, true),
        Assumption::LargeRead => figures::large(bench, false),
    };
    Ok(Measured {
        assumption,
        expected: expected(profile, assumption),
        outcome,
        detail: bench.take_detail(),
        took: began.elapsed(),
    })
}
