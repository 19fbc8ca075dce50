//! A device within this process, behind the calls of the library: it moves nothing, and completes
//! what is posted at once, later or never. Tests say what its calls answer.
#![allow(unsafe_code)]

use super::binding::{
    Library, RawEvent, RawGidEntry, ibv_comp_channel, ibv_context, ibv_cq, ibv_device_attr, ibv_mr,
    ibv_pd, ibv_port_attr, ibv_port_state, ibv_qp, ibv_qp_attr, ibv_qp_init_attr, ibv_send_wr,
    ibv_wc,
};
use super::context::Context;
use super::{Nic, NicConfig, NicSink};
use libc::{c_int, c_void};
use parking_lot::Mutex;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ThreadId;
use std::time::Duration;

/// A device, which lives as long as the process. The library's context is its first field, so that
/// each object leads to it.
#[repr(C)]
pub(crate) struct Device {
    context: ibv_context,
    /// Answers of coming calls, by name; without one they succeed.
    answers: Mutex<BTreeMap<&'static str, VecDeque<c_int>>>,
    /// The descriptors of events and of completions: they count.
    event_count: File,
    completion_count: File,
    events: Mutex<VecDeque<RawEvent>>,
    signalled: Mutex<VecDeque<usize>>,
    /// Requests do not complete.
    pub(crate) holds: AtomicBool,
    /// Time of a destruction of a queue pair.
    pub(super) destruction: Mutex<Duration>,
    queue_pairs: Mutex<Vec<usize>>,
    /// The thread of each destruction of a queue pair, failed ones too.
    destroyed_by: Mutex<Vec<ThreadId>>,
    /// Polls and destructions of queue pairs, now and at most at the same time.
    inside: Mutex<(u32, u32)>,
}

// SAFETY: what its pointers lead to is used as the library's callers may: from any thread.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

#[repr(C)]
struct Queue {
    cq: ibv_cq,
    armed: AtomicBool,
    ready: Mutex<VecDeque<ibv_wc>>,
}

#[repr(C)]
struct Pair {
    qp: ibv_qp,
    held: Mutex<VecDeque<u64>>,
}

/// Counts the allocations of each thread.
struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Allocations of this thread so far.
pub(super) fn allocations() -> u64 {
    ALLOCATIONS.get()
}

// SAFETY: the calls are those of the system's allocator, which keeps to the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as the caller's.
        unsafe { System.dealloc(at, layout) }
    }
}

