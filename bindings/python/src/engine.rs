//! The class `Core`.
#![allow(unsafe_code)]

use crate::errors::{exception, instance};
use crate::numbers::{self, Column, Numbers, Table};
use handfast_compat::{
    Access, BatchState, Direction, Failure, Grant, GrantError, Interrupt, Notification, Options,
    PerProcess, Request, ServedSegment, TransferEngine, forks, topology,
};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// The engines of the process, to close them before the interpreter ends.
static ENGINES: PerProcess<Mutex<Vec<Weak<TransferEngine>>>> = PerProcess::new();

/// An engine with raw addresses.
#[pyclass(frozen, weakref)]
pub(crate) struct Core {
    engine: ManuallyDrop<Arc<TransferEngine>>,
}

/// Runs a blocking call without the interpreter's lock. On the main thread signals are handled
/// meanwhile: an exception of a handler, such as `KeyboardInterrupt`, ends the call.
fn blocking<T: Send>(
    py: Python<'_>,
    call: impl FnOnce(&mut (dyn FnMut() -> bool + Send)) -> Result<T, Failure> + Send,
) -> PyResult<T> {
    let mut raised = None;
    // Only the main thread gets signals. Others never take the lock back before they are done,
    // which they could not when the interpreter ends.
    let is_main = is_main_thread();
    let mut interrupt = || {
        if !is_main {
            return false;
        }
        raised = Python::attach(|py| py.check_signals()).err();
        raised.is_some()
    };
    let outcome = py.detach(|| call(&mut interrupt));
    match (raised, outcome) {
        (Some(error), _) => Err(error),
        (None, outcome) => outcome.map_err(|failure| exception(py, &failure)),
    }
}

fn is_main_thread() -> bool {
    thread_local! {
        /// The answer, and the number of forks when it was found: a thread that forks is the main one of
        /// the child.
        static KNOWN: Cell<Option<(usize, bool)>> = const { Cell::new(None) };
    }
    let forks = forks();
    match KNOWN.get() {
        Some((known, is_main)) if known == forks => is_main,
        _ => {
            let is_main = has_number_of_process();
            KNOWN.set(Some((forks, is_main)));
            is_main
        }
    }
}

fn has_number_of_process() -> bool {
    // The function `gettid` is newer than the glibc of a release.
    // SAFETY: both calls have no preconditions.
    unsafe { libc::syscall(libc::SYS_gettid) == libc::c_long::from(libc::getpid()) }
}

fn timeout(seconds: Option<f64>) -> PyResult<Option<Duration>> {
    let invalid = |_| PyValueError::new_err("a timeout is a number of seconds, 0 or more");
    seconds.map(Duration::try_from_secs_f64).transpose().map_err(invalid)
}

/// A stream of CUDA, and the device of a default one.
type Stream = Option<(u64, Option<u32>)>;

fn grant(py: Python<'_>, peers: &str, access: &str) -> PyResult<Grant> {
    let access = match access {
        "read" => Access::READ,
        "write" => Access::WRITE,
        "read-write" => Access::READ_WRITE,
        _ => {
            let text = format!("a grant is 'read', 'write' or 'read-write', not '{access}'");
            return Err(exception(py, &Failure::argument(text)));
        }
    };
    let failed = |error: GrantError| exception(py, &Failure::argument(error.to_string()));
    Grant::new(access, peers).map_err(failed)
}

/// A grant as a pattern of names and a word.
fn pair(grant: &Grant) -> (String, String) {
    (grant.peers().to_owned(), grant.access().to_string())
}

/// A dictionary, and an item that it has while memory is registered.
type Owner<'py> = (Bound<'py, PyDict>, Bound<'py, PyAny>, Bound<'py, PyAny>);

/// Keeps an item if a registration succeeds. No step of the interpreter is between both.
fn kept(owner: Option<Owner<'_>>, register: impl FnOnce() -> PyResult<()>) -> PyResult<()> {
    // Before the registration, which may not succeed with an owner that is not kept.
    if let Some((owners, key, owner)) = &owner {
        owners.set_item(key, owner)?;
    }
    let registered = register();
    if let (Some((owners, key, _)), Err(_)) = (&owner, &registered) {
        // A close in another thread may have forgotten it.
        let _ = owners.del_item(key);
    }
    registered
}

fn direction(is_write: bool) -> Direction {
    if is_write { Direction::Write } else { Direction::Read }
}

const LOCAL: Column = |request| &mut request.local;
const REMOTE: Column = |request| &mut request.remote;
const BYTES: Column = |request| &mut request.bytes;

