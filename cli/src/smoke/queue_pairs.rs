//! Reconnection after one side ends a connection: with new queue pairs, as lanes do, and with the
//! same ones after RESET, which lanes never do.

use super::bytes::{compare, pattern};
use crate::failure::Failure;
use handfast::rdma::RdmaOptions;
use handfast::{Access, Direction, Memory};
use handfast_core::Lifecycle;
use handfast_core::address::PORTS_OF_ERDMA;
use handfast_core::connection::Announcement;
use handfast_core::transport::TransportError;
use handfast_core::wire::Body;
use handfast_diagnosis::AfterReset;
use handfast_transport::{Completion, CompletionStatus, LaneSink, Posting, RemoteSpan, SliceId};
use handfast_transport_rdma::{
    Connecting, DeviceEvent, GidWanted, Nic, NicConfig, NicSink, Registration, discover,
};
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// More than a packet of any device, and less than the lowest common limit of locked memory.
const BYTES: usize = 16 << 10;
/// Packet sequence numbers have 24 bits.
const PSN_MAX: u32 = 0x00ff_ffff;
/// 268 ms per attempt, five attempts, as in the engine.
const TIMEOUT_EXPONENT: u8 = 16;
const RETRIES: u8 = 4;

/// Forwards the completions of slices, one at a time.
struct Completions(Mutex<Sender<Completion>>);

impl LaneSink for Completions {
    fn on_completions(&self, _: Lifecycle, completions: &mut Vec<Completion>) {
        let sender = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Fails when the receiver is gone.
        completions.drain(..).for_each(|completion| drop(sender.send(completion)));
    }

    fn on_lane_failed(&self, lane: Lifecycle, error: TransportError) {
        tracing::debug!(lane = lane.0, %error, "lane failed");
    }
}

impl NicSink for Completions {
    fn on_device_event(&self, device: &str, event: DeviceEvent) {
        tracing::debug!(device, ?event, "event of the RDMA device");
    }
}

/// A device with memory that the other site may access.
struct Site {
    nic: Nic,
    ends: Receiver<Completion>,
    memory: Memory,
    registration: Registration,
    timeout: Duration,
}

/// Two sites, and the lifecycle of the lane between them.
pub(super) struct Pair {
    sites: [Site; 2],
    lane: Lifecycle,
    bodies: Option<[Body; 2]>,
}

impl Pair {
    /// Opens both sites. Blocks on system calls, like all functions here.
    pub(super) fn open(options: &[RdmaOptions; 2], timeout: Duration) -> Result<Self, Failure> {
        let [first, second] = options;
        let sites = [Site::open(first, timeout)?, Site::open(second, timeout)?];
        Ok(Self { sites, lane: Lifecycle(0), bodies: None })
    }

    /// Connects through the connection manager, moves bytes, disconnects, and returns the addresses.
    pub(super) fn connect_managed(&mut self) -> Result<String, Failure> {
        if !self.sites.iter().all(|site| site.nic.uses_connection_manager()) {
            let text = "a device does not connect through the connection manager";
            return Err(Failure::Device(text.to_owned()));
        }
        self.connect()?;
        self.exchange(5)?;
        let bodies = self.bodies.take().into_iter().flatten();
        let addresses: Vec<SocketAddr> =
            bodies.map(|body| address(&body)).collect::<Result<_, _>>()?;
        if let Some(reserved) = addresses.iter().find(|it| PORTS_OF_ERDMA.contains(&it.port())) {
            let text = format!("{reserved}: the driver erdma takes this port in compat mode");
            return Err(Failure::Device(text));
        }
        for site in &self.sites {
            site.nic.retire(self.lane)?;
        }
        let addresses: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
        let addresses = addresses.join(" and ");
        Ok(format!("{addresses} connected, {BYTES} bytes moved each way, and both disconnected"))
    }

    /// Moves bytes, ends the first side, waits for the completion of the second, creates both sides
    /// again as lanes do, and moves bytes again.
    pub(super) fn establish_again(&mut self) -> Result<String, Failure> {
        self.connect()?;
        self.exchange(1)?;
        self.sites[0].nic.retire(self.lane)?;
        // A device may need long to give up, and the rest of the step needs time as well.
        let patience = self.sites[1].timeout / 2;
        let outcome = match self.sites[1].write(self.lane, &self.sites[0], 2, patience)? {
            Some(CompletionStatus::Done) => {
                let text = "a write to a destroyed queue pair was reported as a success";
                return Err(Failure::Device(text.to_owned()));
            }
            Some(end) => words(&end),
            None => format!("nothing within {} ms", patience.as_millis()),
        };
        self.sites[1].nic.retire(self.lane)?;
        self.connect()?;
        self.exchange(3)?;
        Ok(format!(
            "one side destroyed its queue pair, a write of the other ended with: {outcome}; both \
             created another, and {BYTES} bytes moved each way"
        ))
    }

    /// Moves the queue pairs of both sides through RESET, connects them again, and describes the
    /// result.
    pub(super) fn reset(&mut self) -> Result<String, Failure> {
        if self.bodies.is_none() {
            self.connect()?;
        }
        let Some(bodies) = self.bodies.clone() else { return Ok("nothing to reset".to_owned()) };
        for (n, side) in ["first", "second"].iter().enumerate() {
            let again = self.sites[n].nic.connect_again_after_reset(self.lane, &bodies[1 - n]);
            if let Err(error) = again {
                return Ok(AfterReset::Refused { side, error: error.to_string() }.to_string());
            }
        }
        let after = match self.exchange(4) {
            Ok(()) => AfterReset::Works { bytes: BYTES },
            Err(failure) => AfterReset::Mute { error: failure.to_string() },
        };
        Ok(after.to_string())
    }

