//! Notifications of peers, until the application takes them.

use handfast_core::mooncake::Notification;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

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
        let mut kept = self.lock();
        if kept.len() >= self.kept_max {
            return false;
        }
        kept.push_back(notification);
        true
    }

    /// Removes and returns all notifications, in order.
    pub(crate) fn take(&self) -> Vec<Notification> {
        self.lock().drain(..).collect()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Notification>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
