//! Every call of some functions of the C library, and of the verbs library, fails once, at each of its
//! turns, in stories of two nodes in this process. Whatever fails, each step ends in time and with a
//! typed error, succeeds when it is repeated, and leaves no descriptor, no thread and no mapping behind.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

#[path = "every_failure/calls.rs"]
mod calls;
#[cfg(feature = "verbs")]
#[path = "every_failure/devices.rs"]
mod devices;
#[path = "every_failure/stories.rs"]
mod stories;

use calls::CALLS;
use std::any::Any;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::fs::DirEntry;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use stories::{STORIES, Story};
use tokio::runtime::Runtime;
use tokio::time::timeout;

/// Long enough for any step.
const PATIENCE: Duration = Duration::from_secs(20);
/// Attempts of a step after which it has to succeed: one failure may show later, in another step.
const ATTEMPTS: u32 = 6;
/// Before the second attempt; it doubles.
const PAUSE: Duration = Duration::from_millis(20);
/// Turns of a call in a story; more are a loop without end.
const TURNS_MAX: u64 = 2_000;
/// Of so many turns one is tried at every change, and each at night.
const SAMPLED: u64 = 64;
/// Set at night.
const NIGHTLY: &str = "HANDFAST_NIGHTLY";
/// `STORY` or `STORY:CALL`, to run that alone, every turn.
const ONLY: &str = "HANDFAST_EVERY_FAILURE";
/// Processes at once at night. A story uses a tenth of a processor, and waits.
const PROCESSES: usize = 6;
/// Begins the line of the calls that failed.
const COUNTS: &str = "failed calls by story:";
/// The test, which starts itself.
const TEST: &str = "every_failed_call_is_survived";

static IS_RUNNING: AtomicBool = AtomicBool::new(false);
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());
static ERRORS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Repeats a step until it succeeds, and returns what it gave. Each attempt ends in time.
async fn again<T, E: Debug>(what: &str, mut attempt: impl AsyncFnMut() -> Result<T, E>) -> T {
    let mut errors = Vec::new();
    for number in 0..ATTEMPTS {
        match timeout(PATIENCE, attempt()).await {
            Err(_) => panic!("{what} does not end, after {errors:?}"),
            Ok(Ok(given)) => return given,
            Ok(Err(error)) => {
                ERRORS.lock().unwrap().push(format!("{what}: {error:?}"));
                errors.push(error);
            }
        }
        tokio::time::sleep(PAUSE * (1 << number)).await;
    }
    panic!("{what} fails each time: {errors:?}");
}

/// The thread of the scripted devices' timers, which a lost packet starts, and which ends with the process.
const DEVICE_TIMERS: &str = "fabric timers";

/// Descriptors, threads and mappings of shared memory, which a run must give back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    descriptors: usize,
    threads: usize,
    shared: usize,
}

impl Held {
    fn now() -> Self {
        let entries = |path: &str| std::fs::read_dir(path).unwrap().flatten();
        // One that ends meanwhile has no name.
        let is_counted = |task: &DirEntry| {
            let name = std::fs::read_to_string(task.path().join("comm"));
            name.is_ok_and(|name| name.trim_end() != DEVICE_TIMERS)
        };
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let shared = maps.lines().filter(|line| line.contains("memfd:handfast")).count();
        let threads = entries("/proc/self/task").filter(is_counted).count();
        Self { descriptors: entries("/proc/self/fd").count(), threads, shared }
    }

    /// Waits until no more is held.
    fn is_back(self) -> Result<(), String> {
        let mut now = Self::now();
        for _ in 0..PATIENCE.as_millis() {
            let is_more = |now: usize, before: usize| now > before;
            let leaks = is_more(now.descriptors, self.descriptors)
                || is_more(now.threads, self.threads)
                || is_more(now.shared, self.shared);
            if !leaks {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(1));
            now = Self::now();
        }
        Err(format!("{now:?} remain of {self:?}"))
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build().unwrap()
}

/// Runs a story, during which a call fails; returns whether it did, by `end`.
fn run(story: &Story, fail: impl FnOnce(), end: impl FnOnce() -> bool) -> Result<bool, String> {
    let held = Held::now();
    ERRORS.lock().unwrap().clear();
    let runtime = runtime();
    // It has a thread for blocking calls, as in any program: without one, the runtime panics.
    runtime.block_on(runtime.spawn_blocking(|| ())).unwrap();
    IS_RUNNING.store(true, Ordering::SeqCst);
    fail();
    let ended = catch_unwind(AssertUnwindSafe(|| runtime.block_on((story.run)())));
    let has_failed = end();
    runtime.shutdown_timeout(PATIENCE);
    IS_RUNNING.store(false, Ordering::SeqCst);
    let panics = std::mem::take(&mut *PANICS.lock().unwrap());
    if ended.is_err() || !panics.is_empty() {
        let errors = ERRORS.lock().unwrap().join("; ");
        return Err(format!("{} [{errors}]", panics.join("; ")));
    }
    held.is_back()?;
    Ok(has_failed)
}

fn text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or(payload.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned()
}

/// Keeps the panics of stories, also those of tasks, which their runtime catches.
fn keep_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !IS_RUNNING.load(Ordering::SeqCst) {
            return before(panic);
        }
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        PANICS.lock().unwrap().push(format!("{} at {place}", text(panic.payload())));
    }));
}

/// Whether every turn is tried.
fn is_every() -> bool {
    std::env::var_os(ONLY).is_some() || std::env::var_os(NIGHTLY).is_some()
}

/// Whether a call of a story is tried, by `STORY:CALL`.
fn is_chosen(name: &str) -> bool {
    let Ok(only) = std::env::var(ONLY) else { return true };
    name.strip_prefix(&only).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
}

