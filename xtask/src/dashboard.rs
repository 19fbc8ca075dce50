//! `cargo xtask dashboard`: every query of the Grafana dashboard against live nodes.

use crate::guest::Packages;
use crate::project::Project;
use crate::report::{Stage, Step, Summary, as_skipped};
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Run every query of docs/grafana/handfast.json against live nodes
///
/// Starts `handfast serve` with `--metrics`, the example `metrics` as its peer, and Debian's
/// Prometheus, all on loopback; restarts the server once. Each query must return data, or is listed
/// with the reason why it returns none. Prometheus is unpacked below cargo's target folder.
///
/// Exit code: 0 if every query did, 1 if one did not.
#[derive(clap::Args)]
pub(crate) struct Arguments {}

static PACKAGES: Packages = Packages::of_system("prometheus", &["prometheus"]);

const DASHBOARD: &str = "docs/grafana/handfast.json";
const BUDGET: Duration = Duration::from_secs(900);
/// Timeout of a query. Scrapes happen once a second, so it would find data long before.
const DATA_WITHIN: Duration = Duration::from_secs(60);
/// Families without series in this setup, with the reason.
const EMPTY: [(&str, &str); 3] = [
    ("handfast_rail_nic_bytes", "counted by engines with several RDMA devices"),
    ("handfast_peer_refusals_sent", "no call is refused here"),
    ("handfast_peer_refusals_received", "no call is refused here"),
];

pub(crate) const WHAT: &str = "every query of the Grafana dashboard against live nodes";

pub(crate) fn run(project: &Project) -> bool {
    let mut summary = Summary::default();
    let steps = vec![step(project)];
    summary.run(Stage { name: "dashboard", what: WHAT, budget: BUDGET, steps });
    summary.finish()
}

pub(crate) fn step(project: &Project) -> Step<'_> {
    Step::new("dashboard", |deadline| {
        let unpacked = PACKAGES.ensure(project, deadline).map_err(as_skipped)?;
        let build = ["build", "--workspace", "--bin", "handfast", "--example", "metrics"];
        project.run(project.cargo(&build), "dashboard-build", deadline)?;
        check(project, &unpacked.join("usr/bin"))
    })
}

/// A process that is killed when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Either call fails only when the process is gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    /// Starts `command` and returns the rest of its first line with `prefix`.
    fn start(command: &mut Command, prefix: &str) -> Result<(Self, String)> {
        let name = command.get_program().to_string_lossy().into_owned();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = Self(command.spawn().with_context(|| format!("starting {name}"))?);
        let output = child.0.stdout.take().context("its output")?;
        let mut lines = BufReader::new(output).lines();
        while let Some(line) = lines.next().transpose()? {
            if let Some(rest) = line.strip_prefix(prefix) {
                let rest = rest.to_owned();
                // A full pipe would stop the process.
                thread::spawn(move || lines.count());
                return Ok((child, rest));
            }
        }
        bail!("{name} ended before it printed '{prefix}'")
    }
}

fn check(project: &Project, programs: &Path) -> Result<String> {
    let queries = queries(&dashboard(project.root())?);
    let folder = project.scratch().join("dashboard");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    let (listen, metrics) = (free_address()?, free_address()?);
    let serve = || {
        let mut command = Command::new(project.target().join("debug/handfast"));
        command.args(["serve", "--listen", &listen, "--memory", "notes=1M", "--metrics", &metrics]);
        Running::start(&mut command, "ready")
    };
    let (server, _) = serve()?;
    let mut peer = Command::new(project.target().join("debug/examples/metrics"));
    peer.args([&format!("{listen}/notes"), "127.0.0.1:0"]);
    let (_peer, of_peer) = Running::start(&mut peer, "metrics at ")?;
    let prometheus = Prometheus::start(programs, &folder, &[&metrics, &of_peer])?;

    let scraped = "count(count_over_time(handfast_node_info[1m]) > 2) == 2";
    prometheus.until_data(&[scraped.to_owned()], DATA_WITHIN)?;
    drop(server);
    let _server = serve()?;
    let pending = prometheus.until_data(&queries, DATA_WITHIN)?;
    judge(&queries, &pending)
}

/// Returns the result, from the queries without data.
fn judge(queries: &[String], pending: &[String]) -> Result<String> {
    let reason = |query: &String| EMPTY.iter().find(|(family, _)| query.contains(family));
    let fault = |query: &String| match (pending.contains(query), reason(query)) {
        (true, None) => Some(format!("no data: {query}")),
        (false, Some((_, reason))) => Some(format!("has data, though {reason}: {query}")),
        _ => None,
    };
    let faults: Vec<_> = queries.iter().filter_map(fault).collect();
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    let reasons: Vec<_> =
        EMPTY.iter().map(|(family, reason)| format!("{family}: {reason}")).collect();
    Ok(format!(
        "{} queries, {} of them empty ({})",
        queries.len(),
        pending.len(),
        reasons.join("; ")
    ))
}

struct Prometheus {
    promtool: PathBuf,
    url: String,
    _process: Running,
}