    /// Creates new queue pairs on both sides and connects them.
    fn connect(&mut self) -> Result<(), Failure> {
        self.lane = Lifecycle(self.lane.0 + 1);
        let [first, second] = &self.sites;
        let one = first.nic.create(self.lane, &[random_psn()])?;
        let other = second.nic.create(self.lane, &[random_psn()])?;
        // At once: through the connection manager, the side that dials waits for the other.
        let (here, there) = std::thread::scope(|scope| {
            let (nic, lane, one) = (&second.nic, self.lane, &one);
            let there = scope.spawn(move || nic.connect(lane, one));
            (first.nic.connect(lane, &other), there.join())
        });
        here?;
        there.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        self.bodies = Some([one, other]);
        Ok(())
    }

    /// Writes bytes in both directions and compares them at the other end.
    fn exchange(&self, seed: u8) -> Result<(), Failure> {
        for (from, to) in [(0, 1), (1, 0)] {
            let (from, to) = (&self.sites[from], &self.sites[to]);
            match from.write(self.lane, to, seed, from.timeout)? {
                Some(CompletionStatus::Done) => to.holds(&pattern(BYTES, seed))?,
                Some(end) => {
                    return Err(Failure::Device(format!("a write ended: {}", words(&end))));
                }
                None => return Err(Failure::Device("a write never ended".to_owned())),
            }
        }
        Ok(())
    }
}

impl Site {
    fn open(options: &RdmaOptions, timeout: Duration) -> Result<Self, Failure> {
        let device = options.devices.first().cloned().unwrap_or_default();
        let gid = match options.address.filter(|_| !is_managed(&device)) {
            None => options.gid_index.map_or(GidWanted::Automatic, GidWanted::Index),
            Some(IpAddr::V4(address)) => GidWanted::Address(address.to_ipv6_mapped()),
            Some(IpAddr::V6(address)) => GidWanted::Address(address),
        };
        let config = NicConfig {
            port: options.port,
            gid,
            connection_manager: options.connection_manager,
            manager_address: options.address,
            timeout_exponent: TIMEOUT_EXPONENT,
            retries: RETRIES,
            ..NicConfig::new(device)
        };
        let (sender, ends) = channel();
        let nic = Nic::open(config, Arc::new(Completions(Mutex::new(sender))))?;
        // The first half is the source of writes, the second half their target.
        let memory = Memory::zeroed(2 * BYTES)?;
        let registration = nic.register(memory.whole(), Access::READ_WRITE)?;
        Ok(Self { nic, ends, memory, registration, timeout })
    }

    /// Writes a pattern to the other side and waits for the completion; `None` if none arrives in
    /// time. The seed is the slice's name.
    fn write(
        &self,
        lane: Lifecycle,
        other: &Self,
        seed: u8,
        patience: Duration,
    ) -> Result<Option<CompletionStatus>, Failure> {
        self.memory.copy_in(0, &pattern(BYTES, seed))?;
        let remote = other.registration.remote_span();
        let remote = RemoteSpan { address: remote.address + BYTES as u64, ..remote };
        let slice = SliceId::from_bits(u64::from(seed));
        let span = self.memory.span(0, BYTES)?;
        let posting = Posting {
            slice,
            direction: Direction::Write,
            span,
            remote,
            memory: Some(self.registration.memory().clone()),
            region_key: None,
        };
        self.nic.post(lane, &mut vec![posting]);
        let deadline = Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.ends.recv_timeout(left) {
                Ok(completion) if completion.slice == slice => return Ok(Some(completion.status)),
                // Completion of an earlier write, flushed when its lane was retired.
                Ok(_) => {}
                Err(_) => return Ok(None),
            }
        }
    }

    fn holds(&self, sent: &[u8]) -> Result<(), Failure> {
        let mut seen = vec![0; sent.len()];
        self.memory.copy_out(BYTES, &mut seen)?;
        compare(sent, &seen)
    }
}

/// Whether a device connects through the connection manager alone: its address is none of its GIDs.
fn is_managed(name: &str) -> bool {
    let listed = discover(&handfast_transport_rdma::root()).unwrap_or_default();
    let device = listed.iter().find(|device| device.name == name);
    device.is_some_and(|device| {
        matches!(device.recognise().profile.connecting, Connecting::Manager(_))
    })
}

/// The address at which an announced device takes connections.
fn address(body: &Body) -> Result<SocketAddr, Failure> {
    let text = body.connection_manager.as_deref().unwrap_or_default();
    // Without the text, which has the token.
    let announced = text.parse::<Announcement>();
    let announced = announced.map_err(|error| Failure::Device(format!("announcement: {error}")))?;
    Ok(announced.address)
}

fn words(end: &CompletionStatus) -> String {
    match end {
        CompletionStatus::Failed(error) | CompletionStatus::Refused(error) => error.to_string(),
        other => format!("{other:?}").to_lowercase(),
    }
}

/// Random, so that late packets of an earlier connection do not match this one.
fn random_psn() -> u32 {
    // The standard library's hashers are seeded by the system.
    RandomState::new().build_hasher().finish() as u32 & PSN_MAX
}
