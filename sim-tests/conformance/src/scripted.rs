//! The switch between scripted devices. Packets arrive and timers expire when a scenario goes on, as
//! in the simulated fabric.

use crate::arm::{ArmError, Disturbance, Outcome, Side, Wait};
use crate::network::device;
use handfast_fabric_control::Fabric;

/// Maximum rounds of one wait; more than the number of retries.
const ROUNDS_MAX: u32 = 40;

/// The switch of this process's scripted devices.
pub(crate) struct Switch {
    fabric: Fabric,
    held: [bool; 2],
}

impl Switch {
    pub(crate) fn new() -> Outcome<Self> {
        let fabric = Fabric::find().map_err(|error| ArmError(error.to_string()))?;
        let switch = Self { fabric, held: [false; 2] };
        switch.run("renew")?;
        switch.run("timers off")?;
        for side in Side::ALL {
            for peer in Side::ALL {
                switch.run(&format!("hold packets {} {}", device(side), device(peer)))?;
            }
        }
        Ok(switch)
    }

    fn run(&self, line: &str) -> Outcome<String> {
        self.fabric.execute(line).map_err(|error| ArmError(error.to_string()))
    }

    /// `place` is the index of the side's IPv4 address.
    pub(crate) fn disturb(
        &mut self,
        side: Side,
        disturbance: Disturbance,
        place: u8,
    ) -> Outcome<()> {
        let (own, peer) = (device(side), device(side.peer()));
        let line = match disturbance {
            Disturbance::Cut => format!("cut {own} {peer}"),
            Disturbance::Mend => format!("mend {own} {peer}"),
            Disturbance::Hold => {
                self.held[side as usize] = true;
                return Ok(());
            }
            Disturbance::Release => {
                self.held[side as usize] = false;
                return self.arrive().map(drop);
            }
            Disturbance::LinkDown => format!("port {own} down"),
            Disturbance::LinkUp => format!("port {own} up"),
            Disturbance::AddressLeaves => format!("gid {own} remove {place}"),
            Disturbance::AddressReturns => format!("gid {own} add"),
            Disturbance::LinkMtu(bytes) => format!("mtu {own} {bytes}"),
        };
        self.run(&line).map(drop)
    }

    pub(crate) fn restart(&self, side: Side) -> Outcome<()> {
        self.run(&format!("restart {}", device(side))).map(drop)
    }

    /// Lets all packets that are not held arrive; returns whether there were any.
    fn arrive(&self) -> Outcome<bool> {
        let flows = Side::ALL.into_iter().filter(|side| !self.held[*side as usize]).map(device);
        let flows: Vec<String> = flows.collect();
        Ok(self.run(&format!("arrive {}", flows.join(" ")))? == "1")
    }

    fn expire(&self) -> Outcome<bool> {
        let mut any = false;
        for side in Side::ALL {
            any |= self.run(&format!("expire {} all", device(side)))? == "1";
        }
        Ok(any)
    }

    pub(crate) fn go_on(&mut self, wait: Wait, round: u32) -> Outcome<bool> {
        let timers = wait != Wait::Arrival;
        Ok(round < ROUNDS_MAX && (self.arrive()? || (timers && self.expire()?)))
    }
}
