//! Programs of others on scripted devices: perftest and the programs of librdmacm of the distribution, and released Mooncake nodes.
//! Scripts of `fabric/races` make races of the catalogue happen to those nodes, and not to ours.

use crate::helpers::{PROGRAM, contains, skipped};
use crate::mooncake::peer::{ABSENT, RELEASE, Release, is_night};
use handfast_fabric_control::Fabric;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

#[path = "../../../engine/examples/steady.rs"]
#[allow(dead_code, reason = "its own arguments are not read here")]
mod steady;

const RACES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fabric/races");
/// The folder of packages, set by the stage `fleet`.
const FOLDER: &str = "HANDFAST_FLEET";
/// Set for the test that is a program of other tests.
const SECONDS: &str = "HANDFAST_STORY_SECONDS";
/// The program of these tests, for a script that runs one of them.
const LISTENS: &str = "HANDFAST_STORY_LISTENS";
const READ: &str = "the bytes are read";
const ARRIVED: &str = "BYTES ARRIVED";
/// Two processes, of which the second tries until the first listens. With `-R` it begins when the first
/// listens: perftest aborts after a rejection, and its server waits for the aborted client.
const PAIR: &str = "\"$0\" -d rxe0 \"$@\" & case \" $* \" in *' -R '*) \
                    \"$HANDFAST_STORY_LISTENS\" --exact programs::first_device_listens >&2 || exit 1;; esac; \
                    for _ in $(seq 100); do \
                    \"$0\" -d rxe1 \"$@\" 127.0.0.1 && break; sleep 0.1; done; wait $!";

/// The same, for a second that fails and names what is not there.
const ABSENT_IS_NAMED: &str = "\"$0\" -d rxe0 \"$@\" & for _ in $(seq 100); do \
                               \"$0\" -d rxe1 \"$@\" 127.0.0.1 2>&1 | grep 'scripted devices' && \
                               break; sleep 0.1; done; kill $! 2>/dev/null; true";

/// A race: its script and profile, seconds of each side, and its effect on the released node.
type Race = (&'static str, &'static str, f64, f64, fn(&[Seen]) -> bool);

const SHORT: [Race; 3] = [
    ("gen-6", "irdma", 2.0, 1.0, never_read),
    ("gen-13", "rxe", 2.0, 1.0, never_read),
    ("fo-10", "rxe", 4.0, 3.0, |seen| seen[0].is(READ) && ends_failing(seen)),
];
/// For the night.
const LONG: [Race; 3] = [
    ("batch-1", "rxe", 12.0, 12.0, |seen| seen.iter().any(|it| it.is(ARRIVED))),
    ("fo-11", "rxe", 40.0, 8.0, |seen| outage(seen) > Duration::from_secs(25)),
    ("fo-20", "rxe", 14.0, 18.0, ends_failing),
];

fn races() -> impl Iterator<Item = Race> {
    SHORT.into_iter().chain(if is_night() { LONG.to_vec() } else { Vec::new() })
}

/// A change of the outcome.
struct Seen {
    at: Duration,
    text: String,
}

impl Seen {
    fn is(&self, text: &str) -> bool {
        self.text.starts_with(text)
    }
}

fn never_read(seen: &[Seen]) -> bool {
    seen.iter().all(|it| it.is("the write fails") || it.is("end:"))
}

fn ends_failing(seen: &[Seen]) -> bool {
    let last = seen.iter().rfind(|it| !it.is("end:"));
    last.is_some_and(|it| it.is("the read fails"))
}

/// The time from the first failure to the end of the last.
fn outage(seen: &[Seen]) -> Duration {
    let first = seen.iter().find(|it| !it.is(READ)).map_or(Duration::ZERO, |it| it.at);
    let last = seen.iter().rfind(|it| it.is(READ)).map_or(Duration::MAX, |it| it.at);
    last.saturating_sub(first)
}

