//! Memory errors and leaks, found by AddressSanitizer.

use super::judged;
use crate::command;
use crate::features::Features;
use crate::project::Project;
use crate::report::{Step, skipped};
use std::path::{Path, PathBuf};

/// The packages with unsafe code that needs no device, and the engine, which must not leak.
const PACKAGES: [&str; 4] =
    ["handfast-transport", "handfast-transport-shm", "handfast-transport-tcp", "handfast"];
/// The verbs transport.
const VERBS: &str = "handfast-transport-rdma";

/// Tests of those packages with AddressSanitizer, including its leak check. It is an unstable
/// option of the compiler; a stable one accepts it with an environment variable, and includes the
/// runtime library.
pub(super) fn step(project: &Project) -> Step<'_> {
    Step::new("addresses", move |deadline| {
        let host = host_with_runtime().map_err(skipped)?;
        let mut command = project.cargo(&["test", "--tests", "--target", &host]);
        command.args(PACKAGES.iter().flat_map(|package| ["--package", package]));
        // It has functions of the sanitizer's names.
        command.args(["--", "--skip", "every_failed_call_is_survived"]);
        command.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", "-Zsanitizer=address");
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
        let mut command = project.cargo(&["test", "--target", &host, "--features", "verbs"]);
        command.args(["--package", VERBS, "--lib", "--test", "rdma", "--"]);
        command.args(["native::", "scripted::", "verbs::"]);
        features.apply(&mut command);
        // The scripted library is loaded at run time, and uses the runtime of the program.
        let flags = "-Zsanitizer=address -Clink-arg=-rdynamic";
        command.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", flags);
        command.env("CARGO_TARGET_DIR", project.scratch().join("sanitizer-of-lanes"));
        judged(&project.run(command, "addresses-of-lanes", deadline)?)
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
