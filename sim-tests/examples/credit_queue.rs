//! A machine of another transport, explored: a queue over a channel that loses and reorders, with a credit for
//! each free buffer of the receiver. Prints the shortest way to an overrun by a broken rule.

use handfast_sim::machine_world::{Encoder, MachineWorld, Searched, Violation, explore};
use std::hash::Hash;

const MESSAGES: u32 = 4;
const BUFFERS: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Packet {
    Message(u32),
    /// Messages that were received in order, and buffers that are free.
    Answer(u32, u32),
}

/// The machine: it sends what has a buffer, and repeats what is not acknowledged.
#[derive(Clone, Debug, Default, Hash)]
struct Sender {
    /// The broken rule: a late answer is added to the messages of a later one.
    counts_late_credits: bool,
    acknowledged: u32,
    sent: u32,
    limit: u32,
}

impl Sender {
    fn handle_answer(&mut self, received: u32, free: u32) {
        self.acknowledged = self.acknowledged.max(received);
        self.sent = self.sent.max(self.acknowledged);
        let base = if self.counts_late_credits { self.acknowledged } else { received };
        self.limit = self.limit.max(base + free);
    }

    /// Repeats what is outstanding, or else the last message, for an answer.
    fn handle_timeout(&mut self) {
        self.sent = self.acknowledged - u32::from(self.sent == self.acknowledged);
    }

    /// The next packet. Changes after an answer and a timeout.
    fn poll_packet(&mut self) -> Option<Packet> {
        let next = (self.sent < self.limit.min(MESSAGES)).then_some(self.sent)?;
        self.sent += 1;
        Some(Packet::Message(next))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Oracle {
    /// A new message arrives at a free buffer.
    Overrun,
    /// Every message is consumed and acknowledged.
    Liveness,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Arrive(Packet),
    Lose(Packet),
    Consume,
    Timeout,
}

/// The machine, and what it cannot see: the channel, the receiver, and the faults that may still happen.
#[derive(Clone, Default)]
struct World {
    sender: Sender,
    channel: Vec<Packet>,
    received: u32,
    consumed: u32,
    faults_left: u32,
    violation: Option<Violation<Oracle>>,
}

impl World {
    /// Acts on the outputs. The channel has no order: worlds with the same packets are one.
    fn drain(&mut self) {
        self.channel.extend(std::iter::from_fn(|| self.sender.poll_packet()));
        self.channel.sort_unstable();
    }

    fn receive(&mut self, number: u32) {
        if number == self.received && self.received == self.consumed + BUFFERS {
            let detail = format!("no buffer is free for message {number}");
            self.violation = Some(Violation { oracle: Oracle::Overrun, detail });
        } else if number == self.received {
            self.received += 1;
        }
        self.answer();
    }

    fn answer(&mut self) {
        let free = self.consumed + BUFFERS - self.received;
        self.channel.push(Packet::Answer(self.received, free));
    }
}

impl MachineWorld for World {
    type Event = Event;
    type Oracle = Oracle;
    const NO_END: Oracle = Oracle::Liveness;

    fn events(&self) -> Vec<(Event, u32)> {
        let arrive = self.channel.iter().map(|packet| (Event::Arrive(*packet), 0));
        let lose = self.channel.iter().map(|packet| (Event::Lose(*packet), 1));
        let mut events: Vec<_> = arrive.chain(lose).collect();
        events.extend((self.consumed < self.received).then_some((Event::Consume, 0)));
        // A timer that fires before the event that it waits for is a fault.
        let cost = u32::from(!events.is_empty());
        let waits = self.sender.acknowledged < MESSAGES;
        events.extend(waits.then_some((Event::Timeout, cost)));
        events.retain(|(_, cost)| *cost <= self.faults_left);
        events
    }

    fn happen(&mut self, (event, cost): (Event, u32)) {
        self.faults_left -= cost;
        if let Event::Arrive(packet) | Event::Lose(packet) = event {
            let at = self.channel.iter().position(|other| *other == packet);
            at.map(|at| self.channel.remove(at));
        }
        match event {
            Event::Arrive(Packet::Message(number)) => self.receive(number),
            Event::Arrive(Packet::Answer(received, free)) => {
                self.sender.handle_answer(received, free);
            }
            Event::Lose(_) => {}
            Event::Consume => {
                self.consumed += 1;
                self.answer();
            }
            Event::Timeout => self.sender.handle_timeout(),
        }
        self.drain();
    }

    fn violation(&self) -> Option<&Violation<Oracle>> {
        self.violation.as_ref()
    }

    fn unsettled(&self) -> Option<Violation<Oracle>> {
        let is_done = self.consumed.min(self.sender.acknowledged) == MESSAGES;
        let detail = format!("nothing is left to happen: {:?}", self.sender);
        (!is_done).then_some(Violation { oracle: Oracle::Liveness, detail })
    }

    fn fingerprint(&self) -> u128 {
        let Self { sender, channel, received, consumed, faults_left, violation: _ } = self;
        let mut encoder = Encoder::default();
        (sender, channel, received, consumed, faults_left).hash(&mut encoder);
        encoder.digest()
    }

    fn describe(&self, event: Event) -> String {
        format!("{event:?}")
    }
}

fn searched(counts_late_credits: bool, faults_left: u32) -> Searched<Oracle> {
    let sender = Sender { counts_late_credits, limit: BUFFERS, ..Sender::default() };
    let mut start = World { sender, faults_left, ..World::default() };
    start.drain();
    explore(&start, 1_000_000)
}

fn main() {
    let shipping = searched(false, 1);
    assert!(shipping.finding.is_none() && !shipping.cut_short, "{:?}", shipping.finding);
    let found = searched(true, 0).finding.expect("the rule is broken");
    assert_eq!((found.violation.oracle, found.events), (Oracle::Overrun, 5));
    println!("shipping rule: {} worlds hold; broken rule:\n{}", shipping.states, found.transcript);
}

/// The shipping rule holds with one fault, and the broken one is found without a fault.
#[test]
fn late_credits_overrun_the_receiver() {
    main();
}
