//! `handfast sim fleet`.

use super::show::{Facts, broken, columns, grouped, violation_json};
use crate::failure::{Failure, Outcome};
use crate::{help, output, size};
use clap::Args;
use handfast_sim::fleet::{Incident, Phase, Plan, Report};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Run thousands of nodes in virtual time, through a start and an incident
///
/// Prints the time until every node has its lanes, the calls and lifecycles of a node, the waits of
/// demands and the peaks of load. Every oracle is checked during the run and at rest.
#[derive(Args)]
#[command(after_long_help = help::SIM_FLEET)]
pub(crate) struct Fleet {
    /// Number of nodes, 3 to 100000
    #[arg(long, value_name = "COUNT", default_value_t = 1_000)]
    nodes: u32,
    /// Number of peers of each node, even
    #[arg(long, value_name = "COUNT", default_value_t = 16)]
    peers: u32,
    /// Seed of all randomness
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    seed: u64,
    /// Incidents to run, one fleet each: none, loss, outage, waves, rolling, rack
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_incident,
          default_value = "none")]
    incident: Vec<Incident>,
    /// Print one line of JSON for each fleet, with its course in steps of 100 ms
    #[arg(long)]
    json: bool,
}

fn parse_incident(name: &str) -> Result<Incident, String> {
    Incident::parse(name).ok_or_else(|| {
        let names = Incident::ALL.map(|incident| incident.to_string()).join(", ");
        format!("'{name}' is no incident; there are {names}")
    })
}

pub(super) fn run(arguments: Fleet) -> Outcome {
    for (at, incident) in arguments.incident.iter().enumerate() {
        let plan = Plan {
            incident: *incident,
            ..Plan::new(arguments.nodes, arguments.peers, arguments.seed)
        };
        let started = Instant::now();
        let report = plan.run().map_err(|error| Failure::Usage(error.to_string()))?;
        let took = started.elapsed();
        if arguments.json {
            output::say_json(&json(&plan, &report, took))?;
        } else {
            let gap = if at > 0 { "\n" } else { "" };
            output::say(format_args!("{gap}{}", facts(&plan, &report, took).text(columns())))?;
        }
        if let Some(violation) = &report.violation {
            let Plan { nodes, peers, seed, .. } = plan;
            let again = format!(
                "handfast sim fleet --nodes {nodes} --peers {peers} --seed {seed} --incident {incident}"
            );
            return Err(broken(violation, again));
        }
    }
    Ok(())
}

/// The names of the phases of a report.
fn names(incident: Incident) -> [String; 2] {
    ["start".to_owned(), incident.to_string()]
}

fn json(plan: &Plan, report: &Report, took: Duration) -> Value {
    let phase = |(name, phase): (String, &Phase)| {
        json!({
            "phase": name,
            "settled_ms": milliseconds(phase.settled),
            "calls": phase.calls,
            "lifecycles": phase.lifecycles,
            "failures": phase.failures,
            "demands_met": phase.waits.len(),
            "wait_ms": {
                "p50": milliseconds(phase.wait(500)),
                "p99": milliseconds(phase.wait(990)),
                "max": milliseconds(phase.wait(1_000)),
            },
            "calls_received_most": phase.calls_received_most,
            "queue_most": phase.queue_most,
            "turned_away": phase.turned_away,
        })
    };
    let phases: Vec<Value> =
        names(plan.incident).into_iter().zip(&report.phases).map(phase).collect();
    let mut shown = json!({
        "nodes": plan.nodes,
        "peers": plan.peers,
        "seed": plan.seed,
        "incident": plan.incident.to_string(),
        "phases": phases,
        "course_calls": report.course.iter().map(|bucket| bucket.calls).collect::<Vec<_>>(),
        "course_unmet": report.course.iter().map(|bucket| bucket.unmet).collect::<Vec<_>>(),
        "events": report.events,
        "hash": format!("{:016x}", report.hash),
        "milliseconds": took.as_millis() as u64,
        "memory_bytes": memory_bytes(),
    });
    if let Some(violation) = &report.violation {
        shown["broken"] = violation_json(violation);
    }
    shown
}

fn facts(plan: &Plan, report: &Report, took: Duration) -> Facts {
    let mut facts = Facts::default();
    let Plan { nodes, peers, seed, .. } = *plan;
    let each = |count: u64| format!("{:.1}", count as f64 / f64::from(nodes));
    facts.add(
        "fleet",
        format!("{} nodes with {peers} peers each, seed {seed}", grouped(u64::from(nodes))),
    );
    for (name, phase) in names(plan.incident).into_iter().zip(&report.phases) {
        let Phase { settled, calls, lifecycles, failures, .. } = phase;
        let settled = shown(*settled);
        let failed = if *failures > 0 {
            format!(", {} failed opens", each(*failures))
        } else {
            String::new()
        };
        let (calls, lifecycles) = (each(*calls), each(*lifecycles));
        facts.add(
            &*name,
            format!(
                "at rest after {settled}; for each node {calls} calls, {lifecycles} lifecycles{failed}"
            ),
        );
        let [half, most, all] = [500, 990, 1_000].map(|share| shown(phase.wait(share)));
        let count = grouped(phase.waits.len() as u64);
        facts
            .add("", format!("waits of {count} demands: median {half}, p99 {most}, longest {all}"));
        let (received, queue) = (phase.calls_received_most, phase.queue_most);
        let away = grouped(phase.turned_away);
        facts.add(
            "",
            format!(
                "busiest node: {received} calls in 100 ms, {queue} inputs waiting; {away} calls \
                 turned away"
            ),
        );
    }
    let events = grouped(report.events);
    let micros = took.as_micros() / u128::from(nodes);
    let millis = grouped(took.as_millis() as u64);
    facts.add("time", format!("{millis} ms for {events} events, {micros} us for each node"));
    if let Some(bytes) = memory_bytes() {
        let each = size::show(bytes / u64::from(nodes));
        facts.add("memory", format!("{} at most, {each} for each node", size::show(bytes)));
    }
    facts.add("hash", format!("{:016x}", report.hash));
    let broken = report.violation.is_some();
    facts.add("ending", if broken { "an oracle does not hold" } else { "every oracle holds" });
    facts
}

fn milliseconds(span: handfast_core::Duration) -> f64 {
    span.nanos() as f64 / 1e6
}

fn shown(span: handfast_core::Duration) -> String {
    match span.nanos() {
        nanos if nanos < 10_000_000_000 => format!("{:.1} ms", nanos as f64 / 1e6),
        nanos => format!("{:.1} s", nanos as f64 / 1e9),
    }
}

/// The largest resident memory of this process so far, where the system has a figure.
fn memory_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kilobytes * 1_024)
}
