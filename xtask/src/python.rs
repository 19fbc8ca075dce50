//! The Python package: its wheel, and its tests in a fresh environment without RDMA libraries.

use crate::command::{answers, calling_cargo};
use crate::features::Features;
use crate::fleet;
use crate::project::Project;
use crate::release::{GLIBC, ZIG, newest_glibc, resolved};
use crate::report::{Outcome, Step, as_skipped, skipped};
use anyhow::{Context, Result, ensure};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// The stage.
pub(crate) const STAGE: &str = "python";
/// The platform of the nightly tests.
const HOST: &str = "x86_64-unknown-linux-gnu";
/// The builder of the wheel.
const MATURIN: &[&str] = &["maturin==1.16.0"];
/// Packages of the tests, and the checker of types and stubs.
const OF_TESTS: &[&str] = &["numpy>=1.26,<3", "mypy==2.4.1"];
/// Callers of the interface of `mooncake.engine`, without what they need on a GPU.
const CALLERS: &[&str] =
    &["lmcache==0.5.6", "sglang==0.5.23", "vllm==0.33.0", "checkpoint-engine==0.4.2"];
/// Packages that their classes and tests import. Their torch brings libraries of a GPU, unused here.
const OF_CALLERS: &[&str] = &[
    "torch==2.15.0",
    "numpy==2.2.6",
    "aiohttp==3.14.5",
    "cachetools==8.0.1",
    "fastapi==0.165.0",
    "loguru==0.7.3",
    "msgspec==0.22.0",
    "numba==0.68.1",
    "nvtx==0.2.17",
    "orjson==3.13.0",
    "pillow==13.0.0",
    "prometheus_client==0.26.0",
    "psutil==7.2.2",
    "py-cpuinfo==9.0.0",
    "pybase64==1.5.1",
    "pytest==9.2.0",
    "pyyaml==6.0.3",
    "pyzmq==27.3.0",
    "requests==2.34.2",
    "sortedcontainers==2.4.0",
    "tqdm==4.70.1",
];
/// Time limits of downloading them, and of the tests with them: the budget of the stage has neither.
const DOWNLOAD_MAX: Duration = Duration::from_secs(45 * 60);
const CALLERS_MAX: Duration = Duration::from_secs(30 * 60);
/// Variable with an interpreter that has them.
const WITH_CALLERS: &str = "HANDFAST_CALLERS";
/// Maximum bytes of the wheel of a release.
const WHEEL_BYTES_MAX: u64 = 15 << 20;
/// Variable with the interpreter of a released Mooncake node, for the tests.
const RELEASED: &str = "HANDFAST_RELEASED_PYTHON";
/// Variable with the libraries that it needs.
const RELEASED_LIBRARIES: &str = "HANDFAST_RELEASED_LIBRARIES";
/// Variable with the folder of the metadata stores that the distribution has.
const STORES: &str = "HANDFAST_STORES";
/// Variable with the folder of `--upstream`.
const UPSTREAM: &str = "HANDFAST_UPSTREAM";
/// Variable with the library of `bindings/c`.
const LIBRARY: &str = "HANDFAST_TRANSFER_ENGINE";
/// Variable with the program, which runs the tests on scripted devices.
const PROGRAM: &str = "HANDFAST_PROGRAM";
/// Variable with the scripted driver of CUDA, for the tests of device memory.
const SCRIPTED_CUDA: &str = "HANDFAST_SCRIPTED_CUDA";
/// Rounds of failing peers at night, over TCP and over scripted devices.
const ROUNDS: &str = "10000";
/// The drivers of the scripted devices of those rounds.
const PROFILES: [&str; 2] = ["rxe", "mlx5"];
/// Folder of the tests.
pub(crate) const TESTS: &str = "bindings/python/tests";
/// The extension module in the wheel.
const MODULE: &str = "handfast/_handfast.abi3.so";

