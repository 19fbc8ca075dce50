//! Events of a link.

use super::oracle::LinkOracle;
use super::rule::{LinkRule, RequestEnd};
use super::world::{Connection, LinkWorld, Progress, Reply};
use crate::machine_world::{MachineWorld, Violation};
use handfast_core::mooncake::{
    Awaits, DataStatus, DataStatusError, ProtocolVersion, REQUEST_BYTES, ReplyError,
};
use handfast_core::transfer::{Direction, Sent};
use handfast_core::transport::{Side, TransportError};

/// Something that may happen. A number is a worker, unless its variant says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// The next batch is submitted.
    Submit,
    /// A batch is cancelled.
    Cancel(usize),
    /// The first connection of a lane is made.
    Open,
    /// It cannot be made.
    NotOpened,
    /// The task of the link takes a demand while its lane is up.
    Ignore,
    /// The thread that submitted hands its postings and withdrawals over.
    Dispatch,
    /// An idle worker looks at its connection, and takes a request.
    Wake(usize),
    /// A worker with a request has connected.
    Connect(usize),
    /// It cannot connect.
    NotConnected(usize),
    /// A part of a write is sent.
    SendPart(usize),
    /// The rest of the request is sent.
    Send(usize),
    /// The peer executes a request.
    Execute(usize),
    /// The peer refuses it, and closes the connection.
    Refuse(usize),
    /// The peer answers with a status of another protocol.
    Confuse(usize),
    /// The peer answers the last request once more, before the connection has another.
    Twin(usize),
    /// The next message of the peer comes.
    Receive(usize),
    /// The connection breaks, or the peer is silent for too long.
    Break(usize),
    /// The peer closes an idle connection.
    Close(usize),
    /// A worker stops a withdrawn request.
    Stop(usize),
    /// The peer executes the request of a connection that is gone; the number is that of the request.
    Land(usize),
    /// The watchdog ends the lane.
    Unresponsive,
    /// The task of the link ends the lane.
    EndLane,
    /// The pause of a missing worker is over.
    Pass,
}

impl<R: LinkRule> LinkWorld<R> {
    fn lane_events(&self, events: &mut Vec<(LinkEvent, u32)>) {
        let link = self.rule.link();
        if self.batches.len() < self.setup.batches.len() {
            events.push((LinkEvent::Submit, 0));
        }
        for (number, batch) in self.batches.iter().enumerate() {
            if !batch.is_ended && !batch.is_cancelled {
                events.push((LinkEvent::Cancel(number), 1));
            }
        }
        if link.lane().is_none() && self.is_wanted {
            events.extend([(LinkEvent::Open, 0), (LinkEvent::NotOpened, 1)]);
        }
        if link.lane().is_some() {
            if self.is_wanted {
                events.push((LinkEvent::Ignore, 0));
            }
            match link.is_ending() {
                true => events.push((LinkEvent::EndLane, 0)),
                false => events.push((LinkEvent::Unresponsive, 1)),
            }
        }
        if !self.outbox.is_empty() {
            events.push((LinkEvent::Dispatch, 0));
        }
        if link.poll_timeout().is_some() {
            events.push((LinkEvent::Pass, 0));
        }
    }

    fn worker_events(&self, worker: usize, events: &mut Vec<(LinkEvent, u32)>) {
        if self.cancelled[worker] {
            events.push((LinkEvent::Stop(worker), 0));
        }
        if self.connecting[worker].is_some() {
            events.push((LinkEvent::Connect(worker), 0));
            events.push((LinkEvent::NotConnected(worker), 1));
            return;
        }
        let Some(connection) = &self.connections[worker] else {
            if !self.missing[worker] && self.rule.link().has_waiting() {
                events.push((LinkEvent::Wake(worker), 0));
            }
            return;
        };
        if connection.former.is_some() {
            events.push((LinkEvent::Execute(worker), 0));
        }
        let has_news = connection.is_closed || !connection.inbox.is_empty();
        let Some((_, number)) = &connection.exchange else {
            if has_news || self.rule.link().has_waiting() {
                events.push((LinkEvent::Wake(worker), 0));
            }
            if !has_news {
                events.push((LinkEvent::Close(worker), 1));
                if connection.last.is_some() {
                    events.push((LinkEvent::Twin(worker), 1));
                }
            }
            return;
        };
        self.exchange_events(worker, (connection, *number), events);
    }

