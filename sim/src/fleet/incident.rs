//! Disturbances of a fleet.

use super::network::{Network, Occurrence};
use handfast_core::{Duration, Instant};
use std::fmt::{self, Display};

/// Time that a killed process takes to be back.
const DOWN: Duration = Duration::from_millis(2_000);
/// Waves of [`Incident::Waves`], and the pause between two.
const WAVES: u32 = 5;
const WAVE_INTERVAL: Duration = Duration::from_millis(10_000);
/// One node in this many restarts with a wave.
const WAVE_SHARE: u32 = 10;
/// Steps of [`Incident::Rolling`], and the pause between two.
const STEPS: u32 = 50;
const STEP_INTERVAL: Duration = Duration::from_millis(1_000);
/// Nodes of a rack.
const RACK: u32 = 32;
/// Time after which applications give up the nodes of a dead rack.
const GIVEN_UP_AFTER: Duration = Duration::from_millis(30_000);
/// Time in which the store gives no answers.
const OUTAGE: Duration = Duration::from_millis(10_000);
/// Messages lost, of a million.
const LOST_OF_A_MILLION: u64 = 10_000;

/// A disturbance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Incident {
    /// The fleet starts, and nothing happens.
    None,
    /// One message in a hundred is lost while the fleet starts.
    Loss,
    /// The fleet starts without a metadata store, which comes back after 10 s.
    Outage,
    /// Five times, 10 s apart, a tenth of the nodes is killed and back after 2 s.
    Waves,
    /// Every node is killed and back after 2 s, a fiftieth of them each second.
    Rolling,
    /// 32 nodes lose their power. Their peers give them up after 30 s.
    Rack,
}

impl Incident {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::None, Self::Loss, Self::Outage, Self::Waves, Self::Rolling, Self::Rack];

    /// Reads what [`Display`] writes.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|incident| incident.to_string() == name)
    }

    /// Until when the store gives no answers.
    pub(super) fn store_down_until(self) -> Instant {
        if self == Self::Outage { Instant(0) + OUTAGE } else { Instant(0) }
    }

    /// Messages lost, of a million.
    pub(super) fn lost_of_a_million(self) -> u64 {
        if self == Self::Loss { LOST_OF_A_MILLION } else { 0 }
    }

    /// Plans what happens to a fleet at rest; `false` if nothing does.
    pub(super) fn plan(self, network: &mut Network) -> bool {
        let nodes = network.plan.nodes;
        match self {
            Self::None | Self::Loss | Self::Outage => return false,
            Self::Waves => {
                let count = (nodes / WAVE_SHARE).max(1);
                for wave in 0..WAVES {
                    let at = network.now + times(WAVE_INTERVAL, wave);
                    for site in network.draw_sites(count) {
                        restart(network, at, site);
                    }
                }
            }
            Self::Rolling => {
                let all = network.draw_sites(nodes);
                for (step, batch) in (0..).zip(all.chunks(nodes.div_ceil(STEPS) as usize)) {
                    let at = network.now + times(STEP_INTERVAL, step);
                    batch.iter().for_each(|site| restart(network, at, *site));
                }
            }
            Self::Rack => {
                // At most a third of the fleet, so that the others have peers.
                for site in 0..RACK.min(nodes / 3).max(1) {
                    network.at(network.now, Occurrence::PowerLost(site));
                    network.at(network.now + GIVEN_UP_AFTER, Occurrence::GivenUp(site));
                }
            }
        }
        true
    }
}

fn restart(network: &mut Network, at: Instant, site: u32) {
    network.at(at, Occurrence::Killed(site));
    network.at(at + DOWN, Occurrence::Started(site));
}

fn times(span: Duration, count: u32) -> Duration {
    Duration(span.nanos().saturating_mul(u64::from(count)))
}

impl Display for Incident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Loss => "loss",
            Self::Outage => "outage",
            Self::Waves => "waves",
            Self::Rolling => "rolling",
            Self::Rack => "rack",
        })
    }
}
