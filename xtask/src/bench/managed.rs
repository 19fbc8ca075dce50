//! Transfers through the connection manager against perftest's, in turns in one guest, on each software
//! device.

use super::targets::Target;
use crate::project::Project;
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Rounds, in each of which every workload runs with either program.
const ROUNDS: usize = 5;
/// Time limit of a guest with its boot.
const LIMIT: Duration = Duration::from_secs(420);
const GUEST_SECONDS_MAX: &str = "360";
/// The devices: the guest's, what they are, and the program's option.
const DEVICES: [(&str, &str, &str); 2] =
    [("siw", "soft-iWARP", ""), ("rxe", "soft-RoCE", "--rdma-cm")];
/// Seconds of a run of perftest, those at either end that are not counted, and those in between. Its own
/// rates follow from the rate of the processor's clock, which is measured wrongly in an emulated guest.
const PERFTEST_SECONDS: &str = "4";
const MARGIN_SECONDS: &str = "1";
const COUNTED_SECONDS: f64 = 2.0;
/// Steps of a dial, in their order.
const STEPS: [&str; 5] = ["address_us", "route_us", "connect_us", "established_us", "ready_us"];

/// A workload: perftest's program, operation, bytes, outstanding requests, and the ratio that is wanted.
struct Workload {
    perftest: &'static str,
    operation: &'static str,
    bytes: u32,
    outstanding: u32,
    wanted: f64,
}

const WORKLOADS: [Workload; 3] = [
    Workload {
        perftest: "ib_write_bw",
        operation: "write",
        bytes: 1 << 20,
        outstanding: 8,
        wanted: 0.9,
    },
    Workload {
        perftest: "ib_write_bw",
        operation: "write",
        bytes: 4 << 10,
        outstanding: 32,
        wanted: 0.7,
    },
    Workload {
        perftest: "ib_read_bw",
        operation: "read",
        bytes: 64 << 10,
        outstanding: 16,
        wanted: 0.9,
    },
];

/// Plays the workloads in turns, then first transfers. The server of perftest listens once its device is
/// set up, which nothing reports: its client tries until then. Either side may dial, so that both log.
const SCRIPT: &str = r#"
program=$1 nics=$2 option=$3 rounds=$4 seconds=$5 margin=$6
shift 6
"$program" serve --open --listen 10.0.0.2:7411 --transport rdma --device ${nics}1 $option \
    --memory m=16M >/dev/null 2>&1 & server=$!
"$program" -vv serve --open --listen 10.0.0.2:7412 --transport rdma --device ${nics}1 $option \
    --memory m=1M >>/tmp/dials 2>&1 & other_server=$!
ours="--transport rdma --device ${nics}0 $option --json --rounds 1"
play() {
    words="-R -F -s $3 -t $4 -D $seconds -f $margin -p 18601"
    timeout 60 $1 -d ${nics}1 $words >/dev/null 2>&1 & other=$!
    line=
    for try in $(seq 100); do
        line=$(timeout 60 $1 -d ${nics}0 $words 10.0.0.2 2>/dev/null | grep "^ *$3 ") && break
        sleep 0.1
    done
    wait $other
    echo "perftest: $line"
    line=$("$program" bench 10.0.0.2:7411/m $ours --size $3 --batch $4 --operation $2 \
        --duration 2s) || exit 1
    echo "handfast: $line"
}
for round in $(seq "$rounds"); do
    for workload in "$@"; do play $workload; done
done
line=$("$program" -vv bench 10.0.0.2:7412/m $ours --size 4096 --batch 1 --operation write \
    --duration 50ms --first-transfer 2>>/tmp/dials) || exit 1
echo "first: $line"
kill $server $other_server
wait
grep dialled /tmp/dials | sed 's/^/dial: /'
"#;

/// Figures of a device.
struct Managed {
    nics: &'static str,
    device: &'static str,
    /// Of each workload the rates of each round in MiB/s: perftest's and the program's.
    rates: Vec<Vec<(f64, f64)>>,
    /// Of each step of a dial the median, in microseconds, and the dials.
    steps: Option<([f64; STEPS.len()], usize)>,
    first: Value,
}

