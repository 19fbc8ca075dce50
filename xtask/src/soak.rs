//! `cargo xtask soak`: processes that move bytes for minutes while others of them are killed and
//! stopped, and every transfer is verified.

mod clients;
pub(crate) mod nodes;

use crate::features::Features;
use crate::project::Project;
use anyhow::{Context, Result, ensure};
use clients::{Client, Work};
use nodes::{Faults, Fleet, Held};
use std::fmt::{self, Display, Formatter};
use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Move bytes between processes over TCP, encrypted TCP and shared memory, and RDMA where there is a
/// device, while a seed kills, stops and starves them
///
/// Programs `handfast serve`, `put`, `get` and `metadata` run as their users run them. Servers and
/// clients are killed and stopped, servers run out of descriptors, the store of names is killed,
/// a disk is full. Two servers are stopped and starved but never killed: their memory,
/// descriptors and threads must stay the same over the run. Every transfer is verified.
///
/// Prints a summary. Exit code: 0 if no byte was lost, nothing hung or crashed, no transfer failed
/// without a fault, and nothing leaked; 1 otherwise.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Minutes of faults
    #[arg(long, value_name = "N", default_value_t = 60)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=10_080))]
    minutes: u64,
    /// Seed of sizes and faults [default: the time]
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,
    /// A built program, in place of building one
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
}

const BUILD_BUDGET: Duration = Duration::from_secs(1_800);
/// Parts of a run: after each all clients end, and the servers that live are measured.
const PARTS: u32 = 4;
const CLIENTS: usize = 3;
/// For what ends after its last client: lanes, connections, threads.
const SETTLED_WITHIN: Duration = Duration::from_secs(15);
/// Most findings that are printed.
const SHOWN_MAX: usize = 20;

/// Numbers of a seed (SplitMix64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn of(seed: u64, stream: u64) -> Self {
        Self(seed ^ stream.wrapping_mul(0xD134_2543_DE82_EF95))
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.number() % bound
    }

    pub(crate) fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to - from))
    }
}

/// Counts of a run, and what must not be.
#[derive(Default)]
pub(crate) struct Summary {
    pub(crate) puts: u64,
    pub(crate) gets: u64,
    pub(crate) bytes: u64,
    /// Transfers with an error, while a fault hit their server or themselves.
    pub(crate) failed: u64,
    /// Reads that cannot be judged, since the server was killed between write and read.
    pub(crate) unjudged: u64,
    pub(crate) clients_killed: u64,
    pub(crate) full_disks: u64,
    pub(crate) lost: Vec<String>,
    pub(crate) hung: Vec<String>,
    pub(crate) crashed: Vec<String>,
    pub(crate) unjustified: Vec<String>,
    pub(crate) leaked: Vec<String>,
}

impl Summary {
    fn findings(&self) -> [(&'static str, &[String]); 5] {
        [
            ("lost", &self.lost),
            ("hung", &self.hung),
            ("crashed", &self.crashed),
            ("failed without a fault", &self.unjustified),
            ("leaked", &self.leaked),
        ]
    }

    fn is_clean(&self) -> bool {
        self.findings().iter().all(|(_, found)| found.is_empty()) && self.puts > 0 && self.gets > 0
    }
}

impl Display for Summary {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let Self { puts, gets, bytes, failed, unjudged, clients_killed, full_disks, .. } = self;
        writeln!(
            out,
            "{puts} writes and {gets} reads verified, {} MiB; {failed} failed with a fault, \
             {unjudged} reads after a restart; {clients_killed} clients killed, {full_disks} full disks",
            bytes >> 20
        )?;
        for (what, found) in self.findings() {
            writeln!(out, "{what}: {}", found.len())?;
            found.iter().take(SHOWN_MAX).try_for_each(|one| writeln!(out, "  {one}"))?;
        }
        Ok(())
    }
}

pub(crate) fn run(project: &Project, arguments: &Arguments) -> Result<bool> {
    let has_device =
        fs::read_dir("/sys/class/infiniband").is_ok_and(|mut all| all.next().is_some());
    let program = match &arguments.program {
        Some(program) => program.canonicalize().context("the program")?,
        None => build(project, has_device)?,
    };
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
    let seed = arguments.seed.unwrap_or(time.as_secs());
    anstream::println!("seed {seed}, {} min", arguments.minutes);
    if !has_device {
        anstream::println!("skipped: RDMA: there is no device");
    }
    let folder = project.scratch().join("soak");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder)?;
    let fleet = Fleet::start(&program, &folder, has_device)?;
    if !fleet.has_disks {
        anstream::println!("skipped: full disks: this user may mount none");
    }
    let summary = Mutex::new(Summary::default());
    let part = Duration::from_secs(60 * arguments.minutes) / PARTS;
    let (mut faults, mut held) = (Faults::new(seed), Vec::new());
    let mut clients: Vec<Client> =
        (0..CLIENTS).map(|number| Client::new(&folder, seed, number)).collect::<Result<_>>()?;
    let begun = Instant::now();
    for number in 1..=PARTS {
        run_part(&fleet, &mut faults, &mut clients, &summary, part);
        held.push(settled(&fleet, held.first()));
        let text = summary.lock().expect("no thread panics").to_string();
        anstream::println!(
            "after {} s, part {number} of {PARTS}: {text}",
            begun.elapsed().as_secs()
        );
    }
    let mut summary = summary.into_inner().expect("no thread panics");
    leaks(&held, &mut summary);
    fleet.check(&mut summary);
    anstream::println!("seed {seed}: faults {faults}\n{summary}");
    if let (Some(first), Some(last)) = (held.first(), held.last()) {
        for (name, of_first, of_last) in together(first, last) {
            anstream::println!("{name}: {of_first} at first, {of_last} at last");
        }
    }
    Ok(summary.is_clean())
}

