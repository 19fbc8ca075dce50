//! Connections of scripted devices through the connection manager, by the C interface.

use super::abi::{ConnParam, Event, EventChannel, Id, PORT_SPACES};
use super::socket;
use crate::abi::{Pd, Qp, QpAttr, QpInitAttr, SEND_SIGNALED, SendWr, Sge, Wc};
use crate::objects::zeroed;
use handfast_fabric::command;
use handfast_fabric::manager::protocol::EVENTS;
use handfast_fabric::protocol::{WRITE, access_flag, mask};
use libc::{c_int, c_void, sockaddr};
use std::ptr::{self, null_mut};

unsafe extern "C" {
    fn rdma_create_event_channel() -> *mut EventChannel;
    fn rdma_destroy_event_channel(channel: *mut EventChannel);
    fn rdma_create_id(
        channel: *mut EventChannel,
        id: *mut *mut Id,
        context: *mut c_void,
        space: u32,
    ) -> c_int;
    fn rdma_destroy_id(id: *mut Id) -> c_int;
    fn rdma_bind_addr(id: *mut Id, address: *mut sockaddr) -> c_int;
    fn rdma_resolve_addr(
        id: *mut Id,
        source: *mut sockaddr,
        target: *mut sockaddr,
        timeout_ms: c_int,
    ) -> c_int;
    fn rdma_resolve_route(id: *mut Id, timeout_ms: c_int) -> c_int;
    fn rdma_listen(id: *mut Id, backlog: c_int) -> c_int;
    fn rdma_connect(id: *mut Id, given: *mut ConnParam) -> c_int;
    fn rdma_accept(id: *mut Id, given: *mut ConnParam) -> c_int;
    fn rdma_reject(id: *mut Id, data: *const u8, length: u8) -> c_int;
    fn rdma_disconnect(id: *mut Id) -> c_int;
    fn rdma_create_qp(id: *mut Id, domain: *mut Pd, wanted: *mut QpInitAttr) -> c_int;
    fn rdma_destroy_qp(id: *mut Id);
    fn rdma_get_cm_event(channel: *mut EventChannel, event: *mut *mut Event) -> c_int;
    fn rdma_ack_cm_event(event: *mut Event) -> c_int;
    fn rdma_migrate_id(id: *mut Id, channel: *mut EventChannel) -> c_int;
    fn rdma_establish() -> c_int;
    fn rpoll() -> c_int;
    fn ibv_modify_qp(pair: *mut Qp, given: *mut QpAttr, mask: c_int) -> c_int;
    fn ibv_reg_mr(
        domain: *mut Pd,
        address: *mut c_void,
        length: usize,
        flags: c_int,
    ) -> *mut crate::abi::Mr;
    fn ibv_dereg_mr(region: *mut crate::abi::Mr) -> c_int;
}

/// The private data that handfast sends.
const DATA: [u8; 56] = [7; 56];
const DEPTH: u32 = 4;

/// An event as a test compares it: its name, its status, and the length of its private data.
type Seen = (&'static str, i32, usize);

/// A channel of a test.
struct Channel(*mut EventChannel);

impl Channel {
    fn new() -> Self {
        crate::tests::serve();
        // SAFETY: the devices are in this process.
        let channel = unsafe { rdma_create_event_channel() };
        assert!(!channel.is_null());
        // SAFETY: the channel exists.
        unsafe { libc::fcntl((*channel).fd, libc::F_SETFL, libc::O_NONBLOCK) };
        Self(channel)
    }

    fn id(&self) -> *mut Id {
        let mut id = null_mut();
        // SAFETY: the channel exists.
        assert_eq!(unsafe { rdma_create_id(self.0, &mut id, null_mut(), PORT_SPACES[0]) }, 0);
        id
    }

    /// The next event, acknowledged, with the identifier that it brings.
    fn next(&self) -> Option<(Seen, *mut Id, Vec<u8>)> {
        let mut event = null_mut();
        // SAFETY: the channel exists; the event is acknowledged once.
        unsafe {
            if rdma_get_cm_event(self.0, &mut event) != 0 {
                assert_eq!(last_error(), libc::EAGAIN);
                return None;
            }
            let raw = ptr::read(event);
            let length = usize::from(raw.conn.private_data_len);
            let data = match length {
                0 => Vec::new(),
                _ => std::slice::from_raw_parts(raw.conn.private_data, length).to_vec(),
            };
            assert_eq!(rdma_ack_cm_event(event), 0);
            Some(((EVENTS[raw.event as usize], raw.status, length), raw.id, data))
        }
    }

    fn names(&self) -> Vec<&'static str> {
        std::iter::from_fn(|| self.next()).map(|((name, ..), ..)| name).collect()
    }

    fn seen(&self) -> Option<Seen> {
        self.next().map(|(seen, ..)| seen)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: its identifiers are destroyed.
        unsafe { rdma_destroy_event_channel(self.0) };
    }
}

