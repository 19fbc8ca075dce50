//! Wires of a test's own, with a NIC at each end, so that what is done to one disturbs no other
//! test. Made as `cargo xtask guest` makes its own. The program's stories use them too.

use handfast_fabric_control::is_scripted;
use std::fs;
use std::io::Write;
use std::process::{Child, Command, Stdio};

/// Driver of the guest's NICs, and prefix of their names: `rxe` or `siw`.
pub(crate) fn driver() -> String {
    std::env::var("HANDFAST_NICS").unwrap_or_else(|_| "rxe".to_owned())
}

/// Names of the guest's two NICs, or of two scripted ones.
pub(crate) fn nics() -> [&'static str; 2] {
    match &*driver() {
        "siw" if !is_scripted() => ["siw0", "siw1"],
        _ => ["rxe0", "rxe1"],
    }
}

/// Whether the devices connect through the connection manager alone, or soft-RoCE does too.
pub(crate) fn connects_by_manager() -> bool {
    is_managed() || nics()[0] == "siw0"
}

/// Whether soft-RoCE connects through the connection manager too: the option of the program, by its variable.
pub(crate) fn is_managed() -> bool {
    std::env::var("HANDFAST_RDMA_CM").is_ok_and(|word| word == "1")
}

/// A wire: `rxe{2n}` at 10.n.0.1 and `rxe{2n+1}` at 10.n.0.2, or of the guest's other driver, on interfaces `veth…` of those numbers.
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

/// Runs commands of `ip` in one process, for starting one takes a tenth of a second in the guest.
fn ip(commands: &[String]) {
    batch("-4", commands);
}