fn zeroed<T>() -> T {
    // SAFETY: of structures made of integers, pointers and optional functions.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

fn counter() -> File {
    let flags = libc::EFD_CLOEXEC | libc::EFD_NONBLOCK | libc::EFD_SEMAPHORE;
    // SAFETY: the descriptor is new and has no other owner.
    unsafe { File::from_raw_fd(libc::eventfd(0, flags)) }
}

impl Device {
    pub(crate) fn new() -> &'static Self {
        let (event_count, completion_count) = (counter(), counter());
        let mut context: ibv_context = zeroed();
        context.async_fd = event_count.as_raw_fd();
        context.ops.poll_cq = Some(poll_cq);
        context.ops.post_send = Some(post_send);
        context.ops.req_notify_cq = Some(req_notify_cq);
        let device = new(Self {
            context,
            answers: Mutex::default(),
            event_count,
            completion_count,
            events: Mutex::default(),
            signalled: Mutex::default(),
            holds: AtomicBool::new(false),
            destruction: Mutex::default(),
            queue_pairs: Mutex::default(),
            destroyed_by: Mutex::default(),
            inside: Mutex::default(),
        });
        // SAFETY: it was made above, and objects are never freed.
        unsafe { &*device }
    }

    /// Opens its NIC.
    pub(crate) fn nic(&'static self, config: NicConfig, sink: Arc<dyn NicSink>) -> Nic {
        // SAFETY: as above.
        let library = unsafe { &*new(library()) };
        let raw = (&raw const self.context).cast_mut();
        let context = Arc::new(Context::scripted(library, raw));
        Nic::counting(context, config, sink, Arc::default()).unwrap()
    }

    /// The next calls of this name answer so, in turn.
    pub(crate) fn answer(&self, call: &'static str, answers: &[c_int]) {
        self.answers.lock().entry(call).or_default().extend(answers);
    }

    fn next(&self, call: &str) -> c_int {
        self.answers.lock().get_mut(call).and_then(VecDeque::pop_front).unwrap_or(0)
    }

    /// Queue pairs that are not destroyed, in the order of their creation.
    pub(super) fn queue_pairs(&self) -> Vec<*mut ibv_qp> {
        self.queue_pairs.lock().iter().map(|qp| ptr::with_exposed_provenance_mut(*qp)).collect()
    }

    pub(super) fn number(qp: *mut ibv_qp) -> u32 {
        // SAFETY: the queue pair is one of this device, and they are never freed.
        unsafe { (*qp).qp_num }
    }

    pub(super) fn queue(qp: *mut ibv_qp) -> *mut ibv_cq {
        // SAFETY: as above.
        unsafe { (*qp).send_cq }
    }

    /// Raises an asynchronous event.
    pub(super) fn raise(&self, kind: u32, element: *mut c_void) {
        self.events.lock().push_back(RawEvent { element, kind });
        (&self.event_count).write_all(&1u64.to_ne_bytes()).unwrap();
    }

    /// Makes the descriptor of completions ready.
    pub(super) fn signal(&self) {
        (&self.completion_count).write_all(&1u64.to_ne_bytes()).unwrap();
    }

    /// Completes all requests that a queue pair holds, without a signal, with this status.
    pub(super) fn complete(&self, qp: *mut ibv_qp, status: u32) {
        // SAFETY: as above.
        let (pair, queue) = unsafe { (&*qp.cast::<Pair>(), &*(*qp).send_cq.cast::<Queue>()) };
        for name in pair.held.lock().drain(..) {
            queue.ready.lock().push_back(completion(name, status, pair.qp.qp_num));
        }
    }

    /// The threads that destroyed queue pairs, or failed to, in order.
    pub(super) fn destroyed_by(&self) -> Vec<ThreadId> {
        self.destroyed_by.lock().clone()
    }

    /// The most polls and destructions of queue pairs that were under way at the same time.
    pub(super) fn inside_max(&self) -> u32 {
        self.inside.lock().1
    }

    fn enter(&self) {
        let mut inside = self.inside.lock();
        inside.0 += 1;
        inside.1 = inside.1.max(inside.0);
    }

    fn leave(&self) {
        self.inside.lock().0 -= 1;
    }
}

fn completion(name: u64, status: u32, number: u32) -> ibv_wc {
    let mut entry: ibv_wc = zeroed();
    (entry.wr_id, entry.status, entry.qp_num) = (name, status, number);
    entry
}

fn library() -> Library {
    let mut library = Library::absent();
    library.ibv_close_device = close_device;
    library.ibv_query_device = query_device;
    library.ibv_query_port = query_port;
    library._ibv_query_gid_table = query_gid_table;
    library.ibv_alloc_pd = alloc_pd;
    library.ibv_dealloc_pd = dealloc_pd;
    library.ibv_reg_mr = reg_mr;
    library.ibv_dereg_mr = dereg_mr;
    library.ibv_create_comp_channel = create_comp_channel;
    library.ibv_destroy_comp_channel = destroy_comp_channel;
    library.ibv_create_cq = create_cq;
    library.ibv_destroy_cq = destroy_cq;
    library.ibv_get_cq_event = get_cq_event;
    library.ibv_ack_cq_events = ack_cq_events;
    library.ibv_create_qp = create_qp;
    library.ibv_modify_qp = modify_qp;
    library.ibv_destroy_qp = destroy_qp;
    library.ibv_get_async_event = get_async_event;
    library.ibv_ack_async_event = ack_async_event;
    library
}

