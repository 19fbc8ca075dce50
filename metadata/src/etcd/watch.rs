//! A watch on an etcd.

use super::{PERMISSION_DENIED, Shared, UNAUTHENTICATED, cause, is_token_refused};
use crate::error::{StoreCause, StoreError, StoreOperation, words};
use crate::store::{Change, Changes, Pending, VALUE_BYTES_MAX};
use etcd_client::{Error, Event, EventType, WatchOptions, WatchResponse, WatchStream};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// Longest answer, in bytes: several times the longest entry. A longer one ends the watch, and its
/// changes count as missed.
const ANSWER_BYTES_MAX: usize = 4 * VALUE_BYTES_MAX;
/// Minimum time between two connections that a watch without permission asks for, each with a new token.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(5);

pub(super) struct Watch {
    name: String,
    shared: Arc<Shared>,
    prefix: String,
    stream: Option<WatchStream>,
    /// The number of the stream's connection.
    used: AtomicU64,
    /// Changes of one answer that are not returned yet.
    told: VecDeque<Change>,
    renewals: Renewals,
}

impl Watch {
    pub(super) fn new(name: String, shared: Arc<Shared>, prefix: &str) -> Self {
        let (prefix, used, told) = (prefix.to_owned(), AtomicU64::default(), VecDeque::new());
        Self { name, shared, prefix, stream: None, used, told, renewals: Renewals::default() }
    }

    async fn next_change(&mut self) -> Result<Change, StoreError> {
        loop {
            if let Some(change) = self.told.pop_front() {
                return Ok(change);
            }
            let heard = match &mut self.stream {
                Some(stream) => hear(stream).await,
                None => self.connect().await,
            };
            match heard {
                Ok(answer) => self.told.extend(answer.events().iter().filter_map(change)),
                Err(cause) => {
                    self.stream = None;
                    if self.needs_connection(&cause) {
                        self.shared.forget(&self.used);
                    }
                    return Err(StoreError::new(&self.name, StoreOperation::Watch, cause));
                }
            }
        }
    }

    /// Whether another connection may help, which asks for a new token: another refusal would be repeated.
    fn needs_connection(&mut self, cause: &StoreCause) -> bool {
        match cause {
            // An etcd before 3.5 denies the permission to a token that it does not know.
            StoreCause::Refused { status: PERMISSION_DENIED, .. } => {
                self.shared.options.user.is_some() && self.renewals.take(Instant::now())
            }
            StoreCause::Refused { .. } => is_token_refused(cause),
            _ => true,
        }
    }

    /// Starts the watch. Later changes follow [`Change::Missed`].
    async fn connect(&mut self) -> Result<WatchResponse, StoreCause> {
        let limit = self.shared.options.timeout;
        self.used.store(0, Ordering::Relaxed);
        let begun = timeout(limit, async {
            let client = self.shared.client(&self.used).await.map_err(|error| cause(&error))?;
            let mut client = client.watch_client().max_decoding_message_size(ANSWER_BYTES_MAX);
            let options = WatchOptions::new().with_prefix();
            let stream = client.watch(self.prefix.as_str(), Some(options)).await;
            let mut stream = stream.map_err(|error| cause(&error))?;
            let answer = hear(&mut stream).await?;
            Ok((stream, answer))
        });
        let (stream, answer) = begun.await.unwrap_or(Err(StoreCause::Silent { timeout: limit }))?;
        self.stream = Some(stream);
        self.renewals = Renewals::default();
        self.told.push_back(Change::Missed);
        Ok(answer)
    }
}

/// Connections that a watch without permission asks for, since the last answer that it had.
#[derive(Default)]
struct Renewals {
    last: Option<Instant>,
}

impl Renewals {
    /// Whether one is due, which is taken.
    fn take(&mut self, now: Instant) -> bool {
        let is_due = self.last.is_none_or(|last| now - last >= RENEWAL_INTERVAL);
        if is_due {
            self.last = Some(now);
        }
        is_due
    }
}