    fn exchange_events(
        &self,
        worker: usize,
        (connection, number): (&Connection, usize),
        events: &mut Vec<(LinkEvent, u32)>,
    ) {
        let is_write = self.attempts[number].direction == Direction::Write;
        let has_status = self.setup.version == ProtocolVersion::Two;
        events.push((LinkEvent::Break(worker), 1));
        // While the body of a write moves, a status is taken too.
        let is_moving = is_write && connection.taken > 0;
        if !connection.inbox.is_empty() && (connection.is_sent || is_moving) {
            events.push((LinkEvent::Receive(worker), 0));
        }
        if !connection.is_sent {
            events.push((LinkEvent::Send(worker), 0));
            if is_write && connection.taken == 0 {
                events.push((LinkEvent::SendPart(worker), 0));
            }
        } else if !connection.is_served && connection.former.is_none() {
            events.push((LinkEvent::Execute(worker), 0));
            if has_status {
                events.extend([(LinkEvent::Refuse(worker), 1), (LinkEvent::Confuse(worker), 1)]);
            }
        }
    }

    fn wake(&mut self, worker: usize) {
        let has_news = self.connections[worker]
            .as_ref()
            .is_some_and(|it| it.is_closed || !it.inbox.is_empty());
        if has_news && self.rule.ends_connection(worker) {
            self.connections[worker] = None;
            return;
        }
        let Some(taken) = self.rule.take(worker) else { return };
        if taken.connects != self.connections[worker].is_none() {
            let detail = format!("worker {worker} takes {taken:?}");
            self.violate(LinkOracle::Bounded, detail);
        }
        if taken.connects {
            self.connecting[worker] = Some(taken.slice);
        } else {
            self.begin(worker, taken.slice);
        }
    }

    fn connect(&mut self, worker: usize) {
        let Some(slice) = self.connecting[worker].take() else { return };
        self.rule.link_mut().handle_connected(worker);
        self.connections[worker] = Some(Connection::default());
        self.begin(worker, slice);
        self.check_bounds();
    }

    fn send(&mut self, worker: usize, is_whole: bool) {
        let Some(connection) = &mut self.connections[worker] else { return };
        let Some((exchange, number)) = &mut connection.exchange else { return };
        let number = *number;
        connection.taken = REQUEST_BYTES as u64;
        if is_whole {
            connection.taken += 1;
            connection.is_sent = true;
            exchange.handle_sent();
        }
        let is_first = !std::mem::replace(&mut self.attempts[number].is_sent, true);
        if is_first {
            self.check_sent_once(number);
        }
    }

    fn answer(&mut self, worker: usize, replies: &[Reply]) {
        let Some(connection) = &mut self.connections[worker] else { return };
        let Some((_, number)) = &connection.exchange else { return };
        let number = *number;
        connection.is_served = true;
        connection.inbox.extend(replies.iter().map(|reply| (*reply, number)));
        self.attempts[number].is_executed = !replies.contains(&Reply::Refused);
    }

    fn execute(&mut self, worker: usize) {
        let Some(connection) = &mut self.connections[worker] else { return };
        if let Some(former) = connection.former.take() {
            connection.inbox.push_back((Reply::Done, former));
            self.attempts[former].is_executed = true;
            return;
        }
        let Some((_, number)) = &connection.exchange else { return };
        let is_read = self.attempts[*number].direction == Direction::Read;
        match (self.setup.version, is_read) {
            (ProtocolVersion::Two, true) => self.answer(worker, &[Reply::Done, Reply::Bytes]),
            (ProtocolVersion::Two, false) => self.answer(worker, &[Reply::Done]),
            (ProtocolVersion::One, _) => self.answer(worker, &[Reply::Bytes]),
        }
    }