// SAFETY of the blocks below: the callers follow the rules of the library, so that each pointer leads
// to an object that these functions made and that was not freed; most are freed never.

fn device<'a>(context: *mut ibv_context) -> &'a Device {
    unsafe { &*context.cast::<Device>() }
}

/// Addresses of all objects, which live as long as the process: a leak check finds them here.
static OBJECTS: Mutex<Vec<usize>> = Mutex::new(Vec::new());

fn new<T>(object: T) -> *mut T {
    let object = Box::into_raw(Box::new(object));
    OBJECTS.lock().push(object.expose_provenance());
    object
}

extern "C" fn close_device(_: *mut ibv_context) -> c_int {
    0
}

extern "C" fn query_device(context: *mut ibv_context, facts: *mut ibv_device_attr) -> c_int {
    let facts = unsafe { &mut *facts };
    (facts.max_qp, facts.max_qp_wr, facts.max_cqe, facts.max_mr) = (4096, 4096, 65_536, 4096);
    (facts.max_qp_rd_atom, facts.max_qp_init_rd_atom) = (16, 16);
    device(context).next("ibv_query_device")
}

extern "C" fn query_port(context: *mut ibv_context, _: u8, facts: *mut ibv_port_attr) -> c_int {
    let facts = unsafe { &mut *facts };
    (facts.state, facts.active_mtu, facts.max_msg_sz) =
        (ibv_port_state::IBV_PORT_ACTIVE, 5, 1 << 30);
    facts.link_layer = 2;
    device(context).next("ibv_query_port")
}

extern "C" fn query_gid_table(
    _: *mut ibv_context,
    entries: *mut RawGidEntry,
    _: usize,
    _: u32,
    _: usize,
) -> isize {
    let gid = std::net::Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped().octets();
    let entry = RawGidEntry { gid, gid_index: 1, port_num: 1, gid_type: 2, ndev_ifindex: 1 };
    unsafe { entries.write(entry) };
    1
}

extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    new(ibv_pd { context, handle: 0 })
}

extern "C" fn dealloc_pd(_: *mut ibv_pd) -> c_int {
    0
}

extern "C" fn reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, _: c_int) -> *mut ibv_mr {
    let context = unsafe { (*pd).context };
    new(ibv_mr { context, pd, addr, length, handle: 0, lkey: 1, rkey: 2 })
}

extern "C" fn dereg_mr(mr: *mut ibv_mr) -> c_int {
    device(unsafe { (*mr).context }).next("ibv_dereg_mr")
}

extern "C" fn create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    let fd = device(context).completion_count.as_raw_fd();
    new(ibv_comp_channel { context, fd, refcnt: 0 })
}

extern "C" fn destroy_comp_channel(_: *mut ibv_comp_channel) -> c_int {
    0
}

extern "C" fn create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    name: *mut c_void,
    channel: *mut ibv_comp_channel,
    _: c_int,
) -> *mut ibv_cq {
    let mut cq: ibv_cq = zeroed();
    (cq.context, cq.channel, cq.cq_context, cq.cqe) = (context, channel, name, cqe);
    let ready = Mutex::new(VecDeque::with_capacity(cqe as usize));
    new(Queue { cq, armed: AtomicBool::new(false), ready }).cast()
}

extern "C" fn destroy_cq(_: *mut ibv_cq) -> c_int {
    0
}

/// Takes one from the count, unless the call is to fail; errno says why it did.
fn take(device: &Device, mut count: &File, call: &str) -> bool {
    let answer = device.next(call);
    if answer != 0 {
        unsafe { *libc::__errno_location() = answer };
        return false;
    }
    count.read_exact(&mut [0; 8]).is_ok()
}

extern "C" fn get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    name: *mut *mut c_void,
) -> c_int {
    let device = device(unsafe { (*channel).context });
    if !take(device, &device.completion_count, "ibv_get_cq_event") {
        return -1;
    }
    let raised = device.signalled.lock().pop_front().unwrap();
    let raised: *mut ibv_cq = ptr::with_exposed_provenance_mut(raised);
    unsafe {
        cq.write(raised);
        name.write((*raised).cq_context);
    }
    0
}

