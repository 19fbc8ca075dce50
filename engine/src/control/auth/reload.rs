//! Keys and certificates whose files change while the node runs.

use super::Keys;
use crate::api::auth::{Content, Loaded, Part, Source};
use crate::command::{Command, Commands};
use crate::error::{Cause, Error, Stage};
use crate::observe::counters::Counts;
use crate::time::Clock;
use handfast_core::transport::Side;
use handfast_core::{Duration, Instant, NodeName};
use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use tracing::{info, warn};

/// Shortest interval of looks at the files.
const INTERVAL_MIN: Duration = Duration(1_000_000);
/// Interval after which sessions are checked against the validity of certificates.
const RECHECK_INTERVAL: Duration = Duration(60_000_000_000);

pub(crate) struct WatchParts {
    pub(crate) keys: Weak<Keys>,
    /// The keys and certificates in use, and their files.
    pub(crate) parts: Vec<Part>,
    pub(crate) interval: Duration,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) commands: Commands,
    pub(crate) counts: Arc<Counts>,
}

/// Looks at the files until the node is gone. An unusable file is reported once. It changes nothing, and
/// the authorities change even if the certificate of this node cannot be used.
pub(crate) async fn watch(mut parts: WatchParts) {
    let interval = Duration(parts.interval.0.max(INTERVAL_MIN.0));
    let (mut reported, mut checked_at) = (None, parts.clock.now());
    // A call that was accepted before a change may open a lane after it: there is a second look.
    let mut ends_again = false;
    loop {
        let until = parts.clock.now().0.saturating_add(interval.0);
        parts.clock.sleep_until(Instant(until)).await;
        let sources: Vec<_> = parts.parts.iter().map(|part| part.source.clone()).collect();
        let read = move || {
            let all = sources.into_iter().map(|source| Some(source?.0.read()));
            all.collect::<Vec<_>>()
        };
        // A network file system may take its time.
        let Ok(read) = tokio::task::spawn_blocking(read).await else { return };
        let Some(keys) = parts.keys.upgrade() else { return };
        let epoch = keys.current().policy.epoch();
        let changed = take(&keys, &mut parts.parts, read);
        let has_changed = keys.current().policy.epoch() != epoch;
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
                    // The authorities may have changed alone.
                    if has_changed {
                        warn!(%error, "this node's changed certificate cannot be used; the changed authorities are");
                    } else {
                        warn!(%error, "changed keys or certificates cannot be used; the earlier ones stay");
                    }
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
        if has_changed || ends_again || is_due {
            // Without a change a key stays valid, and a certificate does not.
            let ends_unknown = has_changed || ends_again || keys.current().certificates.is_some();
            end_withdrawn(keys, ends_unknown, &parts.commands).await;
        }
        ends_again = has_changed;
    }
}

/// Ends the lanes of peers that proved what is not accepted any more, and with `ends_unknown` of those
/// whose proof is not remembered. They may open others by what is accepted.
async fn end_withdrawn(keys: Arc<Keys>, ends_unknown: bool, commands: &Commands) {
    let taking = keys.clone();
    // A verification for each certificate.
    let taken = tokio::task::spawn_blocking(move || taking.take_withdrawn()).await;
    let taken: BTreeSet<NodeName> = taken.unwrap_or_default().into_iter().collect();
    for peer in &taken {
        info!(%peer, "its key or certificate is not accepted any more: its lanes end");
    }
    let of = Box::new(move |peer: &NodeName| {
        let is_known = keys.keeps(peer);
        taken.contains(peer) || (ends_unknown && !is_known)
    });
    commands.send(Command::EndLanes { of });
}

/// Uses changed content; returns whether it has changed. Keys and certificates change each on their
/// own, whether the others can be used or not.
fn take(
    keys: &Keys,
    parts: &mut Vec<Part>,
    read: Vec<Option<Result<Content, Error>>>,
) -> Result<bool, Error> {
    let (mut next, mut has_changed, mut failed) = (parts.clone(), false, None);
    for (part, content) in next.iter_mut().zip(read) {
        let Some((content, (source, before))) = content.zip(part.source.clone()) else { continue };
        match content.and_then(|content| changed(keys, (&source, &before), content)) {
            Ok(None) => {}
            Ok(Some(Changed { loaded, content, error })) => {
                *part = Part { loaded, source: Some((source, content)) };
                has_changed = true;
                failed = failed.or(error);
            }
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    if has_changed {
        let replaced = keys.replace(next.iter().map(|part| part.loaded.clone()).collect());
        let invalid = |error: handfast_core::auth::KeyRuleError| {
            Error::local(Stage::Configuration, Cause::Invalid(error.to_string()))
        };
        replaced.map_err(invalid)?;
        *parts = next;
    }
    failed.map_or(Ok(has_changed), Err)
}

/// Content to use, and the fault of what is not used.
struct Changed {
    loaded: Loaded,
    content: Content,
    error: Option<Error>,
}

/// The part of changed content that can be used. If this node's own certificate cannot, that is the
/// changed authorities and revocation lists with the earlier one, so that a removed authority is trusted
/// no longer.
fn changed(
    keys: &Keys,
    (source, before): (&Source, &Content),
    content: Content,
) -> Result<Option<Changed>, Error> {
    if content == *before {
        return Ok(None);
    }
    let error = match load(keys, source, &content) {
        Ok(loaded) => return Ok(Some(Changed { loaded, content, error: None })),
        Err(error) => error,
    };
    let part = content.authorities_alone(before);
    match part.and_then(|content| Some((source.load(&content).ok()?, content))) {
        Some((loaded, content)) => Ok(Some(Changed { loaded, content, error: Some(error) })),
        None => Err(error),
    }
}

/// The keys or certificates of some content, if this node can use them.
fn load(keys: &Keys, source: &Source, content: &Content) -> Result<Loaded, Error> {
    let loaded = source.load(content)?;
    if let Loaded::Certificates(own) = &loaded {
        let checked = own.check(&keys.current().policy.own().name);
        let invalid =
            |failure| Error::new(Side::Configuration, Stage::Configuration, Cause::Auth(failure));
        checked.map_err(invalid)?;
    }
    Ok(loaded)
}

/// Certificates that have expired end their sessions.
fn recheck(keys: &Keys) {
    let current = keys.current();
    let Some(certificates) = &current.certificates else { return };
    if let Some(fault) = certificates.fault_now() {
        warn!(%fault, "this node's own certificate is refused by its peers");
    }
    keys.look_again();
}

#[cfg(test)]
mod tests;
