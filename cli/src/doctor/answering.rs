//! Answers other doctors concurrently: a silent one does not block the others.

use super::{Doctor, lanes};
use crate::failure::{Failure, Outcome};
use crate::lanes::TransportName;
use crate::output;
use handfast_core::address::{PORTS_OF_ERDMA, is_given_back};
use handfast_diagnosis::doctor::{
    self, ANSWER_MAX, Answerer, ExchangeError, Facts, Half, Outside, QUESTION_MAX, Question,
    ROCE_PORT, Request, Timed, read_question, tell_bytes, tell_half,
};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::scope;
use std::time::Duration;

/// Maximum concurrent connections, silent ones included. Further ones are closed.
pub(super) const CONNECTIONS_MAX: usize = 64;
/// Pause after a failed accept, until descriptors may be free again.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// State that all connections share.
struct Answering<'a> {
    arguments: &'a Doctor,
    request: Request,
    outside: &'a (dyn Outside + Sync),
    datagram_ports: Vec<u16>,
    lanes: Mutex<LaneState>,
    loopback_mbps: AtomicU32,
}

/// Lanes over RDMA that other doctors can open.
#[derive(Default)]
struct LaneState {
    taken: Option<lanes::Answering>,
    /// The reported reason if there are none.
    told: Option<String>,
}

/// Answers other doctors with the current state of this machine.
pub(super) fn run(
    listen: &str,
    arguments: &Doctor,
    request: &Request,
    outside: &(dyn Outside + Sync),
) -> Outcome {
    let failed = |error: io::Error| Failure::NoDoctor(format!("{listen}: {error}"));
    let listener = bind(listen).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let datagram_ports = answer_datagrams(address, &Facts::read(&arguments.root));
    output::note(format_args!("answering at {address}"));
    if !address.ip().is_loopback() {
        output::note(format_args!(
            "warning: --listen: every host that reaches {address} can read what is found here, with names and \
             devices, and write to the memory of the check of lanes; no doctor is authenticated"
        ));
    }
    let answering = Answering {
        arguments,
        // This doctor itself now occupies the address.
        request: Request { listen: None, advertise: None, peer: None, ..request.clone() },
        outside,
        datagram_ports,
        lanes: Mutex::default(),
        loopback_mbps: AtomicU32::new(doctor::loopback_mbps()),
    };
    let connections = AtomicUsize::new(0);
    scope(|threads| {
        for stream in listener.incoming() {
            let Ok(stream) = stream else {
                std::thread::sleep(RETRY_AFTER);
                continue;
            };
            if connections.load(Ordering::Relaxed) >= CONNECTIONS_MAX {
                output::note(format_args!("not answered: {CONNECTIONS_MAX} connections at once"));
                continue;
            }
            connections.fetch_add(1, Ordering::Relaxed);
            let (answering, connections) = (&answering, &connections);
            let answer = move || {
                answering.answer(stream);
                connections.fetch_sub(1, Ordering::Relaxed);
            };
            if let Err(error) = std::thread::Builder::new().spawn_scoped(threads, answer) {
                connections.fetch_sub(1, Ordering::Relaxed);
                output::note(format_args!("not answered: {error}"));
            }
        }
    });
    Ok(())
}

impl Answering<'_> {
    fn answer(&self, stream: TcpStream) {
        match self.told(stream) {
            Ok(Some(host)) => {
                output::note(format_args!("answered {host}"));
                self.loopback_mbps.store(doctor::loopback_mbps(), Ordering::Relaxed);
            }
            Ok(None) => {}
            Err(error) => output::note(format_args!("not answered: {error}")),
        }
    }

    /// Nothing is probed before a request arrives. Returns the requesting host.
    fn told(&self, stream: TcpStream) -> Result<Option<String>, ExchangeError> {
        let address = stream.local_addr()?.ip();
        let mut stream = Timed::new(stream, QUESTION_MAX);
        match read_question(&mut stream)? {
            Question::Bytes => tell_bytes(&mut stream.again(ANSWER_MAX)).map(|()| None),
            Question::Half(other) => {
                let own = self.half(address);
                tell_half(&mut stream.again(ANSWER_MAX), &own)?;
                Ok(Some(other.host))
            }
        }
    }

    fn half(&self, address: IpAddr) -> Half {
        let lane_port = self.lane_port(address);
        let facts = Facts::read(&self.arguments.root);
        let report = doctor::examine(&facts, &self.request, self.outside);
        Half {
            datagram_ports: self.datagram_ports.clone(),
            lane_port,
            loopback_mbps: self.loopback_mbps.load(Ordering::Relaxed),
            ..doctor::half(&facts, &report, self.outside.unix_s())
        }
    }

    /// Accepts lanes over RDMA if nodes of this host would. Each call retries, because the problem
    /// may be solved meanwhile; it is reported once.
    fn lane_port(&self, address: IpAddr) -> Option<u16> {
        if self.arguments.transport == TransportName::Tcp {
            return None;
        }
        // A thread that panicked with the lock held has changed nothing yet.
        let mut state = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        if state.taken.is_none() {
            match lanes::Answering::start(address, self.arguments) {
                Ok(taken) => state.taken = Some(taken),
                Err(text) if state.told.as_ref() != Some(&text) => {
                    output::note(format_args!("no lane over RDMA is taken: {text}"));
                    state.told = Some(text);
                }
                Err(_) => {}
            }
        }
        state.taken.as_ref().and_then(lanes::Answering::port)
    }
}

/// Listens. Ports of the driver erdma that the kernel gives are held, so that it gives another one.
fn bind(address: &str) -> io::Result<TcpListener> {
    let mut reserved = Vec::new();
    while reserved.len() <= PORTS_OF_ERDMA.len() {
        let listener = TcpListener::bind(address)?;
        if !is_given_back(address, listener.local_addr()?.port()) {
            return Ok(listener);
        }
        reserved.push(listener);
    }
    Err(io::ErrorKind::AddrInUse.into())
}

/// Answers datagrams at the same port, and at RoCE's port if no device of this host receives its
/// packets. Returns the ports; without them fewer checks are possible.
fn answer_datagrams(address: SocketAddr, facts: &Facts) -> Vec<u16> {
    let of_roce = facts.devices.is_empty().then_some(ROCE_PORT);
    let answerers = [Some(address.port()), of_roce].into_iter().flatten();
    let answerers = answerers.filter_map(|port| Answerer::bind(address.ip(), port).ok());
    let mut ports = Vec::new();
    for answerer in answerers {
        ports.extend(answerer.port());
        std::thread::spawn(move || {
            loop {
                // A sender that cannot be answered does not affect the next one.
                let _ = answerer.answer_one();
            }
        });
    }
    ports
}
