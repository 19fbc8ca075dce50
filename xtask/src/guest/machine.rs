//! The virtual machine: its start, supervision and end.

use super::kernel::Kernel;
use super::packages::{Archive, KERNEL, Packages};
use super::siw;
use super::start::{GuestCommand, WhichNics, start_script};
use crate::project::Project;
use anyhow::{Context, Result, bail, ensure};
use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The emulator and its programs.
pub(crate) const MACHINE: Packages =
    Packages::of_system("machine", &["qemu-system-x86", "busybox-static", KERNEL]);
/// A newer kernel than the release's own.
pub(crate) const NEWER_KERNEL: Packages =
    Packages { name: "kernel-backports", packages: &[KERNEL], from: Archive::Backports };
/// Libraries of RDMA programs in the guest, for hosts without them, and tools for comparison.
pub(crate) const DRIVERS: Packages = Packages::of_system(
    "drivers",
    &["libibverbs1", "ibverbs-providers", "librdmacm1", "iproute2", "perftest"],
);

/// Kernel of a guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum WhichKernel {
    /// The newest kernel of the distribution's release.
    #[default]
    Release,
    /// The newest kernel of its backports.
    Backports,
}

/// Timeout from the start of the machine to that of the command. A boot takes seven seconds on two
/// idle processors without a hardware accelerator, half a minute if six others use them, and more than 100 s
/// for two machines at once if twelve do.
const BOOT_MAX: Duration = Duration::from_secs(200);
/// Timeout from the end of the command to that of the machine.
const SWITCH_OFF_MAX: Duration = Duration::from_secs(30);
/// Timeout of a trial boot that decides whether the hardware accelerator works; a working one takes
/// two seconds.
const TRIAL_MAX: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(50);
const MEMORY_MIB: &str = "1024";
/// File by which one host requests a power cut of the other.
const DESTROY_OTHER: &str = "destroy-other";
/// Maximum lines of the guest's console shown after a failure.
const CONSOLE_LINES: usize = 15;

/// A machine that can be started.
pub(crate) struct Machine {
    qemu: PathBuf,
    packages: PathBuf,
    drivers: PathBuf,
    kernel: Kernel,
    folder: PathBuf,
}

/// A running machine, ended when dropped.
struct Host {
    process: Child,
    /// Prints the lines of one of two machines, until it has ended.
    printer: Option<JoinHandle<()>>,
    /// Its console, and the folder shared with this process.
    folder: PathBuf,
    /// Number of boots.
    boot: u32,
}

impl Drop for Host {
    fn drop(&mut self) {
        self.destroy();
    }
}

impl Machine {
    /// Finds or unpacks all requirements of the machine.
    pub(crate) fn prepare(
        project: &Project,
        kernel: WhichKernel,
        nics: WhichNics,
        deadline: Instant,
    ) -> Result<Self> {
        let packages = MACHINE.ensure(project, deadline)?;
        let drivers = DRIVERS.ensure(project, deadline)?;
        let name = "qemu-system-x86_64";
        let qemu = found(&packages, name).with_context(|| format!("no {name} was unpacked"))?;
        let mut kernel = match kernel {
            WhichKernel::Release => Kernel::find(&packages)?,
            WhichKernel::Backports => Kernel::find(&NEWER_KERNEL.ensure(project, deadline)?)?,
        };
        if nics == WhichNics::Siw {
            let module = siw::ensure(project, &kernel.release(), deadline)?;
            kernel.add("siw", module);
        }
        let folder = project.scratch().join(format!("guest-{}", std::process::id()));
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(&folder)?;
        Ok(Self { qemu, packages, drivers, kernel, folder })
    }

    /// Returns the release of the kernel that is unpacked.
    pub(crate) fn release(project: &Project, deadline: Instant) -> Result<String> {
        Ok(Kernel::find(&MACHINE.ensure(project, deadline)?)?.release())
    }

    /// Builds that kernel's soft-iWARP unless it exists.
    pub(crate) fn ensure_siw(project: &Project, deadline: Instant) -> Result<()> {
        siw::ensure(project, &Self::release(project, deadline)?, deadline).map(|_| ())
    }

