//! Assumptions of profiles, as far as they are measured.

use super::steps::{RETRIES_FEW, RETRIES_SEVEN, TIMEOUT_SHORT};
use super::{Assumption, Behaviour, Expected};
use crate::profile::{Connecting, DeviceProfile};

/// A requester waits between one and four times its timeout, by the specification.
const TIMEOUT_FACTOR_MAX: u64 = 4;
/// Added to the longest wait, for the scheduling of a busy machine.
const SLACK_MS: u64 = 250;

/// The assumptions that [`DeviceProfile`] does not hold: those of the simulator's profiles, where
/// their sources are named.
struct Beliefs {
    reset: Behaviour,
    late_post: Behaviour,
    wrong_key: Option<u32>,
    local_key: u32,
    larger_mtu: Behaviour,
    error_event: Option<Behaviour>,
    numbers: Option<Behaviour>,
}

/// The specification. It says nothing about events and numbers.
const STRICT: Beliefs = Beliefs {
    reset: Behaviour::ResetClears,
    late_post: Behaviour::Flushed,
    wrong_key: Some(10),
    local_key: 4,
    larger_mtu: Behaviour::Refused,
    error_event: None,
    numbers: None,
};

const RXE: Beliefs = Beliefs {
    local_key: 2,
    larger_mtu: Behaviour::Taken,
    error_event: Some(Behaviour::NotRaised),
    numbers: Some(Behaviour::Ascending),
    ..STRICT
};

const MLX5: Beliefs = Beliefs { error_event: Some(Behaviour::Raised), ..STRICT };

const IRDMA: Beliefs = Beliefs {
    reset: Behaviour::ResetFails,
    numbers: Some(Behaviour::Ascending),
    error_event: Some(Behaviour::Raised),
    ..STRICT
};

const ERDMA_COMPAT: Beliefs = Beliefs {
    reset: Behaviour::ResetIgnored,
    late_post: Behaviour::Lost,
    wrong_key: Some(21),
    local_key: 8,
    larger_mtu: Behaviour::Taken,
    error_event: Some(Behaviour::Raised),
    numbers: Some(Behaviour::Ascending),
};

const ERDMA_ROCEV2: Beliefs = Beliefs { reset: Behaviour::ResetMutes, ..ERDMA_COMPAT };

/// The driver is that of compat mode.
const ERDMA_STANDARD: Beliefs = ERDMA_COMPAT;

/// Any iWARP device. Whether a write completes before the peer has refused it differs.
const IWARP: Beliefs = Beliefs { wrong_key: None, ..STRICT };

/// Measured on 6.1.
const SIW: Beliefs = Beliefs {
    late_post: Behaviour::Lost,
    wrong_key: Some(0),
    local_key: 2,
    error_event: Some(Behaviour::Raised),
    numbers: Some(Behaviour::ReusedAtOnce),
    ..IWARP
};

fn beliefs(profile: &DeviceProfile) -> &'static Beliefs {
    match profile.name {
        "rxe" => &RXE,
        "mlx5" => &MLX5,
        "irdma" => &IRDMA,
        "siw" => &SIW,
        "iwarp" => &IWARP,
        "erdma-standard" => &ERDMA_STANDARD,
        "erdma-compat" => &ERDMA_COMPAT,
        "erdma-rocev2" => &ERDMA_ROCEV2,
        _ => &STRICT,
    }
}