fn last_error() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

fn run(line: &str) -> String {
    command(line).unwrap_or_else(|error| panic!("{line}: {error}"))
}

/// Gives an identifier a queue pair, and returns its number.
fn add_pair(id: *mut Id) -> u32 {
    // SAFETY: the identifier exists and has a device; the structure is made of numbers and pointers.
    unsafe {
        let mut wanted: QpInitAttr = zeroed();
        (wanted.cap.max_send_wr, wanted.cap.max_recv_wr) = (DEPTH, DEPTH);
        (wanted.cap.max_send_sge, wanted.cap.max_recv_sge) = (1, 1);
        assert_eq!(rdma_create_qp(id, null_mut(), &mut wanted), 0, "{}", last_error());
        (*(*id).qp).qp_num
    }
}

fn destroy(id: *mut Id) {
    // SAFETY: the identifier exists, and nothing uses it after this.
    unsafe {
        rdma_destroy_qp(id);
        assert_eq!(rdma_destroy_id(id), 0);
    }
}

fn parameters(data: &[u8]) -> ConnParam {
    // SAFETY: the structure is made of numbers and pointers.
    let mut parameters: ConnParam = unsafe { zeroed() };
    parameters.private_data = data.as_ptr();
    parameters.private_data_len = u8::try_from(data.len()).unwrap();
    (parameters.responder_resources, parameters.initiator_depth) = (1, 1);
    parameters
}