    /// Boots the hosts of the command, runs the command in each once all have booted, shuts them
    /// down, and returns the first exit code other than 0.
    pub(crate) fn run(&self, command: &GuestCommand, verdict: &Path) -> Result<u8> {
        let busybox = found(&self.packages, "busybox").context("no busybox was unpacked")?;
        let deadline = Instant::now() + BOOT_MAX;
        let files = self.kernel.first_files(&busybox, &self.folder.join("first"), deadline)?;
        let accelerator = self.accelerator(&files, verdict)?;
        let hosts = 0..command.hosts;
        let boot = |number, boot| self.start((number, boot), command, accelerator, &files);
        let hosts: Result<Vec<_>> = hosts.map(|number| boot(number, 1)).collect();
        let mut hosts = hosts?;
        for host in &mut hosts {
            host.wait_ready()?;
        }
        for host in &hosts {
            fs::write(host.shared("go"), "")?;
        }
        until_ended(&mut hosts, command.limit, boot)?;
        let mut first = 0;
        for host in &mut hosts {
            host.wait("never", SWITCH_OFF_MAX, "to switch off")?;
            // Read only now, since the file exists before its content.
            let code = fs::read_to_string(host.shared("exit")).unwrap_or_default();
            let code = code.trim().parse().with_context(|| host.failure("no exit code came"))?;
            first = if first == 0 { code } else { first };
        }
        Ok(first)
    }

    fn start(
        &self,
        (number, boot): (u8, u32),
        command: &GuestCommand,
        accelerator: &str,
        files: &Path,
    ) -> Result<Host> {
        let folder = self.folder.join(format!("host-{number}"));
        let shared = folder.join("shared");
        if boot > 1 {
            fs::remove_dir_all(&shared)?;
        }
        fs::create_dir_all(&shared)?;
        let drivers = self.drivers.join("usr/lib").exists().then_some(self.drivers.as_path());
        let here = env::current_dir()?;
        let start = start_script(command, (number, boot), drivers, &here, env::vars_os())?;
        fs::write(shared.join("start"), start)?;
        let seconds = (BOOT_MAX * 2 + command.limit + SWITCH_OFF_MAX).as_secs();
        let words = format!("handfast.seconds={seconds}");
        let mut qemu = self.qemu(accelerator, files, &words, &folder);
        qemu.args(["-serial", "stdio", "-virtfs"]).arg(share("host", Path::new("/"), true));
        qemu.arg("-virtfs").arg(share("run", &shared, false)).stdout(Stdio::inherit());
        if command.hosts == 2 {
            qemu.stdout(Stdio::piped());
            // The link is a pair of sockets, named relative to the machines' folder, since names of
            // sockets are short.
            let (own, other) = (number, 1 - number);
            let wire = format!(
                "dgram,id=wire,local.type=unix,local.path=wire-{own},\
                 remote.type=unix,remote.path=wire-{other}"
            );
            let card = format!("virtio-net-pci,netdev=wire,romfile=,mac=52:54:00:00:00:0{own}");
            qemu.current_dir(&self.folder).args(["-netdev", &wire, "-device", &card]);
        }
        let mut process = qemu.spawn().context("starting the virtual machine")?;
        let printer = process.stdout.take().map(|output| thread::spawn(|| print_lines(output)));
        Ok(Host { process, printer, folder, boot })
    }

    /// Returns the accelerator to use. A device of the hardware accelerator does not prove that it
    /// works; a trial boot does, and its verdict is kept.
    fn accelerator(&self, files: &Path, verdict: &Path) -> Result<&'static str> {
        const KVM: &str = "kvm";
        const TCG: &str = "tcg,thread=multi";
        if let Ok(kept) = fs::read_to_string(verdict) {
            return Ok(if kept == KVM { KVM } else { TCG });
        }
        let device = File::options().read(true).write(true).open("/dev/kvm");
        let works = device.is_ok() && {
            let folder = self.folder.join("trial");
            fs::create_dir_all(&folder)?;
            let mut trial = self.qemu(KVM, files, "handfast.trial", &folder);
            let process = trial.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
            let mut host = Host { process, printer: None, folder, boot: 1 };
            let ended = host.wait("never", TRIAL_MAX, "to try");
            ended.is_ok() && host.console().contains("the trial boot works")
        };
        let chosen = if works { KVM } else { TCG };
        fs::write(verdict, chosen)?;
        Ok(chosen)
    }

    fn qemu(&self, accelerator: &str, files: &Path, words: &str, folder: &Path) -> Command {
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
        // Without the timer check: on a busy host late interrupts would make the kernel panic.
        qemu.arg(format!("console=ttyS0 quiet panic=-1 no_timer_check {words}"));
        let mut console = OsString::from("file:");
        console.push(folder.join("console"));
        qemu.arg("-serial").arg(console).stdin(Stdio::null());
        qemu
    }
}

