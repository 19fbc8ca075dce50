//! Changes of files while the clock stands still.

use super::*;
use crate::control::auth::proven::Proved;
use crate::control::auth::tests::certificates::issuing::{Authority, Issued};
use crate::time::TokioClock;
use crate::{AuthOptions, CertificateFiles};
use handfast_core::Incarnation;
use handfast_core::auth::{AuthMethod, RECHECK_INTERVAL};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration as StdDuration;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::timeout;

const OLD: &str = "old 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n";
const NEW: &str = "new f00102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n";
const INTERVAL: Duration = Duration::from_millis(1_000);

fn put(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
}

fn name(text: &str) -> NodeName {
    NodeName::new(text).unwrap()
}

/// The keys of options whose files are watched, and the commands to the driver.
fn watched(
    options: &AuthOptions,
    own: &str,
) -> (Arc<Keys>, UnboundedReceiver<Command>, Arc<Counts>) {
    watched_each(INTERVAL, options, own)
}

/// As [`watched`], at another interval.
fn watched_each(
    interval: Duration,
    options: &AuthOptions,
    own: &str,
) -> (Arc<Keys>, UnboundedReceiver<Command>, Arc<Counts>) {
    let keys = Arc::new(Keys::of(Some(options), &name(own), Incarnation(1)).unwrap());
    let (commands, told) = Commands::channel();
    let counts: Arc<Counts> = Arc::default();
    tokio::spawn(watch(WatchParts {
        keys: Arc::downgrade(&keys),
        parts: options.parts.clone(),
        interval,
        clock: Arc::new(TokioClock::new()),
        commands,
        counts: counts.clone(),
        administrators: Administrators::default(),
        trust: TrustGroups::default(),
    }));
    (keys, told, counts)
}

/// The peers whose lanes end; `None` without a command within ten intervals.
async fn ended(told: &mut UnboundedReceiver<Command>) -> Option<crate::command::Peers> {
    match timeout(StdDuration::from_nanos(10 * INTERVAL.nanos()), told.recv()).await {
        Ok(Some(Command::EndLanes { of })) => Some(of),
        Ok(_) => panic!("another command"),
        Err(_) => None,
    }
}

/// The lanes of a peer whose key is removed end at the next look and once more at the one after it, also
/// if the peer has proven another key since; those of a peer whose proof was forgotten as well, and those
/// of others stay.
#[tokio::test(start_paused = true)]
async fn lanes_of_withdrawn_and_forgotten_peers_end_at_two_looks() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("keys");
    put(&file, &[OLD, NEW].concat());
    let options = AuthOptions::psk_file(&file).unwrap();
    let (keys, mut told, _) = watched(&options, "own");
    for (peer, place) in [("a", 0), ("b", 1), ("both", 0), ("both", 1)] {
        let proved = keys.current().proved(place).unwrap();
        keys.proven.note(&name(peer), Arc::new(proved));
    }
    assert!(ended(&mut told).await.is_none(), "nothing has changed");
    put(&file, NEW);
    for look in 0..2 {
        let of = ended(&mut told).await.unwrap_or_else(|| panic!("look {look}"));
        assert!(of(&name("a")) && of(&name("both")) && of(&name("forgotten")), "look {look}");
        assert!(!of(&name("b")), "look {look}");
    }
    assert!(ended(&mut told).await.is_none(), "twice");
}

/// At the look of each minute a node with keys keeps the proofs of peers with lanes, and ends no lane.
#[tokio::test(start_paused = true)]
async fn look_of_a_minute_keeps_proofs_and_ends_no_lane() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("keys");
    put(&file, OLD);
    let (keys, mut told, _) = watched(&AuthOptions::psk_file(&file).unwrap(), "own");
    let proved = keys.current().proved(0).unwrap();
    keys.proven.note(&name("a"), Arc::new(proved));
    let minute = StdDuration::from_nanos(2 * RECHECK_INTERVAL.nanos());
    let Ok(Some(Command::EndLanes { of })) = timeout(minute, told.recv()).await else {
        panic!("no look within two minutes");
    };
    assert!(!of(&name("a")) && !of(&name("forgotten")));
}

/// The check of a minute waits for no look at the files, however long their interval is.
#[tokio::test(start_paused = true)]
async fn check_of_a_minute_waits_for_no_look() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("keys");
    put(&file, OLD);
    let hour = Duration::from_millis(3_600_000);
    let (_keys, mut told, _) = watched_each(hour, &AuthOptions::psk_file(&file).unwrap(), "own");
    for _ in 0..3 {
        let minute = StdDuration::from_nanos(RECHECK_INTERVAL.nanos()) + StdDuration::from_secs(1);
        let check = timeout(minute, told.recv()).await;
        assert!(matches!(check, Ok(Some(Command::EndLanes { .. }))), "a check each minute");
    }
}

