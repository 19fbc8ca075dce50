//! Commands to the library that a process has loaded.

use crate::calls::own_context_of;
use crate::state::{Kind, RELEASED, SUCCESS, with};
use libc::{c_char, c_int};
use libloading::os::unix::Library;
use std::ffi::{CStr, CString};
use std::io;
use std::path::{Path, PathBuf};

/// The library's file.
const FILE: &str = "libhandfast_fabric_cuda.so";

/// Objects of the library at one moment.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Live {
    /// Streams.
    pub streams: u64,
    /// Holders of contexts.
    pub contexts: i64,
    /// Allocations.
    pub allocations: u64,
    /// Of these, memory of the host, and memory of the program that is pinned.
    pub pinned: u64,
    /// Streams with copies that have not taken place.
    pub copying: u64,
    /// Streams that are waited for while copies are held.
    pub waiting: u64,
    /// Events.
    pub events: u64,
    /// Queries of events that had not taken place, so far.
    pub unready: u64,
    /// Bytes copied so far.
    pub copied: u64,
    /// Flushes of writes of other devices so far.
    pub flushes: u64,
    /// Allocations with writes of other devices that their device does not see yet.
    pub pending: u64,
    /// Allocations of other processes that this one has open.
    pub opened: u64,
}

/// The library, loaded into this process.
pub struct Control {
    library: Library,
    path: PathBuf,
}

impl Control {
    /// Loads the library, next to the program of a test.
    ///
    /// # Errors
    /// It is not built, or cannot be loaded.
    pub fn load() -> io::Result<Self> {
        let program = std::env::current_exe()?;
        let folders = program.ancestors().skip(1).take(2);
        let path = folders
            .flat_map(|folder| [folder.join(FILE), folder.join("deps").join(FILE)])
            .find(|path| Path::exists(path))
            .ok_or_else(|| io::Error::other(format!("{FILE} is not built")))?;
        // SAFETY: the library has no constructor that needs more than a running C library.
        let library = unsafe { Library::open(Some(&path), libc::RTLD_NOW) };
        Ok(Self { library: library.map_err(io::Error::other)?, path })
    }

    /// Path of the library.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Starts the driver, as an application does.
    pub fn start(&self) {
        self.command(c"start", 0, 0);
    }

    /// Allocates memory of a device.
    pub fn allocate(&self, device: i32, bytes: usize) -> u64 {
        self.command(c"allocate", i64::from(device), bytes as i64) as u64
    }

    /// Allocates managed memory.
    pub fn allocate_managed(&self, bytes: usize) -> u64 {
        self.command(c"allocate managed", 0, bytes as i64) as u64
    }

    /// Allocates memory of a device that may not be exported to other devices.
    pub fn allocate_incapable(&self, device: i32, bytes: usize) -> u64 {
        self.command(c"allocate incapable", i64::from(device), bytes as i64) as u64
    }

    /// Allocates memory in a context of the program's own, which lasts until [`Control::end_context`].
    pub fn allocate_apart(&self, device: i32, bytes: usize) -> u64 {
        self.command(c"allocate apart", i64::from(device), bytes as i64) as u64
    }

    /// Ends the program's own context of a device, with the memory and the streams in it.
    pub fn end_context(&self, device: i32) {
        self.command(c"end context", i64::from(device), 0);
    }

    /// Maps as many allocations of 2 MiB each, one behind the other, into addresses that are reserved for
    /// 64, as torch does for segments that grow. Each is freed alone.
    pub fn map(&self, device: i32, count: usize) -> u64 {
        self.command(c"map", i64::from(device), count as i64) as u64
    }

    /// Allocates memory of the host that the driver knows.
    pub fn allocate_host(&self, bytes: usize) -> u64 {
        self.command(c"allocate host", 0, bytes as i64) as u64
    }

    /// Whether writes of other devices to the allocations after this wait for a flush.
    pub fn post(&self, is_posted: bool) {
        self.command(c"post", i64::from(is_posted), 0);
    }

    /// Frees memory; returns false if it was not allocated.
    pub fn free(&self, address: u64) -> bool {
        self.command(c"free", address as i64, 0) == 0
    }

    /// The next call of this name answers `code`.
    pub fn answer(&self, call: &str, code: i32) {
        let line = CString::new(format!("answer {call}")).unwrap_or_default();
        self.command(&line, i64::from(code), 0);
    }

    /// Every call of this name answers `code` from now on, as after an error that a context does not survive; 0 ends
    /// that.
    pub fn answer_always(&self, call: &str, code: i32) {
        let line = CString::new(format!("always {call}")).unwrap_or_default();
        self.command(&line, i64::from(code), 0);
    }

