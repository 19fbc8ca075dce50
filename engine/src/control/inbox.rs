//! Notifications of peers, until the application takes them.

use handfast_core::mooncake::Notification;
use parking_lot::Mutex;
use std::collections::VecDeque;

/// Received notifications, until the application takes them.
pub(crate) struct Inbox {
    kept: Mutex<VecDeque<Notification>>,
    kept_max: usize,
}

impl Inbox {
    pub(crate) fn new(kept_max: usize) -> Self {
        Self { kept: Mutex::default(), kept_max }
    }

    /// Stores a notification. Returns false if the inbox is full.
    pub(crate) fn put(&self, notification: Notification) -> bool {
        let mut kept = self.kept.lock();
        if kept.len() >= self.kept_max {
            return false;
        }
        kept.push_back(notification);
        true
    }

    /// Removes and returns all notifications, in order.
    pub(crate) fn take(&self) -> Vec<Notification> {
        self.kept.lock().drain(..).collect()
    }
}
