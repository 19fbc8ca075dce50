//! Observations, and their comparison with the assumptions.

use super::Assumption;
use crate::profile::{Identity, Recognised};
use crate::status::CompletionError;
use std::fmt;
use std::time::Duration;

/// A way in which devices differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// Queue pairs connect by numbers that the programs exchange.
    OutOfBand,
    /// Queue pairs connect through the kernel's connection manager alone.
    ByKernelAlone,
    /// RESET clears the queue pair, which works again after another connection.
    ResetClears,
    /// After RESET the queue pair connects again and moves no byte.
    ResetMutes,
    /// RESET succeeds and changes nothing.
    ResetIgnored,
    /// RESET succeeds and moves to ERR.
    ResetFails,
    /// RESET is refused.
    ResetRefused,
    /// The local write right is enough.
    LocalWrite,
    /// The remote write right is needed too.
    RemoteWrite,
    /// It is answered.
    Answered,
    /// It is refused.
    Refused,
    /// It is accepted.
    Taken,
    /// It is never answered.
    Unanswered,
    /// It completes as flushed.
    Flushed,
    /// It never completes.
    Lost,
    /// The announced number is the one that counts.
    Honoured,
    /// The announced number has no effect.
    Ignored,
    /// It ends.
    Ends,
    /// It never ends.
    NeverEnds,
    /// There is an event.
    Raised,
    /// There is no event.
    NotRaised,
    /// The number of a destroyed queue pair is the next one's.
    ReusedAtOnce,
    /// Each number is greater than the one before.
    Ascending,
    /// Numbers follow no such order.
    Unordered,
}

impl fmt::Display for Behaviour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OutOfBand => "out of band",
            Self::ByKernelAlone => "by the kernel alone",
            Self::ResetClears => "clears, usable again",
            Self::ResetMutes => "clears, silent afterwards",
            Self::ResetIgnored => "does nothing",
            Self::ResetFails => "moves to ERR",
            Self::ResetRefused | Self::Refused => "refused",
            Self::LocalWrite => "local write is enough",
            Self::RemoteWrite => "needs remote write",
            Self::Answered => "answered",
            Self::Taken => "accepted",
            Self::Unanswered => "unanswered",
            Self::Flushed => "flushed",
            Self::Lost => "never completes",
            Self::Honoured => "honoured",
            Self::Ignored => "ignored",
            Self::Ends => "ends",
            Self::NeverEnds => "never ends",
            Self::Raised => "raised",
            Self::NotRaised => "none",
            Self::ReusedAtOnce => "reused at once",
            Self::Ascending => "ascending",
            Self::Unordered => "in no order",
        })
    }
}

/// The observation of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observed {
    /// A behaviour.
    Behaviour(Behaviour),
    /// The status of a completion, and the driver's own code.
    Status(CompletionError),
    /// A duration in milliseconds.
    Milliseconds(u64),
    /// A number of bytes.
    Bytes(u64),
    /// Requests in a second.
    RequestsPerSecond(u64),
    /// Mebibytes in a second.
    MibPerSecond(u64),
}

impl fmt::Display for Observed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Behaviour(behaviour) => behaviour.fmt(f),
            Self::Status(error) => {
                write!(f, "status {}, vendor {:#x}", error.status, error.vendor)
            }
            Self::Milliseconds(ms) => write!(f, "{ms} ms"),
            Self::Bytes(bytes) => write!(f, "{bytes} bytes"),
            Self::RequestsPerSecond(count) => write!(f, "{count} per second"),
            Self::MibPerSecond(mebibytes) => write!(f, "{mebibytes} MiB/s"),
        }
    }
}

/// The assumption of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// A behaviour.
    Behaviour(Behaviour),
    /// The status of a completion, with any code of the driver.
    Status(u32),
    /// A duration in milliseconds, both ends included.
    Milliseconds {
        /// The shortest.
        from: u64,
        /// The longest.
        to: u64,
    },
}

