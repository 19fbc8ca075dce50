//! `handfast topology`: the NICs near to each memory of this machine.

use crate::failure::Outcome;
use crate::sim::show::{Facts, columns};
use crate::{help, output};
use clap::Args;
use handfast::rdma::RdmaOptions;
use handfast::topology::{Machine, Nic, NicConnecting, PriorityMatrix};
use handfast_environment::Environment;
use serde::Serialize;
use std::fmt::Write as _;
use std::path::PathBuf;

/// Show which NICs are near which memory
///
/// Lists the NUMA nodes, RDMA devices and accelerators of this machine as the kernel reports them, how
/// the queue pairs of each device connect, and the preferred NICs for memory at each location. Changes
/// nothing.
#[derive(Args)]
#[command(after_long_help = help::TOPOLOGY)]
pub(crate) struct Topology {
    /// Print everything as one line of JSON
    #[arg(long, conflicts_with = "matrix")]
    json: bool,
    /// Print only the matrix, in the form that Mooncake reads and publishes
    #[arg(long)]
    matrix: bool,
    /// Print the machine as a graph for Graphviz, with an edge from each accelerator to its NICs
    #[arg(long, conflicts_with_all = ["json", "matrix"])]
    dot: bool,
    /// Folder to read below, such as a copy of another machine's /sys
    #[arg(long, value_name = "FOLDER", default_value = "/")]
    root: PathBuf,
}

#[derive(Serialize)]
struct Whole<'a> {
    #[serde(flatten)]
    machine: &'a Machine,
    matrix: &'a PriorityMatrix,
}

pub(crate) fn run(arguments: Topology) -> Outcome {
    let mut machine = Machine::discover(&arguments.root)?;
    // A malformed environment is an error of the commands that move bytes.
    let forced = Environment::read()
        .is_ok_and(|environment| environment.rdma(RdmaOptions::default()).connection_manager);
    if forced {
        force(&mut machine);
    }
    let matrix = machine.matrix();
    if arguments.dot {
        return output::say(format_args!("{}", graph(&machine, &matrix)));
    }
    if arguments.matrix {
        return output::say(format_args!("{}", matrix.to_json()));
    }
    if arguments.json {
        return output::say_json(&Whole { machine: &machine, matrix: &matrix });
    }
    output::say(format_args!("{}", facts(&machine, &matrix).text(columns())))
}

/// Connects every queue pair through the connection manager, as the environment says.
fn force(machine: &mut Machine) {
    for nic in &mut machine.nics {
        if nic.connecting == NicConnecting::OutOfBand {
            nic.connecting = NicConnecting::ConnectionManager("HANDFAST_RDMA_CM is 1");
        }
    }
}

/// Returns a Graphviz graph: a cluster per NUMA node, and an edge from each accelerator to its
/// NICs.
fn graph(machine: &Machine, matrix: &PriorityMatrix) -> String {
    let mut text = String::from("digraph machine {\n  rankdir=LR; node [shape=box];\n");
    let known = |numa: Option<u32>| machine.nodes.iter().find(|node| Some(node.number) == numa);
    let mut device = |name: &str, note: String, numa: Option<u32>| {
        let device = format!("{name:?} [label={:?}];", format!("{name}\n{note}"));
        let _ = match known(numa) {
            Some(node) => {
                let number = node.number;
                let title = format!("NUMA node {number}");
                writeln!(text, "  subgraph cluster_{number} {{ label={title:?}; {device} }}")
            }
            None => writeln!(text, "  {device}"),
        };
    };
    for gpu in &machine.gpus {
        device(&gpu.location, gpu.pci.clone(), gpu.numa);
    }
    for nic in &machine.nics {
        let state = if nic.active { "" } else { ", no active port" };
        device(&nic.name, format!("{} {}{state}", nic.kind, nic.pci), nic.numa);
    }
    for gpu in &machine.gpus {
        for nic in matrix.nics(&gpu.location).preferred {
            let _ = writeln!(text, "  {:?} -> {nic:?};", gpu.location);
        }
    }
    text.push('}');
    text
}

fn facts(machine: &Machine, matrix: &PriorityMatrix) -> Facts {
    let mut facts = Facts::default();
    for node in &machine.nodes {
        let others = machine.nodes.iter().zip(&node.distances);
        let distances: Vec<String> = others
            .filter(|(other, _)| other.number != node.number)
            .map(|(other, distance)| format!("{distance} to node {}", other.number))
            .collect();
        let cpus = if node.cpus.is_empty() { "unknown" } else { &node.cpus };
        let far = if distances.is_empty() {
            String::new()
        } else {
            format!(", distance {}", distances.join(", "))
        };
        facts.add(format!("node {}", node.number), format!("processors {cpus}{far}"));
    }
    for nic in &machine.nics {
        facts.add(format!("nic {}", nic.name), describe(nic));
    }
    for gpu in &machine.gpus {
        facts.add(format!("gpu {}", gpu.location), format!("{}, {}", place(gpu.numa), gpu.pci));
    }
    if machine.nics.is_empty() {
        facts.add("nics", "none: no RDMA device on this machine; bytes go over TCP");
        return facts;
    }
    for (location, nics) in matrix.locations() {
        let list =
            |names: &[String]| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        let others = match nics.available.is_empty() {
            true => String::new(),
            false => format!(", then {}", list(&nics.available)),
        };
        facts.add(format!("for {location}"), format!("{}{others}", list(&nics.preferred)));
    }
    facts
}

fn describe(nic: &Nic) -> String {
    let active = if nic.active { "active" } else { "no active port, not used" };
    let pci = if nic.pci.is_empty() { "no PCI address" } else { &nic.pci };
    let connecting = connecting(nic.connecting);
    format!("{}, {}, {pci}, {active}; {connecting}", nic.kind, place(nic.numa))
}

fn connecting(connecting: NicConnecting) -> String {
    const MANAGER: &str = "queue pairs connect through the connection manager";
    match connecting {
        NicConnecting::OutOfBand => "queue pairs connect out of band".to_owned(),
        NicConnecting::ConnectionManager(why) => format!("{MANAGER}: {why}"),
        NicConnecting::Never(why) => format!("no lanes: {why}"),
        other => format!("queue pairs connect as {other:?}"),
    }
}

fn place(numa: Option<u32>) -> String {
    numa.map_or("node unknown".to_owned(), |node| format!("node {node}"))
}