impl Changes for Watch {
    fn next(&mut self) -> Pending<'_, Change> {
        Box::pin(self.next_change())
    }
}

/// Returns the next answer; an error if the etcd ended the watch.
async fn hear(stream: &mut WatchStream) -> Result<WatchResponse, StoreCause> {
    let ended = || Error::WatchError("the etcd ended the watch".into());
    let answer = stream.message().await.and_then(|it| it.ok_or_else(ended));
    let answer = answer.map_err(|error| cause(&error))?;
    match answer.canceled() {
        true => {
            let status = status_of(answer.cancel_reason());
            Err(StoreCause::Refused { status, text: words(answer.cancel_reason()) })
        }
        false => Ok(answer),
    }
}

/// Returns the status of a refusal that an answer has as text alone: that of a token that the etcd does not know, that of
/// a missing permission, or 0.
fn status_of(reason: &str) -> u16 {
    let has = |code: &str, text: &str| reason.contains(code) || reason.contains(text);
    if has("code = Unauthenticated", "invalid auth token") {
        UNAUTHENTICATED
    } else if has("code = PermissionDenied", "permission denied") {
        PERMISSION_DENIED
    } else {
        0
    }
}

/// Returns the change of an event; `None` if its key is not UTF-8.
fn change(event: &Event) -> Option<Change> {
    let entry = event.kv()?;
    let key = entry.key_str().ok()?.to_owned();
    Some(match event.event_type() {
        EventType::Put => written(key, entry.value()),
        EventType::Delete => Change::Removed { key },
    })
}

/// The change of an entry that was written. A value that is not UTF-8 has no change of its own: the reader looks the
/// entry up again, and gets the error.
fn written(key: String, value: &[u8]) -> Change {
    match std::str::from_utf8(value) {
        Ok(value) => Change::Put { key, value: value.to_owned() },
        Err(_) => Change::Missed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcd::{EtcdOptions, EtcdStore};

    /// An etcd cancels a watch for its token in an answer, which has the status as text.
    #[test]
    fn cancelled_watch_has_the_status_of_its_text() {
        let of_token = "rpc error: code = Unauthenticated desc = etcdserver: invalid auth token";
        assert_eq!(status_of(of_token), UNAUTHENTICATED);
        let denied = "rpc error: code = PermissionDenied desc = etcdserver: permission denied";
        assert_eq!(status_of(denied), PERMISSION_DENIED);
        assert_eq!(status_of("etcdserver: mvcc: required revision has been compacted"), 0);
    }

    /// A user without the permission costs an etcd one password check in [`RENEWAL_INTERVAL`], however often the watch is
    /// asked for. One without a name has no token.
    #[test]
    fn denied_watch_renews_its_token_at_intervals() {
        let (mut renewals, now) = (Renewals::default(), Instant::now());
        let mut at = |seconds| renewals.take(now + Duration::from_secs(seconds));
        assert_eq!(
            [0, 1, 4, 5, 6, 9, 10].map(&mut at),
            [true, false, false, true, false, false, true]
        );
        let denied = StoreCause::Refused { status: PERMISSION_DENIED, text: words("denied") };
        let needs = |user: Option<(&str, &str)>| {
            let user = user.map(|(name, password)| (name.to_owned(), password.to_owned()));
            let options = EtcdOptions { user, ..EtcdOptions::default() };
            let store = EtcdStore::new(&["127.0.0.1:1".to_owned()], options);
            let mut watch = Watch::new("it".to_owned(), store.shared.clone(), "p/");
            [watch.needs_connection(&denied), watch.needs_connection(&denied)]
        };
        assert_eq!((needs(Some(("user", "secret"))), needs(None)), ([true, false], [false, false]));
    }

    /// The former value must not stay where one without text has replaced it.
    #[test]
    fn value_without_text_is_a_missed_change() {
        let (key, value) = ("k".to_owned(), "{}".to_owned());
        assert_eq!(written(key.clone(), b"{}"), Change::Put { key: key.clone(), value });
        assert_eq!(written(key, b"\xff"), Change::Missed);
    }
}
