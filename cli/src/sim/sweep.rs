//! `handfast sim sweep`.

use super::case::{Usage, Variant, cannot_carry, parse_device, parse_scenario, parse_traffic};
use super::pool;
use super::show::{Facts, broken, columns, coverage_json, grouped, tell_coverage, violation_json};
use crate::failure::{Failure, Outcome};
use crate::progress::Progress;
use crate::{help, output, size};
use clap::Args;
use handfast_sim::sweep::{Swarm, Swarmed};
use handfast_sim::{Coverage, Ground, Scenario, Traffic};
use handfast_transport_sim::Violation;
use handfast_transport_sim::verbs::Profile;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// Default number of seeds, without a number and a duration.
const SEEDS: u64 = 1_000;
/// Interval of progress lines of a sweep without a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(60);

/// Run random schedules with many faults, and check that the world recovers
///
/// Prints the number of seeds, events and faults, the rates and the coverage. The first seed that
/// breaks an oracle ends the sweep; the last printed line replays it.
#[derive(Args)]
#[command(after_long_help = help::SIM_SWEEP)]
pub(crate) struct Sweep {
    /// Number of seeds [default: 1000, unless a duration is given]
    #[arg(long, value_name = "COUNT", conflicts_with_all = ["minutes", "time"])]
    seeds: Option<u64>,
    /// Duration of the sweep, in minutes
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    minutes: Option<u64>,
    /// Duration of the sweep, such as 30s
    #[arg(long, value_name = "TIME", value_parser = size::parse_duration,
          conflicts_with = "minutes")]
    time: Option<Duration>,
    /// The first seed
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    from: u64,
    /// Scenarios to draw from [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_scenario)]
    scenario: Vec<Scenario>,
    /// Devices to draw from [default: strict]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_device)]
    device: Vec<&'static Profile>,
    /// Kinds of traffic to draw from [default: no transfers]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_traffic)]
    traffic: Vec<Traffic>,
    /// Four nodes of two NICs each with 200 transfers between them: --scenario Fleet --traffic
    /// Fleet, with up to 2000 events and 24 faults
    #[arg(long, conflicts_with_all = ["scenario", "traffic"])]
    fleet: bool,
    #[command(flatten)]
    usage: Usage,
    /// Maximum number of events of a schedule [default: 400]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    events: Option<u32>,
    /// Maximum number of faults of a schedule [default: 12]
    #[arg(long, value_name = "COUNT")]
    faults: Option<u32>,
    /// Number of seeds run in parallel
    #[arg(long, value_name = "COUNT", default_value_t = 2,
          value_parser = clap::value_parser!(u8).range(1..=64))]
    threads: u8,
    #[command(flatten)]
    variant: Variant,
    /// Print the result as one line of JSON, and no progress
    #[arg(long)]
    json: bool,
}

/// The summary of a sweep.
#[derive(Default, Serialize)]
struct Tally {
    seeds: u64,
    events: u64,
    faults: u64,
}

impl Tally {
    fn add(&mut self, swarmed: &Swarmed) {
        self.seeds += 1;
        self.events += u64::from(swarmed.run.events);
        self.faults += u64::from(swarmed.run.faults);
    }
}

/// The outcome of a sweep.
struct Swept {
    total: Tally,
    took: Duration,
    /// All trace hashes, folded in the order of their seeds.
    hashes: u128,
    scenarios: BTreeMap<String, Tally>,
    schedulers: BTreeMap<String, Tally>,
    coverage: Coverage,
    broken: Option<Broken>,
}

/// The seed that broke an oracle.
struct Broken {
    seed: u64,
    violation: Violation,
    events: usize,
    line: String,
}

impl Broken {
    fn of(seed: u64, swarmed: Swarmed) -> Option<Self> {
        let line = swarmed.line?.to_string();
        let events = swarmed.run.schedule.len();
        Some(Self { seed, violation: swarmed.run.violation?, events, line })
    }
}

pub(super) fn run(arguments: Sweep) -> Outcome {
    let swarm = swarm(&arguments)?;
    let swept = sweep(&arguments, &swarm);
    if arguments.json {
        output::say_json(&json(&arguments, &swept))?;
    } else {
        output::say(format_args!("{}", facts(&arguments, &swept).text(columns())))?;
    }
    let Some(Broken { seed, violation, events, line }) = swept.broken else { return Ok(()) };
    if !arguments.json {
        let Violation { oracle, detail } = &violation;
        output::say(format_args!(
            "\nseed {seed} breaks {oracle:?} after {events} events: {detail}\n\
             'handfast sim minimize LINE' shrinks it, 'handfast sim timeline LINE' draws it:\n{line}"
        ))?;
    }
    Err(broken(&violation, line))
}

/// Returns each value as `Some`, or a single `None` if there are no values.
fn some_or_none<T: Copy>(values: &[T]) -> Vec<Option<T>> {
    if values.is_empty() { vec![None] } else { values.iter().copied().map(Some).collect() }
}

