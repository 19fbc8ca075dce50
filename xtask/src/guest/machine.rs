//! The virtual machine: started, watched and ended.

use super::kernel::Kernel;
use super::packages::{KERNEL, Packages};
use crate::project::Project;
use anyhow::{Context, Result, bail, ensure};
use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The machine's own programs.
pub(crate) const MACHINE: Packages =
    Packages { name: "machine", packages: &["qemu-system-x86", "busybox-static", KERNEL] };
/// What RDMA programs load in the guest, where the host has none.
pub(crate) const DRIVERS: Packages = Packages {
    name: "drivers",
    packages: &["libibverbs1", "ibverbs-providers", "librdmacm1", "iproute2"],
};

/// From the start of the machine to that of the command. Seven seconds on two idle processors
/// without a hardware accelerator, half a minute where six others use them.
const BOOT_MAX: Duration = Duration::from_secs(100);
/// From the command's end to that of the machine.
const SWITCH_OFF_MAX: Duration = Duration::from_secs(30);
/// Of a boot that decides whether the hardware accelerator works; where it does it takes two.
const TRIAL_MAX: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(50);
const MEMORY_MIB: &str = "1024";
/// Queue pairs made and destroyed on one NIC before the command: the NICs' numbers differ by it.
const NUMBERS_APART: u32 = 1_000;
/// Lines of the guest's console that are shown when it fails.
const CONSOLE_LINES: usize = 15;
/// What of the environment goes along with the command, by prefix.
const ENVIRONMENT: [&str; 6] = ["CARGO", "HANDFAST_", "HOME", "PROPTEST_", "RUST", "USER"];

/// What the guest is to do.
pub(crate) struct GuestCommand {
    pub(crate) words: Vec<OsString>,
    /// The command's own time.
    pub(crate) limit: Duration,
    /// Makes and destroys queue pairs.
    pub(crate) numbers_apart: Option<PathBuf>,
}

/// A machine that can be started.
pub(crate) struct Machine {
    qemu: PathBuf,
    packages: PathBuf,
    drivers: PathBuf,
    kernel: Kernel,
    folder: PathBuf,
}

