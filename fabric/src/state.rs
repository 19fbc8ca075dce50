//! The state of all devices, under one lock.

use crate::convert::{event_kind, status_number};
use crate::devices::{self, Listed};
use crate::faults::{Faults, Verdict};
use crate::instant;
use crate::limit::LimitReached;
use crate::local::Local;
use crate::manager::Manager;
use crate::protocol::Completed;
use crate::queues::{Channel, Context, Event, Pair, Queue, Subject};
use crate::timers::Timers;
use handfast_transport_sim::verbs::{
    AsyncEvent, Completions, Fabric, Keys, Law, Packet, QpState, Queue as Half, Status,
    WorkCompletion,
};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

/// Maximum events that an open device, or a channel, keeps; more are lost.
pub(crate) const EVENTS_MAX: usize = 4_096;
/// Maximum broken laws kept for a report.
pub(crate) const LAWS_MAX: usize = 256;
/// `IBV_EVENT_DEVICE_FATAL`.
const DEVICE_FATAL: u32 = 8;

static STATE: LazyLock<Mutex<State>> = LazyLock::new(|| Mutex::new(State::of_environment()));
/// Notified after every change that a waiting call may wait for.
static CHANGED: Condvar = Condvar::new();

/// All devices, the program's objects and the planted faults.
pub(crate) struct State {
    pub(crate) fabric: Fabric,
    pub(crate) listed: Vec<Listed>,
    /// The list of the devices.
    pub(crate) list: String,
    /// Why there are no devices.
    pub(crate) refused: Option<String>,
    pub(crate) contexts: BTreeMap<u64, Context>,
    pub(crate) channels: BTreeMap<u64, Channel>,
    pub(crate) queues: BTreeMap<u64, Queue>,
    pub(crate) pairs: BTreeMap<u64, Pair>,
    /// The regions by device and remote key.
    pub(crate) regions: BTreeMap<(usize, u32), Registered>,
    /// The present queue pair of a number.
    by_number: BTreeMap<(usize, u32), u64>,
    /// Queues of destroyed queue pairs, whose completions may still come.
    former: BTreeMap<(usize, u32), (u64, u64)>,
    pub(crate) local: Local,
    pub(crate) manager: Manager,
    pub(crate) dead: BTreeSet<usize>,
    /// A fork gives registered pages to the first that writes to them, as before Linux 5.12.
    pub(crate) gives_pages_away: bool,
    pub(crate) faults: Faults,
    pub(crate) timers: Timers,
    /// Packets that came to each device.
    pub(crate) arrived: BTreeMap<usize, u64>,
    laws: Vec<String>,
    /// Broken laws past the limit.
    laws_dropped: u64,
    next_id: u64,
}

/// A region of a program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Registered {
    /// The open device.
    pub(crate) context: u64,
    pub(crate) keys: Keys,
    /// Its first address in the program; `None` for memory of a scripted GPU.
    pub(crate) place: Option<usize>,
}

/// Locks the state.
pub(crate) fn lock() -> MutexGuard<'static, State> {
    STATE.lock()
}

/// Waits for a change.
pub(crate) fn wait(state: &mut MutexGuard<'static, State>) {
    CHANGED.wait(state);
}

/// Reports a change.
pub(crate) fn changed() {
    CHANGED.notify_all();
}