/// Measures on both devices, and returns the figures for `guest.json`, the page and the targets.
pub(super) fn measure(project: &Project, program: &Path) -> Result<(Value, String, Vec<Target>)> {
    let mut all = Vec::new();
    for (nics, device, option) in DEVICES {
        println!("measuring transfers through the connection manager on {device}, in the guest");
        let mut command = Command::new(std::env::current_exe()?);
        command.current_dir(project.root()).args(["guest", "--nics", nics]);
        command.args(["--limit", GUEST_SECONDS_MAX, "--", "sh", "-c", SCRIPT, "sh"]);
        command.arg(program).args([nics, option]).arg(ROUNDS.to_string());
        command.args([PERFTEST_SECONDS, MARGIN_SECONDS]);
        command.args(WORKLOADS.iter().map(|it| {
            let Workload { perftest, operation, bytes, outstanding, .. } = it;
            format!("{perftest} {operation} {bytes} {outstanding}")
        }));
        let log = format!("bench-guest-{nics}");
        let output = project.run(command, &log, Instant::now() + LIMIT)?;
        let measured = read(&output, (nics, device)).with_context(|| format!("on {device}"))?;
        ensure!(
            measured.rates.iter().all(|rates| rates.len() == ROUNDS),
            "not every round was measured on {device}"
        );
        all.push(measured);
    }
    let targets: Vec<Target> = all.iter().flat_map(Managed::targets).collect();
    let figures = all.iter().map(Managed::to_json).collect();
    Ok((figures, page(&all, &targets, super::commit(project).as_deref()), targets))
}

/// Reads the output of the script.
fn read(output: &str, (nics, device): (&'static str, &'static str)) -> Result<Managed> {
    let lines = |prefix: &'static str| {
        output.lines().filter_map(move |line| line.trim().strip_prefix(prefix))
    };
    let mut rates: Vec<Vec<(f64, f64)>> = WORKLOADS.iter().map(|_| Vec::new()).collect();
    for (at, (theirs, own)) in lines("perftest:").zip(lines("handfast:")).enumerate() {
        let theirs = counted(theirs).with_context(|| format!("of perftest: {theirs}"))?;
        let own: Value = serde_json::from_str(own).context("the output of handfast bench")?;
        let own = own["workloads"][0]["gib_per_s"].as_f64().context("no rate")?;
        rates[at % WORKLOADS.len()].push((theirs, own * 1024.0));
    }
    let first = lines("first:").next().context("no first transfer")?;
    let first: Value = serde_json::from_str(first).context("the first transfers")?;
    let dials: Vec<[f64; STEPS.len()]> = lines("dial:").filter_map(steps).collect();
    let medians = || std::array::from_fn(|at| median(dials.iter().map(|it| it[at]).collect()));
    let steps = (!dials.is_empty()).then(|| (medians(), dials.len()));
    Ok(Managed { nics, device, rates, steps, first: first["first_transfer_us"].clone() })
}

/// The rate of a line of perftest, which begins with bytes and iterations, in MiB/s.
fn counted(line: &str) -> Option<f64> {
    let mut words = line.split_whitespace().map(str::parse::<f64>);
    let (bytes, iterations) = (words.next()?.ok()?, words.next()?.ok()?);
    Some(bytes * iterations / f64::from(1 << 20) / COUNTED_SECONDS).filter(|rate| *rate > 0.0)
}