impl Prometheus {
    fn start(programs: &Path, folder: &Path, targets: &[&str]) -> Result<Self> {
        let config = folder.join("prometheus.yml");
        let text = format!(
            "global: {{ scrape_interval: 1s, scrape_timeout: 1s }}\n\
             scrape_configs: [{{ job_name: handfast, static_configs: [{{ targets: {targets:?} }}] }}]\n"
        );
        fs::write(&config, text)?;
        let log = File::create(folder.join("prometheus.log"))?;
        let address = free_address()?;
        let mut command = Command::new(programs.join("prometheus"));
        command
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let process = Running(command.spawn().context("starting prometheus")?);
        let promtool = programs.join("promtool");
        Ok(Self { promtool, url: format!("http://{address}"), _process: process })
    }

    /// Queries until each query has returned data or the timeout expires; returns those without
    /// data.
    ///
    /// # Errors
    /// A query was rejected, or Prometheus does not answer.
    fn until_data(&self, queries: &[String], within: Duration) -> Result<Vec<String>> {
        let end = Instant::now() + within;
        let mut pending = queries.to_vec();
        loop {
            let mut error = None;
            pending.retain(|query| match self.has_data(query) {
                Ok(found) => !found,
                Err(why) => {
                    error = Some(why);
                    true
                }
            });
            match error {
                _ if pending.is_empty() => return Ok(pending),
                Some(why) if Instant::now() >= end => return Err(why),
                None if Instant::now() >= end => return Ok(pending),
                _ => thread::sleep(Duration::from_millis(500)),
            }
        }
    }

    fn has_data(&self, query: &str) -> Result<bool> {
        let arguments = ["query", "instant", "--format=json", &self.url, query];
        let output = Command::new(&self.promtool).args(arguments).output().context("promtool")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{query}: {}", errors.trim());
        let result: Value = serde_json::from_slice(&output.stdout).context("promtool's answer")?;
        Ok(result.as_array().is_some_and(|series| !series.is_empty()))
    }
}

/// Returns a loopback port that was free a moment ago.
fn free_address() -> Result<String> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
}

fn dashboard(root: &Path) -> Result<Value> {
    let text = fs::read_to_string(root.join(DASHBOARD)).context(DASHBOARD)?;
    serde_json::from_str(&text).context(DASHBOARD)
}

/// Returns the expressions of all panels, with Grafana's variables replaced.
fn queries(dashboard: &Value) -> Vec<String> {
    let panels = dashboard["panels"].as_array().into_iter().flatten();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let expressions = targets.filter_map(|target| target["expr"].as_str());
    let variables = [("$instance", ".*"), ("$__rate_interval", "30s"), ("$__range", "1m")];
    let replace = |text: String, (name, value): &(&str, &str)| text.replace(name, value);
    expressions.map(|text| variables.iter().fold(text.to_owned(), replace)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn shipped() -> (PathBuf, Value) {
        let root = Project::find().unwrap().root().to_owned();
        let dashboard = dashboard(&root).unwrap();
        (root, dashboard)
    }

    #[test]
    fn query_names_families_of_the_schema() {
        let (root, dashboard) = shipped();
        let schema = fs::read_to_string(root.join("docs/schema/metrics.txt")).unwrap();
        let types = schema.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
        let names: BTreeSet<String> = types
            .flat_map(|(name, kind)| {
                let endings: &[&str] = match kind {
                    "counter" => &["_total"],
                    "histogram" => &["_bucket", "_sum", "_count"],
                    "info" => &["_info"],
                    _ => &[""],
                };
                endings.iter().map(move |ending| format!("{name}{ending}"))
            })
            .collect();
        let queries = queries(&dashboard);
        assert!(queries.len() > 40, "{}", queries.len());
        for query in queries {
            let words = query.split(|c: char| !c.is_alphanumeric() && c != '_');
            let named: Vec<_> = words.filter(|word| word.starts_with("handfast_")).collect();
            assert!(!named.is_empty(), "{query}");
            assert!(named.iter().all(|name| names.contains(*name)), "{query}");
            assert!(!query.contains('$'), "{query}");
        }
    }

    #[test]
    fn panel_has_its_own_id_and_place() {
        let (_, dashboard) = shipped();
        let (mut ids, mut cells) = (BTreeSet::new(), BTreeSet::new());
        for panel in dashboard["panels"].as_array().unwrap() {
            assert!(ids.insert(panel["id"].as_u64().unwrap()), "{panel}");
            let side = |name: &str| panel["gridPos"][name].as_u64().unwrap();
            assert!(side("x") + side("w") <= 24, "{panel}");
            for (x, y) in (0..side("w")).flat_map(|x| (0..side("h")).map(move |y| (x, y))) {
                assert!(cells.insert((side("x") + x, side("y") + y)), "overlap: {panel}");
            }
        }
    }

    #[test]
    fn query_without_data_fails_unless_it_is_listed() {
        let queries = ["up".to_owned(), format!("rate({}_total[1m])", EMPTY[0].0)];
        assert!(judge(&queries, &queries[1..]).is_ok());
        let missing = judge(&queries, &queries).unwrap_err().to_string();
        assert_eq!(missing, "no data: up");
        let outdated = judge(&queries, &[]).unwrap_err().to_string();
        assert!(outdated.starts_with("has data, though"), "{outdated}");
    }
}