/// Whether one of these stories is run.
fn is_any_chosen(stories: &[Story]) -> bool {
    let Ok(only) = std::env::var(ONLY) else { return true };
    let chosen = only.split(':').next();
    stories.iter().any(|story| Some(story.name) == chosen)
}

/// Runs a command, which is this test in another process, and returns its counts by story.
fn passes(command: &mut Command) -> BTreeMap<String, u32> {
    command.args([TEST, "--exact", "--nocapture"]).stderr(Stdio::inherit());
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{command:?}: {text}");
    let counts = text.lines().find_map(|line| Some(line.split_once(COUNTS)?.1));
    let counts = counts.unwrap_or_default().trim_matches(['{', '}', ' ']).split(", ");
    let count = |text: &str| {
        let (story, count) = text.split_once(": ")?;
        Some((story.trim_matches('"').to_owned(), count.parse().ok()?))
    };
    counts.filter_map(count).collect()
}

/// Runs each call of the system in each story, and each story on devices of each kind, in a process of its own.
fn each_in_a_process() {
    let own = std::env::current_exe().unwrap();
    let call = |story: &Story, call: &calls::Call| {
        let mut command = Command::new(&own);
        command.env(ONLY, format!("{}:{}", story.name, call.name));
        ("the system", command)
    };
    let of_story = |story| CALLS.iter().map(move |it| (story, it));
    let commands = STORIES.iter().flat_map(of_story).map(|(story, it)| call(story, it));
    #[cfg(feature = "verbs")]
    let processes = devices::processes();
    #[cfg(feature = "verbs")]
    let commands = commands.chain(processes.iter().flat_map(|(profile, process)| {
        let on_device = move |story: &Story| {
            let mut command = devices::command(profile, process);
            command.env(ONLY, story.name);
            (*profile, command)
        };
        stories::STORIES_OF_DEVICES.iter().map(on_device)
    }));
    let waiting = Mutex::new(commands.collect::<Vec<_>>());
    let failed = Mutex::new(BTreeMap::<_, BTreeMap<_, u32>>::new());
    std::thread::scope(|scope| {
        for _ in 0..PROCESSES {
            scope.spawn(|| {
                loop {
                    // The longest are the last.
                    let next = waiting.lock().unwrap().pop();
                    let Some((library, mut command)) = next else { return };
                    let counts = passes(&mut command);
                    let mut failed = failed.lock().unwrap();
                    let of_library = failed.entry(library).or_default();
                    for (story, count) in counts {
                        *of_library.entry(story).or_default() += count;
                    }
                }
            });
        }
    });
    for (library, counts) in failed.into_inner().unwrap() {
        println!("failed calls of {library}: {counts:?}");
        let is_tried = |story: &&Story| counts.contains_key(story.name);
        let tried = STORIES.iter().filter(is_tried).count();
        assert!(library != "the system" || tried == STORIES.len(), "a story without a failure");
    }
}

/// The outcome of the runs.
#[derive(Default)]
struct Outcome {
    tried: BTreeMap<&'static str, u32>,
    failures: Vec<String>,
}

impl Outcome {
    /// Runs a story for the turns of a call: all of them, or a sample that begins at `first`. `run` is
    /// given the turn.
    fn try_turns(
        &mut self,
        (story, name): (&Story, &str),
        first: u64,
        run: impl Fn(u64) -> Result<bool, String>,
    ) {
        let (first, step) = if is_every() { (0, 1) } else { (first, SAMPLED) };
        let mut turn = first;
        while turn < TURNS_MAX {
            match run(turn) {
                Ok(false) => break,
                Ok(true) => *self.tried.entry(story.name).or_insert(0) += 1,
                Err(why) => self.failures.push(format!("{name} at turn {turn}: {why}")),
            }
            turn += step;
        }
        assert!(turn < TURNS_MAX, "{name} is called without end");
    }

    fn check(&self, stories: &[Story]) {
        let (failures, tried) = (&self.failures, &self.tried);
        println!("{COUNTS} {tried:?}");
        assert!(failures.is_empty(), "{} of them:\n{}", failures.len(), failures.join("\n"));
        let is_whole = std::env::var_os(ONLY).is_some() || tried.len() == stories.len();
        assert!(is_whole, "a story without a failure: {tried:?}");
    }
}

/// Every turn of every call in every story at night, and otherwise a sample of them. The calls of the
/// system come first, then those of the verbs library, in a process with scripted devices.
#[test]
fn every_failed_call_is_survived() {
    if std::env::var_os(NIGHTLY).is_some() && std::env::var_os(ONLY).is_none() {
        return each_in_a_process();
    }
    keep_panics();
    // The first one makes what its process keeps.
    drop(runtime());
    stories::reserve_ports();
    #[cfg(feature = "verbs")]
    if handfast_fabric_control::is_scripted() {
        return devices::every_failed_call_is_survived();
    }
    if is_any_chosen(STORIES) {
        calls_of_the_system_fail();
    }
    #[cfg(feature = "verbs")]
    if is_any_chosen(stories::STORIES_OF_DEVICES) {
        devices::pass();
    }
}

fn calls_of_the_system_fail() {
    let mut outcome = Outcome::default();
    for (number, story) in STORIES.iter().enumerate() {
        let run = |call, turn| run(story, || calls::fail(call, turn), calls::end);
        // Without a failure.
        run(usize::MAX, 0).unwrap_or_else(|why| panic!("{}: {why}", story.name));
        for (at, call) in CALLS.iter().enumerate() {
            let name = format!("{}:{}", story.name, call.name);
            if is_chosen(&name) {
                let first = (at + number) as u64 % 3;
                outcome.try_turns((story, &name), first, |turn| run(at, turn));
            }
        }
    }
    outcome.check(STORIES);
}