/// Builds the wheel, at night as it is released, and runs its tests.
pub(crate) fn steps(project: &Project, nightly: bool) -> Vec<Step<'_>> {
    let mut steps = vec![
        Step::new("wheel", move |deadline| {
            let features = Features::available(project, deadline);
            let mut maturin = maturin(project, features.words(), deadline)?;
            features.apply(&mut maturin);
            // Only zig links for an older glibc; its build shares no crate with the tests.
            let wheel = match nightly {
                true => released(project, maturin, HOST, deadline)?,
                false => built(project, maturin, deadline)?,
            };
            let (major, minor) = glibc_of(project, &wheel)?;
            let bytes = fs::metadata(&wheel)?.len();
            let fresh = environment(project, "use", OF_TESTS, deadline)?;
            let mut install = pip(&fresh);
            install.args(["--no-deps", "--force-reinstall"]).arg(&wheel);
            project.run(install, "python-install", deadline)?;
            Ok(format!("{} KiB, needs glibc {major}.{minor}", bytes >> 10))
        }),
        Step::new("python-tests", |deadline| {
            let mut tests = Command::new(interpreter(project)?);
            let program = project.target().join("debug/handfast");
            if program.exists() {
                tests.env(PROGRAM, program);
            }
            if let Some(driver) = scripted_driver(project) {
                tests.env(SCRIPTED_CUDA, driver);
            }
            unittest(project, tests, "tests", &[], deadline)
        }),
        Step::new("python-bare", |deadline| {
            let tests = without_rdma_libraries(project, deadline)?;
            unittest(project, tests, "bare", &["-p", "bare_*.py"], deadline)
        }),
        Step::new("python-types", |deadline| {
            for (log, words) in [
                ("types", ["-m", "mypy", "--strict", "-p", "handfast"].as_slice()),
                ("stubs", &["-m", "mypy.stubtest", "handfast._handfast"]),
            ] {
                let mut mypy = Command::new(interpreter(project)?);
                mypy.args(words).current_dir(project.scratch());
                project.run(mypy, &format!("python-{log}"), deadline)?;
            }
            Ok(String::new())
        }),
        Step::new("python-released", |deadline| {
            let mut tests = Command::new(interpreter(project)?);
            let released = fleet::python(project)?;
            tests.env(RELEASED, released.interpreter);
            tests.env(RELEASED_LIBRARIES, released.libraries);
            tests.env(STORES, fleet::PACKAGES.folder(project).join("usr/bin"));
            unittest(project, tests, "released", &["-p", "released_*.py"], deadline)
        }),
        Step::new("python-upstream", |deadline| {
            let tests = with_upstream(project, deadline)?;
            unittest(project, tests, "upstream", &["-p", "upstream_*.py"], deadline)
        }),
    ];
    if nightly {
        steps.extend(steps_at_night(project));
    }
    steps
}

/// Runs programs of callers, and many rounds of failing peers.
fn steps_at_night(project: &Project) -> Vec<Step<'_>> {
    let mut steps = vec![
        Step::new("python-nixl", |deadline| {
            let tests = with_upstream(project, deadline)?;
            let words = ["-p", "callers_tests.py", "-k", "Nixl"];
            unittest(project, tests, "nixl", &words, deadline)
        }),
        Step::new("python-contract", |deadline| {
            contract(project, "tcp", &["--workers", "4"], deadline)
        }),
    ];
    steps.extend(PROFILES.map(|profile| {
        Step::new(profile, move |deadline| {
            let features = Features::available(project, deadline);
            features.run(project, "python-program", ("build", &[]), deadline)?;
            let program = project.target().join("debug/handfast").display().to_string();
            let fabric = ["--fabric", &*program, "--profile", profile, "--workers", "6"];
            contract(project, profile, &fabric, deadline)
        })
    }));
    // After all others: gigabytes are downloaded.
    steps.push(Step::new("python-callers", |_| callers(project)));
    steps
}

/// Returns the scripted driver of CUDA, which is built with the tests.
pub(crate) fn scripted_driver(project: &Project) -> Option<PathBuf> {
    const FILE: &str = "libhandfast_fabric_cuda.so";
    let folder = project.target().join("debug");
    [folder.join("deps").join(FILE), folder.join(FILE)].into_iter().find(|path| path.exists())
}