    fn receive(&mut self, worker: usize) {
        let Some(connection) = &mut self.connections[worker] else { return };
        let Some((reply, of)) = connection.inbox.pop_front() else { return };
        let Some((exchange, number)) = &mut connection.exchange else { return };
        let (number, taken) = (*number, connection.taken);
        let outcome = match reply {
            Reply::Done => exchange.handle_status(Ok(DataStatus::Done)),
            Reply::Refused => exchange.handle_status(Ok(DataStatus::Refused)),
            Reply::Foreign => exchange.handle_status(Err(DataStatusError::Code(7))),
            Reply::Bytes => Ok(exchange.handle_bytes()),
        };
        let (sent, is_done) = (exchange.sent(taken), exchange.is_done());
        match outcome {
            Ok(Awaits::Nothing) if is_done => {
                if of != number {
                    let detail = format!("the reply to request {of} ends request {number}");
                    self.violate(LinkOracle::Belongs, detail);
                }
                self.attempts[number].is_answered = true;
                self.end_request(worker, RequestEnd::Done);
            }
            Ok(Awaits::Nothing) => self.end_request(worker, RequestEnd::Broken(sent)),
            Ok(_) => {}
            Err(ReplyError::Refused) => {
                self.attempts[number].is_answered = true;
                self.end_request(worker, RequestEnd::Refused);
            }
            Err(_) => self.end_request(worker, RequestEnd::Broken(sent)),
        }
    }

    /// The part of a worker's request that was sent.
    fn sent(&self, worker: usize) -> Sent {
        let connection = self.connections[worker].as_ref();
        let exchanging = connection.and_then(|it| it.exchange.as_ref().map(|ex| (it, ex)));
        exchanging.map_or(Sent::None, |(it, (exchange, _))| exchange.sent(it.taken))
    }

    fn stop(&mut self, worker: usize) {
        self.cancelled[worker] = false;
        if self.connecting[worker].take().is_some() {
            let end = RequestEnd::Withdrawn(Sent::None);
            let completion = self.rule.handle_ended(worker, end);
            return self.complete(completion);
        }
        let sent = self.sent(worker);
        self.end_request(worker, RequestEnd::Withdrawn(sent));
    }

    fn not_connected(&mut self, worker: usize) {
        self.connecting[worker] = None;
        self.cancelled[worker] = false;
        self.missing[worker] = true;
        let completion = self.rule.handle_unconnected(self.now, worker);
        self.complete(completion);
    }

    fn twin(&mut self, worker: usize) {
        let Some(connection) = &mut self.connections[worker] else { return };
        let Some(last) = connection.last else { return };
        let reply = match self.setup.version {
            ProtocolVersion::Two => Reply::Done,
            ProtocolVersion::One => Reply::Bytes,
        };
        connection.inbox.push_back((reply, last));
    }

    fn lane_event(&mut self, event: LinkEvent) {
        match event {
            LinkEvent::Submit => self.submit(),
            LinkEvent::Cancel(batch) => {
                self.batches[batch].is_cancelled = true;
                self.target.cancel(self.now, self.ids[batch]);
                self.drain();
            }
            LinkEvent::Open => {
                self.is_wanted = false;
                let lane = self.rule.link_mut().handle_lane_up();
                self.connections[0] = Some(Connection::default());
                let path = self.target_path();
                self.target.handle_lane_up(self.now, lane, path, super::world::DEPTH);
                self.drain();
            }
            LinkEvent::NotOpened => {
                (self.is_wanted, self.loses_peer) = (false, true);
                let cause = TransportError::new(Side::Peer, "connect", "refused");
                self.target.handle_peer_lost(self.now, cause);
                self.drain();
            }
            LinkEvent::Ignore => self.is_wanted = false,
            LinkEvent::Dispatch => self.dispatch(),
            LinkEvent::Unresponsive => self.rule.link_mut().handle_lane_failed(),
            LinkEvent::EndLane => self.end_lane(),
            LinkEvent::Land(number) => {
                self.attempts[number].progress = Progress::Settled;
                self.attempts[number].is_executed = true;
            }
            LinkEvent::Pass => {
                let Some(at) = self.rule.link().poll_timeout() else { return };
                self.now = self.now.max(at);
                if let Some(worker) = self.rule.handle_timeout(self.now) {
                    self.missing[worker] = false;
                }
            }
            _ => {}
        }
    }
}