/// The pieces of a call, as its arguments have them.
struct Pieces {
    direction: Direction,
    /// Those of arrays.
    table: Table,
    locals: Numbers,
    remotes: Numbers,
    lengths: Numbers,
    count: usize,
}

impl Pieces {
    fn read(
        is_write: bool,
        locals: &Bound<'_, PyAny>,
        remotes: &Bound<'_, PyAny>,
        lengths: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let direction = direction(is_write);
        let mut table = Table::new(direction);
        let locals = numbers::read("buffers", locals, (&mut table, LOCAL))?;
        let remotes = numbers::read("peer_buffer_addresses", remotes, (&mut table, REMOTE))?;
        let lengths = numbers::read_lengths("lengths", lengths, (&mut table, BYTES))?;
        let count = locals.count().unwrap_or(0);
        let counts = [count, remotes.count().unwrap_or(count), lengths.count().unwrap_or(count)];
        if counts != [count; 3] {
            let [locals, remotes, lengths] = counts;
            return Err(PyValueError::new_err(format!(
                "the lists have different lengths: {locals} buffers, {remotes} addresses of the \
                 peer, {lengths} lengths"
            )));
        }
        Ok(Self { direction, table, locals, remotes, lengths, count })
    }

    /// Needs no lock of the interpreter.
    fn into_requests(self) -> Vec<Request> {
        let Self { direction, table, locals, remotes, lengths, count } = self;
        if !table.is_empty() {
            return table.into_requests([(locals, LOCAL), (remotes, REMOTE), (lengths, BYTES)]);
        }
        let [locals, remotes, lengths] =
            [locals, remotes, lengths].map(|numbers| numbers.into_each(count));
        let request = |((local, remote), bytes)| Request { direction, local, remote, bytes };
        locals.into_iter().zip(remotes).zip(lengths).map(request).collect()
    }
}

impl Core {
    /// Waits for the work of a stream before a transfer of the byte at an address, and returns what is left
    /// of the timeout.
    fn after(
        &self,
        stream: Stream,
        address: Option<u64>,
        timeout: Option<Duration>,
        interrupt: Interrupt<'_>,
    ) -> Result<Option<Duration>, Failure> {
        match stream {
            None => Ok(timeout),
            // SAFETY: the caller passes a stream that exists, as docs/python.md requires.
            Some(stream) => unsafe {
                self.engine.wait_for_stream(stream, address, timeout, interrupt)
            },
        }
    }
}

