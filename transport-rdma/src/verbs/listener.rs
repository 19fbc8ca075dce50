//! The NIC's own thread: hears of completions and of asynchronous events.
#![allow(unsafe_code)]

use super::binding::{RawEvent, ibv_cq, ibv_qp};
use super::context::errno;
use super::counters::count;
use super::nic::Shared;
use super::posting::DeviceEvent;
use crate::error::VerbsError;
use handfast_core::transport::Side;
use std::fs::File;
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

// Kinds of events, as `enum ibv_event_type` of rdma-core counts them.
const COMPLETION_QUEUE_ERROR: u32 = 0;
const QUEUE_PAIR_FATAL: u32 = 1;
const QUEUE_PAIR_REQUEST_ERROR: u32 = 2;
const QUEUE_PAIR_ACCESS_ERROR: u32 = 3;
const COMMUNICATION_ESTABLISHED: u32 = 4;
const SEND_QUEUE_DRAINED: u32 = 5;
const PATH_MIGRATED: u32 = 6;
const PATH_MIGRATION_ERROR: u32 = 7;
const DEVICE_FATAL: u32 = 8;
const PORT_ACTIVE: u32 = 9;
const PORT_ERROR: u32 = 10;
const LID_CHANGE: u32 = 11;
const LAST_REQUEST_REACHED: u32 = 16;
const GID_CHANGE: u32 = 18;

/// Ends its thread when dropped, and waits for that.
pub(super) struct Listener {
    stop: File,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    pub(super) fn start(shared: Arc<Shared>) -> Result<Self, VerbsError> {
        let failed = |call, error: &io::Error| {
            shared.context.failed(call, error.raw_os_error().unwrap_or(0))
        };
        for descriptor in [shared.context.event_descriptor(), shared.channel.descriptor()] {
            never_block(descriptor).map_err(|error| failed("fcntl", &error))?;
        }
        // SAFETY: the call takes two numbers; what it returns is checked.
        let raw = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if raw < 0 {
            return Err(failed("eventfd", &io::Error::last_os_error()));
        }
        // SAFETY: the descriptor was just made and has no other owner.
        let stop = unsafe { File::from_raw_fd(raw) };
        let stopped = stop.try_clone().map_err(|error| failed("dup", &error))?;
        let name = format!("rdma-{}", shared.context.device);
        let listening = Arc::clone(&shared);
        let thread = thread::Builder::new().name(name).spawn(move || listen(&listening, &stopped));
        let thread = thread.map_err(|error| failed("thread", &error))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Fails only if the counter overflows, which takes 2^64 drops.
        let _ = self.stop.write_all(&1u64.to_ne_bytes());
        let Some(thread) = self.thread.take() else { return };
        // A sink that drops the NIC does so on this very thread.
        if thread.thread().id() != thread::current().id() {
            // A panic of a sink was printed where it happened.
            let _ = thread.join();
        }
    }
}