/// Returns the interpreter where the libraries of RDMA cannot be loaded: files that the loader finds are
/// hidden in a namespace.
fn without_rdma_libraries(project: &Project, deadline: Instant) -> Result<Command> {
    let python = interpreter(project)?;
    let mut find = Command::new(&python);
    find.args(["-B", "-c", FIND_LIBRARIES]);
    let found = project.run(find, "python-libraries", deadline)?;
    let files: Vec<&str> = found.lines().filter(|line| line.starts_with('/')).collect();
    if files.is_empty() {
        return Ok(Command::new(python));
    }
    let mut namespace = Command::new("unshare");
    if !answers(namespace.args(["-rm", "true"])) {
        let files = files.join(", ");
        return Err(skipped(format!("{files} cannot be hidden: `unshare -rm` is not permitted")));
    }
    let mut hidden = Command::new("unshare");
    hidden.args(["-rm", "sh", "-c", HIDE_LIBRARIES, "sh"]).arg(python);
    hidden.env("HANDFAST_HIDDEN", files.join("\n"));
    Ok(hidden)
}

/// Prints the files of the libraries of RDMA that the loader finds.
const FIND_LIBRARIES: &str = r#"
import ctypes, re
for name in ["libibverbs.so.1", "librdmacm.so.1"]:
    try:
        ctypes.CDLL(name)
    except OSError:
        pass
with open("/proc/self/maps") as maps:
    print(*sorted(set(re.findall(r"/\S*/lib(?:ibverbs|rdmacm)\.so\S*", maps.read()))), sep="\n")
"#;
/// Runs a command where those files are no libraries.
const HIDE_LIBRARIES: &str = r#"
for file in $HANDFAST_HIDDEN; do mount --bind /dev/null "$file" || exit 1; done
exec "$@"
"#;

/// Returns the interpreter, with the variables of tests that need other projects' sources.
fn with_upstream(project: &Project, deadline: Instant) -> Result<Command> {
    let missing = || skipped("Mooncake's sources are not given: --upstream DIR");
    let sources = project.upstream().ok_or_else(missing)?;
    let mut tests = Command::new(interpreter(project)?);
    let features = Features::available(project, deadline);
    features.apply(&mut tests);
    tests.env(UPSTREAM, sources);
    // Built with the tests.
    let library = project.target().join("debug/deps/libtransfer_engine.so");
    if library.exists() {
        tests.env(LIBRARY, library);
    }
    tests.env("CARGO_TARGET_DIR", project.scratch().join("python/upstream"));
    if let Ok(released) = fleet::python(project) {
        tests.env(RELEASED, released.interpreter);
        tests.env(RELEASED_LIBRARIES, released.libraries);
    }
    Ok(tests)
}

/// Runs the tests with the packages of callers. It is skipped without them, and fails without the wheel.
fn callers(project: &Project) -> Outcome {
    let until = Instant::now() + DOWNLOAD_MAX;
    let mut tests = with_upstream(project, until)?;
    let folder = environment(project, "callers", OF_CALLERS, until)?;
    let mut install = pip(&folder);
    install.arg("--no-deps").args(CALLERS);
    project.run(install, "python-callers", until).map_err(as_skipped)?;
    let until = Instant::now() + CALLERS_MAX;
    let mut install = pip(&folder);
    install.args(["--no-deps", "--force-reinstall"]).arg(wheel(project)?);
    project.run(install, "python-callers-wheel", until)?;
    tests.env(WITH_CALLERS, folder.join("bin/python"));
    let words = ["-p", "callers_tests.py", "-k", "Packages", "-k", "LMCache"];
    unittest(project, tests, "callers-tests", &words, until)
}

/// Plays the rounds of `contract.py`.
fn contract(project: &Project, log: &str, arguments: &[&str], deadline: Instant) -> Outcome {
    let mut rounds = Command::new(interpreter(project)?);
    rounds.current_dir(project.root().join(TESTS));
    rounds.args(["-B", "contract.py", "--rounds", ROUNDS]).args(arguments);
    rounds_of(&project.run(rounds, &format!("python-contract-{log}"), deadline)?)
}

/// Returns the line of `contract.py` that counts the rounds.
pub(crate) fn rounds_of(output: &str) -> Outcome {
    let first = output.lines().find(|line| line.contains(" rounds in "));
    Ok(first.context("no round was played")?.to_owned())
}

fn folder(project: &Project, name: &str) -> PathBuf {
    project.scratch().join("python").join(name)
}

