//! One NIC with a lane to itself: `to_itself [DEVICE]`, by default the first of this machine.
//!
//! The smallest program that moves bytes over a device: open, register, announce, wire, prove, write,
//! read back, retire.

use handfast_core::Lifecycle;
use handfast_core::transport::TransportError;
use handfast_transport::{
    Access, Completion, CompletionStatus, Direction, LaneSink, Memory, Posting, SliceId,
};
use handfast_transport_rdma::{DeviceEvent, Nic, NicConfig, NicSink, availability};
use std::error::Error;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const BYTES: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(30);
const MINE: Lifecycle = Lifecycle(1);
const THEIRS: Lifecycle = Lifecycle(2);

struct Completions(Mutex<Sender<CompletionStatus>>);

impl LaneSink for Completions {
    fn on_completions(&self, _: Lifecycle, completions: &mut Vec<Completion>) {
        let ends = self.0.lock().expect("nobody panics with the lock");
        // Fails when the program is over.
        completions.drain(..).for_each(|completion| drop(ends.send(completion.status)));
    }
    fn on_lane_failed(&self, _: Lifecycle, error: TransportError) {
        println!("the lane failed: {error}");
    }
}

impl NicSink for Completions {
    fn on_device_event(&self, device: &str, event: DeviceEvent) {
        println!("{device}: {event:?}");
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let device = match std::env::args().nth(1) {
        Some(device) => device,
        None => availability()?.swap_remove(0),
    };
    let (sender, ends) = channel();
    let nic = Nic::open(NicConfig::new(device), Arc::new(Completions(Mutex::new(sender))))?;
    println!("{}: {}; {}", nic.device(), nic.recognised(), nic.gid().why);
    let (source, target) = (Memory::zeroed(BYTES)?, Memory::zeroed(BYTES)?);
    let pattern: Vec<u8> =
        (0..BYTES).map(|n| (n as u8).wrapping_mul(37) ^ (n >> 8) as u8).collect();
    source.copy_in(0, &pattern)?;
    let local = nic.register(source.whole(), Access::READ)?;
    let far = nic.register(target.whole(), Access::READ_WRITE)?;
    let remote = far.remote_span();

    let mine = nic.create(MINE, &[0x0012_3456])?;
    let theirs = nic.create(THEIRS, &[0x0065_4321])?;
    // Through the connection manager, the side that waits accepts a request that it knows.
    nic.note_request(None, &mine);
    nic.note_request(None, &theirs);
    nic.connect(MINE, &theirs)?;
    nic.connect(THEIRS, &mine)?;
    nic.probe(MINE, Some(remote), PATIENCE)?;
    nic.probe(THEIRS, None, PATIENCE)?;
    let slice = SliceId::from_bits(1);
    let direction = Direction::Write;
    let (span, memory) = (source.whole(), Some(local.memory().clone()));
    nic.post(MINE, &mut vec![Posting { slice, direction, span, remote, memory, region_key: None }]);
    let end = ends.recv_timeout(PATIENCE)?;
    let mut bytes = vec![0; BYTES];
    target.copy_out(0, &mut bytes)?;
    if end != CompletionStatus::Done || bytes != pattern {
        return Err(format!("the bytes did not arrive: {end:?}").into());
    }
    nic.retire(MINE)?;
    nic.retire(THEIRS)?;
    println!("{BYTES} bytes arrived; {:?}", nic.counters());
    Ok(())
}