/// Counts a call of a device and locks the state, after the wait of a held call.
///
/// # Errors
/// The error of a planted fault.
pub(crate) fn enter(nic: usize, call: &'static str) -> Result<MutexGuard<'static, State>, i32> {
    let mut state = lock();
    match state.faults.on_call(nic, call) {
        Verdict::Pass => Ok(state),
        Verdict::Fail(code) => Err(code),
        Verdict::Wait(ticket) => {
            changed();
            loop {
                let released = state.faults.waiting.get(&ticket).and_then(|held| held.released);
                match released {
                    None => wait(&mut state),
                    Some(code) => {
                        state.faults.waiting.remove(&ticket);
                        changed();
                        return if code == 0 { Ok(state) } else { Err(code) };
                    }
                }
            }
        }
    }
}

impl State {
    /// The devices of the list in the environment.
    pub(crate) fn of_environment() -> Self {
        Self::new(&std::env::var(devices::VARIABLE).unwrap_or_default())
    }

    pub(crate) fn new(list: &str) -> Self {
        let (listed, refused) = match devices::parse(list) {
            Ok(listed) => (listed, None),
            Err(why) => (Vec::new(), Some(why)),
        };
        let mut fabric = Fabric::default();
        for device in &listed {
            fabric.add_nic(device.profile);
        }
        Self {
            fabric,
            listed,
            list: list.to_owned(),
            refused,
            contexts: BTreeMap::new(),
            channels: BTreeMap::new(),
            queues: BTreeMap::new(),
            pairs: BTreeMap::new(),
            regions: BTreeMap::new(),
            by_number: BTreeMap::new(),
            former: BTreeMap::new(),
            local: Local::new(),
            manager: Manager::default(),
            dead: BTreeSet::new(),
            gives_pages_away: false,
            faults: Faults::default(),
            timers: Timers::default(),
            arrived: BTreeMap::new(),
            laws: Vec::new(),
            laws_dropped: 0,
            next_id: 1,
        }
    }

    /// The table of a device's port.
    pub(crate) fn of_port(&self, device: usize, port: u8) -> Option<usize> {
        match port {
            1 => Some(device),
            2 => self.listed[device].second,
            _ => None,
        }
    }

    /// The device and the port of a table.
    pub(crate) fn port_of(&self, nic: usize) -> (usize, u8) {
        self.listed[nic].port_of.map_or((nic, 1), |device| (device, 2))
    }

    /// The tables of second ports, which are no devices.
    pub(crate) fn ports(&self) -> impl Iterator<Item = usize> {
        self.listed.iter().filter_map(|listed| listed.second)
    }

    /// The table of the other port, which has the same queue pairs and regions: a queue pair is in use
    /// in one of the two.
    pub(crate) fn twin(&self, nic: usize) -> Option<usize> {
        self.listed[nic].port_of.or(self.listed[nic].second)
    }

    /// Moves a queue pair that is in RESET to a port of its device.
    pub(crate) fn choose_port(&mut self, id: u64, port: u8) {
        let Some(pair) = self.pairs.get(&id) else { return };
        let (former, number) = (pair.nic, pair.number);
        let (device, _) = self.port_of(former);
        let chosen = self.of_port(device, port).filter(|chosen| *chosen != former);
        let state = self.fabric.queue_pair(former, number).map(|pair| pair.state());
        if let (Some(nic), Some(QpState::Reset)) = (chosen, state) {
            self.by_number.remove(&(former, number));
            self.by_number.insert((nic, number), id);
            if let Some(pair) = self.pairs.get_mut(&id) {
                pair.nic = nic;
            }
        }
    }

    /// Destroys a queue pair, in the tables of both ports.
    pub(crate) fn destroy_pair(&mut self, nic: usize, number: u32) -> Result<(), i32> {
        self.fabric.destroy_queue_pair(nic, number).map_err(|error| error.code)?;
        match self.twin(nic) {
            None => Ok(()),
            Some(twin) => self.fabric.destroy_queue_pair(twin, number).map_err(|error| error.code),
        }
    }

    /// Returns a name that no object had.
    pub(crate) fn next_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Whether an open device still works.
    pub(crate) fn is_alive(&self, context: u64) -> bool {
        self.contexts.get(&context).is_some_and(|context| !context.is_dead)
    }

    pub(crate) fn add_pair(&mut self, id: u64, pair: Pair) {
        let name = (pair.nic, pair.number);
        for queue in [pair.send_queue, pair.receive_queue] {
            if let Some(queue) = self.queues.get_mut(&queue) {
                queue.users += 1;
            }
        }
        self.former.remove(&name);
        self.by_number.insert(name, id);
        self.pairs.insert(id, pair);
    }

    /// Forgets a destroyed queue pair: its events, and its completions where the driver removes them.
    pub(crate) fn remove_pair(&mut self, id: u64) {
        let Some(pair) = self.pairs.remove(&id) else { return };
        let name = (pair.nic, pair.number);
        let removes = self.listed[pair.nic].profile.completions_at_destroy == Completions::Removed;
        for queue in [pair.send_queue, pair.receive_queue] {
            let Some(queue) = self.queues.get_mut(&queue) else { continue };
            queue.users = queue.users.saturating_sub(1);
            if removes {
                queue.entries.retain(|entry| entry.number != pair.number);
            }
        }
        // As in the kernel: what was not taken yet is gone with the queue pair.
        if let Some(context) = self.contexts.get_mut(&pair.context) {
            context.events.retain(|event| event.subject != Subject::Pair(id));
        }
        self.faults.parked_events.retain(|(_, event)| event.subject != Subject::Pair(id));
        if self.by_number.get(&name) == Some(&id) {
            self.by_number.remove(&name);
            self.trim_local(name);
            self.former.insert(name, (pair.send_queue, pair.receive_queue));
            self.timers.forget(name);
            if removes {
                let of =
                    |(nic, completion): &(usize, WorkCompletion)| (*nic, completion.number) == name;
                self.faults.parked_completions.retain(|parked| !of(parked));
            }
        }
    }

    /// Forgets a destroyed completion queue.
    pub(crate) fn remove_queue(&mut self, id: u64) {
        self.queues.remove(&id);
        self.former.retain(|_, (send, receive)| *send != id && *receive != id);
        self.channels.values_mut().for_each(|channel| channel.events.retain(|event| *event != id));
        self.contexts.values_mut().for_each(|context| {
            context.events.retain(|event| event.subject != Subject::Queue(id));
        });
    }

    /// Forgets the completions of a queue pair that was reset, where the driver removes them.
    pub(crate) fn on_reset(&mut self, nic: usize, number: u32) {
        if self.listed[nic].profile.completions_at_reset == Completions::Removed {
            let (device, _) = self.port_of(nic);
            let of_nic = self.queues.values_mut().filter(|queue| queue.nic == device);
            of_nic.for_each(|queue| queue.entries.retain(|entry| entry.number != number));
        }
    }

    /// Lets held packets of these devices arrive, in order, with all that they cause among them.
    /// Returns whether there were any.
    pub(crate) fn arrive(&mut self, from: &[usize]) -> bool {
        let mut any = false;
        let flows = |packet: &Packet| from.contains(&usize::from(packet.from));
        while let Some(at) = self.faults.parked_packets.iter().position(flows) {
            if let Some(packet) = self.faults.parked_packets.remove(at) {
                self.put(packet);
            }
            self.settle();
            any = true;
        }
        any
    }

    /// Lets a packet arrive.
    pub(crate) fn put(&mut self, packet: Packet) {
        *self.arrived.entry(usize::from(packet.to)).or_default() += 1;
        self.on_manager_arrived(usize::from(packet.to), packet.dest_number);
        self.fabric.put(packet);
    }

    /// Delivers packets that are not held, then hands completions and events to their queues.
    pub(crate) fn settle(&mut self) {
        loop {
            let packets = self.fabric.take_packets();
            if packets.is_empty() {
                break;
            }
            for packet in packets {
                let nic = usize::from(packet.from);
                self.on_manager_sent(usize::from(packet.to), packet.dest_number);
                match self.faults.pass_packet(packet) {
                    Ok(Some(packet)) => self.put(packet),
                    Ok(None) => {}
                    Err(limit) => self.lose(nic, limit),
                }
            }
        }
        for nic in 0..self.listed.len() {
            self.collect(nic);
        }
    }

    fn collect(&mut self, nic: usize) {
        while self.fabric.nic(nic).completions().next().is_some() {
            let Some(completion) = self.fabric.poll(nic) else { break };
            match self.faults.pass_completion(nic, completion) {
                Ok(Some(completion)) => self.complete(nic, completion),
                Ok(None) => {}
                Err(limit) => self.lose(nic, limit),
            }
        }
        while let Some(event) = self.fabric.next_event(nic) {
            self.on_event(nic, event);
        }
    }

    fn on_event(&mut self, nic: usize, event: AsyncEvent) {
        let kind = event_kind(event);
        match event {
            AsyncEvent::QueuePairFatal(number) => {
                let id = self.by_number.get(&(nic, number)).copied();
                let pair = id.and_then(|id| Some((id, self.pairs.get(&id)?.context)));
                if let Some((id, context)) = pair {
                    self.raise_at(context, Event { kind, subject: Subject::Pair(id) });
                }
            }
            // Queues report their own overruns.
            AsyncEvent::CompletionQueueError => {}
            AsyncEvent::PortError | AsyncEvent::PortActive | AsyncEvent::GidChange => {
                let (device, port) = self.port_of(nic);
                self.raise(device, Event { kind, subject: Subject::Port(port.into()) });
            }
        }
    }

    /// Raises an event at every program that has the device open.
    pub(crate) fn raise(&mut self, nic: usize, event: Event) {
        if let Err(limit) = self.try_raise(nic, event) {
            self.lose(nic, limit);
        }
    }

    /// Like [`raise`](Self::raise).
    ///
    /// # Errors
    /// It is lost at a program that has too many.
    pub(crate) fn try_raise(&mut self, nic: usize, event: Event) -> Result<(), LimitReached> {
        let of_nic = |(id, context): (&u64, &Context)| (context.nic == nic).then_some(*id);
        let contexts: Vec<u64> = self.contexts.iter().filter_map(of_nic).collect();
        contexts
            .into_iter()
            .map(|context| self.push_event(context, event))
            .fold(Ok(()), Result::and)
    }

    /// Raises an event at an open device.
    pub(crate) fn raise_at(&mut self, id: u64, event: Event) {
        let Some(nic) = self.contexts.get(&id).map(|context| context.nic) else { return };
        if let Err(limit) = self.push_event(id, event) {
            self.lose(nic, limit);
        }
    }

    fn push_event(&mut self, id: u64, event: Event) -> Result<(), LimitReached> {
        let Some(context) = self.contexts.get_mut(&id) else { return Ok(()) };
        if self.faults.events.contains(&context.nic) {
            if self.faults.parked_events.len() >= EVENTS_MAX {
                return Err(LimitReached::ParkedEvents);
            }
            self.faults.parked_events.push_back((id, event));
        } else if context.events.len() >= EVENTS_MAX {
            return Err(LimitReached::Events);
        } else {
            context.events.push_back(event);
            context.signal.raise(context.events.len());
        }
        Ok(())
    }

    /// Reports that something of a device is lost past a limit.
    fn lose(&mut self, nic: usize, limit: LimitReached) {
        self.break_law(format!("{}: {limit}", self.listed[nic].name));
    }

    /// Hands a completion to its queue.
    pub(crate) fn complete(&mut self, nic: usize, completion: WorkCompletion) {
        let WorkCompletion { number, wr_id, queue: half, status } = completion;
        let pair = self.by_number.get(&(nic, number)).and_then(|id| self.pairs.get_mut(id));
        let former = self.former.get(&(nic, number)).copied();
        let (mut opcode, mut bytes) = (0, 0);
        let queues = pair.map(|pair| {
            if half == Half::Send
                && let Some(at) = pair.posted.iter().position(|(name, ..)| *name == wr_id)
            {
                (_, opcode, bytes) = pair.posted[at];
                pair.posted.drain(..=at);
            }
            (pair.send_queue, pair.receive_queue)
        });
        let Some((send, receive)) = queues.or(former) else { return };
        let queue = if half == Half::Send { send } else { receive };
        if half == Half::Receive {
            opcode = RECEIVE;
            bytes = if status == Status::Success { self.received(nic, number) } else { 0 };
        }
        let vendor_error = 0;
        let status = status_number(status);
        self.add(queue, Completed { wr_id, status, opcode, bytes, vendor_error, number });
    }

    /// The bytes of the oldest message to a queue pair whose length is not reported yet.
    fn received(&mut self, nic: usize, number: u32) -> u32 {
        let peer = self.fabric.queue_pair(nic, number).and_then(|qp| qp.bond());
        let peer = peer.and_then(|peer| self.by_number.get(&peer));
        let peer = peer.and_then(|id| self.pairs.get_mut(id));
        peer.and_then(|peer| peer.sent.pop_front()).unwrap_or(0)
    }

    /// Adds an entry to a queue, or loses it if the queue is full.
    pub(crate) fn add(&mut self, id: u64, entry: Completed) {
        let Some(queue) = self.queues.get_mut(&id) else { return };
        if queue.has_overrun || queue.entries.len() >= queue.entries_max {
            return self.lose_completion(id);
        }
        queue.entries.push_back(entry);
        instant::on_added(queue.nic);
        self.signal(id);
    }

    /// Raises the event of a queue that is armed.
    pub(crate) fn signal(&mut self, id: u64) {
        let Some(queue) = self.queues.get_mut(&id) else { return };
        if std::mem::take(&mut queue.is_armed) {
            let (nic, channel) = (queue.nic, queue.channel);
            match channel.and_then(|channel| self.channels.get_mut(&channel)) {
                None => {}
                Some(channel) if channel.events.len() >= EVENTS_MAX => {
                    self.lose(nic, LimitReached::Events);
                }
                Some(channel) => {
                    channel.events.push_back(id);
                    channel.signal.raise(channel.events.len());
                }
            }
        }
    }

    /// Makes a queue lose every completion from now on.
    pub(crate) fn overrun(&mut self, id: u64) {
        if let Some(queue) = self.queues.get_mut(&id) {
            queue.has_overrun = true;
        }
        self.lose_completion(id);
    }

    /// Reports to the program of a queue that a completion is lost.
    fn lose_completion(&mut self, id: u64) {
        let Some(context) = self.queues.get(&id).map(|queue| queue.context) else { return };
        let kind = event_kind(AsyncEvent::CompletionQueueError);
        self.raise_at(context, Event { kind, subject: Subject::Queue(id) });
    }

    /// The device dies: its objects are of no use any more, and nothing of them completes.
    pub(crate) fn die(&mut self, nic: usize) {
        self.dead.insert(nic);
        self.remove_from_manager(nic);
        self.raise(nic, Event { kind: DEVICE_FATAL, subject: Subject::Port(0) });
        self.contexts.values_mut().filter(|context| context.nic == nic).for_each(|context| {
            context.is_dead = true;
        });
        for nic in [Some(nic), self.listed[nic].second].into_iter().flatten() {
            self.fabric.crash(nic, handfast_transport_sim::verbs::Rebirth::Anew);
            self.timers.forget_nic(nic);
            self.local.retain(|(of, _), _| *of != nic);
        }
    }

    /// Ends a program's objects, as the kernel does when a process ends.
    pub(crate) fn end(&mut self, program: u64) {
        self.end_manager(program);
        let of = |(id, context): (&u64, &Context)| (context.program == program).then_some(*id);
        let contexts: Vec<u64> = self.contexts.iter().filter_map(of).collect();
        contexts.into_iter().for_each(|context| self.close(context));
    }

    /// Ends an open device with its objects.
    pub(crate) fn close(&mut self, context: u64) {
        let is_alive = self.is_alive(context);
        // Nobody waits for the work that is dropped here.
        self.keep_broken_laws();
        let of = |(id, pair): (&u64, &Pair)| (pair.context == context).then_some(*id);
        let pairs: Vec<u64> = self.pairs.iter().filter_map(of).collect();
        for id in pairs {
            let place = self.pairs.get(&id).map(|pair| (pair.nic, pair.number));
            // Of a dead device the numbers and keys may be another's.
            if let Some((nic, number)) = place.filter(|_| is_alive) {
                let _ = self.destroy_pair(nic, number);
            }
            self.remove_pair(id);
        }
        let of = |(id, queue): (&u64, &Queue)| (queue.context == context).then_some(*id);
        let queues: Vec<u64> = self.queues.iter().filter_map(of).collect();
        queues.into_iter().for_each(|queue| self.remove_queue(queue));
        self.channels.retain(|_, channel| channel.context != context);
        let of = |region: &(&(usize, u32), &Registered)| region.1.context == context;
        let regions: Vec<_> =
            self.regions.iter().filter(of).map(|(at, it)| (*at, it.keys)).collect();
        for ((nic, rkey), keys) in regions {
            if is_alive {
                let _ = self.fabric.deregister(nic, keys);
            }
            self.regions.remove(&(nic, rkey));
        }
        self.contexts.remove(&context);
        self.fabric.take_broken_laws();
        self.settle();
    }

    pub(crate) fn break_law(&mut self, law: String) {
        if self.laws.len() < LAWS_MAX {
            self.laws.push(law);
        } else {
            self.laws_dropped += 1;
        }
    }

    fn keep_broken_laws(&mut self) {
        for law in self.fabric.take_broken_laws() {
            let name = |nic: usize| self.listed[nic].name;
            let text = match law {
                Law::PostedOutsideRts { nic, number, state } => {
                    format!("{} {number}: posted in {state}", name(nic))
                }
                Law::DroppedWork { nic, number, pieces } => {
                    format!("{} {number}: {pieces} requests dropped", name(nic))
                }
                Law::Reset { nic, number } => format!("{} {number}: reset", name(nic)),
                Law::Refused { nic, state, code } => {
                    format!("{}: the step to {state} was refused with {code}", name(nic))
                }
                Law::Dropped { laws } => {
                    self.laws_dropped += laws;
                    continue;
                }
            };
            self.break_law(text);
        }
    }

    /// Returns the laws broken since the last call.
    pub(crate) fn take_broken_laws(&mut self) -> Vec<String> {
        self.keep_broken_laws();
        let mut laws = std::mem::take(&mut self.laws);
        let dropped = std::mem::take(&mut self.laws_dropped);
        if dropped > 0 {
            laws.push(format!("{dropped} more laws are broken, and not kept"));
        }
        laws
    }
}

/// `IBV_WC_RECV`.
const RECEIVE: u32 = 128;
