//! A single write on soft-RoCE against perftest's, in turns in one guest.

use super::targets::lone_write;
use crate::project::Project;
use crate::verbs::VerbsBuild;
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Pairs of runs, first perftest's and then the program's.
const PAIRS: usize = 7;
/// Time limit of the headers, and of the guest with its boot.
const LIMIT: Duration = Duration::from_secs(600);
const GUEST_SECONDS_MAX: &str = "400";
/// Bytes of a write, as both programs name them.
const BYTES: &str = "4096";
/// The words in front of the figures of each program.
const PERFTEST: &str = "perftest:";
const HANDFAST: &str = "handfast:";

/// Runs both programs in turns. The guest's links carry packets of 1,024 bytes. The server of perftest
/// listens once its device is set up, which nothing reports: its client tries until then.
const SCRIPT: &str = r#"
program=$1 pairs=$2
words="-x 1 -F -m 1024 -s 4096 -n 2000 -p 18601"
"$program" serve --open --listen 10.0.0.2:7411 --transport rdma --device rxe1 --polling event \
    --memory m=1M >/dev/null & server=$!
for pair in $(seq "$pairs"); do
    ib_write_lat -d rxe1 $words >/dev/null 2>&1 & other=$!
    for try in $(seq 100); do
        line=$(ib_write_lat -d rxe0 $words 10.0.0.2 2>/dev/null | grep '^ *4096 ') && break
        sleep 0.1
    done
    if [ -z "$line" ]; then
        kill $other $server
        echo "perftest never answered" >&2
        exit 1
    fi
    wait $other
    echo "perftest: $line"
    line=$("$program" bench 10.0.0.2:7411/m --transport rdma --device rxe0 --polling event --json \
        --latency --size 4K --batch 1 --operation write --rounds 1 --duration 500ms) || exit 1
    echo "handfast: $line"
done
kill $server
"#;

/// Measures, writes `guest.json` and `guest.md`, and returns whether the target is met.
pub(super) fn run(project: &Project, program: Option<&Path>, folder: &Path) -> Result<bool> {
    let program = match program {
        Some(program) => program.canonicalize().context("the program")?,
        None => build(project)?,
    };
    println!("measuring single writes in the guest");
    let mut command = Command::new(std::env::current_exe()?);
    command.current_dir(project.root());
    command.args(["guest", "--limit", GUEST_SECONDS_MAX, "--", "sh", "-c", SCRIPT, "sh"]);
    command.arg(&program).arg(PAIRS.to_string());
    let output = project.run(command, "bench-guest", Instant::now() + LIMIT)?;
    let pairs = pairs(&output)?;
    ensure!(pairs.len() == PAIRS, "{} of {PAIRS} pairs were measured", pairs.len());
    let target = lone_write(&pairs);
    let measured: Vec<Value> =
        pairs.iter().map(|(perftest, own)| json!({ "perftest_us": perftest, "us": own })).collect();
    let (managed, page, targets) = super::managed::measure(project, &program)?;
    let figures = json!({
        "commit": super::commit(project), "bytes": 4_096, "pairs": measured,
        "target": target.to_json(), "managed": managed,
        "managed_targets": targets.iter().map(super::targets::Target::to_json).collect::<Vec<_>>(),
    });
    fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    fs::write(folder.join("guest.json"), serde_json::to_string_pretty(&figures)? + "\n")?;
    fs::write(folder.join("guest.md"), page)?;
    let all: Vec<_> = std::iter::once(target).chain(targets).collect();
    print!("\n{}", super::page::terminal(&all));
    Ok(all.iter().all(super::targets::Target::is_met))
}

/// Builds the program with RDMA.
fn build(project: &Project) -> Result<PathBuf> {
    println!("building handfast with RDMA");
    let mut build = project.cargo(&["build", "--quiet", "--release", "-p", "handfast-cli"]);
    build.args(["--features", "verbs"]);
    VerbsBuild::prepare(project, Instant::now() + LIMIT)?.apply(&mut build);
    // A build here has no limit.
    let built = build.status().context("cargo build")?;
    ensure!(built.success(), "handfast does not build: {built}");
    Ok(project.target().join("release/handfast"))
}

/// Returns the microseconds of perftest and of the program, for each pair.
fn pairs(output: &str) -> Result<Vec<(f64, f64)>> {
    let lines =
        |prefix| output.lines().filter_map(move |line: &str| line.trim().strip_prefix(prefix));
    let mut pairs = Vec::new();
    for (perftest, own) in lines(PERFTEST).zip(lines(HANDFAST)) {
        let perftest = typical(perftest).with_context(|| format!("of perftest: {perftest}"))?;
        let own: Value = serde_json::from_str(own).context("the output of handfast bench")?;
        let own = own["latencies"][0]["us"]["p50"].as_f64().context("no median")?;
        pairs.push((perftest, own));
    }
    Ok(pairs)
}

/// The typical latency in a line of `ib_write_lat`: bytes, iterations, least, most, typical.
fn typical(line: &str) -> Option<f64> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let typical = words.get(4).filter(|_| words.first() == Some(&BYTES))?;
    typical.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The output of both programs is read in pairs; a line of perftest without figures is refused.
    #[test]
    fn figures_of_a_pair_are_read() {
        let own = r#"handfast: {"latencies":[{"us":{"mean":120.5,"p50":110.0,"p99":300.0}}]}"#;
        let theirs = "perftest:  4096    2000   52.1   900.4   66.25   70.1  12.0  120.0  300.0";
        let output = format!("boot\n{theirs}\r\n{own}\n{theirs}\n{own}\n");
        assert_eq!(pairs(&output).unwrap(), [(66.25, 110.0); 2]);
        assert!(pairs(&format!("perftest: \n{own}\n")).is_err());
        assert!(pairs(&format!("{theirs}\nhandfast: {{}}\n")).is_err());
        assert_eq!(pairs(theirs).unwrap(), []);
    }
}