/// The changes that two nodes reported, while a script was played.
#[track_caller]
fn played(script: &str, profile: &str, program: &Command) -> Vec<Seen> {
    let script = format!("{RACES}/{script}.txt");
    let mut command = on_devices(program);
    command.args(["--profile", profile, "--script", &script, "--"]);
    let output = command.arg(program.get_program()).args(program.get_args()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {text}\n{errors}");
    let seen = |line: &str| {
        let (at, text) = line.split_once(" s  ")?;
        let at = Duration::try_from_secs_f64(at.trim().parse().ok()?).ok()?;
        Some(Seen { at, text: text.to_owned() })
    };
    let seen: Vec<Seen> = text.lines().filter_map(seen).collect();
    assert!(!seen.is_empty(), "{script}: {text}\n{errors}");
    println!("{script}\n{text}");
    seen
}

/// `handfast fabric run` in the environment of a program.
fn on_devices(program: &Command) -> Command {
    let mut command = Command::new(PROGRAM);
    command.envs(program.get_envs().filter_map(|(key, value)| Some((key, value?))));
    command.args(["fabric", "run"]);
    command
}

fn mooncake(release: &Release, seconds: f64) -> Command {
    let mut command = release.python();
    command.arg(format!("{RACES}/two_nodes.py")).arg(seconds.to_string());
    command
}

/// Released nodes write and read bytes, which are compared, on each profile that they can connect on.
#[test]
fn released_nodes_move_bytes_on_scripted_devices() {
    let Some(release) = Release::find(RELEASE) else { return skipped(ABSENT) };
    let every: &[&str] = &["rxe", "mlx5", "erdma-compat", "erdma-rocev2", "strict"];
    for profile in if is_night() { every } else { &every[..2] } {
        let mut command = on_devices(&release.python());
        command.args(["--profile", profile, "--"]);
        let program = mooncake(&release, 1.0);
        let output = command.arg(program.get_program()).args(program.get_args()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let end = text.lines().find_map(|line| line.split_once("end: ")).map(|(_, end)| end);
        assert!(end.is_some_and(|end| end.ends_with(READ) && !end.contains(',')), "{text}");
    }
}

/// Each race of a script happens to the released nodes.
#[test]
fn races_happen_to_released_nodes() {
    let Some(release) = Release::find(RELEASE) else { return skipped(ABSENT) };
    for (script, profile, seconds, _, happens) in races() {
        let seen = played(script, profile, &mooncake(&release, seconds));
        assert!(happens(&seen), "{script} does not happen to {RELEASE} any more");
    }
}

/// The same scripts: our nodes read again, and no byte comes late.
#[test]
fn races_do_not_happen_to_our_nodes() {
    for (script, profile, _, seconds, happens) in races() {
        let mut program = Command::new(std::env::current_exe().unwrap());
        program.args(["--exact", "programs::two_nodes", "--nocapture"]);
        program.env(SECONDS, seconds.to_string());
        let seen = played(script, profile, &program);
        assert!(!happens(&seen), "{script}");
        assert!(seen.iter().all(|it| !it.is(ARRIVED)), "{script}");
        assert!(seen.last().is_some_and(|it| it.is(READ)), "{script}");
        // A script without a fault of its own changes nothing.
        assert!(SHORT.iter().all(|(short, ..)| *short != script) || seen.len() == 1, "{script}");
    }
}

/// The program of [`races_do_not_happen_to_our_nodes`].
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes() {
    let Ok(seconds) = std::env::var(SECONDS) else { return };
    // The harness has begun this line.
    println!();
    steady::steady(Duration::from_secs_f64(seconds.parse().unwrap())).await.unwrap();
}

/// Ends when a program listens on the first device, in a script.
#[test]
fn first_device_listens() {
    wait_for_listener("rxe0");
}

/// Ends when a program listens on the second device, in a script.
#[test]
fn second_device_listens() {
    wait_for_listener("rxe1");
}

fn wait_for_listener(device: &str) {
    if std::env::var_os(LISTENS).is_none() {
        return;
    }
    let fabric = Fabric::find().unwrap();
    while !fabric.run(&format!("manager list {device}")).contains("listening") {
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// perftest of the distribution runs as two processes, with the distribution's own libraries of providers.
#[test]
fn perftest_measures_scripted_devices() {
    let Some(folder) = unpacked("ib_write_bw") else { return skipped(UNPACKED) };
    for (test, profile, arguments, told) in [
        ("ib_write_bw", "rxe", "-s 65536", "RDMA_Write BW Test"),
        ("ib_read_lat", "mlx5", "-s 4096", "RDMA_Read Latency Test"),
        ("ib_send_bw", "erdma-compat", "-s 3000 -q 2", "Send BW Test"),
        ("ib_read_bw", "irdma", "-e", "RDMA_Read BW Test"),
        ("ib_write_bw", "erdma-standard", "-R -s 65536", "RDMA_Write BW Test"),
        ("ib_read_bw", "rxe", "-R", "RDMA_Read BW Test"),
    ] {
        let (code, output, errors) = perftest(&folder, PAIR, (test, profile, arguments));
        assert_eq!(code, Some(0), "{test}: {output}\n{errors}");
        contains(&output, &[told, "Device         : rxe1", "remote address"]);
    }
    let datagrams = ("ib_send_bw", "rxe", "-c UD");
    let (code, output, errors) = perftest(&folder, ABSENT_IS_NAMED, datagrams);
    assert_eq!(code, Some(0), "{output}\n{errors}");
    let absent =
        "a queue pair that is not reliable-connected is not supported by the scripted devices";
    contains(&output, &[absent]);
}

/// The programs of librdmacm connect and move bytes where queue pairs cannot be connected out of band,
/// and on soft-RoCE.
#[test]
fn programs_of_librdmacm_connect_on_scripted_devices() {
    let Some(folder) = unpacked("rping") else { return skipped(UNPACKED) };
    let programs = folder.join("usr/bin");
    for profile in ["erdma-standard", "rxe"] {
        for (server, client, told) in [
            (
                "ucmatose -b 10.0.0.2 -c 3",
                "ucmatose -s 10.0.0.2 -b 10.0.0.1 -c 3",
                "data transfers complete",
            ),
            (
                "rdma_server -s 10.0.0.2 -p 7175",
                "rdma_client -s 10.0.0.2 -p 7175",
                "rdma_client: end 0",
            ),
        ] {
            // A client that begins earlier may have some of its dials rejected: the server then waits for it.
            let script = format!(
                "cd {}; ./{server} & \
                 \"${LISTENS}\" --exact programs::second_device_listens >&2 && ./{client} || \
                 {{ kill $!; exit 1; }}; wait $!",
                programs.display()
            );
            let (code, output, errors) = on_profile(&folder, profile, &["sh", "-c", &script]);
            assert_eq!(code, Some(0), "{server} on {profile}: {output}\n{errors}");
            contains(&output, &[told]);
        }
    }
}

/// A program reports a dial that a script rejects, and one that nobody answers.
#[test]
fn programs_of_librdmacm_meet_what_a_script_plans() {
    let Some(folder) = unpacked("rping") else { return skipped(UNPACKED) };
    let programs = folder.join("usr/bin");
    let script = tempfile::NamedTempFile::new().unwrap();
    for (line, told) in [
        ("manager reject rxe0 28", "RDMA_CM_EVENT_REJECTED"),
        ("manager unreachable rxe0", "RDMA_CM_EVENT_UNREACHABLE"),
    ] {
        std::fs::write(&script, line).unwrap();
        let program = format!("{}/rping -c -a 10.0.0.1 -C 1 -v -d 2>&1; true", programs.display());
        let path = script.path().display().to_string();
        let (code, output, errors) = with_options(
            &folder,
            &["--profile", "erdma-standard", "--script", &path],
            &["sh", "-c", &program],
        );
        assert_eq!(code, Some(0), "{output}\n{errors}");
        contains(&output, &[told]);
    }
}

const UNPACKED: &str =
    "the programs are not unpacked; `cargo xtask test --stage fleet` unpacks them";

/// The folder of the distribution's programs, if it has this one.
fn unpacked(program: &str) -> Option<PathBuf> {
    let folder = PathBuf::from(std::env::var_os(FOLDER)?).join("packages/perftest");
    folder.join("usr/bin").join(program).exists().then_some(folder)
}

fn on_profile(folder: &Path, profile: &str, program: &[&str]) -> (Option<i32>, String, String) {
    with_options(folder, &["--profile", profile], program)
}

/// Exit code, output and errors of a program on scripted devices, with the distribution's libraries.
fn with_options(
    folder: &Path,
    options: &[&str],
    program: &[&str],
) -> (Option<i32>, String, String) {
    let libraries = ["usr/lib", "lib"].map(|lib| folder.join(lib).join("x86_64-linux-gnu"));
    let mut command = Command::new(PROGRAM);
    command.env("LD_LIBRARY_PATH", libraries.map(|it| it.display().to_string()).join(":"));
    command.env(LISTENS, std::env::current_exe().unwrap());
    command.args(["fabric", "run"]).args(options).args(["--", "timeout", "20"]).args(program);
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// Exit code, output and errors of a shell's script with a test, its profile and its arguments.
fn perftest(
    folder: &Path,
    script: &str,
    (test, profile, arguments): (&str, &str, &str),
) -> (Option<i32>, String, String) {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (test, port) = (folder.join("usr/bin").join(test).display().to_string(), port.to_string());
    let program = ["sh", "-c", script, &test, "-n", "200", "-p", &port];
    let words: Vec<&str> = program.into_iter().chain(arguments.split_whitespace()).collect();
    on_profile(folder, profile, &words)
}