fn never_block(descriptor: RawFd) -> io::Result<()> {
    // SAFETY: the descriptor is open, and the calls only take numbers.
    let returned = unsafe {
        let flags = libc::fcntl(descriptor, libc::F_GETFL);
        libc::fcntl(descriptor, libc::F_SETFL, flags | libc::O_NONBLOCK)
    };
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn listen(shared: &Shared, mut stopped: &File) {
    let watch = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut watched = [
        watch(stopped.as_raw_fd()),
        watch(shared.context.event_descriptor()),
        watch(shared.channel.descriptor()),
    ];
    loop {
        // SAFETY: the array lives and has as many entries as the call is told.
        let ready = unsafe { libc::poll(watched.as_mut_ptr(), watched.len() as libc::nfds_t, -1) };
        if ready < 0 {
            let code = errno();
            if code == libc::EINTR {
                continue;
            }
            let error = shared.context.failed("poll", code);
            return fail_all(shared, &error);
        }
        if watched[0].revents != 0 {
            // One read empties it; nothing else is told by it.
            let _ = stopped.read(&mut [0; 8]);
            return;
        }
        let heard = || take_event(shared).map(|event| on_event(shared, event));
        let told = || {
            let name = shared.channel.take()?;
            if let Some(lane) = shared.lane(name) {
                lane.on_completion_event();
            }
            Ok(())
        };
        if watched[1].revents != 0
            && let Err(code) = all(heard)
        {
            fail_all(shared, &shared.context.failed("ibv_get_async_event", code));
            // A descriptor that only fails would be ready for ever.
            watched[1].fd = -1;
        }
        if watched[2].revents != 0
            && let Err(code) = all(told)
        {
            fail_all(shared, &shared.context.failed("ibv_get_cq_event", code));
            watched[2].fd = -1;
        }
    }
}

/// Takes until there is nothing more to take.
fn all(mut take: impl FnMut() -> Result<(), i32>) -> Result<(), i32> {
    loop {
        match take() {
            Ok(()) => {}
            Err(libc::EAGAIN | libc::EINTR) => return Ok(()),
            Err(code) => return Err(code),
        }
    }
}

/// An event, acknowledged, with what it is about read before that: afterwards it may be gone.
enum Heard {
    CompletionQueue { lane: u64 },
    QueuePair { kind: u32, number: u32 },
    Port { kind: u32, port: u32 },
    Device,
    Other { kind: u32 },
}

fn take_event(shared: &Shared) -> Result<Heard, i32> {
    let context = &shared.context;
    let mut event = MaybeUninit::<RawEvent>::zeroed();
    // SAFETY: the context is open; on success the call fills the event in.
    let returned =
        unsafe { (context.verbs.ibv_get_async_event)(context.raw(), event.as_mut_ptr()) };
    if returned != 0 {
        return Err(errno());
    }
    // SAFETY: zeroes and whatever the call wrote are both values of the structure: a pointer-sized
    // field and a number.
    let mut event = unsafe { event.assume_init() };
    let heard = match event.kind {
        COMPLETION_QUEUE_ERROR => {
            // SAFETY: of this kind the element is a completion queue, whose destruction waits for
            // the acknowledgement below.
            let name = unsafe { (*event.element.cast::<ibv_cq>()).cq_context };
            Heard::CompletionQueue { lane: name.addr() as u64 }
        }
        QUEUE_PAIR_FATAL..=PATH_MIGRATION_ERROR | LAST_REQUEST_REACHED => {
            // SAFETY: of these kinds the element is a queue pair, whose destruction waits for the
            // acknowledgement below.
            let number = unsafe { (*event.element.cast::<ibv_qp>()).qp_num };
            Heard::QueuePair { kind: event.kind, number }
        }
        DEVICE_FATAL => Heard::Device,
        PORT_ACTIVE | PORT_ERROR | LID_CHANGE | GID_CHANGE => {
            // The number is an int at the start of the union, not the whole of it.
            // SAFETY: the union is at least as large and fully initialised.
            let port = unsafe { (&raw const event.element).cast::<u32>().read() };
            Heard::Port { kind: event.kind, port }
        }
        kind => Heard::Other { kind },
    };
    // Before any lock: whoever destroys the object holds one and waits for this.
    // SAFETY: the event came from the matching call and is acknowledged once.
    unsafe { (context.verbs.ibv_ack_async_event)(&raw mut event) };
    count(&shared.counts.events);
    Ok(heard)
}

fn on_event(shared: &Shared, heard: Heard) {
    let error = |side, kind, words: &str| {
        let code = i32::try_from(kind).unwrap_or(i32::MAX);
        shared.context.error(side, "asynchronous event", code, words)
    };
    match heard {
        Heard::CompletionQueue { lane } => {
            if let Some(lane) = shared.lane(lane) {
                let words = "the completion queue ran over";
                lane.fail(error(Side::Local, COMPLETION_QUEUE_ERROR, words));
            }
        }
        Heard::QueuePair { kind, number } => {
            let (side, words) = match kind {
                QUEUE_PAIR_FATAL => (Side::Peer, "the queue pair failed"),
                QUEUE_PAIR_REQUEST_ERROR => (Side::Peer, "the peer sent an invalid request"),
                QUEUE_PAIR_ACCESS_ERROR => (Side::Peer, "the peer asked for what it may not"),
                COMMUNICATION_ESTABLISHED | SEND_QUEUE_DRAINED | PATH_MIGRATED => return,
                _ => return shared.sink.on_device_event(DeviceEvent::Other(kind)),
            };
            let lanes: Vec<_> = super::lane::lock(&shared.lanes).values().cloned().collect();
            if let Some(lane) = lanes.iter().find(|lane| lane.numbers.contains(&number)) {
                lane.fail(error(side, kind, words));
            }
        }
        Heard::Port { kind, port } => shared.sink.on_device_event(match kind {
            PORT_ACTIVE => DeviceEvent::PortActive { port },
            PORT_ERROR => DeviceEvent::PortDown { port },
            _ => DeviceEvent::AddressesChanged { port },
        }),
        Heard::Device => {
            fail_all(shared, &error(Side::Local, DEVICE_FATAL, "the device is lost"));
            shared.sink.on_device_event(DeviceEvent::DeviceLost);
        }
        Heard::Other { kind } => shared.sink.on_device_event(DeviceEvent::Other(kind)),
    }
}

fn fail_all(shared: &Shared, error: &VerbsError) {
    let lanes: Vec<_> = super::lane::lock(&shared.lanes).values().cloned().collect();
    lanes.iter().for_each(|lane| lane.fail(error.clone()));
}