extern "C" fn ack_cq_events(_: *mut ibv_cq, _: u32) {}

extern "C" fn create_qp(pd: *mut ibv_pd, wanted: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    let (mut qp, wanted): (ibv_qp, _) = (zeroed(), unsafe { &*wanted });
    (qp.context, qp.pd) = (unsafe { (*pd).context }, pd);
    (qp.qp_context, qp.send_cq, qp.recv_cq) = (wanted.qp_context, wanted.send_cq, wanted.recv_cq);
    let mut queue_pairs = device(qp.context).queue_pairs.lock();
    // A number is used again once its queue pair is gone.
    qp.qp_num = queue_pairs.len() as u32 + 17;
    let raw = new(Pair { qp, held: Mutex::default() });
    queue_pairs.push(raw.expose_provenance());
    raw.cast()
}

extern "C" fn modify_qp(qp: *mut ibv_qp, _: *mut ibv_qp_attr, _: c_int) -> c_int {
    device(unsafe { (*qp).context }).next("ibv_modify_qp")
}

extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    let device = device(unsafe { (*qp).context });
    device.enter();
    device.destroyed_by.lock().push(std::thread::current().id());
    let answer = device.next("ibv_destroy_qp");
    std::thread::sleep(*device.destruction.lock());
    if answer == 0 {
        device.queue_pairs.lock().retain(|live| *live != qp.addr());
    }
    device.leave();
    answer
}

extern "C" fn get_async_event(context: *mut ibv_context, event: *mut RawEvent) -> c_int {
    let device = device(context);
    if !take(device, &device.event_count, "ibv_get_async_event") {
        return -1;
    }
    unsafe { event.write(device.events.lock().pop_front().unwrap()) };
    0
}

extern "C" fn ack_async_event(_: *mut RawEvent) {}

extern "C" fn post_send(
    qp: *mut ibv_qp,
    mut wr: *mut ibv_send_wr,
    _: *mut *mut ibv_send_wr,
) -> c_int {
    let (pair, queue) = unsafe { (&*qp.cast::<Pair>(), &*(*qp).send_cq.cast::<Queue>()) };
    let device = device(pair.qp.context);
    if device.holds.load(Ordering::Relaxed) {
        let mut held = pair.held.lock();
        while !wr.is_null() {
            held.push_back(unsafe { (*wr).wr_id });
            wr = unsafe { (*wr).next };
        }
        return 0;
    }
    let mut ready = queue.ready.lock();
    while !wr.is_null() {
        ready.push_back(completion(unsafe { (*wr).wr_id }, 0, pair.qp.qp_num));
        wr = unsafe { (*wr).next };
    }
    drop(ready);
    if queue.armed.swap(false, Ordering::AcqRel) {
        device.signalled.lock().push_back((&raw const queue.cq).expose_provenance());
        (&device.completion_count).write_all(&1u64.to_ne_bytes()).unwrap();
    }
    0
}

extern "C" fn poll_cq(cq: *mut ibv_cq, room: c_int, entries: *mut ibv_wc) -> c_int {
    let queue = unsafe { &*cq.cast::<Queue>() };
    let device = device(queue.cq.context);
    device.enter();
    let answer = device.next("ibv_poll_cq");
    let mut ready = queue.ready.lock();
    let count = if answer == 0 { ready.len().min(room as usize) } else { 0 };
    for (place, entry) in ready.drain(..count).enumerate() {
        unsafe { entries.add(place).write(entry) };
    }
    drop(ready);
    device.leave();
    if answer == 0 { count as c_int } else { answer }
}

extern "C" fn req_notify_cq(cq: *mut ibv_cq, _: c_int) -> c_int {
    let queue = unsafe { &*cq.cast::<Queue>() };
    queue.armed.store(true, Ordering::Release);
    device(queue.cq.context).next("ibv_req_notify_cq")
}