/// Returns the interpreter that has the package.
pub(crate) fn interpreter(project: &Project) -> Result<PathBuf> {
    let python = folder(project, "use").join("bin/python");
    match python.exists() {
        true => Ok(python),
        false => Err(skipped("the wheel was not built")),
    }
}

/// Makes an environment with some packages, unless it is there.
fn environment(
    project: &Project,
    name: &str,
    packages: &[&str],
    deadline: Instant,
) -> Result<PathBuf> {
    let folder = folder(project, name);
    let complete = folder.join(".complete");
    if fs::read_to_string(&complete).is_ok_and(|known| known == packages.join(" ")) {
        return Ok(folder);
    }
    let mut create = Command::new("python3");
    create.args(["-m", "venv", "--clear"]).arg(&folder);
    let mut install = pip(&folder);
    install.args(packages);
    for (step, command) in [("environment", create), ("packages", install)] {
        let log = format!("python-{name}-{step}");
        let made = project.run(command, &log, deadline).with_context(|| packages.join(" "));
        made.map_err(as_skipped)?;
    }
    fs::write(complete, packages.join(" "))?;
    Ok(folder)
}

fn pip(folder: &Path) -> Command {
    let mut pip = Command::new(folder.join("bin/python"));
    pip.args(["-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--quiet"]);
    pip
}

/// Returns the build of the wheel with these options of cargo.
fn maturin<'a>(
    project: &Project,
    features: impl Iterator<Item = &'a str>,
    deadline: Instant,
) -> Result<Command> {
    let tools = environment(project, "build", MATURIN, deadline)?;
    let mut maturin = calling_cargo(tools.join("bin/maturin"));
    maturin.current_dir(project.root().join("bindings/python"));
    maturin.env("CARGO_INCREMENTAL", "0").args(["build", "--quiet"]).args(features);
    // `doctor` checks stores behind TLS, as the engine uses them.
    maturin.args(["--features", "tls"]);
    Ok(maturin)
}

/// Runs the build for this machine, and returns the wheel.
fn built(project: &Project, mut maturin: Command, deadline: Instant) -> Result<PathBuf> {
    // Libraries of RDMA are loaded at run time, so there is nothing to bundle.
    maturin.args(["--auditwheel", "skip"]);
    only(project, maturin, deadline)
}

/// Runs the build of a release for every system with [`GLIBC`], and returns the wheel. maturin checks
/// its libraries and symbols against that platform.
fn released(
    project: &Project,
    mut maturin: Command,
    target: &str,
    deadline: Instant,
) -> Result<PathBuf> {
    let zig = ZIG.ensure(project, deadline).context("zig, which links for an older glibc")?;
    let platform = format!("manylinux_{}_{}", GLIBC.0, GLIBC.1);
    maturin.args(["--release", "--locked", "--zig", "--target", target]);
    maturin.args(["--compatibility", &platform, "--auditwheel", "check"]);
    maturin.env("CARGO_ZIGBUILD_ZIG_PATH", zig.join("ziglang/zig"));
    let wheel = only(project, maturin, deadline)?;
    let name = wheel.to_string_lossy().into_owned();
    ensure!(name.contains(&platform), "{name} is not tagged {platform}");
    let newest = glibc_of(project, &wheel)?;
    ensure!(newest <= GLIBC, "{name} needs glibc {}.{}", newest.0, newest.1);
    let bytes = fs::metadata(&wheel)?.len();
    ensure!(bytes <= WHEEL_BYTES_MAX, "{name} has {bytes} bytes, more than {WHEEL_BYTES_MAX}");
    Ok(wheel)
}

/// Builds the wheel of a release for a target, with these features, for which `prepare` sets the
/// variables.
pub(crate) fn release(
    project: &Project,
    (target, features): (&str, &str),
    prepare: impl FnOnce(&mut Command) -> Result<()>,
    deadline: Instant,
) -> Result<PathBuf> {
    let mut maturin = maturin(project, ["--features", features].into_iter(), deadline)?;
    prepare(&mut maturin)?;
    released(project, maturin, target, deadline)
}

