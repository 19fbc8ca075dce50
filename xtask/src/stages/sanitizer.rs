//! Memory errors and leaks, found by AddressSanitizer, and undefined behaviour, found by Miri.

use super::judged;
use crate::features::Features;
use crate::project::Project;
use crate::report::{Step, skipped};
use crate::{command, setup};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The packages with unsafe code that needs no device, and the engine, which must not leak.
const PACKAGES: [&str; 4] =
    ["handfast-transport", "handfast-transport-shm", "handfast-transport-tcp", "handfast"];
/// The verbs transport.
const VERBS: &str = "handfast-transport-rdma";

/// Flags of the compiler. The scripted libraries are loaded at run time, and use the sanitizer's runtime in the program.
const FLAGS: &str = "-Zsanitizer=address -Clink-arg=-rdynamic";

/// Tests of those packages with AddressSanitizer, including its leak check. It is an unstable
/// option of the compiler; a stable one accepts it with an environment variable, and includes the
/// runtime library.
pub(super) fn step(project: &Project) -> Step<'_> {
    Step::new("addresses", move |deadline| {
        let host = host_with_runtime().map_err(skipped)?;
        let mut command = project.cargo(&["test", "--tests", "--no-fail-fast", "--target", &host]);
        command.args(PACKAGES.iter().flat_map(|package| ["--package", package]));
        // It has functions of the sanitizer's names.
        command.args(["--", "--skip", "every_failed_call_is_survived"]);
        command.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", FLAGS);
        // A story wants the signal of a page that is not there.
        command.env("ASAN_OPTIONS", "handle_sigbus=0");
        // Instrumented objects do not mix with others.
        command.env("CARGO_TARGET_DIR", project.scratch().join("sanitizer"));
        judged(&project.run(command, "addresses", deadline)?)
    })
}

/// The stories of the verbs transport on scripted devices with AddressSanitizer. The scripted library is
/// instrumented with them.
pub(super) fn verbs_step(project: &Project) -> Step<'_> {
    Step::new("addresses-of-lanes", move |deadline| {
        let host = host_with_runtime().map_err(skipped)?;
        let features = Features::with_verbs(project, deadline)?;
        let mut command = project.cargo(&["test", "--no-fail-fast", "--target", &host]);
        command.args(["--features", "verbs", "--package", VERBS, "--lib", "--test", "rdma", "--"]);
        command.args(["native::", "scripted::", "verbs::"]);
        features.apply(&mut command);
        command.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", FLAGS);
        command.env("CARGO_TARGET_DIR", project.scratch().join("sanitizer-of-lanes"));
        judged(&project.run(command, "addresses-of-lanes", deadline)?)
    })
}

/// Tests of registered memory that Miri does not run: it has no `memfd_create`, `fstatfs`, `move_pages` nor sockets of
/// packets, maps no file, and unmaps no part of a mapping; a full table takes minutes.
const NOT_IN_MIRI: [&str; 9] = [
    "memfd::",
    "numa::",
    "a_mapped_file_shares_its_bytes",
    "children_lack_a_block_while_it_is_hidden",
    "files_and_foreign_memory_stay_with_children",
    "large_blocks_ask_for_huge_pages",
    "shared_block_is_mapped_with_its_rights",
    "the_table_is_bounded",
    "unsealed_and_short_files_are_refused",
];

/// The tests of registered memory in Miri, with strict provenance. All other unsafe code calls the system,
/// libibverbs, CUDA, C or Python, which Miri does not run.
pub(super) fn pointers_step(project: &Project) -> Step<'_> {
    Step::new("pointers", move |deadline| {
        setup::MIRI.check()?;
        let mut command = Command::new("rustup");
        command.current_dir(project.root()).args(["run", "nightly", "cargo", "miri", "test"]);
        command.args(["--package", "handfast-transport", "--lib", "--test", "memory", "--"]);
        command.args(NOT_IN_MIRI.iter().flat_map(|test| ["--skip", test]));
        command.env("MIRIFLAGS", "-Zmiri-disable-isolation -Zmiri-strict-provenance");
        command.env("PROPTEST_CASES", "8").env("CARGO_TARGET_DIR", project.scratch().join("miri"));
        judged(&project.run(command, "pointers", deadline)?)
    })
}

/// Returns the compiler's own platform, if it has the sanitizer's runtime library.
fn host_with_runtime() -> Result<String, String> {
    let host = command::compiler_host().map_err(|error| error.to_string())?;
    let root = command::compiler_says(&["--print", "sysroot"]);
    let root = root.ok_or("rustc does not say where it lies")?;
    let folder = Path::new(root.trim()).join("lib/rustlib").join(&host).join("lib");
    match runtime(&folder) {
        Some(_) => Ok(host),
        None => Err(format!("{} has no runtime of AddressSanitizer", folder.display())),
    }
}

/// Finds a library named `librustc-stable_rt.asan.a`, or after another channel.
fn runtime(folder: &Path) -> Option<PathBuf> {
    let mut entries = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    entries.find(|path| path.to_string_lossy().ends_with("_rt.asan.a"))
}

#[cfg(test)]
mod tests {
    use super::runtime;

    /// The name contains the channel of the compiler; other sanitizers have runtimes too.
    #[test]
    fn runtime_is_found_by_its_name() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("librustc-stable_rt.tsan.a"), "").unwrap();
        assert_eq!(runtime(folder.path()), None);
        let asan = folder.path().join("librustc-beta_rt.asan.a");
        std::fs::write(&asan, "").unwrap();
        assert_eq!(runtime(folder.path()), Some(asan));
    }
}
