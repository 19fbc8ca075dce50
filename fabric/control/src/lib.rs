//! Test programs on scripted devices.
//!
//! A test that needs devices starts its own binary again, as a [`Process`]: with the scripted library
//! in place of libibverbs and librdmacm, the devices in `HANDFAST_FABRIC`, and a tree of `/sys` that lists them.
//! There, [`Fabric`] sends commands to the library that the program has loaded.
#![cfg(target_os = "linux")]
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
pub mod cost;
mod sysfs;

pub use handfast_fabric::command;
pub use handfast_fabric::manager::protocol::EVENTS as MANAGER_EVENTS;

use libloading::{Library, Symbol};
use std::ffi::{CString, c_char, c_int};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The libraries that programs load; the scripted one is both.
const LIBRARY: &str = "libibverbs.so.1";
const MANAGER: &str = "librdmacm.so.1";
/// The scripted library.
const SCRIPTED: &str = "libhandfast_fabric_verbs.so";
/// Names the devices to the library.
const DEVICES: &str = "HANDFAST_FABRIC";
/// Names the socket of shared devices.
const SOCKET: &str = "HANDFAST_FABRIC_SOCKET";
/// Longest answer to a command, in bytes.
const ANSWER_BYTES_MAX: usize = 1 << 16;

/// The devices of this process.
pub struct Fabric {
    library: Library,
}

/// Whether this process was started with scripted devices.
pub fn is_scripted() -> bool {
    std::env::var_os(DEVICES).is_some()
}

impl Fabric {
    /// Finds the library of this process.
    ///
    /// # Errors
    /// The process was not started by [`Process`].
    pub fn find() -> io::Result<Self> {
        if !is_scripted() {
            return Err(io::Error::other(format!("{DEVICES} is not set")));
        }
        // SAFETY: the scripted library has no constructor that needs more than a running C library.
        let library = unsafe { Library::new(LIBRARY) }.map_err(io::Error::other)?;
        Ok(Self { library })
    }

    /// Runs a command and returns its answer.
    ///
    /// # Errors
    /// The library refuses the command, with the reason.
    pub fn execute(&self, line: &str) -> io::Result<String> {
        type Run = unsafe extern "C" fn(*const c_char, *mut c_char, usize) -> c_int;
        let text = CString::new(line).map_err(io::Error::other)?;
        let mut answer = vec![0_u8; ANSWER_BYTES_MAX];
        // SAFETY: the symbol is declared so in `handfast-fabric`; the line ends with a null byte, and
        // the answer has the room that is named.
        let code = unsafe {
            let run: Symbol<'_, Run> =
                self.library.get(b"handfast_fabric_command\0").map_err(io::Error::other)?;
            run(text.as_ptr(), answer.as_mut_ptr().cast(), answer.len())
        };
        let end = answer.iter().position(|byte| *byte == 0).unwrap_or(0);
        let answer = String::from_utf8_lossy(&answer[..end]).into_owned();
        if code == 0 { Ok(answer) } else { Err(io::Error::other(format!("'{line}': {answer}"))) }
    }

    /// Runs a command that must succeed, and returns its answer.
    ///
    /// # Panics
    /// The library refuses the command.
    pub fn run(&self, line: &str) -> String {
        self.execute(line).unwrap_or_else(|error| panic!("{error}"))
    }
}

/// A process with scripted devices, or several that share them. Its files live as long as this value.
pub struct Process {
    devices: String,
    folder: tempfile::TempDir,
    is_shared: bool,
}

impl Process {
    /// Prepares the files of a process. `devices` is a list as in `HANDFAST_FABRIC`.
    ///
    /// # Errors
    /// The scripted library is not built, or a file cannot be written.
    pub fn new(devices: &str) -> io::Result<Self> {
        Self::with_library(devices, &scripted()?)
    }

    /// Like [`new`](Self::new), with the scripted library at a path.
    ///
    /// # Errors
    /// The list is wrong, the library does not exist, or a file cannot be written.
    pub fn with_library(devices: &str, library: &Path) -> io::Result<Self> {
        let folder = tempfile::tempdir()?;
        let library = library.canonicalize()?;
        for name in [LIBRARY, MANAGER] {
            std::os::unix::fs::symlink(&library, folder.path().join(name))?;
        }
        let listing = handfast_fabric::listing(devices).map_err(io::Error::other)?;
        sysfs::write(folder.path(), &listing)?;
        Ok(Self { devices: devices.to_owned(), folder, is_shared: false })
    }

    /// Like [`new`](Self::new), for processes that share the devices, which are in this process. A
    /// process can have one such list.
    ///
    /// # Errors
    /// As [`new`](Self::new), or there can be no socket.
    pub fn shared(devices: &str) -> io::Result<Self> {
        Self::new(devices)?.share()
    }

    /// Shares the devices, as those of [`shared`](Self::shared).
    ///
    /// # Errors
    /// There can be no socket.
    pub fn share(mut self) -> io::Result<Self> {
        handfast_fabric::serve(&self.socket(), &self.devices)?;
        self.is_shared = true;
        Ok(self)
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("devices")
    }

    /// Returns this test binary again, with the devices.
    ///
    /// # Errors
    /// The binary has no path.
    pub fn again(&self) -> io::Result<Command> {
        Ok(self.program(&std::env::current_exe()?))
    }

    /// Returns a program with the devices.
    pub fn program(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        let others = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
        let others = others.split(':').filter(|folder| !folder.is_empty());
        let own = self.folder.path().display().to_string();
        let paths: Vec<&str> = std::iter::once(&*own).chain(others).collect();
        command
            .env("LD_LIBRARY_PATH", paths.join(":"))
            .env("SYSFS_PATH", self.folder.path().join("sys"))
            .env(DEVICES, &self.devices);
        if self.is_shared {
            command.env(SOCKET, self.socket());
        } else {
            command.env_remove(SOCKET);
        }
        command
    }
}

/// Runs a test binary but for the named tests, and returns how many passed.
///
/// # Errors
/// It cannot be started, or a test failed: what the binary printed.
pub fn passed(tests: &mut Command, except: &[&str]) -> io::Result<usize> {
    let output = tests.args(except.iter().flat_map(|name| ["--skip", *name])).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let count = text.split("test result: ok. ").nth(1).and_then(|rest| rest.split(' ').next());
    let count = count.and_then(|count| count.parse().ok());
    count.filter(|_| output.status.success()).ok_or_else(|| {
        io::Error::other(format!("{text}\n{}", String::from_utf8_lossy(&output.stderr)))
    })
}

/// Returns the scripted library: in the folder of this program, where cargo builds it, or in the one of an
/// installation's libraries.
///
/// # Errors
/// It is in none of these folders, or this program has no path.
pub fn scripted() -> io::Result<PathBuf> {
    let binary = std::env::current_exe()?;
    let folder = binary.parent().unwrap_or(Path::new(""));
    let found = ["", "deps", "../lib"].map(|place| folder.join(place).join(SCRIPTED));
    found.into_iter().find(|path| path.exists()).ok_or_else(|| {
        let folder = folder.display();
        io::Error::other(format!("{SCRIPTED} is not in {folder}, its deps or its ../lib"))
    })
}