/// Returns what a profile assumes; `None` is nothing.
pub(super) fn expected(profile: &DeviceProfile, assumption: Assumption) -> Option<Expected> {
    let connects = profile.connecting == Connecting::OutOfBand;
    let either = |is: bool, one, other| Some(if is { one } else { other });
    if assumption == Assumption::Connects {
        let behaviour = either(connects, Behaviour::OutOfBand, Behaviour::ByKernelAlone);
        return behaviour.map(Expected::Behaviour);
    }
    let dials = matches!(profile.connecting, Connecting::Manager(_));
    if !(connects || dials && assumption.set_by_manager().is_none()) {
        return None;
    }
    let beliefs = beliefs(profile);
    let behaviour = match assumption {
        Assumption::WrongKey => return beliefs.wrong_key.map(Expected::Status),
        Assumption::LocalKey => return Some(Expected::Status(beliefs.local_key)),
        Assumption::SilentPeer => return Some(patience(profile)),
        Assumption::Connects => None,
        Assumption::Reset => Some(beliefs.reset),
        // Lanes register the memory of their own reads so.
        Assumption::ReadSink => {
            // Out of band none is known to. Measured on 6.1: siw permits more than iWARP.
            let needs = dials && profile.read_sink_needs_remote_write && profile.name != "siw";
            either(needs, Behaviour::RemoteWrite, Behaviour::LocalWrite)
        }
        // Lanes probe with either.
        Assumption::EmptyRead | Assumption::ByteRead => Some(Behaviour::Answered),
        Assumption::LatePost => Some(beliefs.late_post),
        Assumption::Psn => either(profile.honours_psns, Behaviour::Honoured, Behaviour::Ignored),
        Assumption::StaleRead => {
            either(profile.drops_stale_reads, Behaviour::Unanswered, Behaviour::Answered)
        }
        Assumption::LinkLocal => {
            either(profile.takes_link_local, Behaviour::Taken, Behaviour::Refused)
        }
        Assumption::Ipv6 => either(profile.takes_ipv6, Behaviour::Taken, Behaviour::Refused),
        Assumption::SevenRetries => {
            let endless = profile.retries_infinite == Some(RETRIES_SEVEN);
            let endless = endless && profile.retries_fixed.is_none();
            either(endless, Behaviour::NeverEnds, Behaviour::Ends)
        }
        Assumption::LargerMtu => Some(beliefs.larger_mtu),
        Assumption::ErrorEvent => beliefs.error_event,
        Assumption::Numbers => beliefs.numbers,
        Assumption::ActiveMtu
        | Assumption::SmallWrites
        | Assumption::LargeWrite
        | Assumption::LargeRead => None,
    };
    behaviour.map(Expected::Behaviour)
}

/// The time before a silent peer is given up: 4.096 µs × 2^timeout for each try. Lanes rely on the
/// longest one; a device with a count of its own may have a timeout of its own too.
fn patience(profile: &DeviceProfile) -> Expected {
    let tries = u64::from(profile.retries_fixed.unwrap_or(RETRIES_FEW)) + 1;
    let specified = tries * (4_096 << TIMEOUT_SHORT) / 1_000_000;
    let from = if profile.retries_fixed.is_some() { 0 } else { specified };
    Expected::Milliseconds { from, to: specified * TIMEOUT_FACTOR_MAX + SLACK_MS }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::DEVICE_PROFILES;

    fn of(name: &str, assumption: Assumption) -> Option<Expected> {
        let profile = DEVICE_PROFILES.iter().find(|profile| profile.name == name).unwrap();
        expected(profile, assumption)
    }

    /// Two tries of 16.8 ms, or at most 25 where the device has a count of its own.
    #[test]
    fn silent_peer_is_given_up_after_all_tries() {
        let strict = Expected::Milliseconds { from: 33, to: 382 };
        assert_eq!(of("strict", Assumption::SilentPeer), Some(strict));
        let erdma = Expected::Milliseconds { from: 0, to: 1_926 };
        assert_eq!(of("erdma-compat", Assumption::SilentPeer), Some(erdma));
    }

    /// Fields of the profile decide what they are about.
    #[test]
    fn profile_decides_what_is_expected() {
        let is = |behaviour| Some(Expected::Behaviour(behaviour));
        assert_eq!(of("rxe", Assumption::SevenRetries), is(Behaviour::NeverEnds));
        assert_eq!(of("rxe", Assumption::StaleRead), is(Behaviour::Unanswered));
        assert_eq!(of("mlx5", Assumption::SevenRetries), is(Behaviour::Ends));
        assert_eq!(of("erdma-compat", Assumption::Psn), is(Behaviour::Ignored));
        assert_eq!(of("erdma-compat", Assumption::Ipv6), is(Behaviour::Refused));
        assert_eq!(of("siw", Assumption::Connects), is(Behaviour::ByKernelAlone));
        assert_eq!(of("iwarp", Assumption::ReadSink), is(Behaviour::RemoteWrite));
        assert_eq!(of("erdma-compat", Assumption::ReadSink), is(Behaviour::LocalWrite));
        assert_eq!(of("siw", Assumption::WrongKey), Some(Expected::Status(0)));
    }

    /// A profile without a belief assumes nothing, and no profile assumes a rate.
    #[test]
    fn unknown_fields_are_no_assumption() {
        assert_eq!(of("strict", Assumption::ErrorEvent), None);
        assert_eq!(of("mlx5", Assumption::Numbers), None);
        assert_eq!(of("siw", Assumption::Reset), None);
        assert_eq!(of("efa", Assumption::EmptyRead), None);
        assert_eq!(of("iwarp", Assumption::WrongKey), None);
        for profile in DEVICE_PROFILES {
            assert_eq!(expected(profile, Assumption::SmallWrites), None);
        }
    }
}
