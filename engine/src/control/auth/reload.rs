//! Keys and certificates whose files change while the node runs.

use super::Keys;
use super::certificates::Lists;
use crate::api::auth::{Content, Loaded, Part, Source, Unusable};
use crate::command::{Command, Commands};
use crate::error::{Cause, Error, Stage};
use crate::observe::audit::AUDIT;
use crate::observe::counters::Counts;
use crate::time::Clock;
use handfast_core::auth::{ProofLook, ProofLooks};
use handfast_core::policy::{Administrators, TrustGroups};
use handfast_core::transport::Side;
use handfast_core::{Duration, NodeName};
use std::sync::{Arc, Weak};
use tracing::{error, info, warn};

/// Shortest interval of looks at the files.
const INTERVAL_MIN: Duration = Duration(1_000_000);

pub(crate) struct WatchParts {
    pub(crate) keys: Weak<Keys>,
    /// The keys and certificates in use, and their files.
    pub(crate) parts: Vec<Part>,
    pub(crate) interval: Duration,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) commands: Commands,
    pub(crate) counts: Arc<Counts>,
    pub(crate) administrators: Administrators,
    pub(crate) trust: TrustGroups,
}

/// Looks at the files at each interval, and at the validity of certificates each minute, until the node is
/// gone. A fault is reported once. The keys, the certificate of this
/// node or the revocation lists stay as they were if they are at fault; the other files change.
pub(crate) async fn watch(mut parts: WatchParts) {
    let interval = Duration(parts.interval.0.max(INTERVAL_MIN.0));
    let mut reported: Vec<Option<String>> = vec![None; parts.parts.len()];
    let mut looks = ProofLooks::new(parts.clock.now(), interval);
    loop {
        parts.clock.sleep_until(looks.next_at()).await;
        let mut has_changed = false;
        if looks.reads(parts.clock.now()) {
            let sources: Vec<_> = parts.parts.iter().map(|part| part.source.clone()).collect();
            // A network file system may take its time.
            let read = tokio::task::spawn_blocking(move || read_again(sources)).await;
            let (Ok(read), Some(keys)) = (read, parts.keys.upgrade()) else { return };
            has_changed = use_changed(&keys, &mut parts, read, &mut reported);
            looks.handle_read(parts.clock.now());
        }
        let Some(keys) = parts.keys.upgrade() else { return };
        let Some(look) = looks.handle_look(parts.clock.now(), has_changed) else { continue };
        if look.is_recheck {
            recheck(&keys);
        }
        end_withdrawn(keys, look, &parts.commands).await;
        looks.handle_end(parts.clock.now());
    }
}

/// Reads the files of every part that has some.
fn read_again(sources: Vec<Option<(Source, Content)>>) -> Vec<Option<ReadAgain>> {
    let of = |(source, before): (Source, Content)| source.read(Some(&before));
    sources.into_iter().map(|source| source.map(of)).collect()
}

/// Uses what has changed in the files, and reports it. Returns whether anything has.
fn use_changed(
    keys: &Keys,
    parts: &mut WatchParts,
    read: Vec<Option<ReadAgain>>,
    reported: &mut [Option<String>],
) -> bool {
    let epoch = keys.current().policy.epoch();
    let outcomes = take(keys, &mut parts.parts, read);
    let has_changed = keys.current().policy.epoch() != epoch;
    for ((outcome, part), reported) in outcomes.iter().zip(&parts.parts).zip(reported) {
        report(outcome, &part.loaded, reported, &parts.counts);
    }
    if has_changed {
        for warning in keys.warnings(&parts.administrators, &parts.trust) {
            warn!(target: AUDIT, "{warning}");
        }
    }
    has_changed
}

/// Ends the lanes of peers that have ever proven what is not accepted any more, and of those whose proofs are
/// not remembered. They may open others by what is accepted.
async fn end_withdrawn(keys: Arc<Keys>, look: ProofLook, commands: &Commands) {
    // Without a change a key stays valid, and a certificate does not.
    let ends_unknown = look.is_after_change() || keys.current().certificates.is_some();
    let taking = keys.clone();
    // A verification for each certificate.
    let taken = tokio::task::spawn_blocking(move || taking.take_withdrawn(look)).await;
    let Ok(taken) = taken else { return };
    for peer in taken.names() {
        info!(%peer, "a key or certificate of it is not accepted any more: its lanes end");
    }
    let of = Box::new(move |peer: &NodeName| {
        let is_known = keys.keeps(peer);
        taken.contains(peer) || (ends_unknown && !is_known)
    });
    commands.send(Command::EndLanes { of });
}