/// Runs a build into an empty folder, and returns its wheel.
fn only(project: &Project, maturin: Command, deadline: Instant) -> Result<PathBuf> {
    only_in(&folder(project, "wheels"), project, maturin, deadline)
}

fn only_in(
    wheels: &Path,
    project: &Project,
    mut maturin: Command,
    deadline: Instant,
) -> Result<PathBuf> {
    if wheels.exists() {
        fs::remove_dir_all(wheels)?;
    }
    maturin.arg("--out").arg(wheels);
    project.run(maturin, "python-wheel", deadline)?;
    first_in(wheels)
}

/// Returns the wheel that was built last.
fn wheel(project: &Project) -> Result<PathBuf> {
    first_in(&folder(project, "wheels"))
}

fn first_in(wheels: &Path) -> Result<PathBuf> {
    let mut built = fs::read_dir(wheels)?.map(|entry| entry.map(|it| it.path()));
    built.next().context("there is no wheel")?.map_err(Into::into)
}

/// Builds the wheel with optimisation, for this machine alone and over TCP.
pub(crate) fn optimized_wheel(project: &Project, deadline: Instant) -> Result<PathBuf> {
    let mut maturin = maturin(project, std::iter::empty(), deadline)?;
    maturin.args(["--release", "--auditwheel", "skip"]);
    only_in(&folder(project, "optimized"), project, maturin, deadline)
}

/// Installs the optimised wheel into an environment.
pub(crate) fn install_optimized(
    project: &Project,
    environment: &Path,
    deadline: Instant,
) -> Result<()> {
    let wheel = optimized_wheel(project, deadline)?;
    let mut install = pip(environment);
    install.args(["--no-deps", "--force-reinstall"]).arg(wheel);
    project.run(install, "python-install", deadline)?;
    Ok(())
}

/// Returns the newest version of glibc that the wheel's module needs.
fn glibc_of(project: &Project, wheel: &Path) -> Result<(u32, u32)> {
    let unpacked = folder(project, "unpacked");
    if unpacked.exists() {
        fs::remove_dir_all(&unpacked)?;
    }
    let mut unpack = Command::new("python3");
    unpack.args(["-m", "zipfile", "-e"]).arg(wheel).arg(&unpacked);
    let output = unpack.output().context("python3")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    let module = unpacked.join(MODULE);
    resolved(&module)?;
    newest_glibc(&module)
}

fn unittest(
    project: &Project,
    mut python: Command,
    log: &str,
    arguments: &[&str],
    deadline: Instant,
) -> Outcome {
    python.current_dir(project.root().join(TESTS));
    python.args(["-B", "-m", "unittest", "discover", "-v"]).args(arguments);
    let output = project.run(python, &format!("python-{log}"), deadline)?;
    count_of(&output)
}

/// Returns the number of tests, and the number of skipped ones with the reasons.
fn count_of(output: &str) -> Outcome {
    let count = output.lines().rfind(|line| line.starts_with("Ran ")).context("no test ran")?;
    ensure!(!count.starts_with("Ran 0 "), "no test ran");
    let skipped = output.lines().rfind(|line| line.starts_with("OK (skipped"));
    let reasons = output.lines().filter_map(|line| Some(line.split_once("... skipped ")?.1));
    let reasons: BTreeSet<&str> = reasons.map(|reason| reason.trim_matches(['\'', '"'])).collect();
    Ok([count].into_iter().chain(skipped).chain(reasons).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipped_tests_are_counted_with_their_reasons() {
        let output = "test_a (t.A.test_a) ... ok\ntest_b (t.A.test_b) ... skipped 'no compiler'\n\
            test_c (t.A.test_c)\nIts words. ... skipped \"there's none\"\n\
            test_d (t.A.test_d) ... skipped 'no compiler'\n\nRan 4 tests in 0.1s\n\nOK (skipped=3)\n";
        let expected = "Ran 4 tests in 0.1s, OK (skipped=3), no compiler, there's none";
        assert_eq!(count_of(output).unwrap(), expected);
        assert_eq!(count_of("Ran 1 test in 0.1s\n\nOK\n").unwrap(), "Ran 1 test in 0.1s");
        assert!(count_of("Ran 0 tests in 0.0s\n\nOK\n").is_err() && count_of("").is_err());
    }
}
