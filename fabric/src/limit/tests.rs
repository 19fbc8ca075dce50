//! Each limit is reached, and one more is refused or reported by name.

use super::{LimitReached, Refusal, Welcome};
use crate::commands::execute;
use crate::devices::{QUEUE_PAIRS_MAX, REGIONS_MAX};
use crate::faults::{HELD_MAX, PARKED_MAX, PLANTED_MAX};
use crate::protocol::{
    Answer, COMPLETIONS_MAX, Hello, QUEUE_DEPTH_MAX, Request, Send, VECTORS, WRITE, receive, send,
};
use crate::serve::{CONNECTIONS_MAX, serve};
use crate::server::data::POSTED_MAX;
use crate::server::{HERE, OFFERED_MAX, handle, offer, withdraw_offers};
use crate::state::{EVENTS_MAX, LAWS_MAX, State, lock};
use handfast_transport_sim::verbs::{
    self, Access, Attributes, Bytes, Packet, PacketBody, QpState, Status,
};
use parking_lot::{Mutex, MutexGuard};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A process has one list of devices; the tests take turns.
static TURN: Mutex<()> = Mutex::new(());

fn devices() -> MutexGuard<'static, ()> {
    let turn = TURN.lock();
    *lock() = State::new("rxe0=rxe,rxe1=rxe");
    turn
}

fn command(line: &str) -> Result<String, String> {
    execute(&mut lock(), line)
}

fn object(request: Request) -> u64 {
    match handle(HERE, request) {
        Ok(Answer::Object(name) | Answer::Pair { pair: name, .. }) => name,
        other => panic!("{other:?}"),
    }
}

/// Opens the first device; the program's end of its descriptor must live as long.
fn open() -> (u64, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    offer(HERE, 1, theirs).unwrap();
    (object(Request::OpenDevice { nic: 0, events: 1 }), ours)
}

/// Events that a program does not read are kept up to the limit; the next is refused, or reported as lost.
#[test]
fn event_past_the_limit_is_reported() {
    let _turn = devices();
    let (context, _events) = open();
    for _ in 0..EVENTS_MAX {
        command("event rxe0 9").unwrap();
    }
    assert_eq!(command("event rxe0 9"), Err(LimitReached::Events.to_string()));
    command("port rxe0 down").unwrap();
    assert_eq!(command("laws"), Ok(format!("rxe0: {}", LimitReached::Events)));
    for _ in 0..EVENTS_MAX {
        let taken = handle(HERE, Request::TakeEvent { context });
        assert!(matches!(taken, Ok(Answer::Event(Some((9, _))))), "{taken:?}");
    }
    assert!(matches!(handle(HERE, Request::TakeEvent { context }), Ok(Answer::Event(None))));
}

/// The same for held events.
#[test]
fn held_event_past_the_limit_is_refused() {
    let _turn = devices();
    let (_, _events) = open();
    command("hold events rxe0").unwrap();
    for _ in 0..EVENTS_MAX {
        command("event rxe0 9").unwrap();
    }
    assert_eq!(command("event rxe0 9"), Err(LimitReached::ParkedEvents.to_string()));
    command("release events rxe0").unwrap();
    assert_eq!(command("laws"), Ok(String::new()));
}

/// Held completions and packets are kept up to the limit.
#[test]
fn held_work_past_the_limit_is_an_error() {
    let mut state = State::new("rxe0=rxe,rxe1=rxe");
    execute(&mut state, "hold completions rxe0").unwrap();
    execute(&mut state, "hold packets rxe0 rxe1").unwrap();
    let queue = verbs::Queue::Send;
    let completion = verbs::WorkCompletion { number: 1, wr_id: 1, queue, status: Status::Success };
    let body = PacketBody::Ack;
    let packet = Packet { from: 0, to: 1, dest_number: 1, psn: 0, body };
    for _ in 0..PARKED_MAX {
        assert_eq!(state.faults.pass_completion(0, completion), Ok(None));
        assert_eq!(state.faults.pass_packet(packet.clone()), Ok(None));
    }
    let past = state.faults.pass_completion(0, completion);
    assert_eq!(past, Err(LimitReached::ParkedCompletions));
    assert_eq!(state.faults.pass_packet(packet), Err(LimitReached::ParkedPackets));
}

