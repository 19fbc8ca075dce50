//! Notifications (frame type 2) and probes (type 3).

use super::to_line;
use crate::wire::from_object;
use alloc::string::String;
use serde::{Deserialize, Serialize};

/// Longest name of a notification, in bytes.
pub const NOTIFICATION_NAME_BYTES_MAX: usize = 1 << 10;
/// Longest message of a notification, in bytes. Mooncake has no limit but that of the frame.
pub const NOTIFICATION_MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Text of a probe.
pub const PROBE_QUESTION: &str = "{}\n";
/// Answer to a probe.
pub const PROBE_ANSWER: &str = "{\"status\":\"success\"}\n";
/// The message of an answer that accepts.
const ACCEPTED: &str = "success";

/// A message from one application to another, opaque to the engine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notification {
    /// Its name.
    #[serde(default)]
    pub name: String,
    /// Text.
    #[serde(default, rename = "notify_msg")]
    pub message: String,
}

/// Errors of a notification's text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotificationError {
    /// Not JSON, or a key of the wrong type.
    #[error("the notification is malformed: {0}")]
    Malformed(String),
    /// A text exceeds its limit.
    #[error("the notification's {field} of {bytes} bytes exceeds {limit}")]
    TooLong {
        /// The field.
        field: &'static str,
        /// Its length.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
}

impl Notification {
    /// Checks the limits of both texts.
    ///
    /// # Errors
    /// [`NotificationError::TooLong`].
    pub fn check(&self) -> Result<(), NotificationError> {
        for (field, bytes, limit) in [
            ("name", self.name.len(), NOTIFICATION_NAME_BYTES_MAX),
            ("message", self.message.len(), NOTIFICATION_MESSAGE_BYTES_MAX),
        ] {
            if bytes > limit {
                return Err(NotificationError::TooLong { field, bytes, limit });
            }
        }
        Ok(())
    }

    /// Decodes the JSON text of a notify frame, a question or its answer.
    ///
    /// # Errors
    /// [`NotificationError`].
    pub fn decode(text: &str) -> Result<Self, NotificationError> {
        let decoded: Self = from_object(text).map_err(NotificationError::Malformed)?;
        decoded.check().map(|()| decoded)
    }

    /// Encodes to the JSON text of a notify frame.
    pub fn encode(&self) -> String {
        to_line(self)
    }

    /// Returns the answer to an accepted notification.
    pub fn accepted() -> Self {
        Self { name: String::new(), message: ACCEPTED.into() }
    }

    /// Returns the answer to a rejected notification: an empty message, as in released nodes.
    pub fn rejected() -> Self {
        Self::default()
    }

    /// Returns whether the answer accepts the notification.
    pub fn is_accepted(&self) -> bool {
        !self.message.is_empty()
    }
}