#[pymethods]
impl Core {
    #[new]
    #[pyo3(signature = (
        local_name, metadata, protocol, devices, is_exact, metrics=None, regions_max=None,
        auth=None, accept_exposed_memory=false, accept_forked_memory=false, encrypt_lanes=None,
        rdma_cm=false, administrators=None
    ))]
    #[allow(clippy::too_many_arguments, reason = "Python's call has them")]
    fn new(
        py: Python<'_>,
        local_name: &str,
        metadata: &str,
        protocol: &str,
        devices: &str,
        is_exact: bool,
        metrics: Option<String>,
        regions_max: Option<usize>,
        auth: Option<String>,
        accept_exposed_memory: bool,
        accept_forked_memory: bool,
        encrypt_lanes: Option<bool>,
        rdma_cm: bool,
        administrators: Option<Vec<String>>,
    ) -> PyResult<Self> {
        let start = || {
            let mut options = match is_exact {
                true => Options::new(local_name, metadata, protocol, devices)?,
                false => Options::of_mooncake(local_name, metadata, protocol, devices)?,
            };
            options.metrics = metrics;
            options.regions_max = regions_max.unwrap_or(options.regions_max);
            options.auth = auth.or(options.auth);
            options.accept_exposed_memory |= accept_exposed_memory;
            options.accept_forked_memory |= accept_forked_memory;
            options.rdma_cm |= rdma_cm;
            options.administrators = administrators.unwrap_or_default();
            options.encrypt_lanes = encrypt_lanes.unwrap_or(options.encrypt_lanes);
            TransferEngine::start(&options).map(Arc::new)
        };
        let engine = blocking(py, |_| start())?;
        let engines = ENGINES.get(Mutex::default).map_err(|failure| exception(py, &failure))?;
        let mut engines = engines.lock().unwrap_or_else(PoisonError::into_inner);
        engines.retain(|known| known.strong_count() > 0);
        engines.push(Arc::downgrade(&engine));
        Ok(Self { engine: ManuallyDrop::new(engine) })
    }

    #[getter]
    fn address(&self) -> &str {
        self.engine.address()
    }

    #[getter]
    fn port(&self) -> u16 {
        self.engine.port()
    }

    #[getter]
    fn warnings(&self) -> Vec<String> {
        self.engine.warnings().to_vec()
    }

    /// The item of `owner` is in its dictionary if the memory is registered, also after an exception of
    /// a signal's handler, which the interpreter raises when the call has returned.
    #[pyo3(signature = (address, bytes, location, grants=None, owner=None))]
    fn register(
        &self,
        py: Python<'_>,
        address: &Bound<'_, PyAny>,
        bytes: &Bound<'_, PyAny>,
        location: &str,
        grants: Option<Vec<(String, String)>>,
        owner: Option<Owner<'_>>,
    ) -> PyResult<()> {
        let (address, bytes) =
            (numbers::one(&"address", address)?, numbers::one(&"length", bytes)?);
        let granted = |all: Vec<(String, String)>| {
            all.iter().map(|(peers, access)| grant(py, peers, access)).collect::<PyResult<Vec<_>>>()
        };
        let grants = grants.map(granted).transpose()?;
        let place = (address, bytes);
        kept(owner, || {
            // SAFETY: callers of Python keep the memory until they unregister it, as documented.
            blocking(py, |_| unsafe {
                match &grants {
                    None => self.engine.register(address, bytes, location),
                    Some(grants) => self.engine.register_granted(None, place, location, grants),
                }
            })
        })
    }

    /// The grants of memory, as patterns of names and words.
    fn grants(&self, py: Python<'_>, address: u64) -> PyResult<Vec<(String, String)>> {
        let grants = blocking(py, |_| self.engine.grants(address))?;
        Ok(grants.iter().map(pair).collect())
    }

    fn grant(&self, py: Python<'_>, address: u64, peers: &str, access: &str) -> PyResult<()> {
        let grant = grant(py, peers, access)?;
        blocking(py, |_| self.engine.grant(address, grant))
    }

    fn revoke(&self, py: Python<'_>, address: u64, peers: &str, access: &str) -> PyResult<()> {
        let grant = grant(py, peers, access)?;
        blocking(py, |_| self.engine.revoke(address, &grant))
    }

    /// As of `register`, with the list of all addresses as the item of the key 0 in `registered`.
    #[pyo3(signature = (addresses, lengths, location, registered=None))]
    fn register_all<'py>(
        &self,
        py: Python<'py>,
        addresses: &Bound<'py, PyAny>,
        lengths: &Bound<'py, PyAny>,
        location: &str,
        registered: Option<Bound<'py, PyDict>>,
    ) -> PyResult<()> {
        let addresses = numbers::read_each("buffer_addresses", addresses)?;
        let lengths = numbers::read_each("capacities", lengths)?;
        if addresses.len() != lengths.len() {
            return Err(PyValueError::new_err(format!(
                "the lists have different lengths: {} addresses, {} capacities",
                addresses.len(),
                lengths.len()
            )));
        }
        let owner = match registered {
            Some(registered) => {
                let key = 0_u64.into_pyobject(py)?.into_any();
                Some((registered, key, PyList::new(py, addresses.iter().copied())?.into_any()))
            }
            None => None,
        };
        let places: Vec<_> = addresses.into_iter().zip(lengths).collect();
        // SAFETY: as in `register`.
        kept(owner, || blocking(py, |_| unsafe { self.engine.register_all(&places, location) }))
    }

    fn unregister(&self, py: Python<'_>, address: &Bound<'_, PyAny>) -> PyResult<()> {
        let address = numbers::one(&"address", address)?;
        blocking(py, |_| self.engine.unregister(address))
    }

    /// Ends the registrations of a list of addresses, of all first, before it waits.
    fn unregister_all(&self, py: Python<'_>, addresses: Vec<u64>) -> PyResult<()> {
        blocking(py, |_| self.engine.unregister_all(&addresses))
    }

    /// The address of the metrics server, if there is one.
    #[getter]
    fn metrics_address(&self) -> Option<String> {
        self.engine.metrics_address().map(|address| address.to_string())
    }

    /// A snapshot as JSON.
    fn metrics(&self, py: Python<'_>) -> PyResult<String> {
        let state = blocking(py, |_| self.engine.metrics())?;
        serde_json::to_string(&state).map_err(|error| PyRuntimeError::new_err(error.to_string()))
    }

    /// A snapshot as OpenMetrics.
    fn openmetrics(&self, py: Python<'_>) -> PyResult<String> {
        let state = blocking(py, |_| self.engine.metrics())?;
        state.to_openmetrics().map_err(|error| PyRuntimeError::new_err(error.to_string()))
    }

    #[getter]
    fn registered(&self) -> usize {
        self.engine.registered()
    }

    #[pyo3(signature = (
        peer, is_write, local, remote, length, notification=None, timeout_s=None, stream=None
    ))]
    #[allow(clippy::too_many_arguments, reason = "Python's call has them")]
    fn transfer_one(
        &self,
        py: Python<'_>,
        peer: &str,
        is_write: bool,
        local: &Bound<'_, PyAny>,
        remote: &Bound<'_, PyAny>,
        length: &Bound<'_, PyAny>,
        notification: Option<(String, String)>,
        timeout_s: Option<f64>,
        stream: Stream,
    ) -> PyResult<()> {
        let request = Request {
            direction: direction(is_write),
            local: numbers::one(&"buffer", local)?,
            remote: numbers::one(&"peer_buffer_address", remote)?,
            bytes: numbers::one(&"length", length)?,
        };
        let (notification, timeout) = (notification.map(notify), timeout(timeout_s)?);
        blocking(py, |interrupt| {
            let timeout = self.after(stream, Some(request.local), timeout, interrupt)?;
            self.engine.transfer(peer, &[request], notification.as_ref(), timeout, interrupt)
        })
    }

    #[pyo3(signature = (
        peer, is_write, locals, remotes, lengths, notification=None, timeout_s=None, stream=None
    ))]
    #[allow(clippy::too_many_arguments, reason = "Python's call has them")]
    fn transfer(
        &self,
        py: Python<'_>,
        peer: &str,
        is_write: bool,
        locals: &Bound<'_, PyAny>,
        remotes: &Bound<'_, PyAny>,
        lengths: &Bound<'_, PyAny>,
        notification: Option<(String, String)>,
        timeout_s: Option<f64>,
        stream: Stream,
    ) -> PyResult<()> {
        let pieces = Pieces::read(is_write, locals, remotes, lengths)?;
        let (notification, timeout) = (notification.map(notify), timeout(timeout_s)?);
        blocking(py, |interrupt| {
            let requests = pieces.into_requests();
            let timeout =
                self.after(stream, requests.first().map(|it| it.local), timeout, interrupt)?;
            self.engine.transfer(peer, &requests, notification.as_ref(), timeout, interrupt)
        })
    }

    /// Adds the number of the batch to `started`, where it is also after an exception of a signal's
    /// handler, which the interpreter raises when the call has returned.
    #[pyo3(signature = (
        peer, is_write, locals, remotes, lengths, started, timeout_s=None, stream=None
    ))]
    #[allow(clippy::too_many_arguments, reason = "Python's call has them")]
    fn submit(
        &self,
        py: Python<'_>,
        peer: &str,
        is_write: bool,
        locals: &Bound<'_, PyAny>,
        remotes: &Bound<'_, PyAny>,
        lengths: &Bound<'_, PyAny>,
        started: &Bound<'_, PyList>,
        timeout_s: Option<f64>,
        stream: Stream,
    ) -> PyResult<u64> {
        let pieces = Pieces::read(is_write, locals, remotes, lengths)?;
        let timeout = timeout(timeout_s)?;
        let id = blocking(py, |interrupt| {
            let requests = pieces.into_requests();
            let timeout =
                self.after(stream, requests.first().map(|it| it.local), timeout, interrupt)?;
            self.engine.submit(peer, &requests, timeout, interrupt)
        })?;
        if let Err(error) = started.append(id) {
            self.abandon(py, id)?;
            return Err(error);
        }
        Ok(id)
    }

    /// Cancels a batch, waits for its end and frees it. No signal is handled meanwhile.
    fn abandon(&self, py: Python<'_>, id: u64) -> PyResult<()> {
        py.detach(|| self.engine.abandon(id)).map_err(|failure| exception(py, &failure))
    }

    /// Cancels a batch and waits for its end, also inside another blocking call of the thread. No signal is
    /// handled meanwhile. Does nothing for a batch that was freed, and in a forked child.
    fn end(&self, py: Python<'_>, id: u64) {
        // Both failures say that nothing of the batch is under way here.
        let _ = py.detach(|| self.engine.end(id));
    }

    /// `None` while the batch is under way, then the bytes moved and the exception, if it failed.
    fn state(&self, py: Python<'_>, id: u64) -> PyResult<Option<(u64, Option<Py<PyAny>>)>> {
        ended(py, self.engine.state(id).map_err(|failure| exception(py, &failure))?)
    }

    /// Bytes of each request that are at their destination for certain, as 64-bit integers in the
    /// machine's order.
    fn landed<'py>(&self, py: Python<'py>, id: u64) -> PyResult<Bound<'py, PyBytes>> {
        let landed = self.engine.landed(id).map_err(|failure| exception(py, &failure))?;
        let bytes = |packed: &mut [u8]| {
            let (places, _) = packed.as_chunks_mut();
            places.iter_mut().zip(&landed).for_each(|(place, it)| *place = it.to_ne_bytes());
            Ok(())
        };
        PyBytes::new_with(py, landed.len() * size_of::<u64>(), bytes)
    }

    fn wait(&self, py: Python<'_>, id: u64) -> PyResult<(u64, Option<Py<PyAny>>)> {
        let state = blocking(py, |interrupt| self.engine.wait(id, interrupt))?;
        Ok(ended(py, state)?.expect("a batch that was waited for has ended"))
    }

    fn cancel(&self, py: Python<'_>, id: u64) -> PyResult<()> {
        self.engine.cancel(id).map_err(|failure| exception(py, &failure))
    }

    fn free(&self, py: Python<'_>, id: u64) -> PyResult<()> {
        self.engine.free(id).map_err(|failure| exception(py, &failure))
    }

    /// Raises a signal at the end of a batch.
    fn signal_at_end(&self, py: Python<'_>, id: u64, signal: &Signal) -> PyResult<()> {
        let eventfd = Arc::clone(&signal.eventfd);
        let raise = move || {
            use std::io::Write as _;
            // A closed loop has no more use for it.
            let _ = (&*eventfd).write_all(&1_u64.to_ne_bytes());
        };
        self.engine.at_end(id, raise).map_err(|failure| exception(py, &failure))
    }

    /// Frees a batch at its end.
    fn free_at_end(&self, py: Python<'_>, id: u64) -> PyResult<()> {
        self.engine.free_at_end(id).map_err(|failure| exception(py, &failure))
    }

    fn open(&self, py: Python<'_>, peer: &str) -> PyResult<()> {
        blocking(py, |interrupt| self.engine.open(peer, interrupt))
    }

    fn close_peer(&self, peer: &str) -> bool {
        self.engine.close_peer(peer)
    }

    fn probe(&self, py: Python<'_>, peer: &str) -> PyResult<()> {
        blocking(py, |interrupt| self.engine.probe(peer, interrupt))
    }

    fn fence(&self, py: Python<'_>, peer: &str) -> PyResult<()> {
        blocking(py, |interrupt| self.engine.fence(peer, interrupt))
    }

    /// The segments of a peer.
    fn segments(&self, py: Python<'_>, peer: &str) -> PyResult<Vec<Served>> {
        let segments = blocking(py, |interrupt| self.engine.segments(peer, interrupt))?;
        let segment = |it: ServedSegment| (it.name, it.address, it.bytes, it.readable, it.writable);
        Ok(segments.into_iter().map(segment).collect())
    }

    /// The grants of a peer's segments, as patterns of names and words.
    #[pyo3(signature = (peer, segment))]
    fn peer_grants(
        &self,
        py: Python<'_>,
        peer: &str,
        segment: Option<&str>,
    ) -> PyResult<Vec<Granted>> {
        let grants = blocking(py, |interrupt| self.engine.peer_grants(peer, segment, interrupt))?;
        let words = |all: Vec<Grant>| all.iter().map(pair).collect();
        Ok(grants.into_iter().map(|(segment, all)| (segment, words(all))).collect())
    }

    fn peer_grant(
        &self,
        py: Python<'_>,
        peer: &str,
        segment: &str,
        peers: &str,
        access: &str,
    ) -> PyResult<()> {
        let grant = grant(py, peers, access)?;
        blocking(py, |interrupt| self.engine.peer_grant(peer, segment, grant, interrupt))
    }

    fn peer_revoke(
        &self,
        py: Python<'_>,
        peer: &str,
        segment: &str,
        peers: &str,
        access: &str,
    ) -> PyResult<()> {
        let grant = grant(py, peers, access)?;
        blocking(py, |interrupt| self.engine.peer_revoke(peer, segment, grant, interrupt))
    }

    fn notify(&self, py: Python<'_>, peer: &str, name: String, message: String) -> PyResult<()> {
        let notification = notify((name, message));
        blocking(py, |interrupt| self.engine.notify(peer, &notification, interrupt))
    }

    fn take_notifications(&self, py: Python<'_>) -> PyResult<Vec<(String, String)>> {
        let taken = self.engine.take_notifications().map_err(|failure| exception(py, &failure))?;
        Ok(taken.into_iter().map(|it| (it.name, it.message)).collect())
    }

    /// The address is in `allocated` if the memory is allocated, also after an exception of a signal's handler.
    fn allocate_managed(
        &self,
        py: Python<'_>,
        bytes: usize,
        allocated: &Bound<'_, PyList>,
    ) -> PyResult<u64> {
        let address = blocking(py, |_| self.engine.allocate_managed(bytes))?;
        if let Err(error) = allocated.append(address) {
            // Nobody knows its address: it is as before, whatever this returns.
            let _ = self.engine.free_managed(address, bytes);
            return Err(error);
        }
        Ok(address)
    }

    fn free_managed(&self, py: Python<'_>, address: u64, bytes: usize) -> PyResult<()> {
        blocking(py, |_| self.engine.free_managed(address, bytes))
    }

    fn copy_in(&self, py: Python<'_>, address: u64, bytes: &[u8]) -> PyResult<()> {
        blocking(py, |_| self.engine.copy_in(address, bytes))
    }

    fn copy_out<'py>(
        &self,
        py: Python<'py>,
        address: u64,
        bytes: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let copied = blocking(py, |_| self.engine.copy_out(address, bytes))?;
        Ok(PyBytes::new(py, &copied))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.engine.close()).map_err(|failure| exception(py, &failure))
    }
}