/// Two devices and a listening identifier of the second.
struct Pair {
    names: [&'static str; 2],
    target: String,
    dialling: Channel,
    listening: Channel,
    listener: *mut Id,
}

impl Pair {
    /// `hosts`: the numbers in the addresses of the devices.
    fn new(names: [&'static str; 2], host: u8, port: u16, backlog: c_int) -> Self {
        let (dialling, listening) = (Channel::new(), Channel::new());
        let target = format!("10.0.0.{host}:{port}");
        let listener = listening.id();
        let mut address = socket::storage(target.parse().unwrap());
        // SAFETY: the identifier exists.
        unsafe {
            assert_eq!(rdma_bind_addr(listener, (&raw mut address).cast()), 0);
            assert_eq!(rdma_listen(listener, backlog), 0);
        }
        Self { names, target, dialling, listening, listener }
    }

    /// An identifier of the first device with a route to the target, and its queue pair's number.
    fn routed(&self, source: u8) -> (*mut Id, u32) {
        let id = self.dialling.id();
        let mut source = socket::storage(format!("10.0.0.{source}:0").parse().unwrap());
        let mut target = socket::storage(self.target.parse().unwrap());
        // SAFETY: the identifier exists.
        unsafe {
            let (from, to) = ((&raw mut source).cast(), (&raw mut target).cast());
            assert_eq!(rdma_resolve_addr(id, from, to, 1_000), 0);
            assert_eq!(self.dialling.names(), ["ADDR_RESOLVED"]);
            assert_eq!(rdma_resolve_route(id, 1_000), 0);
        }
        assert_eq!(self.dialling.names(), ["ROUTE_RESOLVED"]);
        let number = add_pair(id);
        (id, number)
    }

    /// Dials from the first device.
    fn dial(&self, source: u8) -> (*mut Id, u32) {
        let (id, number) = self.routed(source);
        // SAFETY: the identifier exists.
        assert_eq!(unsafe { rdma_connect(id, &mut parameters(&DATA)) }, 0);
        (id, number)
    }

    /// Takes a request, with a queue pair for it.
    fn request(&self) -> (*mut Id, u32) {
        let (seen, id, data) = self.listening.next().unwrap();
        assert_eq!(seen, ("CONNECT_REQUEST", 0, DATA.len()));
        assert_eq!(data, DATA);
        (id, add_pair(id))
    }

    fn accept(&self, id: *mut Id) {
        // SAFETY: the identifier exists.
        assert_eq!(unsafe { rdma_accept(id, &mut parameters(&[8; 56])) }, 0);
    }

    fn end(self) {
        destroy(self.listener);
    }
}

/// A device that refuses queue pairs connected out of band connects through its connection manager,
/// moves bytes, and is disconnected.
#[test]
fn standard_mode_connects_through_the_manager() {
    let pair = Pair::new(["erdma0", "erdma1"], 3, 7_001, 1);
    let (ours, number) = pair.dial(2);
    refuses_out_of_band(ours);
    let (theirs, peer) = pair.request();
    pair.accept(theirs);
    let (seen, _, data) = pair.dialling.next().unwrap();
    assert_eq!((seen, data), (("ESTABLISHED", 0, 56), vec![8; 56]));
    assert_eq!(pair.listening.names(), ["ESTABLISHED"]);
    assert!(run("pairs erdma0").contains(&format!("{number} RTS {peer}")));
    write_a_byte(ours, theirs);
    // SAFETY: the identifier exists.
    assert_eq!(unsafe { rdma_disconnect(ours) }, 0);
    assert_eq!(pair.dialling.names(), ["DISCONNECTED"]);
    assert_eq!(pair.listening.names(), ["DISCONNECTED"]);
    // The stream between iWARP devices is gone: both queue pairs have stopped.
    assert!(run("pairs erdma1").contains(&format!("{peer} ERR")));
    run(&format!("manager timewait {} {number}", pair.names[0]));
    assert_eq!(pair.dialling.names(), ["TIMEWAIT_EXIT"]);
    destroy(ours);
    destroy(theirs);
    pair.end();
}

fn refuses_out_of_band(id: *mut Id) {
    // SAFETY: the structure is made of numbers, and the queue pair exists.
    unsafe {
        let mut attributes: QpAttr = zeroed();
        attributes.qp_state = 3;
        assert_eq!(ibv_modify_qp((*id).qp, &mut attributes, mask::STATE as c_int), libc::EINVAL);
    }
}

/// Writes a byte from one identifier's memory to the other's.
fn write_a_byte(from: *mut Id, to: *mut Id) {
    let (mut source, mut sink) = (vec![5_u8; 1], vec![0_u8; 1]);
    let flags = access_flag::LOCAL_WRITE | access_flag::REMOTE_WRITE | access_flag::REMOTE_READ;
    // SAFETY: the identifiers have domains and queue pairs; the memory outlives the request.
    unsafe {
        let register = |id: *mut Id, bytes: &mut [u8]| {
            ibv_reg_mr((*id).pd, bytes.as_mut_ptr().cast(), bytes.len(), flags as c_int)
        };
        let (near, far) = (register(from, &mut source), register(to, &mut sink));
        assert!(!near.is_null() && !far.is_null());
        let mut piece = Sge { addr: (*near).addr.addr() as u64, length: 1, lkey: (*near).lkey };
        let mut request: SendWr = zeroed();
        (request.opcode, request.send_flags) = (WRITE, SEND_SIGNALED);
        (request.sg_list, request.num_sge) = (&mut piece, 1);
        (request.remote_addr, request.rkey) = ((*far).addr.addr() as u64, (*far).rkey);
        let operations = &(*(*from).verbs).ops;
        let code = (operations.post_send.unwrap())((*from).qp, &mut request, &mut null_mut());
        assert_eq!(code, 0);
        let mut completion: Wc = zeroed();
        assert_eq!((operations.poll_cq.unwrap())((*from).send_cq, 1, &mut completion), 1);
        assert_eq!(completion.status, 0);
        assert_eq!((ibv_dereg_mr(near), ibv_dereg_mr(far)), (0, 0));
    }
    assert_eq!(sink, source);
}

/// Requests that nobody takes, that are rejected, and that find a full listener.
#[test]
fn refused_dials_say_why() {
    let pair = Pair::new(["rxe1", "rxe2"], 5, 7_002, 1);
    // Private data of a rejection comes back, padded as on InfiniBand.
    let (refused, _) = pair.dial(4);
    let (request, _) = pair.request();
    // SAFETY: the identifier exists.
    assert_eq!(unsafe { rdma_reject(request, DATA.as_ptr(), 56) }, 0);
    let (seen, _, data) = pair.dialling.next().unwrap();
    assert_eq!((seen, &data[..56]), (("REJECTED", 28, 148), &DATA[..]));
    destroy(request);
    destroy(refused);
    // A script rejects, and lets nobody be reached.
    run("manager reject rxe1 10");
    let (stale, _) = pair.dial(4);
    assert_eq!(pair.dialling.seen(), Some(("REJECTED", 10, 0)));
    run("manager unreachable rxe1");
    let (unreachable, _) = pair.dial(4);
    assert_eq!(pair.dialling.seen(), Some(("UNREACHABLE", -libc::ETIMEDOUT, 0)));
    // The listener has room for one request.
    let (first, _) = pair.dial(4);
    let (second, _) = pair.dial(4);
    assert_eq!(pair.dialling.seen(), Some(("REJECTED", 28, 0)));
    // A dialler that is gone before the answer.
    let (request, _) = pair.request();
    destroy(first);
    pair.listening.names();
    // SAFETY: the identifier exists.
    assert_eq!(unsafe { rdma_accept(request, &mut parameters(&[])) }, -1);
    destroy(request);
    [stale, unreachable, second].into_iter().for_each(destroy);
    pair.end();
    // Nobody listens any more.
    let other = Pair::new(["rxe1", "rxe2"], 5, 7_003, 1);
    let nobody = Pair { target: "10.0.0.5:7002".to_owned(), ..other };
    let (id, _) = nobody.dial(4);
    assert_eq!(nobody.dialling.seen(), Some(("REJECTED", 8, 0)));
    destroy(id);
    nobody.end();
}

/// Held, lost and repeated events, and connections that a script ends in each state.
#[test]
fn script_holds_loses_and_ends_connections() {
    let pair = Pair::new(["rxe3", "rxe4"], 7, 7_004, 0);
    run("manager hold rxe4 CONNECT_REQUEST");
    let (ours, number) = pair.dial(6);
    assert_eq!(pair.listening.names(), [""; 0]);
    // Ended while it dials.
    run(&format!("manager disconnect rxe3 {number}"));
    assert_eq!(pair.dialling.seen(), Some(("UNREACHABLE", -libc::ETIMEDOUT, 0)));
    run("manager release rxe4 CONNECT_REQUEST");
    let (late, _) = pair.request();
    pair.accept(late);
    assert_eq!(pair.listening.seen(), Some(("UNREACHABLE", -libc::ETIMEDOUT, 0)));
    destroy(late);
    destroy(ours);
    // The answer is lost: neither side is connected.
    run("manager hold rxe3 ESTABLISHED");
    let (ours, _) = pair.dial(6);
    let (theirs, _) = pair.request();
    pair.accept(theirs);
    run("manager lose rxe3 ESTABLISHED");
    assert_eq!(pair.dialling.names(), ["UNREACHABLE"]);
    assert_eq!(pair.listening.names(), ["UNREACHABLE"]);
    destroy(theirs);
    destroy(ours);
    // The answer comes twice; then the script ends the connection.
    let (ours, _) = pair.dial(6);
    let (theirs, peer) = pair.request();
    pair.accept(theirs);
    run("manager repeat rxe3 ESTABLISHED");
    run("manager release rxe3 ESTABLISHED");
    assert_eq!(pair.dialling.names(), ["ESTABLISHED", "ESTABLISHED"]);
    assert_eq!(pair.listening.names(), ["ESTABLISHED"]);
    assert!(run("manager list rxe4").contains(&format!("{peer} connected 7004")));
    run(&format!("manager disconnect rxe4 {peer}"));
    assert_eq!(pair.dialling.names(), ["DISCONNECTED"]);
    assert_eq!(pair.listening.names(), ["DISCONNECTED"]);
    destroy(theirs);
    destroy(ours);
    pair.end();
}

/// An identifier takes its events along to another channel; an identifier of a connection ends with
/// its peer informed.
#[test]
fn identifiers_move_between_channels() {
    let pair = Pair::new(["rxe5", "rxe6"], 9, 7_005, 0);
    let (ours, _) = pair.dial(8);
    let (theirs, _) = pair.request();
    let other = Channel::new();
    // SAFETY: both exist.
    assert_eq!(unsafe { rdma_migrate_id(theirs, other.0) }, 0);
    pair.accept(theirs);
    assert_eq!(pair.dialling.names(), ["ESTABLISHED"]);
    assert_eq!((pair.listening.names(), other.names()), (vec![], vec!["ESTABLISHED"]));
    destroy(ours);
    assert_eq!(other.names(), ["DISCONNECTED"]);
    destroy(theirs);
    pair.end();
}

/// An address of one family is not dialled from one of the other, and a listener has the requests to its own address
/// alone.
#[test]
fn addresses_of_two_families_do_not_meet() {
    let pair = Pair::new(["rxe5", "rxe6"], 9, 7_006, 1);
    let id = pair.dialling.id();
    let resolve = |source: &str, target: &str| {
        let mut source = socket::storage(source.parse().unwrap());
        let mut target = socket::storage(target.parse().unwrap());
        // SAFETY: the identifier exists, and both addresses live through the call.
        unsafe { rdma_resolve_addr(id, (&raw mut source).cast(), (&raw mut target).cast(), 1_000) }
    };
    for (source, target) in
        [("10.0.0.8:0", "[2001:db8::9]:7006"), ("[2001:db8::8]:0", "10.0.0.9:7006")]
    {
        assert_eq!(resolve(source, target), -1);
        assert_eq!(last_error(), libc::EINVAL);
    }
    assert_eq!(resolve("[2001:db8::8]:0", "[2001:db8::9]:7006"), 0);
    assert_eq!(pair.dialling.names(), ["ADDR_RESOLVED"]);
    // SAFETY: the identifier exists.
    unsafe {
        assert_eq!(rdma_resolve_route(id, 1_000), 0);
        assert_eq!(pair.dialling.names(), ["ROUTE_RESOLVED"]);
        add_pair(id);
        assert_eq!(rdma_connect(id, &mut parameters(&DATA)), 0);
    }
    // The device's other address has a listener at that port.
    assert_eq!(pair.dialling.seen(), Some(("REJECTED", 8, 0)));
    destroy(id);
    pair.end();
}

/// Words of a script that mean nothing are refused with what there is, and so are calls.
#[test]
fn what_the_manager_lacks_is_named() {
    let channel = Channel::new();
    for (line, word) in [
        ("manager hold rxe1 ESTABLISH", "there are: ADDR_RESOLVED"),
        ("manager hold rxe9 ESTABLISHED", "no device 'rxe9'"),
        ("manager reject rxe1 often", "'often' is not a number"),
        ("manager disconnect rxe1 99999", "no identifier has the queue pair 99999"),
        ("manager forget rxe1", "no such command"),
        ("manager repeat rxe1 TIMEWAIT_EXIT", "no such event is held"),
    ] {
        let error = command(line).unwrap_err();
        assert!(error.contains(word), "{line}: {error}");
    }
    let mut id = null_mut();
    // SAFETY: the channel exists; the other calls take nothing here.
    unsafe {
        let datagrams = 0x0111;
        assert_eq!(rdma_create_id(channel.0, &mut id, null_mut(), datagrams), -1);
        assert_eq!(last_error(), libc::EOPNOTSUPP);
        assert_eq!((rdma_establish(), rpoll()), (-1, -1));
        assert_eq!(last_error(), libc::EOPNOTSUPP);
    }
}