/// Waits until the command has ended in each host. If a host creates the file [`DESTROY_OTHER`] in
/// its shared folder, the other host's power is cut and it is started again.
fn until_ended(
    hosts: &mut [Host],
    limit: Duration,
    boot: impl Fn(u8, u32) -> Result<Host>,
) -> Result<()> {
    let mut deadline = Instant::now() + limit;
    loop {
        let mut asked = None;
        let mut over = true;
        for (number, host) in hosts.iter_mut().enumerate() {
            over &= host.is_over("exit")?;
            if host.shared(DESTROY_OTHER).exists() {
                asked = Some(number);
            }
            if Instant::now() >= deadline && !over {
                let seconds = limit.as_secs();
                let what = format!("the guest was given {seconds} s for the command; it was ended");
                bail!(host.failure(&what));
            }
        }
        if over {
            return Ok(());
        }
        if let (Some(asked), 2) = (asked, hosts.len()) {
            let begun = Instant::now();
            let other = 1 - asked;
            hosts[other].destroy();
            let number = u8::try_from(other)?;
            hosts[other] = boot(number, hosts[other].boot + 1)?;
            hosts[other].wait_ready()?;
            fs::write(hosts[other].shared("go"), "")?;
            // Not earlier: the requesting host may still have had it open.
            fs::remove_file(hosts[asked].shared(DESTROY_OTHER))?;
            // The time of a boot does not count for the command.
            deadline += begun.elapsed();
        }
        thread::sleep(POLL);
    }
}

/// Prints whole lines, so that none is torn by one of the other machine.
fn print_lines(output: impl Read) {
    let mut output = BufReader::new(output);
    let mut line = Vec::new();
    while output.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        if io::stdout().write_all(&line).is_err() {
            return;
        }
        line.clear();
    }
}

impl Host {
    /// Ends the machine as a power cut would.
    fn destroy(&mut self) {
        // Either call fails only if the machine has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
        if let Some(printer) = self.printer.take() {
            let _ = printer.join();
        }
    }

    fn wait_ready(&mut self) -> Result<()> {
        self.wait("ready", BOOT_MAX, "to boot")?;
        let arrived = self.shared("ready").exists();
        ensure!(arrived, self.failure("the guest did not come to the command"));
        Ok(())
    }

    /// Whether the guest has created the file `mark`, or has ended.
    fn is_over(&mut self, mark: &str) -> Result<bool> {
        Ok(self.shared(mark).exists() || self.process.try_wait()?.is_some())
    }

    fn shared(&self, name: &str) -> PathBuf {
        self.folder.join("shared").join(name)
    }

    /// Waits until the guest has created the file `mark`, or has ended.
    fn wait(&mut self, mark: &str, limit: Duration, what: &str) -> Result<()> {
        let deadline = Instant::now() + limit;
        while !self.is_over(mark)? {
            if Instant::now() >= deadline {
                let seconds = limit.as_secs();
                bail!(
                    self.failure(&format!("the guest was given {seconds} s {what}; it was ended"))
                );
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    fn console(&self) -> String {
        let bytes = fs::read(self.folder.join("console")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Creates an error with the end of the guest's console.
    fn failure(&self, what: &str) -> String {
        let console = self.console();
        let lines: Vec<_> = console.lines().collect();
        let last = lines[lines.len().saturating_sub(CONSOLE_LINES)..].join("\n  ");
        format!("{what}; its console ended with:\n  {last}")
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // A leftover folder does no harm.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Returns the path of a program, unpacked or of the system.
fn found(packages: &Path, name: &str) -> Option<PathBuf> {
    let folders = ["usr/bin", "bin"].map(|folder| packages.join(folder));
    let path = env::var_os("PATH").unwrap_or_default();
    let mut places = folders.into_iter().chain(env::split_paths(&path));
    places.find_map(|folder| Some(folder.join(name)).filter(|program| program.is_file()))
}

/// Formats a folder of the host for QEMU, which requires commas to be doubled.
fn share(tag: &str, folder: &Path, readonly: bool) -> OsString {
    let path = folder.to_string_lossy().replace(',', ",,");
    let readonly = if readonly { ",readonly=on,multidevs=remap" } else { "" };
    format!("local,path={path},mount_tag={tag},security_model=none{readonly}").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guest_that_does_not_boot_is_ended_and_its_console_shown() {
        let scratch = tempfile::tempdir().unwrap();
        fs::write(scratch.path().join("console"), "Kernel panic\n").unwrap();
        let process = Command::new("sleep").arg("60").spawn().unwrap();
        let mut host = Host { process, printer: None, folder: scratch.path().to_owned(), boot: 1 };
        let (limit, started) = (Duration::from_millis(200), Instant::now());
        let error = host.wait("ready", limit, "to boot").unwrap_err().to_string();
        assert!(error.contains("to boot") && error.contains("Kernel panic"), "{error}");
        let process = host.process.id();
        drop(host);
        assert!(started.elapsed() < Duration::from_secs(20));
        assert!(!Path::new(&format!("/proc/{process}")).exists(), "it still runs");
    }

    #[test]
    fn a_folder_with_a_comma_is_shared_under_its_name() {
        let shared = share("run", Path::new("/a,b"), false).into_string().unwrap();
        assert_eq!(shared, "local,path=/a,,b,mount_tag=run,security_model=none");
    }
}