/// The steps of a logged dial.
fn steps(line: &str) -> Option<[f64; STEPS.len()]> {
    let mut of = STEPS.map(|_| None);
    for word in line.split_whitespace() {
        let (name, value) = word.split_once('=').unwrap_or_default();
        if let Some(at) = STEPS.iter().position(|step| *step == name) {
            of[at] = value.parse().ok();
        }
    }
    of.into_iter().collect::<Option<Vec<f64>>>()?.try_into().ok()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

impl Managed {
    fn targets(&self) -> impl Iterator<Item = Target> {
        WORKLOADS.iter().zip(&self.rates).map(|(workload, rates)| {
            let Workload { perftest, operation, bytes, outstanding, wanted, .. } = workload;
            let ratios = || rates.iter().map(|(theirs, own)| own / theirs);
            let least = ratios().fold(f64::INFINITY, f64::min);
            let most = ratios().fold(0.0, f64::max);
            let own = median(rates.iter().map(|it| it.1).collect());
            let theirs = median(rates.iter().map(|it| it.0).collect());
            let what = format!(
                "{}, {} KiB, {operation}, {outstanding} at a time: to {perftest} -R",
                self.device,
                bytes >> 10
            );
            let note = format!("{least:.2} to {most:.2}; {own:.1} MiB/s, {theirs:.1} of perftest");
            Target::at_least(what, *wanted, median(ratios().collect())).note(Some(note))
        })
    }

    fn to_json(&self) -> Value {
        let rates = self.rates.iter().zip(&WORKLOADS).map(|(rates, workload)| {
            let rounds: Vec<Value> = rates
                .iter()
                .map(|(theirs, own)| json!({ "perftest_mib_per_s": theirs, "mib_per_s": own }))
                .collect();
            json!({
                "operation": workload.operation, "bytes": workload.bytes,
                "outstanding": workload.outstanding, "rounds": rounds,
            })
        });
        let steps = self.steps.map(|(medians, dials)| {
            let of = STEPS.iter().zip(medians).map(|(step, us)| ((*step).to_owned(), json!(us)));
            json!({ "dials": dials, "median": of.collect::<serde_json::Map<_, _>>() })
        });
        json!({
            "nics": self.nics, "workloads": rates.collect::<Vec<_>>(),
            "first_transfer_us": self.first, "dial": steps,
        })
    }
}

/// Formats the page. Writing to a `String` cannot fail.
fn page(all: &[Managed], targets: &[Target], commit: Option<&str>) -> String {
    let mut text = format!(
        "# Through the connection manager\n\nMade by `cargo xtask bench --guest`; not edited. Commit \
         {}; an emulated guest of two processors, two devices of one driver joined by a link; \
         soft-RoCE with `--rdma-cm`. Handfast and perftest of the distribution (`-R`, the same device, \
         size and requests outstanding) run in turns, {ROUNDS} rounds; a ratio is the median of the \
         rounds' ratios. Only ratios are meaningful. Why some targets are missed: \
         [limits](limits.md).\n\n| figure | wanted | found | |\n| --- | --- | --- | --- |\n",
        commit.unwrap_or("unknown")
    );
    for target in targets {
        let (wanted, found, verdict) = (target.wanted(), target.found(), target.verdict());
        let _ = writeln!(text, "| {} | {wanted} | {found} | {verdict} |", target.what);
    }
    text += "\n## First transfer to a new peer\n\nMicroseconds, medians: 4 KiB, each time by a new \
             engine. The steps of the dial are those that the side that dials logs at `-vv`, and lie \
             within *wire* or, where the peer dials, within *exchange*: the peer's address, the route, \
             the call that connects, the event of the established connection, and from there until \
             the first read is answered.\n\n| | all | look-up | register | bring-up | exchange | wire \
             | write | address | route | connect | established | ready | dials |\n| --- | --- | --- | \
             --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n";
    for Managed { device, steps, first, .. } in all {
        let _ = write!(text, "| {device} | {} |", first["median"]);
        for stage in ["look_up", "register", "bring_up", "exchange", "wire", "write"] {
            let _ = write!(text, " {} |", first["stages"][stage]);
        }
        match steps {
            Some((medians, dials)) => {
                for us in medians {
                    let _ = write!(text, " {us:.0} |");
                }
                let _ = writeln!(text, " {dials} |");
            }
            None => text += " - | - | - | - | - | 0 |\n",
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rates of rounds, steps of dials and first transfers are read, and stand on the page.
    #[test]
    fn figures_of_the_guest_are_read() {
        let theirs = "perftest:  1048576  40   30.18   0.00    0.000024";
        let own = r#"handfast: {"workloads":[{"gib_per_s":0.015625}]}"#;
        let dial = "dial: DEBUG x: dialled address_us=10 route_us=5 connect_us=30 established_us=0 \
                    ready_us=7";
        let first = r#"first: {"first_transfer_us":{"median":900,"stages":{"wire":60}}}"#;
        let round = format!("{theirs}\r\n{own}\n").repeat(WORKLOADS.len());
        let output = format!("boot\n{round}{round}{first}\n{dial}\ndial: cut\n");
        let measured = read(&output, ("siw", "soft-iWARP")).unwrap();
        assert_eq!(measured.rates, [[(20.0, 16.0); 2]; 3]);
        assert_eq!(measured.steps, Some(([10.0, 5.0, 30.0, 0.0, 7.0], 1)));
        let targets: Vec<Target> = measured.targets().collect();
        assert_eq!(targets.iter().map(Target::is_met).collect::<Vec<_>>(), [false, true, false]);
        let page = page(&[measured], &targets, None);
        assert!(page.contains("| 0.80 (0.80 to 0.80; 16.0 MiB/s, 20.0 of perftest) | missed |"));
        assert!(page.contains("| soft-iWARP | 900 | null | null | null | null | 60 | null | 10 |"));
        assert!(read("", ("siw", "soft-iWARP")).is_err());
        assert!(read(&format!("perftest: \n{own}\n{first}\n"), ("siw", "x")).is_err());
    }
}