    /// Holds all copies, or lets them go.
    pub fn hold(&self, is_held: bool) {
        self.command(c"hold", i64::from(is_held), 0);
    }

    /// Begins or ends the capture of a graph by the program. Returns whether a call ended it before.
    pub fn capture(&self, is_captured: bool) -> bool {
        self.command(c"capture", i64::from(is_captured), 0) != 0
    }

    /// Objects of the library now.
    pub fn live(&self) -> Live {
        let mut live = Live::default();
        // SAFETY: the symbol has this type, in this crate.
        unsafe {
            type Count = unsafe extern "C" fn(*mut Live);
            let count = self.library.get::<Count>(b"handfast_fabric_cuda_live");
            if let Ok(count) = count {
                count(&raw mut live);
            }
        }
        live
    }

    fn command(&self, line: &CStr, first: i64, second: i64) -> i64 {
        // SAFETY: the symbol has this type, in this crate; the text outlives the call.
        unsafe {
            type Command = unsafe extern "C" fn(*const c_char, i64, i64) -> i64;
            let command = self.library.get::<Command>(b"handfast_fabric_cuda_command");
            command.map_or(-1, |command| command(line.as_ptr(), first, second))
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn handfast_fabric_cuda_live(live: *mut Live) {
    let counted = with(|state| Live {
        streams: state.streams_made() as u64,
        contexts: state.retained.iter().sum(),
        allocations: state.allocations.len() as u64,
        pinned: state.allocations.values().filter(|it| it.kind == Kind::Host).count() as u64
            + state.registered.len() as u64,
        copying: state.streams.values().filter(|(_, copies)| !copies.is_empty()).count() as u64,
        waiting: state.waiting as u64,
        events: state.events.len() as u64,
        unready: state.unready,
        copied: state.copied,
        flushes: state.flushes,
        pending: state.allocations.values().filter(|it| it.buffer.is_pending()).count() as u64,
        opened: state.opened.len() as u64,
    });
    // SAFETY: the caller passes a place for the counts.
    unsafe { *live = counted };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn handfast_fabric_cuda_command(
    line: *const c_char,
    first: i64,
    second: i64,
) -> i64 {
    // SAFETY: the caller passes a text.
    let line = unsafe { CStr::from_ptr(line) }.to_string_lossy();
    let bytes = usize::try_from(second).unwrap_or(0);
    let code = |result: Result<(), c_int>| i64::from(result.err().unwrap_or(SUCCESS));
    let address = |result: Result<u64, c_int>| result.map_or(0, |address| address as i64);
    match line.split_once(' ') {
        Some(("answer", call)) => {
            with(|state| state.answer(call, c_int::try_from(first).unwrap_or(c_int::MAX)));
            0
        }
        Some(("always", call)) => {
            with(|state| state.answer_always(call, c_int::try_from(first).unwrap_or(c_int::MAX)));
            0
        }
        Some(("allocate", "apart")) => {
            let device = c_int::try_from(first).unwrap_or(0);
            address(with(|state| {
                let context = own_context_of(device);
                state.ended.retain(|it| *it != context);
                let address = state.allocate(Kind::Device, device, bytes)?;
                state.place(address, Some(context));
                Ok(address)
            }))
        }
        Some(("end", "context")) => {
            let device = c_int::try_from(first).unwrap_or(0);
            with(|state| state.end_context(own_context_of(device)));
            0
        }
        Some(("allocate", kind)) => {
            let kind = match kind {
                "managed" => Kind::Managed,
                "incapable" => Kind::Incapable,
                "host" => Kind::Host,
                _ => return -1,
            };
            let device = c_int::try_from(first).unwrap_or(0);
            address(with(|state| state.allocate(kind, device, bytes)))
        }
        _ => match &*line {
            "start" => {
                with(|state| state.is_started = true);
                0
            }
            "allocate" => {
                let device = c_int::try_from(first).unwrap_or(0);
                address(with(|state| state.allocate(Kind::Device, device, bytes)))
            }
            "map" => {
                let device = c_int::try_from(first).unwrap_or(0);
                address(with(|state| state.map(device, bytes)))
            }
            "post" => {
                with(|state| state.is_posted = first != 0);
                0
            }
            "capture" => with(|state| {
                state.is_captured = first != 0;
                i64::from(std::mem::take(&mut state.is_capture_lost))
            }),
            "free" => code(with(|state| state.free(first as u64))),
            "hold" => {
                with(|state| state.is_held = first != 0);
                RELEASED.notify_all();
                0
            }
            _ => -1,
        },
    }
}