fn put_certificate(directory: &Path, trusted: &[&Authority], own: &Issued) {
    put(&directory.join("ca.crt"), &trusted.iter().map(|it| &*it.pem).collect::<String>());
    put(&directory.join("tls.crt"), &own.certificate);
    put(&directory.join("tls.key"), &own.key);
}

/// An authority that is removed is trusted no longer though this node's new certificate cannot be used:
/// it has expired, or is none. The node goes on with the earlier one and says so.
#[tokio::test(start_paused = true)]
async fn removed_authority_goes_with_an_unusable_certificate() {
    let (fleet, removed) = (Authority::new("fleet"), Authority::new("removed"));
    let expired = fleet.expired(&["own"]);
    let mut broken = expired.clone();
    broken.certificate = "none".into();
    for faulty in [expired, broken] {
        let directory = tempfile::tempdir().unwrap();
        let good = fleet.issue(&["own"]);
        put_certificate(directory.path(), &[&fleet, &removed], &good);
        let files = CertificateFiles::in_directory(directory.path());
        let (keys, mut told, counts) = watched(&AuthOptions::tls(files).unwrap(), "own");
        for (peer, authority) in [("a", &removed), ("b", &fleet)] {
            let issued = authority.issue(&[peer]);
            let chain =
                rustls_pki_types::pem::PemObject::from_pem_slice(issued.certificate.as_bytes());
            let proved = Proved::Certificate(vec![chain.unwrap()]);
            keys.proven.note(&name(peer), Arc::new(proved));
        }
        put_certificate(directory.path(), &[&fleet], &faulty);
        let of = ended(&mut told).await.expect("the authority is gone");
        assert!(of(&name("a")) && !of(&name("b")));
        let current = keys.current();
        assert_eq!(current.certificates.as_ref().unwrap().fault_now(), None, "its earlier one");
        assert!(ended(&mut told).await.is_some(), "the second look");
        let told_once = |it: &Counts| it.snapshot(0, Default::default(), Default::default());
        assert_eq!(told_once(&counts).auth_changes_unusable, 1);
        put_certificate(directory.path(), &[&fleet], &good);
        assert!(ended(&mut told).await.is_none(), "they are in use");
    }
}

/// Of a node with both, a key that is removed is accepted no longer though the changed certificate cannot be used.
#[tokio::test(start_paused = true)]
async fn removed_key_goes_beside_an_unusable_certificate() {
    let fleet = Authority::new("fleet");
    let directory = tempfile::tempdir().unwrap();
    let (file, own) = (directory.path().join("keys"), fleet.issue(&["own"]));
    put(&file, &[OLD, NEW].concat());
    put_certificate(directory.path(), &[&fleet], &own);
    let certificate = AuthOptions::tls(CertificateFiles::in_directory(directory.path())).unwrap();
    let options = certificate.and(AuthOptions::psk_file(&file).unwrap()).unwrap();
    let (keys, mut told, counts) = watched(&options, "own");
    for (peer, place) in [("a", 0), ("b", 1)] {
        let proved = keys.current().proved(place).unwrap();
        keys.proven.note(&name(peer), Arc::new(proved));
    }
    put(&file, NEW);
    put_certificate(directory.path(), &[&fleet], &fleet.expired(&["own"]));
    let of = ended(&mut told).await.expect("the key is gone");
    assert!(of(&name("a")) && !of(&name("b")));
    let current = keys.current();
    assert_eq!(current.certificates.as_ref().unwrap().fault_now(), None, "its earlier one");
    assert_eq!(current.policy.dials_by(), Some(AuthMethod::Certificate));
    let told_once = counts.snapshot(0, Default::default(), Default::default());
    assert_eq!(told_once.auth_changes_unusable, 1);
}

/// The outcomes of one look at the files of parts.
fn looked(keys: &Keys, parts: &mut Vec<Part>) -> Vec<Outcome> {
    let read = parts.iter().map(|part| {
        let (source, before) = part.source.as_ref()?;
        Some(source.read(Some(before)))
    });
    let read = read.collect();
    take(keys, parts, read)
}

fn certified(directory: &Path) -> (Keys, Vec<Part>) {
    let options = AuthOptions::tls(CertificateFiles::in_directory(directory)).unwrap();
    (Keys::of(Some(&options), &name("own"), Incarnation(1)).unwrap(), options.parts)
}

fn is_valid(keys: &Keys, issued: &Issued) -> bool {
    let chain = rustls_pki_types::pem::PemObject::from_pem_slice(issued.certificate.as_bytes());
    keys.current().certificates.as_ref().unwrap().is_valid(&[chain.unwrap()])
}