impl Drop for Core {
    /// Closes the engine without the interpreter's lock, which other threads need meanwhile.
    fn drop(&mut self) {
        // SAFETY: `engine` is not used any more.
        let mut engine = Some(unsafe { ManuallyDrop::take(&mut self.engine) });
        Python::try_attach(|py| py.detach(|| drop(engine.take())));
    }
}

/// An eventfd, to which the end of a batch adds 1.
#[pyclass(frozen)]
pub(crate) struct Signal {
    eventfd: Arc<std::fs::File>,
}

#[pymethods]
impl Signal {
    /// Of a descriptor that stays the caller's.
    #[new]
    fn new(eventfd: i32) -> PyResult<Self> {
        // SAFETY: duplicating a descriptor has no preconditions; an invalid one is an error.
        let own = unsafe { libc::fcntl(eventfd, libc::F_DUPFD_CLOEXEC, 0) };
        if own < 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        // SAFETY: the call above made the descriptor for this value alone.
        let own = unsafe { <std::fs::File as std::os::fd::FromRawFd>::from_raw_fd(own) };
        Ok(Self { eventfd: Arc::new(own) })
    }
}

/// Name, address, length, whether readable, whether writable.
type Served = (String, u64, u64, bool, bool);
/// A segment, and its grants as patterns of names and words.
type Granted = (String, Vec<(String, String)>);

