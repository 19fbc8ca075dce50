//! The link of a guest of `cargo xtask guest`: rxe0 on veth0 at 10.0.0.1, rxe1 on veth1 at
//! 10.0.0.2.

use crate::arm::{ArmError, Disturbance, Outcome, Side};
use std::net::Ipv6Addr;
use std::process::Command;
use std::sync::Once;
use std::thread::sleep;
use std::time::Duration;

/// The delay of a side's held packets.
const DELAY: Duration = Duration::from_millis(400);
/// Time after which no held packet is in flight.
const DELAY_OVER: Duration = Duration::from_millis(500);
/// The default MTU of a link of the guest.
const LINK_MTU: u32 = 1500;

/// Changes of one side of the link that must be reverted.
#[derive(Clone, Copy, Default)]
struct Disturbed {
    queue: bool,
    link: bool,
    address: bool,
    mtu: bool,
}

/// The link. Dropping it reverts the disturbances.
#[derive(Default)]
pub(crate) struct Network {
    disturbed: [Disturbed; 2],
}

/// Returns the device of a side.
pub(crate) fn device(side: Side) -> String {
    format!("rxe{}", side as u8)
}

fn interface(side: Side) -> String {
    format!("veth{}", side as u8)
}

fn ipv4(side: Side) -> String {
    format!("10.0.0.{}", side as u8 + 1)
}

/// Returns the IPv4 address of a side in its device's form.
pub(crate) fn address(side: Side) -> Ipv6Addr {
    host(side as u8 + 1)
}

/// Returns an unassigned address of the network.
pub(crate) fn nobody() -> Ipv6Addr {
    host(78)
}

fn host(last: u8) -> Ipv6Addr {
    std::net::Ipv4Addr::new(10, 0, 0, last).to_ipv6_mapped()
}

impl Network {
    pub(crate) fn disturb(&mut self, side: Side, disturbance: Disturbance) -> Outcome<()> {
        let (interface, own) = (interface(side), ipv4(side));
        let marks = &mut self.disturbed[side as usize];
        match disturbance {
            Disturbance::Cut => {
                marks.queue = true;
                queue(side, "loss 100%")
            }
            Disturbance::Hold => {
                marks.queue = true;
                queue(side, &format!("delay {}ms", DELAY.as_millis()))
            }
            Disturbance::Release => {
                sleep(DELAY_OVER);
                marks.queue = false;
                queue(side, "loss 0%")
            }
            Disturbance::Mend => {
                marks.queue = false;
                queue(side, "loss 0%")
            }
            Disturbance::LinkDown => {
                marks.link = true;
                run(&format!("ip link set {interface} down"))
            }
            Disturbance::LinkUp => {
                marks.link = false;
                run(&format!("ip link set {interface} up"))?;
                Side::ALL.into_iter().try_for_each(route)
            }
            Disturbance::AddressLeaves => {
                marks.address = true;
                run(&format!("ip address del {own}/24 dev {interface}"))
            }
            Disturbance::AddressReturns => {
                marks.address = false;
                run(&format!("ip address add {own}/24 dev {interface}"))?;
                route(side)
            }
            Disturbance::LinkMtu(bytes) => {
                marks.mtu = bytes != LINK_MTU;
                run(&format!("ip link set {interface} mtu {bytes}"))
            }
        }
    }

    /// Restarts a device that no process has open.
    pub(crate) fn restart(side: Side) -> Outcome<()> {
        let (device, interface) = (device(side), interface(side));
        run(&format!("rdma link delete {device}"))?;
        run(&format!("rdma link add {device} type rxe netdev {interface}"))
    }

    fn restore(&mut self) -> Outcome<()> {
        for side in Side::ALL {
            let Disturbed { queue, link, address, mtu } = self.disturbed[side as usize];
            for (is_disturbed, undo) in [
                (queue, Disturbance::Mend),
                (link, Disturbance::LinkUp),
                (address, Disturbance::AddressReturns),
                (mtu, Disturbance::LinkMtu(LINK_MTU)),
            ] {
                if is_disturbed {
                    self.disturb(side, undo)?;
                }
            }
        }
        Ok(())
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        if let Err(error) = self.restore() {
            eprintln!("{error}");
        }
    }
}

/// Changes the queueing discipline of an interface. It is installed once and stays: while one
/// replaces another, sending fails, which a device takes for an error.
fn queue(side: Side, how: &str) -> Outcome<()> {
    static PUT: Once = Once::new();
    let mut put = Ok(());
    PUT.call_once(|| {
        let place =
            |side| run(&format!("tc qdisc replace dev {} root netem loss 0%", interface(side)));
        put = Side::ALL.into_iter().try_for_each(place);
    });
    put?;
    run(&format!("tc qdisc change dev {} root netem {how}", interface(side)))
}

/// Adds the route that keeps packets on the link, which is lost with a link or an address.
fn route(side: Side) -> Outcome<()> {
    let (to, interface, own) = (ipv4(side.peer()), interface(side), ipv4(side));
    let table = 100 + side as u32;
    run(&format!("ip route replace {to} dev {interface} src {own} table {table}"))
}

/// Runs a command of words separated by spaces.
fn run(words: &str) -> Outcome<()> {
    let mut parts = words.split(' ');
    let mut command = Command::new(parts.next().unwrap_or_default());
    let output =
        command.args(parts).output().map_err(|error| ArmError(format!("{words}: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    Err(ArmError(format!("{words}: {}", String::from_utf8_lossy(&output.stderr).trim())))
}