impl Expected {
    /// Whether it was seen.
    pub fn is(self, observed: Observed) -> bool {
        match (self, observed) {
            (Self::Behaviour(one), Observed::Behaviour(other)) => one == other,
            (Self::Status(status), Observed::Status(error)) => status == error.status,
            (Self::Milliseconds { from, to }, Observed::Milliseconds(ms)) => {
                (from..=to).contains(&ms)
            }
            _ => false,
        }
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Behaviour(behaviour) => behaviour.fmt(f),
            Self::Status(status) => write!(f, "status {status}"),
            Self::Milliseconds { from, to } => write!(f, "{from} to {to} ms"),
        }
    }
}

/// The comparison of what was seen with what is assumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// They agree.
    Agrees,
    /// They differ.
    Differs,
    /// The profile assumes nothing.
    NoAssumption,
    /// Nothing was seen.
    NotMeasured,
}

/// A measurement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Its subject.
    pub assumption: Assumption,
    /// The assumption of the profile, if any.
    pub expected: Option<Expected>,
    /// The observation, or the reason for none.
    pub outcome: Result<Observed, String>,
    /// More of what was seen, in words; may be empty.
    pub detail: String,
    /// Its duration.
    pub took: Duration,
}

impl Measured {
    /// The comparison.
    pub fn verdict(&self) -> Verdict {
        match (&self.outcome, self.expected) {
            (Err(_), _) => Verdict::NotMeasured,
            (Ok(_), None) => Verdict::NoAssumption,
            (Ok(observed), Some(expected)) if expected.is(*observed) => Verdict::Agrees,
            (Ok(_), Some(_)) => Verdict::Differs,
        }
    }
}

/// A measured device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProvenDevice {
    /// Its name.
    pub name: String,
    /// Its profile.
    pub recognised: Recognised,
    /// Its identity.
    pub identity: Identity,
    /// The version of its firmware, in its own words.
    pub firmware: String,
    /// The address that was used.
    pub address: String,
    /// Whether its port is of an Ethernet, otherwise of InfiniBand.
    pub is_ethernet: bool,
}

/// All measurements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    /// The devices: the requester and the responder.
    pub devices: [ProvenDevice; 2],
    /// The measurements in order.
    pub measured: Vec<Measured>,
    /// The duration of all.
    pub took: Duration,
}

impl Proof {
    /// Counts the measurements of a verdict.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.measured.iter().filter(|measured| measured.verdict() == verdict).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(expected: Option<Expected>, outcome: Result<Observed, String>) -> Measured {
        let (assumption, detail) = (Assumption::WrongKey, String::new());
        Measured { assumption, expected, outcome, detail, took: Duration::ZERO }
    }

    /// A verdict needs an observation, and a difference an assumption too.
    #[test]
    fn verdict_compares_observed_with_expected() {
        let seen = |status| Ok(Observed::Status(CompletionError { status, vendor: 0x89 }));
        let expected = Some(Expected::Status(10));
        assert_eq!(measured(expected, seen(10)).verdict(), Verdict::Agrees);
        assert_eq!(measured(expected, seen(21)).verdict(), Verdict::Differs);
        assert_eq!(measured(None, seen(21)).verdict(), Verdict::NoAssumption);
        let nothing = Err("no address".to_owned());
        assert_eq!(measured(expected, nothing.clone()).verdict(), Verdict::NotMeasured);
        assert_eq!(measured(None, nothing).verdict(), Verdict::NotMeasured);
        // A behaviour where a status is expected is a difference.
        let lost = Ok(Observed::Behaviour(Behaviour::Lost));
        assert_eq!(measured(expected, lost).verdict(), Verdict::Differs);
    }

    /// Both ends of a duration belong to it.
    #[test]
    fn duration_includes_both_ends() {
        let expected = Expected::Milliseconds { from: 50, to: 301 };
        let is = |ms| expected.is(Observed::Milliseconds(ms));
        assert_eq!([49, 50, 301, 302].map(is), [false, true, true, false]);
    }
}