/// Revocation lists that cannot be used leave the earlier ones in force, whatever is wrong with them: an
/// authority that is removed with them is trusted no longer, and a renewed certificate is used.
#[test]
fn unusable_lists_hold_up_no_other_change() {
    let (fleet, removed) = (Authority::new("fleet"), Authority::new("removed"));
    let (revoked, own) = (fleet.issue(&["a"]), fleet.issue(&["own"]));
    let strange = Authority::new("fleet").revoke(&[&own]);
    type Fault<'a> = (&'a str, &'a dyn Fn(&Path));
    let faults: [Fault<'_>; 5] = [
        ("absent", &|file| fs::remove_file(file).unwrap()),
        ("a link to nothing", &|file| {
            fs::remove_file(file).unwrap();
            std::os::unix::fs::symlink("nothing", file).unwrap();
        }),
        ("too long", &|file| put(file, &"#".repeat((1 << 20) + 1))),
        ("malformed", &|file| {
            put(file, "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n")
        }),
        ("not signed", &|file| put(file, &strange)),
    ];
    for (fault, cause) in faults {
        let directory = tempfile::tempdir().unwrap();
        let list = directory.path().join("ca.crl");
        put_certificate(directory.path(), &[&fleet, &removed], &own);
        put(&list, &fleet.revoke(&[&revoked]));
        let (keys, mut parts) = certified(directory.path());
        cause(&list);
        let outcomes = looked(&keys, &mut parts);
        assert!(matches!(&*outcomes, [Outcome::Unused(_)]), "{fault}: {outcomes:?}");
        put_certificate(directory.path(), &[&fleet], &fleet.issue(&["own"]));
        let outcomes = looked(&keys, &mut parts);
        let [Outcome::UsedInPart(error)] = &*outcomes else { panic!("{fault}: {outcomes:?}") };
        assert!(error.to_string().contains("ca.crl"), "{error}");
        assert!(!is_valid(&keys, &removed.issue(&["b"])), "{fault}: its authority is gone");
        assert!(!is_valid(&keys, &revoked), "{fault}: the earlier list is in force");
        assert!(is_valid(&keys, &own), "{fault}");
        let outcomes = looked(&keys, &mut parts);
        assert!(matches!(&*outcomes, [Outcome::Unused(_)]), "{fault}: {outcomes:?}");
        put_certificate(directory.path(), &[&fleet], &fleet.expired(&["own"]));
        let outcomes = looked(&keys, &mut parts);
        assert!(matches!(&*outcomes, [Outcome::Unused(_)]), "{fault}: {outcomes:?}");
        let current = keys.current();
        assert_eq!(current.certificates.as_ref().unwrap().fault_now(), None, "{fault}");
    }
}

/// A directory without revocation lists uses those that are put there later. A link that leads nowhere
/// is a fault at the start.
#[test]
fn lists_of_a_directory_may_come_later() {
    let fleet = Authority::new("fleet");
    let (revoked, own) = (fleet.issue(&["a"]), fleet.issue(&["own"]));
    let directory = tempfile::tempdir().unwrap();
    let list = directory.path().join("ca.crl");
    put_certificate(directory.path(), &[&fleet], &own);
    let (keys, mut parts) = certified(directory.path());
    assert!(matches!(&*looked(&keys, &mut parts), [Outcome::Same]));
    assert!(is_valid(&keys, &revoked));
    put(&list, &fleet.revoke(&[&revoked]));
    assert!(matches!(&*looked(&keys, &mut parts), [Outcome::Used]));
    assert!(!is_valid(&keys, &revoked));
    put(&list, "");
    assert!(matches!(&*looked(&keys, &mut parts), [Outcome::Used]), "an empty file has none");
    assert!(is_valid(&keys, &revoked));
    fs::remove_file(&list).unwrap();
    std::os::unix::fs::symlink("nothing", &list).unwrap();
    let error = AuthOptions::tls(CertificateFiles::in_directory(directory.path())).unwrap_err();
    assert!(error.to_string().contains("ca.crl"), "{error}");
}

/// Keys and certificates have outcomes of their own.
#[test]
fn keys_and_certificates_have_outcomes_of_their_own() {
    let fleet = Authority::new("fleet");
    let directory = tempfile::tempdir().unwrap();
    let (file, own) = (directory.path().join("keys"), fleet.issue(&["own"]));
    put(&file, OLD);
    put_certificate(directory.path(), &[&fleet], &own);
    let certificate = AuthOptions::tls(CertificateFiles::in_directory(directory.path())).unwrap();
    let options = certificate.and(AuthOptions::psk_file(&file).unwrap()).unwrap();
    let keys = Keys::of(Some(&options), &name("own"), Incarnation(1)).unwrap();
    let mut parts = options.parts;
    put(&file, "a typo");
    put_certificate(directory.path(), &[&fleet], &fleet.issue(&["own"]));
    let outcomes = looked(&keys, &mut parts);
    assert!(matches!(&*outcomes, [Outcome::Used, Outcome::Unused(_)]), "{outcomes:?}");
    put(&file, NEW);
    put_certificate(directory.path(), &[&fleet], &fleet.expired(&["own"]));
    let outcomes = looked(&keys, &mut parts);
    assert!(matches!(&*outcomes, [Outcome::Unused(_), Outcome::Used]), "{outcomes:?}");
    assert!(matches!(&*looked(&keys, &mut parts), [Outcome::Unused(_), Outcome::Same]));
}