/// Faults, and queue pairs whose completions are held, are planted up to the limit.
#[test]
fn fault_past_the_limit_is_refused() {
    let mut state = State::new("rxe0=rxe");
    for _ in 0..PLANTED_MAX {
        execute(&mut state, "hold call rxe0 ibv_reg_mr").unwrap();
    }
    let past = execute(&mut state, "fail call rxe0 ibv_reg_mr 5");
    assert_eq!(past, Err(LimitReached::Planted.to_string()));
    for number in 0..HELD_MAX {
        execute(&mut state, &format!("hold completions rxe0 {number}")).unwrap();
    }
    let past = execute(&mut state, &format!("hold completions rxe0 {HELD_MAX}"));
    assert_eq!(past, Err(LimitReached::Held.to_string()));
    execute(&mut state, "hold completions rxe0 0").unwrap();
}

/// Broken laws past the limit are counted.
#[test]
fn broken_laws_past_the_limit_are_counted() {
    let mut state = State::new("rxe0=rxe");
    (0..LAWS_MAX).for_each(|n| state.break_law(n.to_string()));
    assert_eq!(state.take_broken_laws().len(), LAWS_MAX);
    (0..LAWS_MAX + 3).for_each(|n| state.break_law(n.to_string()));
    let laws = state.take_broken_laws();
    assert_eq!(laws.len(), LAWS_MAX + 1);
    assert_eq!(laws[LAWS_MAX], "3 more laws are broken, and not kept");
    assert!(state.take_broken_laws().is_empty());
    // The tables keep fewer between two reports.
    let number = state.fabric.create_queue_pair(0, 1, 1).unwrap();
    for _ in 0..verbs::LAWS_MAX + 2 {
        state.fabric.modify(0, number, &Attributes::to(QpState::Rts)).unwrap_err();
    }
    let laws = state.take_broken_laws();
    assert_eq!(laws.len(), verbs::LAWS_MAX + 1);
    assert_eq!(laws[verbs::LAWS_MAX], "2 more laws are broken, and not kept");
}

/// A device without limits of its list has the default ones.
#[test]
fn object_past_the_default_limit_is_refused() {
    let mut fabric = State::new("rxe0=rxe").fabric;
    for _ in 0..QUEUE_PAIRS_MAX {
        fabric.create_queue_pair(0, 1, 1).unwrap();
    }
    assert_eq!(fabric.create_queue_pair(0, 1, 1).unwrap_err().code.abs(), libc::ENOMEM);
    let memory = || Bytes::Held(Arc::new(vec![0; 8]));
    for _ in 0..REGIONS_MAX {
        fabric.register(0, 0, memory(), Access::ALL).unwrap();
    }
    let past = fabric.register(0, 0, memory(), Access::ALL).unwrap_err();
    assert_eq!(past.code.abs(), libc::ENOMEM);
}

/// Queues have the depth that the device announces, and no more.
#[test]
fn queue_past_the_announced_depth_is_refused() {
    let _turn = devices();
    let (context, _events) = open();
    let queue =
        |entries| Request::CreateQueue { context, entries, channel: None, vector: 0, object: 1 };
    let queues = object(queue(COMPLETIONS_MAX));
    assert_eq!(handle(HERE, queue(COMPLETIONS_MAX + 1)).unwrap_err(), libc::EINVAL);
    let on =
        |vector| Request::CreateQueue { context, entries: 1, channel: None, vector, object: 1 };
    object(on(VECTORS - 1));
    for vector in [-1, VECTORS] {
        assert_eq!(handle(HERE, on(vector)).unwrap_err(), libc::EINVAL);
    }
    let pair = |depths| Request::CreatePair {
        context,
        domain: 1,
        send_queue: queues,
        receive_queue: queues,
        depths,
        pieces: (1, 1),
        inline_bytes: 0,
        all: false,
        object: 2,
    };
    object(pair((QUEUE_DEPTH_MAX, QUEUE_DEPTH_MAX)));
    for depths in [(QUEUE_DEPTH_MAX + 1, 1), (1, QUEUE_DEPTH_MAX + 1)] {
        assert_eq!(handle(HERE, pair(depths)).unwrap_err(), libc::EINVAL);
    }
}

