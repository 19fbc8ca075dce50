//! Wires of a test's own, with a NIC at each end, so that what is done to one disturbs no other
//! test. Made as `cargo xtask guest` makes rxe0 and rxe1.

use crate::support::{Site, config};
use handfast_transport_rdma::NicConfig;
use std::fs;
use std::process::Command;

/// A wire: `rxe{2n}` at 10.n.0.1 and `rxe{2n+1}` at 10.n.0.2, on interfaces `veth…` of those numbers.
pub(crate) struct Wire {
    number: u32,
}

/// Runs a command of words separated by spaces.
pub(crate) fn run(words: &str) {
    let mut parts = words.split(' ');
    let mut command = Command::new(parts.next().unwrap());
    let output = command.args(parts).output().unwrap();
    assert!(output.status.success(), "{words}: {output:?}");
}

impl Wire {
    /// Each test has numbers of its own, from 1 to 9.
    pub(crate) fn new(number: u32) -> Self {
        let wire = Self { number };
        run(&format!(
            "ip link add {} type veth peer name {}",
            wire.interface(0),
            wire.interface(1)
        ));
        for side in 0..2 {
            let interface = wire.interface(side);
            let settings = format!("/proc/sys/net/ipv4/conf/{interface}");
            fs::write(format!("{settings}/accept_local"), "1").unwrap();
            fs::write(format!("{settings}/rp_filter"), "0").unwrap();
            wire.address(side, "add");
            let (local, other) = (10 + 2 * number + side, 40 + 2 * number + side);
            let to = wire.ip(1 - side);
            run(&format!("ip rule add pref {local} iif {interface} lookup local"));
            run(&format!("ip rule add pref {other} to {to} lookup {}", wire.table(side)));
        }
        wire.up();
        for side in 0..2 {
            let (device, interface) = (wire.device(side), wire.interface(side));
            run(&format!("rdma link add {device} type rxe netdev {interface}"));
        }
        wire
    }

    fn index(&self, side: u32) -> u32 {
        2 * self.number + side
    }

    fn table(&self, side: u32) -> u32 {
        100 + self.index(side)
    }

    pub(crate) fn device(&self, side: u32) -> String {
        format!("rxe{}", self.index(side))
    }

    pub(crate) fn interface(&self, side: u32) -> String {
        format!("veth{}", self.index(side))
    }

    pub(crate) fn ip(&self, side: u32) -> String {
        format!("10.{}.0.{}", self.number, side + 1)
    }

    /// Adds or deletes a side's address.
    pub(crate) fn address(&self, side: u32, what: &str) {
        run(&format!("ip address {what} {}/24 dev {}", self.ip(side), self.interface(side)));
    }

    /// A device that starts again, as after a reboot: its numbers begin anew.
    pub(crate) fn restart_device(&self, side: u32) {
        let (device, interface) = (self.device(side), self.interface(side));
        run(&format!("rdma link delete {device}"));
        run(&format!("rdma link add {device} type rxe netdev {interface}"));
    }

    /// Both ends up, with the routes that a link loses when it goes down.
    pub(crate) fn up(&self) {
        (0..2).for_each(|side| run(&format!("ip link set {} up", self.interface(side))));
        (0..2).for_each(|side| self.route(side));
    }

    /// The route that keeps packets on the wire.
    pub(crate) fn route(&self, side: u32) {
        let (to, interface, table) = (self.ip(1 - side), self.interface(side), self.table(side));
        let from = self.ip(side);
        run(&format!("ip route replace {to} dev {interface} src {from} table {table}"));
    }

    /// Gives each end an IPv6 address of the prefix, 1 and 2, and keeps their packets on the wire.
    /// Of one test alone, for the rules of IPv6 are changed for all.
    pub(crate) fn ipv6(&self, prefix: &str) {
        for side in 0..2 {
            let (interface, table) = (self.interface(side), self.table(side));
            let (own, other) = (side + 1, 2 - side);
            run(&format!("ip address add {prefix}{own}/64 dev {interface} nodad"));
            run(&format!("ip -6 rule add pref {} iif {interface} lookup local", 10 + side));
            run(&format!("ip -6 rule add pref {} to {prefix}{other} lookup {table}", 20 + side));
            run(&format!("ip -6 route add {prefix}{other} dev {interface} table {table}"));
        }
        run("ip -6 rule add pref 100 lookup local");
        run("ip -6 rule del pref 0");
    }

    pub(crate) fn down(&self, side: u32) {
        run(&format!("ip link set {} down", self.interface(side)));
    }

    /// A NIC at each end, whose queue pairs have different numbers.
    pub(crate) fn sites(&self, change: impl Fn(NicConfig) -> NicConfig) -> (Site, Site) {
        let site = |side| Site::new(change(config(&self.device(side))));
        let sites = (site(0), site(1));
        sites.1.nic.skip_numbers(64).unwrap();
        sites
    }
}