pub(crate) fn build(project: &Project, has_device: bool) -> Result<PathBuf> {
    let deadline = Instant::now() + BUILD_BUDGET;
    if has_device {
        let features = Features::with_verbs(project, deadline)?;
        features.run(project, "soak-build", ("build", &[]), deadline)?;
    } else {
        project.run(project.cargo(&["build", "-p", "handfast-cli"]), "soak-build", deadline)?;
    }
    let program = project.target().join("debug/handfast");
    ensure!(program.exists(), "there is no {}", program.display());
    Ok(program)
}

/// Clients work while faults strike, and all of them end.
fn run_part(
    fleet: &Fleet,
    faults: &mut Faults,
    clients: &mut [Client],
    summary: &Mutex<Summary>,
    part: Duration,
) {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for client in clients {
            let is_over = &is_over;
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    client.step(&Work { fleet, summary });
                }
            });
        }
        let until = Instant::now() + part;
        while Instant::now() < until {
            if let Err(error) = faults.strike(fleet) {
                let mut summary = summary.lock().expect("no thread panics");
                summary.crashed.push(format!("{error:#}"));
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

/// The holdings of the servers that were never killed, once they are no more than at first, or in any
/// case after a while.
fn settled(fleet: &Fleet, first: Option<&Vec<(String, Held)>>) -> Vec<(String, Held)> {
    let begun = Instant::now();
    loop {
        thread::sleep(Duration::from_secs(1));
        let now = fleet.held();
        let has_waited = begun.elapsed() > SETTLED_WITHIN;
        let is_back = first.is_some_and(|first| {
            let pairs = together(first, &now);
            pairs.len() == first.len()
                && pairs.iter().all(|(_, first, now)| !now.is_more_than(first))
        });
        if has_waited || is_back {
            return now;
        }
    }
}

/// The holdings of each server at two times. One that has ended is left out.
fn together(first: &[(String, Held)], last: &[(String, Held)]) -> Vec<(String, Held, Held)> {
    let both = first.iter().filter_map(|(name, first)| {
        let (_, last) = last.iter().find(|(of, _)| of == name)?;
        Some((name.clone(), *first, *last))
    });
    both.collect()
}

fn leaks(held: &[Vec<(String, Held)>], summary: &mut Summary) {
    let Some((first, last)) = held.first().zip(held.last()) else { return };
    for (name, first, last) in together(first, last) {
        if last.is_more_than(&first) {
            summary.leaked.push(format!("{name} holds {last}, and held {first}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_finding_fails_the_run_and_is_shown() {
        let clean = || Summary { puts: 1, gets: 1, ..Summary::default() };
        assert!(clean().is_clean() && !Summary::default().is_clean());
        type Place = fn(&mut Summary) -> &mut Vec<String>;
        let places: [Place; 5] = [
            |it| &mut it.lost,
            |it| &mut it.hung,
            |it| &mut it.crashed,
            |it| &mut it.unjustified,
            |it| &mut it.leaked,
        ];
        for place in places {
            let mut summary = clean();
            place(&mut summary).push("this one".into());
            assert!(!summary.is_clean() && summary.to_string().contains("this one"));
        }
    }

    #[test]
    fn growth_is_a_leak_and_noise_is_none() {
        let held = |descriptors, threads, kib| Held { descriptors, threads, memory_kib: kib };
        let first = held(20, 8, 50_000);
        assert!(!held(20, 8, 50_000).is_more_than(&first));
        assert!(!held(18, 7, 60_000).is_more_than(&first));
        assert!(held(24, 8, 50_000).is_more_than(&first));
        assert!(held(20, 12, 50_000).is_more_than(&first));
        assert!(held(20, 8, 90_000).is_more_than(&first));
        let mut summary = Summary::default();
        leaks(&[vec![("a".into(), first)], vec![("a".into(), held(40, 8, 1))]], &mut summary);
        assert_eq!(summary.leaked.len(), 1);
        let ended =
            together(&[("b".into(), held(1, 1, 1)), ("a".into(), first)], &[("a".into(), first)]);
        assert_eq!(ended, [("a".to_owned(), first, first)], "by name");
    }

    #[test]
    fn same_seed_gives_the_same_numbers() {
        let numbers = |seed, stream| {
            let mut random = Random::of(seed, stream);
            [(); 4].map(|()| random.number())
        };
        assert_eq!(numbers(1, 2), numbers(1, 2));
        assert_ne!(numbers(1, 2), numbers(1, 3));
        assert_ne!(numbers(1, 2), numbers(2, 2));
    }
}
