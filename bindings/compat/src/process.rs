//! The process of an engine, and forks.

use crate::failure::{Cause, Failure};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// Maximum depth of forks whose children create engines of their own.
pub const FORKS_MAX: usize = 16;

/// Forks between the first process and this one.
static DEPTH: AtomicUsize = AtomicUsize::new(0);

/// A process, in a row of forks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process(usize);

impl Process {
    pub(crate) fn this() -> Self {
        count_forks();
        Self(DEPTH.load(Ordering::Relaxed))
    }

    pub(crate) fn depth(self) -> usize {
        self.0
    }

    /// # Errors
    /// [`Cause::Forked`] in another process.
    pub(crate) fn check(self) -> Result<(), Failure> {
        match self == Self::this() {
            true => Ok(()),
            false => Err(Cause::Forked.into()),
        }
    }
}

/// The number of forks between the first process and this one. Makes no call of the system.
pub fn forks() -> usize {
    Process::this().depth()
}

/// A value in each process. A child of a fork does not touch its parent's: a lock in it may be held
/// by a thread that the child does not have.
pub struct PerProcess<T>([OnceLock<T>; FORKS_MAX]);

impl<T> PerProcess<T> {
    /// No process has its value yet.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Self {
        Self([const { OnceLock::new() }; FORKS_MAX])
    }

    /// Returns the place for this process's value.
    ///
    /// # Errors
    /// [`Cause::Limit`] in a process past [`FORKS_MAX`] forks.
    pub fn place(&self) -> Result<&OnceLock<T>, Failure> {
        let limit = Cause::Limit {
            name: "FORKS_MAX",
            max: FORKS_MAX,
            cure: "start a new process instead of forking",
        };
        self.0.get(Process::this().depth()).ok_or(limit.into())
    }

    /// Returns this process's value, which the first call makes.
    ///
    /// # Errors
    /// As of [`PerProcess::place`].
    pub fn get(&self, make: impl FnOnce() -> T) -> Result<&T, Failure> {
        Ok(self.place()?.get_or_init(make))
    }
}

/// The process that counted its fork.
static COUNTED: AtomicU32 = AtomicU32::new(0);

/// Two threads may both have registered it.
extern "C" fn on_fork() {
    let this = std::process::id();
    if COUNTED.swap(this, Ordering::Relaxed) != this {
        DEPTH.fetch_add(1, Ordering::Relaxed);
    }
}

/// Counts forks from now on. Takes no lock, which a fork could leave locked.
#[allow(unsafe_code)]
fn count_forks() {
    static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
    if !IS_REGISTERED.load(Ordering::Acquire) {
        // SAFETY: the handler is a function of the program that asks for the process and changes
        // atomic numbers, which is allowed in a child of a process with several threads.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(on_fork)) };
        IS_REGISTERED.store(true, Ordering::Release);
    }
}
