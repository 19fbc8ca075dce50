//! Makes and destroys queue pairs on a device: `numbers_apart DEVICE COUNT`.
//!
//! Drivers number queue pairs one after the other. On two fresh software NICs the numbers would be
//! equal, which hides a program that takes the peer's number for its own.

use handfast_core::Lifecycle;
use handfast_core::transport::TransportError;
use handfast_transport::{Completion, LaneSink};
use handfast_transport_rdma::{Nic, NicConfig, NicSink, QUEUE_PAIRS_PER_LANE_MAX};
use std::error::Error;
use std::sync::Arc;

/// Nothing is posted, so there is nothing to hear.
struct Deaf;

impl LaneSink for Deaf {
    fn on_completions(&self, _: Lifecycle, _: &mut Vec<Completion>) {}
    fn on_lane_failed(&self, _: Lifecycle, _: TransportError) {}
}

impl NicSink for Deaf {}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(device), Some(count)) = (arguments.next(), arguments.next()) else {
        return Err("usage: numbers_apart DEVICE COUNT".into());
    };
    let mut left: usize = count.parse()?;
    let config = NicConfig { depth: 1, ..NicConfig::new(device) };
    let nic = Nic::open(config, Arc::new(Deaf))?;
    while left > 0 {
        let now = left.min(QUEUE_PAIRS_PER_LANE_MAX);
        nic.create(Lifecycle(1), &vec![0; now])?;
        nic.retire(Lifecycle(1))?;
        left -= now;
    }
    Ok(())
}
