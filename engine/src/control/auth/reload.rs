//! Keys and certificates whose files change while the node runs.

use super::Keys;
use crate::api::auth::{Content, Loaded, Source};
use crate::command::{Command, Commands};
use crate::error::{Cause, Error, Stage};
use crate::observe::counters::Counts;
use crate::path::nic_path;
use crate::time::Clock;
use handfast_core::transport::Side;
use handfast_core::{Duration, Instant};
use std::sync::{Arc, Weak};
use tracing::{info, warn};

/// Shortest interval of looks at the files.
const INTERVAL_MIN: Duration = Duration(1_000_000);
/// Interval after which sessions are checked against the validity of certificates.
const RECHECK_INTERVAL: Duration = Duration(60_000_000_000);

pub(crate) struct WatchParts {
    pub(crate) keys: Weak<Keys>,
    pub(crate) source: Source,
    /// Content of the files at the start.
    pub(crate) content: Content,
    pub(crate) interval: Duration,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) commands: Commands,
    pub(crate) counts: Arc<Counts>,
}

/// Looks at the files until the node is gone. What cannot be used is reported once, and changes
/// nothing.
pub(crate) async fn watch(mut parts: WatchParts) {
    let interval = Duration(parts.interval.0.max(INTERVAL_MIN.0));
    let (mut reported, mut checked_at) = (None, parts.clock.now());
    loop {
        let until = parts.clock.now().0.saturating_add(interval.0);
        parts.clock.sleep_until(Instant(until)).await;
        let source = parts.source.clone();
        // A network file system may take its time.
        let Ok(read) = tokio::task::spawn_blocking(move || source.read()).await else { return };
        let Some(keys) = parts.keys.upgrade() else { return };
        let changed = read.and_then(|content| take(&keys, &mut parts, content));
        let has_changed = matches!(changed, Ok(true));
        match changed {
            Ok(true) => {
                info!("the keys or certificates of this node have changed");
                reported = None;
            }
            Ok(false) => {}
            Err(error) => {
                let text = error.to_string();
                if reported.as_ref() != Some(&text) {
                    parts.counts.update(|it| it.auth_changes_unusable += 1);
                    warn!(%error, "changed keys or certificates cannot be used; the earlier ones stay");
                    reported = Some(text);
                }
            }
        }
        let now = parts.clock.now();
        let is_due = now.0.saturating_sub(checked_at.0) >= RECHECK_INTERVAL.0;
        if is_due {
            checked_at = now;
            recheck(&keys);
        }
        if has_changed || is_due {
            end_withdrawn(keys, &parts.commands).await;
        }
    }
}

/// Ends the lanes of peers that proved what is not accepted any more. They may open others by what is.
async fn end_withdrawn(keys: Arc<Keys>, commands: &Commands) {
    // A verification for each peer.
    let taken = tokio::task::spawn_blocking(move || keys.take_withdrawn()).await;
    for peer in taken.unwrap_or_default() {
        info!(%peer, "its key or certificate is not accepted any more: its lanes end");
        commands.send(Command::EndLanes { peer: nic_path(&peer) });
    }
}

/// Uses changed content; returns whether it has changed.
fn take(keys: &Keys, parts: &mut WatchParts, content: Content) -> Result<bool, Error> {
    if content == parts.content {
        return Ok(false);
    }
    let loaded = parts.source.load(&content)?;
    if let Loaded::Certificates(own) = &loaded {
        let checked = own.check(&keys.current().policy.own().name);
        let invalid =
            |failure| Error::new(Side::Configuration, Stage::Configuration, Cause::Auth(failure));
        checked.map_err(invalid)?;
    }
    let replaced = keys.replace(loaded);
    replaced
        .map_err(|error| Error::local(Stage::Configuration, Cause::Invalid(error.to_string())))?;
    parts.content = content;
    Ok(true)
}

/// Certificates that have expired end their sessions.
fn recheck(keys: &Keys) {
    let current = keys.current();
    let Some(certificates) = &current.certificates else { return };
    if let Some(fault) = certificates.fault_now() {
        warn!(%fault, "this node's own certificate is refused by its peers");
    }
    // The same ones have been in use.
    let _ = keys.replace(Loaded::Certificates(certificates.clone()));
}