impl<R: LinkRule> MachineWorld for LinkWorld<R> {
    type Event = LinkEvent;
    type Oracle = LinkOracle;

    const NO_END: LinkOracle = LinkOracle::Liveness;

    fn events(&self) -> Vec<(LinkEvent, u32)> {
        let mut events = Vec::new();
        self.lane_events(&mut events);
        (0..self.connections.len()).for_each(|worker| self.worker_events(worker, &mut events));
        for (number, attempt) in self.attempts.iter().enumerate() {
            if attempt.progress == Progress::MayLand {
                events.push((LinkEvent::Land(number), 0));
            }
        }
        events.retain(|(_, price)| *price <= self.faults_left);
        events
    }

    fn happen(&mut self, (event, price): (LinkEvent, u32)) {
        self.faults_left -= price;
        self.loses_peer = false;
        match event {
            LinkEvent::Wake(worker) => self.wake(worker),
            LinkEvent::Connect(worker) => self.connect(worker),
            LinkEvent::NotConnected(worker) => self.not_connected(worker),
            LinkEvent::SendPart(worker) => self.send(worker, false),
            LinkEvent::Send(worker) => self.send(worker, true),
            LinkEvent::Execute(worker) => self.execute(worker),
            LinkEvent::Refuse(worker) => self.answer(worker, &[Reply::Refused]),
            LinkEvent::Confuse(worker) => self.answer(worker, &[Reply::Foreign]),
            LinkEvent::Twin(worker) => self.twin(worker),
            LinkEvent::Receive(worker) => self.receive(worker),
            LinkEvent::Break(worker) => {
                let sent = self.sent(worker);
                self.end_request(worker, RequestEnd::Broken(sent));
            }
            LinkEvent::Close(worker) => {
                if let Some(connection) = &mut self.connections[worker] {
                    connection.is_closed = true;
                }
            }
            LinkEvent::Stop(worker) => self.stop(worker),
            event => self.lane_event(event),
        }
    }

    fn violation(&self) -> Option<&Violation<LinkOracle>> {
        self.violation.as_ref()
    }

    fn unsettled(&self) -> Option<Violation<LinkOracle>> {
        self.unended()
    }

    fn fingerprint(&self) -> u128 {
        self.digest()
    }

    fn describe(&self, event: LinkEvent) -> String {
        let carried = |worker: usize| {
            let connection = self.connections[worker].as_ref();
            let number = connection.and_then(|it| it.exchange.as_ref()).map(|(_, number)| *number);
            number.map_or_else(String::new, |number| {
                let attempt = self.attempts[number];
                let (direction, batch) = (attempt.direction, attempt.batch);
                format!(", request {number}: {direction:?} of batch {batch}")
            })
        };
        match event {
            LinkEvent::Send(worker) | LinkEvent::SendPart(worker) | LinkEvent::Receive(worker) => {
                format!("{event:?}{}", carried(worker))
            }
            LinkEvent::Execute(worker) | LinkEvent::Break(worker) | LinkEvent::Stop(worker) => {
                format!("{event:?}{}", carried(worker))
            }
            event => format!("{event:?}"),
        }
    }
}