/// Requests that a queue pair refuses are remembered up to the limit.
#[test]
fn refused_post_past_the_limit_is_out_of_memory() {
    let _turn = devices();
    // It takes no post in RESET.
    *lock() = State::new("rxe0=strict");
    let (context, _events) = open();
    let queue =
        object(Request::CreateQueue { context, entries: 1, channel: None, vector: 0, object: 1 });
    let pair = object(Request::CreatePair {
        context,
        domain: 1,
        send_queue: queue,
        receive_queue: queue,
        depths: (1, 1),
        pieces: (1, 1),
        inline_bytes: 0,
        all: false,
        object: 2,
    });
    let request = Send {
        wr_id: 1,
        opcode: WRITE,
        signalled: true,
        local: 0,
        length: 0,
        lkey: 0,
        remote: 0,
        rkey: 0,
    };
    let post = || match handle(HERE, Request::PostSend { pair, requests: vec![request] }) {
        Ok(Answer::Posted { count: 0, code }) => code,
        other => panic!("{other:?}"),
    };
    for _ in 0..POSTED_MAX {
        assert_eq!(post(), libc::EINVAL, "the queue pair is in RESET");
    }
    assert_eq!(post(), libc::ENOMEM);
}

/// Descriptors are offered up to the limit; those of a program that ends are forgotten.
#[test]
fn offer_past_the_limit_is_refused() {
    let _turn = devices();
    let (program, mut kept) = (77, Vec::new());
    let mut offer = |name| {
        let (ours, theirs) = UnixStream::pair().unwrap();
        kept.push(ours);
        offer(program, name, theirs)
    };
    for name in 0..OFFERED_MAX as u64 {
        offer(name).unwrap();
    }
    assert_eq!(offer(OFFERED_MAX as u64), Err(Refusal::Limit(LimitReached::Offered)));
    withdraw_offers(program);
    offer(0).unwrap();
    withdraw_offers(program);
    let open = handle(program, Request::OpenDevice { nic: 0, events: 5 });
    assert_eq!(open.unwrap_err(), libc::EBADF, "a descriptor that was not offered");
}

/// A connection past the limit is answered with the limit's name, and one that ends makes room.
#[test]
fn connection_past_the_limit_is_refused_by_name() {
    let _turn = devices();
    let folder = std::env::temp_dir().join(format!("handfast-fabric-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let socket = folder.join("devices");
    serve(&socket, "rxe0=rxe").unwrap();
    let connect = || {
        let stream = UnixStream::connect(&socket).unwrap();
        // At the limit the devices close before they read.
        let _ = send(&stream, &Hello::Calls { program: 1 });
        let welcome: Welcome = receive(&stream).unwrap();
        welcome.map(|_| stream)
    };
    let mut connections: Vec<UnixStream> =
        (0..CONNECTIONS_MAX).map(|_| connect().unwrap()).collect();
    let past = connect().unwrap_err();
    assert_eq!(past, Refusal::Limit(LimitReached::Connections));
    assert!(past.to_string().contains("400 connections of programs, the maximum"), "{past}");
    connections.pop();
    let deadline = Instant::now() + Duration::from_secs(30);
    while let Err(full) = connect() {
        assert!(Instant::now() < deadline, "{full}");
        std::thread::sleep(Duration::from_millis(1));
    }
    std::fs::remove_dir_all(folder).unwrap();
}
