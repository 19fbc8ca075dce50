//! One scenario, two fabrics.
//!
//! A scenario is a text of steps ([`chapters`]). [`play`] plays it on any [`VerbsArm`]: on the
//! simulated fabric ([`Simulated`]), or, in a guest of `cargo xtask guest`, on the kernel's
//! soft-RoCE. The observations are compared line by line ([`findings`]); known differences are
//! listed with their causes ([`differences`]). `docs/conformance.md` is generated from all of these
//! ([`page`]).

mod arm;
mod differences;
#[cfg(feature = "verbs")]
mod kernel;
mod managed;
#[cfg(feature = "verbs")]
mod network;
mod page;
mod player;
mod recording;
mod scenario;
#[cfg(feature = "verbs")]
mod scripted;
mod simulated;
mod words;

pub use arm::{
    Address, ArmError, Change, Disturbance, Ended, Event, Key, Kind, Outcome, Own, Place, Request,
    Side, Towards, VerbsArm, Wait,
};
pub use differences::{DIFFERENCES_MAX, Deviation, Difference, deviations, differences, findings};
#[cfg(feature = "verbs")]
pub use kernel::{Kernel, release};
pub use managed::{
    MANAGED_DIFFERENCES, ManagedDifference, ManagedSimulated, ManagerArm, Told, managed_chapter,
    record_managed, record_managed_simulated,
};
#[cfg(feature = "verbs")]
pub use managed::{ManagedKernel, record_managed_kernel};
pub use page::page;
pub use player::{PlayError, play};
pub use recording::Recording;
pub use scenario::{Chapter, Malformed, Scenario, chapter, chapters};
pub use simulated::Simulated;

use handfast_transport_sim::verbs::Profile;

/// Plays every scenario on devices of a profile.
///
/// # Errors
/// The first scenario that cannot be played.
pub fn record_simulated(profile: &'static Profile) -> Result<Recording, PlayError> {
    let title = format!("the simulated fabric, profile {}", profile.name);
    record(title, &[], || Ok(Simulated::new(profile)))
}

/// Plays every scenario on the scripted devices of this process, `rxe0` and `rxe1`.
///
/// # Errors
/// The first scenario that cannot be played, for example in a process without such devices.
#[cfg(feature = "verbs")]
pub fn record_scripted(profile: &'static Profile) -> Result<Recording, PlayError> {
    let title = format!("the simulated fabric, profile {}", profile.name);
    record(title, &[], Kernel::scripted)
}

/// Plays the named scenarios on the kernel of a guest, or all if none is named.
///
/// # Errors
/// The first scenario that cannot be played, for example without such devices.
#[cfg(feature = "verbs")]
pub fn record_kernel(names: &[String]) -> Result<Recording, PlayError> {
    let release = release().map_err(|error| PlayError {
        scenario: "none".to_owned(),
        step: "the kernel's release".to_owned(),
        cause: error.to_string(),
    })?;
    record(format!("Linux {release}, soft-RoCE"), names, Kernel::open)
}

fn record<V: VerbsArm>(
    title: String,
    names: &[String],
    fabric: impl Fn() -> Outcome<V>,
) -> Result<Recording, PlayError> {
    let mut played = Vec::new();
    let all = chapters().into_iter().flat_map(|chapter| chapter.scenarios);
    for scenario in all.filter(|scenario| names.is_empty() || names.contains(&scenario.name)) {
        let mut arm = fabric().map_err(|error| PlayError {
            scenario: scenario.name.clone(),
            step: "opening the devices".to_owned(),
            cause: error.to_string(),
        })?;
        played.push((scenario.name.clone(), play(&scenario, &mut arm)?));
    }
    Ok(Recording { title, played })
}