/// The outcome of a look at the files of a part.
#[derive(Debug)]
enum Outcome {
    Same,
    Used,
    /// The files at fault stay as they were, and the others are in use.
    UsedInPart(Error),
    Unused(Error),
}

impl Outcome {
    fn of(changed: &Result<Option<Changed>, Error>) -> Self {
        match changed {
            Ok(None) => Self::Same,
            Ok(Some(Changed { error: None, .. })) => Self::Used,
            Ok(Some(Changed { error: Some(error), .. })) => Self::UsedInPart(error.clone()),
            Err(error) => Self::Unused(error.clone()),
        }
    }
}

/// Logs the outcome of a part; a fault once.
fn report(outcome: &Outcome, loaded: &Loaded, reported: &mut Option<String>, counts: &Counts) {
    let files = match loaded {
        Loaded::Keys(_) => "the keys of this node",
        Loaded::Certificates(_) => "the certificates of this node",
    };
    let (error, rest) = match outcome {
        Outcome::Same => {
            *reported = None;
            return;
        }
        Outcome::Used => {
            *reported = None;
            info!("{files} have changed");
            return;
        }
        Outcome::UsedInPart(error) => (error, "the other changed files are in use"),
        Outcome::Unused(error) => (error, "the earlier ones stay"),
    };
    let text = error.to_string();
    if reported.as_ref() != Some(&text) {
        counts.update(|it| it.auth_changes_unusable += 1);
        error!(%error, "{files} have changed and cannot be used as they are; {rest}");
        *reported = Some(text);
    }
}

/// Changed content, and the fault of what is left out of it.
type ReadAgain = Result<(Content, Option<Error>), Error>;

/// Uses changed content; returns the outcome of each part. Keys and certificates change each on their
/// own, whether the others can be used or not.
fn take(keys: &Keys, parts: &mut Vec<Part>, read: Vec<Option<ReadAgain>>) -> Vec<Outcome> {
    let mut next = parts.clone();
    let mut outcomes = Vec::new();
    for (part, content) in next.iter_mut().zip(read) {
        let (Some(content), Some((source, before))) = (content, part.source.clone()) else {
            outcomes.push(Outcome::Same);
            continue;
        };
        let changed = content.and_then(|content| changed(keys, (&source, &before), content));
        outcomes.push(Outcome::of(&changed));
        if let Ok(Some(Changed { loaded, content, .. })) = changed {
            *part = Part { loaded, source: Some((source, content)) };
        }
    }
    let is_used = |it: &Outcome| matches!(it, Outcome::Used | Outcome::UsedInPart(_));
    if outcomes.iter().any(is_used) {
        match keys.replace(next.iter().map(|part| part.loaded.clone()).collect()) {
            Ok(()) => *parts = next,
            Err(error) => {
                let error = Error::local(Stage::Configuration, Cause::Invalid(error.to_string()));
                let used = outcomes.iter_mut().filter(|it| is_used(it));
                used.for_each(|it| *it = Outcome::Unused(error.clone()));
            }
        }
    }
    outcomes
}

/// Content to use, and the fault of what is not used.
struct Changed {
    loaded: Loaded,
    content: Content,
    error: Option<Error>,
}

/// The part of changed content that can be used. Revocation lists at fault are the earlier ones with the
/// other files. A certificate of this node at fault is the earlier one with the changed authorities and
/// revocation lists, so that a removed authority is trusted no longer.
fn changed(
    keys: &Keys,
    (source, before): (&Source, &Content),
    (mut content, mut failed): (Content, Option<Error>),
) -> Result<Option<Changed>, Error> {
    let (mut lists, mut is_own_changed) = (Lists::Checked, true);
    loop {
        if content == *before {
            return failed.map_or(Ok(None), Err);
        }
        let loaded = match is_own_changed {
            true => load(keys, source, &content, lists),
            false => source.load(&content, lists),
        };
        let fault = match loaded {
            Ok(loaded) => return Ok(Some(Changed { loaded, content, error: failed })),
            Err(fault) => fault,
        };
        if fault.is_of_lists && lists == Lists::Checked {
            (content, lists) = (content.with_lists_of(before), Lists::Earlier);
        } else if is_own_changed {
            (content, is_own_changed) = (content.with_own_of(before), false);
        } else {
            return Err(failed.unwrap_or(fault.error));
        }
        failed.get_or_insert(fault.error);
    }
}

/// The keys or certificates of some content, if this node can use them.
fn load(keys: &Keys, source: &Source, content: &Content, lists: Lists) -> Result<Loaded, Unusable> {
    let loaded = source.load(content, lists)?;
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
        error!(%fault, "this node's own certificate is refused by its peers");
    }
    keys.look_again();
}

#[cfg(test)]
mod tests;
