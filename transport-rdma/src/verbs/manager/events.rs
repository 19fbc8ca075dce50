//! The thread of the connection manager's events.
#![allow(unsafe_code)]

use super::blame::said_of_event;
use super::identifier::{Event, kinds};
use super::table::{DialStep, Stage};
use super::{Manager, Shared};
use crate::verbs::context::errno;
use crate::verbs::events::EVENTS_PER_LOOK;
use handfast_core::connection::{Cause, ConnectionId};
use handfast_core::transport::Side;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::sync::Weak;
use std::sync::atomic::Ordering;

impl Manager {
    /// Handles events until the NIC is dropped.
    pub(super) fn run(&self, of: &Weak<Shared>) {
        let watch = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        while !self.stopped.load(Ordering::Acquire) {
            let reaching = self.table.lock().reaching();
            let mut watched = vec![watch(self.wake.as_raw_fd()), watch(self.channel.descriptor())];
            let writable = |fd| libc::pollfd { events: libc::POLLOUT, ..watch(fd) };
            watched.extend(reaching.iter().map(|(_, fd)| writable(*fd)));
            // A descriptor whose connection ends meanwhile may be another's: its entry says so.
            // SAFETY: the list lives, and its length is passed.
            let ready = unsafe { libc::poll(watched.as_mut_ptr(), watched.len() as _, -1) };
            let Some(shared) = of.upgrade() else { return };
            if ready < 0 && errno() != libc::EINTR {
                return shared.lose(self.context.failed("poll", errno()));
            }
            if watched[0].revents != 0 {
                // One read resets it; the count is irrelevant.
                let _ = (&self.wake).read(&mut [0; 8]);
            }
            let ready = watched.iter().skip(2).zip(&reaching).filter(|(it, _)| it.revents != 0);
            ready.for_each(|(_, (id, _))| self.on_reach(&shared, *id));
            // Connect requests without end delay neither the end of the NIC nor the test connections. A
            // request has its number once it is heard, and the next event may be its end.
            for _ in 0..EVENTS_PER_LOOK {
                match self.channel.take() {
                    Ok(event) => self.hear(&shared, event),
                    Err(libc::EAGAIN | libc::EINTR) => break,
                    Err(code) => {
                        return shared.lose(self.context.failed("rdma_get_cm_event", code));
                    }
                }
            }
        }
    }

    /// Handles the answer to a test connection.
    fn on_reach(&self, shared: &Shared, id: ConnectionId) {
        let mut table = self.table.lock();
        if let Some(cause) = table.on_reach(id) {
            table.machine.handle_failed(id, cause);
            self.perform(shared, table);
        }
    }

    fn hear(&self, shared: &Shared, event: Event) {
        let Event { kind, status, number, data, request } = event;
        if let Some(identifier) = request {
            return self.on_request(shared, identifier, &data);
        }
        let mut table = self.table.lock();
        let Some(id) = table.numbers.get(&number).copied() else {
            let ends =
                [kinds::CONNECT_ERROR, kinds::UNREACHABLE, kinds::REJECTED, kinds::DISCONNECTED];
            if ends.contains(&kind) {
                table.on_end(number);
            }
            drop(table);
            if kind == kinds::DEVICE_REMOVAL {
                // The listening identifier's.
                self.removed.store(true, Ordering::Release);
                let words = "the device was removed";
                shared.lose(self.context.error(Side::Local, "rdma_get_cm_event", 0, words));
            }
            return;
        };
        if let Some(entry) = table.entries.get_mut(&id) {
            if status != 0 {
                entry.status = status;
            }
            entry.stage = match (kind, entry.stage) {
                (kinds::ADDRESS_RESOLVED, Stage::Resolving) => Stage::Resolved,
                (kinds::ROUTE_RESOLVED, Stage::Routing) => Stage::Routed,
                (_, stage) => stage,
            };
            if kind == kinds::ESTABLISHED {
                entry.reach = None;
            }
        }
        match kind {
            kinds::ADDRESS_RESOLVED => table.on_dial_step(id, DialStep::Address),
            kinds::ROUTE_RESOLVED => table.on_dial_step(id, DialStep::Route),
            kinds::ESTABLISHED => table.on_dial_step(id, DialStep::Established),
            _ => {}
        }
        table.wake(Some(id.lifecycle));
        match kind {
            kinds::ADDRESS_ERROR
            | kinds::ROUTE_ERROR
            | kinds::CONNECT_ERROR
            | kinds::UNREACHABLE => match said_of_event(kind, status) {
                Ok(cause) => table.machine.handle_failed(id, cause),
                Err(call) => {
                    let error = self.failed_here(call, status);
                    if let Some(entry) = table.entries.get_mut(&id) {
                        entry.error.get_or_insert(error);
                    }
                    table.machine.handle_failed(id, Cause::Local);
                }
            },
            kinds::REJECTED => table.machine.handle_rejected(id, &data),
            kinds::ESTABLISHED => table.machine.handle_established(id, &data),
            kinds::DISCONNECTED => table.machine.handle_disconnected(id),
            kinds::DEVICE_REMOVAL => table.machine.handle_failed(id, Cause::DeviceRemoved),
            _ => {}
        }
        self.perform(shared, table);
    }
}
