//! The thread of the connection manager's events.
#![allow(unsafe_code)]

use super::identifier::{Event, kinds};
use super::table::{DialStep, Stage};
use super::{Manager, Shared};
use crate::verbs::context::errno;
use handfast_core::connection::Cause;
use handfast_core::transport::Side;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::sync::Weak;
use std::sync::atomic::Ordering;

impl Manager {
    /// Handles events until the NIC is dropped.
    pub(super) fn run(&self, of: &Weak<Shared>) {
        let watch = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut watched = [self.wake.as_raw_fd(), self.channel.descriptor()].map(watch);
        while !self.stopped.load(Ordering::Acquire) {
            // SAFETY: the array lives, and its length is passed.
            let ready = unsafe { libc::poll(watched.as_mut_ptr(), watched.len() as _, -1) };
            let Some(shared) = of.upgrade() else { return };
            if ready < 0 && errno() != libc::EINTR {
                return shared.lose(self.context.failed("poll", errno()));
            }
            if watched[0].revents != 0 {
                // One read resets it; the count is irrelevant.
                let _ = (&self.wake).read(&mut [0; 8]);
            }
            loop {
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

    fn hear(&self, shared: &Shared, event: Event) {
        let Event { kind, status, number, data, request } = event;
        if let Some(identifier) = request {
            return self.on_request(shared, identifier, &data);
        }
        let mut table = self.table.lock();
        let Some(id) = table.numbers.get(&number).copied() else {
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
            | kinds::UNREACHABLE => table.machine.handle_failed(id, Cause::Unreachable),
            kinds::REJECTED => table.machine.handle_rejected(id, &data),
            kinds::ESTABLISHED => table.machine.handle_established(id, &data),
            kinds::DISCONNECTED => table.machine.handle_disconnected(id),
            kinds::DEVICE_REMOVAL => table.machine.handle_failed(id, Cause::DeviceRemoved),
            _ => {}
        }
        self.perform(shared, table);
    }
}
