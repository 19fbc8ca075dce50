//! What a world stands on: the devices of its sites, and what is transferred between them.

use crate::transfers::Traffic;
use handfast_transport_sim::verbs::{PROFILES, Profile, PsnSource, Rebirth, STRICT};
use handfast_transport_sim::{Backend, Devices, Faults, Setup};
use std::fmt::{self, Display};
use std::str::FromStr;

/// Devices and traffic, by values that fit into a line: `erdma-compat,Write,gx`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ground {
    /// The device of every site.
    pub profile: &'static Profile,
    /// What a restart does to its numbers and keys.
    pub rebirth: Rebirth,
    /// Sequence numbers are exchanged; otherwise all begin at zero.
    pub random_psns: bool,
    /// What is transferred; without it lanes carry nothing.
    pub traffic: Option<Traffic>,
}

impl Ground {
    /// The strict device, and nothing is transferred: the table of queue pairs says it all.
    pub const BARE: Self =
        Self { profile: &STRICT, rebirth: Rebirth::Anew, random_psns: false, traffic: None };

    /// A device as it should be used: sequence numbers are exchanged, and a restart begins numbers
    /// and keys anew, except where the device ignores sequence numbers. There nothing keeps a late
    /// packet of the old life out of the new one but numbers that differ.
    pub const fn on(profile: &'static Profile, traffic: Option<Traffic>) -> Self {
        let rebirth = match profile.psn_source {
            PsnSource::Attributes => Rebirth::Anew,
            PsnSource::Constant => Rebirth::GoesOn,
        };
        Self { profile, rebirth, random_psns: true, traffic }
    }

    /// The kinds of fault that can make a difference: those of devices only where the devices say
    /// more than the table of queue pairs.
    pub fn kinds(self) -> Faults {
        if self == Self::BARE {
            return Faults::ALL;
        }
        let (step_failure, port, address, partition, mute) = (true, true, true, true, true);
        Faults { step_failure, port, address, partition, mute, ..Faults::ALL }
    }

    /// The ground for people, as in `on erdma-compat, Write, a restart goes on`; nothing for the
    /// bare one.
    pub fn words(self) -> String {
        if self == Self::BARE {
            return String::new();
        }
        let mut words = format!("on {}", self.profile.name);
        if let Some(traffic) = self.traffic {
            words.push_str(&format!(", {traffic:?}"));
        }
        words.push_str(match self.rebirth {
            Rebirth::Anew => ", numbers anew after a restart",
            Rebirth::GoesOn => ", numbers go on after a restart",
        });
        if !self.random_psns {
            words.push_str(", sequence numbers from zero");
        }
        words
    }

    /// Puts a world that nothing happened in on this ground.
    pub(crate) fn lay(self, backend: Backend, setup: &mut Setup) {
        let Self { profile, rebirth, random_psns, traffic } = self;
        setup.devices = Devices { profile, backend, rebirth, random_psns };
        setup.transfers = traffic.map(Traffic::transfers);
    }
}

/// The device of a name.
pub fn profile_named(name: &str) -> Option<&'static Profile> {
    PROFILES.into_iter().find(|profile| profile.name.eq_ignore_ascii_case(name))
}

impl Display for Ground {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::BARE {
            return formatter.write_str("-");
        }
        write!(formatter, "{},", self.profile.name)?;
        match self.traffic {
            Some(traffic) => write!(formatter, "{traffic:?}")?,
            None => formatter.write_str("-")?,
        }
        let rebirth = if self.rebirth == Rebirth::Anew { "a" } else { "g" };
        let psns = if self.random_psns { "x" } else { "z" };
        write!(formatter, ",{rebirth}{psns}")
    }
}

/// The text is no ground of this build.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no device, traffic, rebirth and sequence numbers, such as 'strict,Write,ax'")]
pub struct NoGround;

impl FromStr for Ground {
    type Err = NoGround;

    fn from_str(text: &str) -> Result<Self, NoGround> {
        if text == "-" {
            return Ok(Self::BARE);
        }
        let parts: Vec<&str> = text.split(',').collect();
        let [profile, traffic, letters] = parts[..] else { return Err(NoGround) };
        let (rebirth, random_psns) = match letters {
            "ax" => (Rebirth::Anew, true),
            "az" => (Rebirth::Anew, false),
            "gx" => (Rebirth::GoesOn, true),
            "gz" => (Rebirth::GoesOn, false),
            _ => return Err(NoGround),
        };
        let traffic = match traffic {
            "-" => None,
            name => Some(Traffic::named(name).ok_or(NoGround)?),
        };
        let profile = profile_named(profile).ok_or(NoGround)?;
        Ok(Self { profile, rebirth, random_psns, traffic })
    }
}