/// Ends the machine when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Either call fails only when the machine is gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Machine {
    /// Finds or unpacks everything that the machine needs.
    pub(crate) fn prepare(project: &Project, deadline: Instant) -> Result<Self> {
        let packages = MACHINE.ensure(project, deadline)?;
        let drivers = DRIVERS.ensure(project, deadline)?;
        let name = "qemu-system-x86_64";
        let qemu = found(&packages, name).with_context(|| format!("no {name} was unpacked"))?;
        let kernel = Kernel::find(&packages)?;
        let folder = project.scratch().join(format!("guest-{}", std::process::id()));
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(&folder)?;
        Ok(Self { qemu, packages, drivers, kernel, folder })
    }

    /// Boots, runs the command with its output going to `output`, switches off, and returns the
    /// command's exit code.
    pub(crate) fn run(&self, command: &GuestCommand, output: Stdio, verdict: &Path) -> Result<u8> {
        let busybox = found(&self.packages, "busybox").context("no busybox was unpacked")?;
        let deadline = Instant::now() + BOOT_MAX;
        let files = self.kernel.first_files(&busybox, &self.folder.join("first"), deadline)?;
        let accelerator = self.accelerator(&files, verdict)?;
        let shared = self.folder.join("shared");
        fs::create_dir_all(&shared)?;
        let drivers = self.drivers.join("usr/lib").exists().then_some(self.drivers.as_path());
        let start = start_script(command, drivers, &env::current_dir()?, env::vars_os())?;
        fs::write(shared.join("start"), start)?;
        let seconds = (BOOT_MAX + command.limit + SWITCH_OFF_MAX).as_secs();
        let mut qemu = self.qemu(accelerator, &files, &format!("handfast.seconds={seconds}"));
        qemu.args(["-serial", "stdio", "-virtfs"]).arg(share("host", Path::new("/"), true));
        qemu.arg("-virtfs").arg(share("run", &shared, false)).stdout(output);
        let mut running = Running(qemu.spawn().context("starting the virtual machine")?);
        let limits = [
            (shared.join("ready"), BOOT_MAX, "to boot"),
            (shared.join("exit"), command.limit, "for the command"),
        ];
        for (mark, limit, what) in limits {
            self.wait(&mut running, &mark, limit, what)?;
        }
        ensure!(shared.join("ready").exists(), self.told("the guest did not come to the command"));
        self.wait(&mut running, &shared.join("never"), SWITCH_OFF_MAX, "to switch off")?;
        // Read now, for the file is there before its content.
        let code = fs::read_to_string(shared.join("exit")).unwrap_or_default();
        code.trim().parse().with_context(|| self.told("the guest gave no exit code"))
    }

    /// Waits until the guest has made the file `mark`, or has ended.
    fn wait(&self, running: &mut Running, mark: &Path, limit: Duration, what: &str) -> Result<()> {
        let deadline = Instant::now() + limit;
        while !mark.exists() {
            if running.0.try_wait()?.is_some() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let seconds = limit.as_secs();
                bail!(self.told(&format!("the guest was given {seconds} s {what}; it was ended")));
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    /// The accelerator to use. A device for the hardware's is no proof that it works: one boot is,
    /// and its verdict is kept.
    fn accelerator(&self, files: &Path, verdict: &Path) -> Result<&'static str> {
        const KVM: &str = "kvm";
        const TCG: &str = "tcg,thread=multi";
        if let Ok(kept) = fs::read_to_string(verdict) {
            return Ok(if kept == KVM { KVM } else { TCG });
        }
        let device = File::options().read(true).write(true).open("/dev/kvm");
        let works = device.is_ok() && {
            let mut trial = self.qemu(KVM, files, "handfast.trial");
            let mut running = Running(trial.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
            let ended = self.wait(&mut running, &self.folder.join("never"), TRIAL_MAX, "to try");
            ended.is_ok() && self.console().contains("the trial boot works")
        };
        let chosen = if works { KVM } else { TCG };
        fs::write(verdict, chosen)?;
        Ok(chosen)
    }

    fn qemu(&self, accelerator: &str, files: &Path, words: &str) -> Command {
        let mut qemu = Command::new(&self.qemu);
        if self.qemu.starts_with(&self.packages) {
            let libraries = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"];
            let libraries = libraries.map(|folder| self.packages.join(folder));
            // Fails only for a path with a colon, of which cargo itself complains earlier.
            qemu.env("LD_LIBRARY_PATH", env::join_paths(libraries).unwrap_or_default());
            for folder in ["usr/share/qemu", "usr/share/seabios"] {
                qemu.arg("-L").arg(self.packages.join(folder));
            }
        }
        qemu.args(["-accel", accelerator]);
        qemu.args(["-cpu", if accelerator == "kvm" { "host" } else { "max" }, "-smp", "2"]);
        qemu.args(["-m", MEMORY_MIB, "-nographic", "-no-reboot", "-nodefaults"]);
        qemu.args(["-monitor", "none", "-kernel"]).arg(&self.kernel.image);
        qemu.arg("-initrd").arg(files).arg("-append");
        qemu.arg(format!("console=ttyS0 quiet panic=-1 {words}"));
        let mut console = OsString::from("file:");
        console.push(self.folder.join("console"));
        qemu.arg("-serial").arg(console).stdin(Stdio::null());
        qemu
    }

    fn console(&self) -> String {
        let bytes = fs::read(self.folder.join("console")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// A failure with the end of the guest's console.
    fn told(&self, what: &str) -> String {
        let console = self.console();
        let lines: Vec<_> = console.lines().collect();
        let last = lines[lines.len().saturating_sub(CONSOLE_LINES)..].join("\n  ");
        format!("{what}; its console ended with:\n  {last}")
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // What remains is in the way of nobody.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A program that was unpacked or that the system has.
fn found(packages: &Path, name: &str) -> Option<PathBuf> {
    let folders = ["usr/bin", "bin"].map(|folder| packages.join(folder));
    let path = env::var_os("PATH").unwrap_or_default();
    let mut places = folders.into_iter().chain(env::split_paths(&path));
    places.find_map(|folder| Some(folder.join(name)).filter(|program| program.is_file()))
}

/// A folder of the host as QEMU wants it named: a comma in its path is doubled.
fn share(tag: &str, folder: &Path, readonly: bool) -> OsString {
    let path = folder.to_string_lossy().replace(',', ",,");
    let readonly = if readonly { ",readonly=on,multidevs=remap" } else { "" };
    format!("local,path={path},mount_tag={tag},security_model=none{readonly}").into()
}

/// What the guest's shell runs: the network, then the command where it was asked for.
fn start_script(
    command: &GuestCommand,
    drivers: Option<&Path>,
    folder: &Path,
    environment: impl Iterator<Item = (OsString, OsString)>,
) -> Result<String> {
    let text = |path: Option<&Path>| quoted(path.unwrap_or(Path::new("")).as_os_str());
    let mut script = format!("DRIVERS={}\n", text(drivers)?);
    script.push_str(&format!("NUMBERS_APART={}\n", text(command.numbers_apart.as_deref())?));
    script.push_str(&format!("NUMBERS_APART_COUNT={NUMBERS_APART}\n"));
    script.push_str(include_str!("network.sh"));
    for (name, value) in environment {
        let name = name.to_string_lossy().into_owned();
        let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if plain && ENVIRONMENT.iter().any(|prefix| name.starts_with(prefix)) {
            script.push_str(&format!("export {name}={}\n", quoted(&value)?));
        }
    }
    script.push_str("export HANDFAST_GUEST=1\n");
    script.push_str(&format!("cd {} || exit 125\n: >/run/guest/ready\n", text(Some(folder))?));
    let words: Result<Vec<_>> = command.words.iter().map(|word| quoted(word)).collect();
    script.push_str(&format!("{}\n", words?.join(" ")));
    Ok(script)
}

/// A word that the shell takes as it is.
fn quoted(word: &std::ffi::OsStr) -> Result<String> {
    let word = word.to_str().context("only text can be handed to the guest")?;
    ensure!(!word.contains('\0'), "a word with a null byte cannot be handed to the guest");
    Ok(format!("'{}'", word.replace('\'', r"'\''")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn the_shell_gets_back_every_word_as_it_was() {
        let words = ["plain", "two words", "it's", "$HOME `x` \"q\" \\", ""];
        let quoted: Vec<_> = words.iter().map(|word| quoted(word.as_ref()).unwrap()).collect();
        let script = format!("for word in {}; do echo \"[$word]\"; done", quoted.join(" "));
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        let expected: String = words.iter().map(|word| format!("[{word}]\n")).collect();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    }

    #[test]
    fn only_named_parts_of_the_environment_go_along() {
        let command = GuestCommand {
            words: vec!["echo".into(), "it".into()],
            limit: Duration::from_secs(1),
            numbers_apart: None,
        };
        let environment = [("RUST_BACKTRACE", "1"), ("SECRET_KEY", "k"), ("HANDFAST_A-B", "x")];
        let environment = environment.map(|(name, value)| (name.into(), value.into()));
        let script =
            start_script(&command, None, Path::new("/a b"), environment.into_iter()).unwrap();
        assert!(script.contains("export RUST_BACKTRACE='1'\n"));
        assert!(!script.contains("SECRET") && !script.contains("A-B"));
        assert!(script.contains("cd '/a b' || exit 125\n"));
        assert!(script.ends_with("'echo' 'it'\n"));
    }

    #[test]
    fn a_guest_that_does_not_boot_is_ended_at_its_bound_and_its_console_shown() {
        let scratch = tempfile::tempdir().unwrap();
        let machine = Machine {
            qemu: PathBuf::from("sleep"),
            packages: PathBuf::new(),
            drivers: PathBuf::new(),
            kernel: Kernel { image: PathBuf::new(), modules: BTreeMap::new() },
            folder: scratch.path().to_owned(),
        };
        fs::write(scratch.path().join("console"), "Kernel panic\n").unwrap();
        let mut running = Running(Command::new("sleep").arg("60").spawn().unwrap());
        let (limit, started) = (Duration::from_millis(200), Instant::now());
        let mark = scratch.path().join("ready");
        let error = machine.wait(&mut running, &mark, limit, "to boot").unwrap_err().to_string();
        assert!(error.contains("to boot") && error.contains("Kernel panic"), "{error}");
        let process = running.0.id();
        drop(running);
        assert!(started.elapsed() < Duration::from_secs(20));
        assert!(!Path::new(&format!("/proc/{process}")).exists(), "it still runs");
    }
}
