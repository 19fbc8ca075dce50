//! The devices of a world's sites, and the traffic between them.

use crate::transfers::Traffic;
use handfast_core::connection::LaneConnections;
use handfast_transport_sim::verbs::{
    ENDLESS, IRDMA_IWARP, PROFILES, Profile, PsnSource, Rebirth, SHM, SIW, STRICT,
};
use handfast_transport_sim::{Backend, BuildConnections, CommandKind, Devices, Faults, Setup};
use std::fmt::{self, Display};
use std::str::FromStr;

/// Devices and traffic, by values that fit into a line: `erdma-compat,Write,gx`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ground {
    /// The device of every site.
    pub profile: &'static Profile,
    /// Effect of a restart on its numbers and keys.
    pub rebirth: Rebirth,
    /// Sequence numbers are exchanged; otherwise all begin at zero.
    pub random_psns: bool,
    /// Transfers; without them lanes carry nothing.
    pub traffic: Option<Traffic>,
    /// Queue pairs connect through the connection manager; otherwise out of band.
    pub managed: bool,
}

impl Ground {
    /// The strict device, and nothing is transferred: the table of queue pairs says it all.
    pub const BARE: Self = Self {
        profile: &STRICT,
        rebirth: Rebirth::Anew,
        random_psns: false,
        traffic: None,
        managed: false,
    };

    /// A device in its proper use: sequence numbers are exchanged, and a restart reuses numbers and
    /// keys. On a device that ignores sequence numbers a restart continues them instead, since only
    /// different numbers keep a late packet of the previous incarnation out.
    pub const fn on(profile: &'static Profile, traffic: Option<Traffic>) -> Self {
        let rebirth = match profile.psn_source {
            PsnSource::Attributes => Rebirth::Anew,
            PsnSource::Constant => Rebirth::GoesOn,
        };
        Self { profile, rebirth, random_psns: true, traffic, managed: false }
    }

    /// The same through the connection manager.
    pub const fn managed_on(profile: &'static Profile, traffic: Option<Traffic>) -> Self {
        Self { managed: true, ..Self::on(profile, traffic) }
    }

    /// The kinds of fault that can make a difference: those of devices only where the devices say
    /// more than the table of queue pairs.
    pub fn kinds(self) -> Faults {
        if self == Self::BARE {
            return Faults::ALL;
        }
        if self.profile.shares_memory {
            return Faults { step_failure: true, mute: true, channel: true, ..Faults::ALL };
        }
        let (step_failure, port, address, partition, mute) = (true, true, true, true, true);
        let forgery = self.managed;
        Faults { step_failure, port, address, partition, mute, forgery, ..Faults::ALL }
    }

    /// Description such as `on erdma-compat, Write, a restart goes on`; empty for the bare device.
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
        if self.managed {
            words.push_str(", through the connection manager");
        }
        words
    }

    /// Applies the devices and traffic to an initial world.
    pub(crate) fn lay(self, backend: Backend, setup: &mut Setup) {
        let Self { profile, rebirth, random_psns, traffic, managed } = self;
        setup.devices = Devices { profile, backend, rebirth, random_psns };
        setup.build_connections = managed.then_some(LaneConnections::new as BuildConnections);
        setup.transfers = traffic.map(Traffic::transfers);
        if let Some(transfers) = setup.transfers.as_ref().filter(|_| setup.rails) {
            // A host with transfers opens every rail itself.
            let submits = |host: usize| transfers.transfers.iter().any(|it| it.site == host);
            let hosts: Vec<usize> = (0..setup.sites.len()).map(|site| setup.host(site)).collect();
            setup.commands.retain(|command| {
                command.kind != CommandKind::Open || !submits(hosts[command.site])
            });
        }
    }
}

/// Every device that has a name: those of [`PROFILES`], and those that no sweep draws.
pub fn named_profiles() -> impl Iterator<Item = &'static Profile> {
    PROFILES.into_iter().chain([&ENDLESS, &SHM, &SIW, &IRDMA_IWARP])
}

/// The device of a name.
pub fn profile_named(name: &str) -> Option<&'static Profile> {
    named_profiles().find(|profile| profile.name.eq_ignore_ascii_case(name))
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
        let manager = if self.managed { "m" } else { "" };
        write!(formatter, ",{rebirth}{psns}{manager}")
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
        let (letters, managed) = match letters.strip_suffix('m') {
            Some(letters) => (letters, true),
            None => (letters, false),
        };
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
        Ok(Self { profile, rebirth, random_psns, traffic, managed })
    }
}