fn notify((name, message): (String, String)) -> Notification {
    Notification { name, message }
}

fn ended(py: Python<'_>, state: BatchState) -> PyResult<Option<(u64, Option<Py<PyAny>>)>> {
    Ok(match state {
        BatchState::Pending => None,
        BatchState::Done { bytes } => Some((bytes, None)),
        BatchState::Failed { bytes, failure } => {
            Some((bytes, Some(instance(py, &failure)?.unbind())))
        }
    })
}

/// Closes every engine, so that calls of other threads end before the interpreter does.
#[pyfunction]
pub(crate) fn close_all(py: Python<'_>) {
    py.detach(|| {
        // A process past the last fork has no engine.
        let Ok(engines) = ENGINES.get(Mutex::default) else { return };
        let engines = std::mem::take(&mut *engines.lock().unwrap_or_else(PoisonError::into_inner));
        let closing: Vec<_> = engines.iter().filter_map(Weak::upgrade).collect();
        std::thread::scope(|scope| {
            for engine in &closing {
                // Memory may stay in use after a failure: the process ends.
                scope.spawn(|| engine.close().ok());
            }
        });
    });
}

/// Devices near each memory of this machine, as JSON in Mooncake's form.
#[pyfunction]
pub(crate) fn local_topology(py: Python<'_>) -> PyResult<String> {
    topology().map_err(|failure| exception(py, &failure))
}