fn batch(family: &str, commands: &[String]) {
    let mut child =
        Command::new("ip").args([family, "-batch", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(commands.join("\n").as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{commands:?}");
}

impl Wire {
    /// Each test has its own numbers, from 1 to 29.
    pub(crate) fn new(number: u32) -> Self {
        let wire = Self { number };
        let (one, other) = (wire.interface(0), wire.interface(1));
        let mut commands = vec![format!("link add {one} type veth peer name {other}")];
        for side in 0..2 {
            let (interface, to) = (wire.interface(side), wire.ip(1 - side));
            let (local, other) = (10 + 2 * number + side, 40 + 2 * number + side);
            commands.extend([
                format!("address add {}/24 dev {interface}", wire.ip(side)),
                format!("rule add pref {local} iif {interface} lookup local"),
                format!("rule add pref {other} to {to} lookup {}", wire.table(side)),
            ]);
        }
        ip(&commands);
        for side in 0..2 {
            let settings = format!("/proc/sys/net/ipv4/conf/{}", wire.interface(side));
            fs::write(format!("{settings}/accept_local"), "1").unwrap();
            fs::write(format!("{settings}/rp_filter"), "0").unwrap();
        }
        wire.up();
        for side in 0..2 {
            let (device, interface) = (wire.device(side), wire.interface(side));
            run(&format!("rdma link add {device} type {} netdev {interface}", driver()));
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
        format!("{}{}", driver(), self.index(side))
    }

    pub(crate) fn interface(&self, side: u32) -> String {
        format!("veth{}", self.index(side))
    }

    pub(crate) fn ip(&self, side: u32) -> String {
        format!("10.{}.0.{}", self.number, side + 1)
    }

    /// Loses every packet of both sides. Each knows the other's link layer address for good.
    pub(crate) fn loses_packets(&self) {
        for side in 0..2 {
            let (near, far) = (self.interface(side), self.interface(1 - side));
            let link = fs::read_to_string(format!("/sys/class/net/{far}/address")).unwrap();
            let (ip, link) = (self.ip(1 - side), link.trim());
            run(&format!("ip neigh replace {ip} lladdr {link} dev {near} nud permanent"));
            run(&format!("tc qdisc add dev {near} root netem loss 100%"));
        }
    }

    pub(crate) fn passes_packets(&self) {
        (0..2).for_each(|side| run(&format!("tc qdisc del dev {} root", self.interface(side))));
    }

    /// An address of side 1 that packets from side 0 are led to, and that answers no question for its
    /// link layer address. The addresses there were are known to side 0 for good.
    pub(crate) fn silent_address(&self) -> String {
        let silent = format!("10.{}.0.77", self.number);
        let (near, far) = (self.interface(0), self.interface(1));
        let link = fs::read_to_string(format!("/sys/class/net/{far}/address")).unwrap();
        ip(&[
            format!("neigh replace {} lladdr {} dev {near} nud permanent", self.ip(1), link.trim()),
            format!("address add {silent}/24 dev {far}"),
            format!("rule add pref {} to {silent} lookup {}", 70 + self.number, self.table(0)),
            format!("route add {silent} dev {near} src {} table {}", self.ip(0), self.table(0)),
        ]);
        const ANSWER_NOTHING: &str = "8";
        fs::write(format!("/proc/sys/net/ipv4/conf/{far}/arp_ignore"), ANSWER_NOTHING).unwrap();
        silent
    }

    pub(crate) fn address_leaves(&self, side: u32) {
        ip(&[format!("address del {}/24 dev {}", self.ip(side), self.interface(side))]);
    }

    pub(crate) fn address_returns(&self, side: u32) {
        let address = format!("address add {}/24 dev {}", self.ip(side), self.interface(side));
        ip(&[address, self.route(side)]);
    }

    /// Restarts a device, as after a reboot: its numbers start again.
    pub(crate) fn restart_device(&self, side: u32) {
        self.device_leaves(side);
        self.device_returns(side);
    }

    pub(crate) fn device_leaves(&self, side: u32) {
        run(&format!("rdma link delete {}", self.device(side)));
    }

    /// Begins to remove a device. The kernel waits until every program has closed it, unless its driver can take it away.
    pub(crate) fn removal(&self, side: u32) -> Child {
        Command::new("rdma").args(["link", "delete", &self.device(side)]).spawn().unwrap()
    }

    pub(crate) fn device_returns(&self, side: u32) {
        let (device, interface) = (self.device(side), self.interface(side));
        run(&format!("rdma link add {device} type {} netdev {interface}", driver()));
    }

    /// Both ends up, with the routes that a link loses when it goes down.
    pub(crate) fn up(&self) {
        let up = |side| format!("link set {} up", self.interface(side));
        ip(&[up(0), up(1), self.route(0), self.route(1)]);
    }

    /// The route that keeps packets on the wire.
    fn route(&self, side: u32) -> String {
        let (to, interface, table) = (self.ip(1 - side), self.interface(side), self.table(side));
        format!("route replace {to} dev {interface} src {} table {table}", self.ip(side))
    }

    /// Gives each end an IPv6 address of the prefix, 1 and 2, and keeps their packets on the wire.
    /// Of one test alone, for the rules of IPv6 are changed for all. Each end knows the other: the
    /// kernel's first look for a fresh address goes unanswered about every other time here, and a
    /// second later the queue pair is refused.
    pub(crate) fn ipv6(&self, prefix: &str) {
        let mut commands = Vec::new();
        for side in 0..2 {
            let (interface, table) = (self.interface(side), self.table(side));
            let (own, other) = (side + 1, 2 - side);
            let there = format!("/sys/class/net/{}/address", self.interface(1 - side));
            let there = std::fs::read_to_string(there).unwrap();
            commands.extend([
                format!("address add {prefix}{own}/64 dev {interface} nodad"),
                format!("rule add pref {} iif {interface} lookup local", 10 + side),
                format!("rule add pref {} to {prefix}{other} lookup {table}", 20 + side),
                format!("route add {prefix}{other} dev {interface} table {table}"),
                format!(
                    "neigh replace {prefix}{other} lladdr {} dev {interface} nud permanent",
                    there.trim()
                ),
            ]);
        }
        commands.extend(["rule add pref 100 lookup local", "rule del pref 0"].map(Into::into));
        batch("-6", &commands);
    }

    pub(crate) fn down(&self, side: u32) {
        ip(&[format!("link set {} down", self.interface(side))]);
    }
}