fn swarm(arguments: &Sweep) -> Result<Swarm, Failure> {
    let Sweep { scenario, device, traffic, usage, fleet, .. } = arguments;
    let traffic = if *fleet { vec![Some(Traffic::Fleet)] } else { some_or_none(traffic) };
    let device = some_or_none(device);
    let on = |device| traffic.iter().map(move |traffic| usage.devices(device, *traffic));
    let grounds: Vec<Ground> = device.into_iter().flat_map(on).collect();
    let all = || Scenario::ALL.into_iter().chain([Scenario::Transfers]);
    let carries =
        |scenario: &Scenario| traffic.iter().flatten().all(|traffic| scenario.carries(*traffic));
    let scenarios: Vec<Scenario> = match scenario.as_slice() {
        _ if *fleet => vec![Scenario::Fleet],
        [] if traffic == [None] => Scenario::ALL.to_vec(),
        [] if traffic.contains(&Some(Traffic::Fleet)) => vec![Scenario::Fleet],
        [] => all().filter(carries).collect(),
        some => some.to_vec(),
    };
    if let Some(cannot) = scenarios.iter().find(|scenario| !carries(scenario)) {
        let traffic = traffic.iter().flatten().find(|traffic| !cannot.carries(**traffic));
        return Err(cannot_carry(*cannot, traffic.copied().unwrap_or(Traffic::Fleet)));
    }
    let usual = if *fleet { Swarm::fleet() } else { Swarm::default() };
    Ok(Swarm {
        scenarios,
        grounds,
        variant: arguments.variant.entry,
        events_max: arguments.events.unwrap_or(usual.events_max),
        faults_max: arguments.faults.unwrap_or(usual.faults_max),
    })
}

fn sweep(arguments: &Sweep, swarm: &Swarm) -> Swept {
    let started = Instant::now();
    let time =
        arguments.time.or(arguments.minutes.map(|minutes| Duration::from_secs(60 * minutes)));
    let seeds = match time {
        Some(_) => u64::MAX - arguments.from,
        None => arguments.seeds.unwrap_or(SEEDS),
    };
    let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let length = time.map_or(seeds, milliseconds);
    let template = "sweep {percent:>3}% {msg}";
    let mut progress = Progress::start(length, template, LINE_INTERVAL, arguments.json);
    let (mut total, mut hashes, mut broken) = (Tally::default(), 0_u128, None);
    let (mut scenarios, mut schedulers) = (BTreeMap::new(), BTreeMap::new());
    let coverage =
        pool::play(swarm, (arguments.from, seeds), arguments.threads, |seed, swarmed| {
            total.add(&swarmed);
            let scenario = format!("{:?}", swarmed.case.scenario);
            let scheduler = swarmed.random.scheduler.kind().to_owned();
            scenarios.entry(scenario).or_insert_with(Tally::default).add(&swarmed);
            schedulers.entry(scheduler).or_insert_with(Tally::default).add(&swarmed);
            hashes = hashes.rotate_left(1) ^ swarmed.run.trace_hash;
            if total.seeds.is_multiple_of(32) {
                progress.bar.set_message(format!("{} seeds", total.seeds));
            }
            let elapsed = started.elapsed();
            let position = if time.is_some() { milliseconds(elapsed) } else { total.seeds };
            progress.update(position, || {
                let (seeds, events) = (grouped(total.seeds), grouped(total.events));
                format!("{seeds} seeds and {events} events after {} s", elapsed.as_secs())
            });
            broken = Broken::of(seed, swarmed);
            match broken.is_some() || time.is_some_and(|time| elapsed >= time) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
    drop(progress);
    let took = started.elapsed();
    Swept { total, took, hashes, scenarios, schedulers, coverage, broken }
}

fn json(arguments: &Sweep, swept: &Swept) -> Value {
    let Swept { total: Tally { seeds, events, faults }, took, .. } = swept;
    let mut shown = json!({
        "from": arguments.from,
        "threads": arguments.threads,
        "seeds": seeds,
        "events": events,
        "faults": faults,
        "milliseconds": took.as_millis() as u64,
        "seeds_per_s": size::per_second(*seeds, *took),
        "events_per_s": size::per_second(*events, *took),
        "traces": format!("{:032x}", swept.hashes),
        "scenarios": swept.scenarios,
        "schedulers": swept.schedulers,
        "coverage": coverage_json(&swept.coverage),
    });
    if let Some(Broken { seed, violation, events, line }) = &swept.broken {
        let mut broken = violation_json(violation);
        broken["seed"] = (*seed).into();
        broken["events"] = (*events).into();
        broken["line"] = line.as_str().into();
        shown["broken"] = broken;
    }
    shown
}

fn facts(arguments: &Sweep, swept: &Swept) -> Facts {
    let mut facts = Facts::default();
    let (from, Swept { total: Tally { seeds, events, faults }, took, .. }) =
        (arguments.from, swept);
    let last = from.saturating_add(seeds.saturating_sub(1));
    facts.add("swept", format!("{} seeds, {from} to {last}", grouped(*seeds)));
    facts.add("events", format!("{}, {} of them faults", grouped(*events), grouped(*faults)));
    facts.add("time", format!("{} ms", grouped(took.as_millis() as u64)));
    let [seeds, events] = [*seeds, *events].map(|count| grouped(size::per_second(count, *took)));
    let threads = arguments.threads;
    facts.add("rates", format!("{seeds} seeds/s, {events} events/s on {threads} threads"));
    let list = |tallies: &BTreeMap<String, Tally>| {
        let shown = |(name, tally): (&String, &Tally)| format!("{name} {}", grouped(tally.seeds));
        tallies.iter().map(shown).collect::<Vec<_>>().join(", ")
    };
    facts.add("scenarios", list(&swept.scenarios));
    facts.add("schedulers", list(&swept.schedulers));
    tell_coverage(&swept.coverage, &mut facts);
    facts.add("traces", format!("{:032x}", swept.hashes));
    let is_broken = swept.broken.is_some();
    facts.add("ending", if is_broken { "an oracle does not hold" } else { "every oracle holds" });
    facts
}
