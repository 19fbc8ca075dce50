//! Nodes whose keys and certificates are files: certificates among themselves, and changes without a
//! restart.

use crate::certificates::{Authority, Issued};
use crate::helpers::{
    Owner, PATIENCE, Relay, content, counted, failed_open, free_port, pattern, until,
    write_and_check,
};
use crate::log::Log;
use handfast::auth::{Administrators, AuthFailure, AuthRefusal, CertificateFault, TrustGroups};
use handfast::mooncake::MooncakeOptions;
use handfast::rdma::RdmaOptions;
use handfast::{
    AuthOptions, Builder, CERTIFICATE_FILE_BYTES_MAX, Cause, CertificateFiles, Engine,
    EngineLimits, EngineTiming, Error, Side, Stage, TransportChoice,
};
use handfast_core::auth::{AUTH_MAGIC, AUTH_TLS, AuthHelloHead};
use handfast_diagnosis::{Id, ids};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

const OLD: &str = "old 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n";
const NEW: &str = "new f00102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n";
const BYTES: usize = 20_000;

/// The files of one node.
struct Files(TempDir);

impl Files {
    fn of_keys(keys: &[&str]) -> Self {
        let files = Self(tempfile::tempdir().unwrap());
        files.put("keys", &keys.concat());
        files
    }

    fn of_certificate(trusted: &[&Authority], own: &Issued) -> Self {
        let files = Self(tempfile::tempdir().unwrap());
        files.put_certificate(trusted, own);
        files
    }

    fn put_certificate(&self, trusted: &[&Authority], own: &Issued) {
        self.put("ca.crt", &trusted.iter().map(|it| &*it.pem).collect::<String>());
        self.put("tls.crt", &own.certificate);
        self.put("tls.key", &own.key);
    }

    /// Replaces a file as a whole.
    fn put(&self, name: &str, text: &str) {
        let (path, part) = (self.path(name), self.path("part"));
        fs::write(&part, text).unwrap();
        fs::set_permissions(&part, Permissions::from_mode(0o600)).unwrap();
        fs::rename(part, path).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn keys(&self, builder: Builder) -> Builder {
        let source = format!("psk:{}", self.path("keys").display());
        prompt(builder.auth(AuthOptions::from_source(&source).unwrap()))
    }

    fn certificate(&self, builder: Builder) -> Builder {
        let source = format!("tls:{}", self.0.path().display());
        prompt(builder.auth(AuthOptions::from_source(&source).unwrap()))
    }
}

/// Looks at the files all the time.
fn prompt(builder: Builder) -> Builder {
    let often = Duration::from_millis(5);
    builder.timing(EngineTiming::default().with(|it| it.auth_reload_interval = often))
}

fn listening() -> Builder {
    Engine::builder().listen("127.0.0.1:0")
}

fn failure(error: &Error) -> AuthFailure {
    match error.cause() {
        Cause::Auth(failure) => {
            assert_eq!(error.side(), Side::Configuration, "{error}");
            assert!(error.hint().is_some(), "{error}");
            *failure
        }
        _ => panic!("{error}"),
    }
}

/// Opens until the owner refuses with this id.
async fn refused(user: &Engine, segment: &str, id: Id) -> AuthFailure {
    let refused = timeout(PATIENCE, async {
        loop {
            match user.open(segment).await {
                Ok(_) => tokio::time::sleep(Duration::from_millis(1)).await,
                Err(error) if error.diagnosis_id() == id => return failure(&error),
                // A call that the change has met.
                Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
    });
    refused.await.expect("it is refused in time")
}

/// Opens until the owner accepts, and writes.
async fn accepted(user: &Engine, owner: &Owner, seed: u8) {
    let opened = timeout(PATIENCE, async {
        loop {
            match user.open(&owner.segment()).await {
                Ok(segment) => return segment,
                // Its files or the peer's are still the earlier ones.
                Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
    });
    let segment = opened.await.expect("it is accepted in time");
    write_and_check(&segment, &owner.memory, 10_000, seed).await;
}

/// Waits until a node takes a peer with these files, and the peer takes the node.
async fn taken(node: &Engine, peer: Builder) {
    let peer = peer.start().await.unwrap();
    let segment = format!("{}/none", node.address());
    let taken = timeout(PATIENCE, async {
        while matches!(peer.open(&segment).await.unwrap_err().cause(), Cause::Auth(_)) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    taken.await.expect("the node reads its files in time");
}

/// Three steps of a rotation, each on both nodes, without a restart: every transfer succeeds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_rotate_without_a_restart() {
    let (here, there) = (Files::of_keys(&[OLD]), Files::of_keys(&[OLD]));
    let owner = Owner::start_from(there.keys(listening()), BYTES).await;
    let user = here.keys(listening()).start().await.unwrap();
    let segment = user.open(&owner.segment()).await.unwrap();
    let new = Files::of_keys(&[NEW]);
    let next = Owner::start_from(new.keys(listening()), BYTES).await;
    for (step, keys) in [&[OLD, NEW][..], &[NEW, OLD], &[NEW]].into_iter().enumerate() {
        there.put("keys", &keys.concat());
        here.put("keys", &keys.concat());
        for node in [&owner.engine, &user] {
            taken(node, new.keys(Engine::builder())).await;
            if keys[0] == NEW {
                // It calls by the new key now, which the last step needs.
                accepted(node, &next, step as u8).await;
            }
        }
        write_and_check(&segment, &owner.memory, 10_000, step as u8).await;
        accepted(&user, &owner, 100 + step as u8).await;
    }
    let late = Files::of_keys(&[OLD]).keys(Engine::builder()).start().await.unwrap();
    let failed = refused(&late, &owner.segment(), ids::AUTH_KEY).await;
    assert_eq!(failed, AuthFailure::Refused(AuthRefusal::UnknownKey));
}

/// A key that is removed is refused at the next call, its lanes end, and a file that cannot be used
/// changes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removed_key_is_refused_at_the_next_call() {
    let files = Files::of_keys(&[OLD, NEW]);
    let owner = Owner::start_from(files.keys(listening()), BYTES).await;
    let user = |key: &'static str| async move {
        let auth = AuthOptions::psk(key).unwrap();
        Engine::builder().auth(auth).start().await.unwrap()
    };
    let (old, new) = (user(OLD).await, user(NEW).await);
    accepted(&old, &owner, 1).await;
    let (segment, block) = (old.open(&owner.segment()).await.unwrap(), pattern(1_000, 1));
    files.put("keys", NEW);
    let failed = refused(&old, &owner.segment(), ids::AUTH_KEY).await;
    assert_eq!(failed, AuthFailure::Refused(AuthRefusal::UnknownKey));
    let ended = timeout(PATIENCE, async {
        while segment.write(&block.whole(), 0).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    ended.await.expect("no lane is left to write over");
    assert_eq!(owner.engine.counters().auth_changes_unusable, 0);
    files.put("keys", "no key\n");
    counted(&owner.engine, "the file was read", |it| it.auth_changes_unusable == 1).await;
    accepted(&new, &owner, 2).await;
    files.put("keys", OLD);
    accepted(&old, &owner, 3).await;
    refused(&new, &owner.segment(), ids::AUTH_KEY).await;
    assert!(owner.engine.counters().connections_unproven > 0);
}

/// A lane ends with the key that opened it although its peer has proven another one since, and what the
/// peer has now opens another lane.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lane_ends_with_the_key_that_opened_it() {
    let (here, there) = (Files::of_keys(&[OLD]), Files::of_keys(&[OLD, NEW]));
    let owner = Owner::start_from(there.keys(listening()), BYTES).await;
    let user = here.keys(listening()).start().await.unwrap();
    accepted(&user, &owner, 1).await;
    here.put("keys", &[NEW, OLD].concat());
    taken(&user, Files::of_keys(&[NEW]).keys(Engine::builder())).await;
    accepted(&user, &owner, 2).await;
    assert_eq!(owner.engine.counters().life_cycle.ended, 0, "both keys are accepted");
    there.put("keys", NEW);
    counted(&owner.engine, "the lane ends", |it| it.life_cycle.ended > 0).await;
    accepted(&user, &owner, 3).await;
}

/// A write waits for a lane while the key of the peer is removed, and with it the lane that was being
/// opened. The write demands another, and ends once the peer answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn write_that_waits_for_a_lane_outlasts_a_rotation() {
    let rotation = Rotation::start().await;
    let segment = rotation.user.open(&rotation.owner.segment()).await.unwrap();
    let block = pattern(1_000, 1);
    rotation.during(async { segment.write(&block.whole(), 0).await.unwrap() }).await;
    assert!(content(&rotation.owner.memory, 0, 1_000) == content(&block, 0, 1_000));
}

/// The same while a caller that has no work waits for the lane.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn warm_outlasts_a_rotation() {
    let rotation = Rotation::start().await;
    // Calls pass the relay by, and the lane does not.
    let node = format!("127.0.0.1:{}", rotation.port);
    let failures = rotation.during(async { rotation.user.warm(&[node.as_str()]).await }).await;
    assert!(failures.is_empty(), "{failures:?}");
    assert!(rotation.user.counters().lanes > 0, "the lane is up");
}

/// Bytes move between nodes with certificates, whose names are those of the certificates.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_with_certificates_move_bytes() {
    let fleet = Authority::new("fleet");
    let there = Files::of_certificate(&[&fleet], &fleet.issue(&["127.0.0.1"]));
    let here = Files::of_certificate(&[&fleet], &fleet.issue(&["gpu-1.example.org"]));
    let owner = Owner::start_from(there.certificate(listening()), BYTES).await;
    let user = here.certificate(Engine::builder()).start().await.unwrap();
    accepted(&user, &owner, 1).await;
    assert!(user.name().starts_with("gpu-1.example.org:client-"), "{}", user.name());
    let workload = fleet.issue(&["spiffe://example.org/ns/kv/gpu-2"]);
    let id = Files::of_certificate(&[&fleet], &workload);
    let id = id.certificate(Engine::builder()).start().await.unwrap();
    assert!(id.name().starts_with("spiffe://example.org/ns/kv/gpu-2:client-"), "{}", id.name());
    let error = failed_open(&id, &owner.segment()).await;
    assert_eq!(failure(&error), AuthFailure::Refused(AuthRefusal::Name), "no SPIFFE id of its own");
    assert_eq!(error.diagnosis_id(), ids::AUTH_NAME);
    counted(&owner.engine, "it is counted", |it| it.connections_unproven == 1).await;
}

/// A node is called by the SPIFFE id of its certificate, also one that would serve Mooncake nodes, of
/// which none is let in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workload_with_the_options_of_mooncake_starts() {
    let fleet = Authority::new("fleet");
    let workload = fleet.issue(&["spiffe://example.org/ns/kv/gpu-2"]);
    let files = Files::of_certificate(&[&fleet], &workload);
    let builder = listening().mooncake(MooncakeOptions::default());
    let node = files.certificate(builder).start().await.unwrap();
    assert!(node.name().starts_with("spiffe://example.org/ns/kv/gpu-2:127."), "{}", node.name());
    node.close().await;
}

/// A node with certificates refuses plain peers and those with keys, and the other way round.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_take_neither_plain_peers_nor_keys() {
    let fleet = Authority::new("fleet");
    let own = Files::of_certificate(&[&fleet], &fleet.issue(&["127.0.0.1", "a.example"]));
    let certified = Owner::start_from(own.certificate(listening()), BYTES).await;
    let psk = || AuthOptions::psk(OLD).unwrap();
    let keyed = Owner::start_from(listening().auth(psk()), BYTES).await;
    let plain = Owner::start(BYTES).await;
    let user = own.certificate(Engine::builder()).start().await.unwrap();
    for (owner, refusal, id) in [
        (&keyed, AuthRefusal::Method, ids::AUTH_METHOD),
        (&plain, AuthRefusal::NoKeys, ids::AUTH_REQUIRED),
    ] {
        let error = failed_open(&user, &owner.segment()).await;
        assert_eq!(failure(&error), AuthFailure::Refused(refusal));
        assert_eq!(error.diagnosis_id(), id);
        assert_eq!(owner.engine.counters().life_cycle.published, 0);
    }
    let user = Engine::builder().auth(psk()).start().await.unwrap();
    let error = failed_open(&user, &certified.segment()).await;
    assert_eq!(failure(&error), AuthFailure::Refused(AuthRefusal::Method));
    let user = Engine::builder().start().await.unwrap();
    let error = failed_open(&user, &certified.segment()).await;
    assert_eq!(failure(&error), AuthFailure::Required);
    counted(&certified.engine, "each is counted", |it| it.connections_unproven == 2).await;
}

/// Handshakes with certificates that begin and go no further are bounded in number and time like every connection,
/// and keep no peer out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_open_handshakes_keep_no_peer_out() {
    const PLACES: usize = 8;
    let fleet = Authority::new("fleet");
    let there = Files::of_certificate(&[&fleet], &fleet.issue(&["127.0.0.1"]));
    let here = Files::of_certificate(&[&fleet], &fleet.issue(&["a.example"]));
    let limits = EngineLimits::default().with(|it| it.control_connections_max = PLACES);
    let timing = EngineTiming::default().with(|it| it.call_timeout = Duration::from_secs(3));
    let builder = there.certificate(listening().limits(limits)).timing(timing);
    let owner = Owner::start_from(builder, BYTES).await;
    let head = AuthHelloHead { version: AUTH_TLS, key: String::new() }.encode();
    let length = u16::try_from(head.len()).unwrap().to_le_bytes();
    // A record of 256 bytes, none of which follows.
    let begun = [&AUTH_MAGIC[..], &length, &head, &[22, 3, 1, 1, 0]].concat();
    let mut crowd = Vec::new();
    for _ in 0..3 * PLACES {
        let mut stream = TcpStream::connect(owner.engine.address()).await.unwrap();
        stream.write_all(&begun).await.unwrap();
        crowd.push(stream);
    }
    let shed = 2 * PLACES as u64;
    counted(&owner.engine, "the oldest are closed", |it| it.connections_shed >= shed).await;
    let user = here.certificate(Engine::builder()).start().await.unwrap();
    accepted(&user, &owner, 1).await;
    counted(&owner.engine, "the rest time out", |it| it.connections_overdue > 0).await;
}

/// A fleet passes from one authority to the next without a restart; the one before is refused then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_replaced_without_a_restart() {
    let (fleet, next) = (Authority::new("fleet"), Authority::new("next"));
    let issue = |authority: &Authority, name: &str| authority.issue(&["127.0.0.1", name]);
    let there = Files::of_certificate(&[&fleet], &issue(&fleet, "b.example"));
    let here = Files::of_certificate(&[&fleet], &issue(&fleet, "a.example"));
    let owner = Owner::start_from(there.certificate(listening()), BYTES).await;
    let user = here.certificate(listening()).start().await.unwrap();
    let segment = user.open(&owner.segment()).await.unwrap();
    let steps: [(&[&Authority], &Authority); 3] =
        [(&[&fleet, &next], &fleet), (&[&fleet, &next], &next), (&[&next], &next)];
    for (step, (trusted, own)) in steps.into_iter().enumerate() {
        there.put_certificate(trusted, &issue(own, "b.example"));
        here.put_certificate(trusted, &issue(own, "a.example"));
        // It is taken from the first step on, and takes certificates of the next authority alone
        // from the second.
        let known: &[&Authority] = if step == 0 { trusted } else { &[&next] };
        let peer = Files::of_certificate(known, &issue(&next, "c.example"));
        for node in [&owner.engine, &user] {
            taken(node, peer.certificate(Engine::builder())).await;
        }
        write_and_check(&segment, &owner.memory, 10_000, step as u8).await;
        accepted(&user, &owner, 100 + step as u8).await;
    }
    let late = Files::of_certificate(&[&fleet, &next], &issue(&fleet, "a.example"));
    let late = late.certificate(Engine::builder()).start().await.unwrap();
    let failed = refused(&late, &owner.segment(), ids::AUTH_CERT_AUTHORITY).await;
    assert_eq!(failed, AuthFailure::Refused(AuthRefusal::UnknownAuthority));
}

/// A fleet passes from keys to certificates: each node restarts once a step, the listening one first,
/// and every transfer succeeds between the restarts. At the end a key is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fleet_passes_from_keys_to_certificates() {
    let fleet = Authority::new("fleet");
    let files = |name: &str| {
        let files = Files::of_keys(&[OLD]);
        files.put_certificate(&[&fleet], &fleet.issue(&["127.0.0.1", name]));
        files
    };
    let (there, here) = (files("b.example"), files("a.example"));
    let steps = [vec!["psk"], vec!["psk", "tls"], vec!["tls", "psk"], vec!["tls"]];
    let with = |files: &Files, step: usize, builder: Builder| {
        let source = |method: &&str| match *method {
            "psk" => format!("psk:{}", files.path("keys").display()),
            _ => format!("tls:{}", files.0.path().display()),
        };
        let sources: Vec<_> = steps[step].iter().map(source).collect();
        builder.auth(AuthOptions::from_source(&sources.join(" ")).unwrap())
    };
    for step in 0..steps.len() {
        let owner = Owner::start_from(with(&there, step, listening()), BYTES).await;
        // The dialling node is one step behind, or has come as far.
        for behind in step.saturating_sub(1)..=step {
            let user = with(&here, behind, listening()).start().await.unwrap();
            accepted(&user, &owner, step as u8).await;
            // In the other direction as well.
            let back = user.address();
            let error = owner.engine.open(&format!("{back}/none")).await.unwrap_err();
            assert!(!matches!(error.cause(), Cause::Auth(_)), "{step}, {behind}: {error}");
            user.close().await;
        }
    }
    let owner = Owner::start_from(with(&there, 3, listening()), BYTES).await;
    let late = with(&here, 0, Engine::builder()).start().await.unwrap();
    let error = failed_open(&late, &owner.segment()).await;
    assert_eq!(failure(&error), AuthFailure::Refused(AuthRefusal::Method));
    let twice = AuthOptions::psk(OLD).unwrap().and(AuthOptions::psk(NEW).unwrap());
    assert!(twice.unwrap_err().to_string().contains("one file of keys"));
}

/// A revocation list that is replaced while the node runs refuses the certificates on it and ends
/// their lanes. A file that vanishes changes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revoked_certificate_is_refused_without_a_restart() {
    let fleet = Authority::new("fleet");
    let (kept, lost) = (fleet.issue(&["a.example"]), fleet.issue(&["a.example"]));
    let there = Files::of_certificate(&[&fleet], &fleet.issue(&["127.0.0.1"]));
    there.put("ca.crl", "");
    let owner = Owner::start_from(there.certificate(listening()), BYTES).await;
    let of = |own: &Issued| Files::of_certificate(&[&fleet], own);
    let (kept, lost_files) = (of(&kept), of(&lost));
    let start = |files: &Files| files.certificate(Engine::builder()).start();
    let (kept, lost_user) = (start(&kept).await.unwrap(), start(&lost_files).await.unwrap());
    accepted(&lost_user, &owner, 1).await;
    let segment = lost_user.open(&owner.segment()).await.unwrap();
    there.put("ca.crl", &fleet.revoke(&[&lost]));
    let failed = refused(&lost_user, &owner.segment(), ids::AUTH_CERT_REVOKED).await;
    assert_eq!(failed, AuthFailure::Refused(AuthRefusal::Revoked));
    let block = pattern(1_000, 1);
    let ended = timeout(PATIENCE, async {
        while segment.write(&block.whole(), 0).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    ended.await.expect("no lane is left to write over");
    accepted(&kept, &owner, 2).await;
    fs::remove_file(there.path("ca.crl")).unwrap();
    counted(&owner.engine, "the file is missed", |it| it.auth_changes_unusable == 1).await;
    refused(&lost_user, &owner.segment(), ids::AUTH_CERT_REVOKED).await;
    there.put("ca.crl", &fleet.revoke(&[]));
    accepted(&lost_user, &owner, 3).await;
}

/// A revocation list of the largest length is used. A longer one leaves it in force, and a node with longer
/// authorities does not start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn list_past_the_limit_leaves_the_earlier_one() {
    let padded = |text: &str, bytes: usize| format!("{text}{}", "\n".repeat(bytes - text.len()));
    let fleet = Authority::new("fleet");
    let lost = fleet.issue(&["a.example"]);
    let there = Files::of_certificate(&[&fleet], &fleet.issue(&["127.0.0.1"]));
    there.put("ca.crl", "");
    let owner = Owner::start_from(there.certificate(listening()), BYTES).await;
    let files = Files::of_certificate(&[&fleet], &lost);
    let user = files.certificate(Engine::builder()).start().await.unwrap();
    accepted(&user, &owner, 1).await;
    there.put("ca.crl", &padded(&fleet.revoke(&[&lost]), CERTIFICATE_FILE_BYTES_MAX));
    refused(&user, &owner.segment(), ids::AUTH_CERT_REVOKED).await;
    assert_eq!(owner.engine.counters().auth_changes_unusable, 0);
    there.put("ca.crl", &padded(&fleet.revoke(&[]), CERTIFICATE_FILE_BYTES_MAX + 1));
    counted(&owner.engine, "it is too long", |it| it.auth_changes_unusable == 1).await;
    refused(&user, &owner.segment(), ids::AUTH_CERT_REVOKED).await;

    files.put("ca.crt", &padded(&fleet.pem, CERTIFICATE_FILE_BYTES_MAX + 1));
    let directory = files.0.path();
    let error = AuthOptions::from_source(&format!("tls:{}", directory.display())).unwrap_err();
    assert!(error.to_string().contains("it exceeds 1048576 bytes"), "{error}");
}

/// A changed key whose holders can call themselves administrators, or choose their trust group, is a line of the
/// audit log.
#[tokio::test]
async fn changed_key_that_opens_roles_is_warned_of() {
    let log = Log::default();
    let _kept = log.keep();
    let files = Files::of_keys(&[OLD.trim_end(), " node\n"]);
    let mut trust = TrustGroups::default();
    trust.add("train", "trainer-*").unwrap();
    let rdma = RdmaOptions::default().with(|it| it.trust_groups = trust);
    let builder = Engine::builder().transport(TransportChoice::Tcp).name("node").rdma(rdma);
    let builder = builder.administrators(Administrators::new(["admin"]).unwrap());
    let engine = files.keys(builder).start().await.unwrap();
    assert_eq!(engine.trust_warnings(), [""; 0]);
    let warned = |role: &str| {
        log.text()
            .matches(&format!("WARN handfast::audit: each holder of the key old {role}"))
            .count()
    };
    let roles = ["can call itself an administrator", "can choose its trust group"];
    assert_eq!(roles.map(warned), [0, 0], "{}", log.text());
    files.put("keys", OLD);
    until("both are warned of", || roles.map(warned) == [1, 1]).await;
    assert_eq!(engine.trust_warnings().len(), 2);
    engine.close().await;
}

/// A node does not start with a certificate that its peers would refuse.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_starts_with_a_certificate_of_its_own_alone() {
    let (fleet, other) = (Authority::new("fleet"), Authority::new("other"));
    for (own, expected, id) in [
        (fleet.issue(&["gpu-1"]), AuthFailure::OwnName, ids::AUTH_NAME),
        (
            fleet.expired(&["127.0.0.1"]),
            AuthFailure::Own(CertificateFault::Expired),
            ids::AUTH_CERT_EXPIRED,
        ),
        (
            fleet.not_yet_valid(&["127.0.0.1"]),
            AuthFailure::Own(CertificateFault::NotYetValid),
            ids::AUTH_CERT_EARLY,
        ),
        (
            other.issue(&["127.0.0.1"]),
            AuthFailure::Own(CertificateFault::UnknownAuthority),
            ids::AUTH_CERT_AUTHORITY,
        ),
        (
            fleet.for_servers(&["127.0.0.1"]),
            AuthFailure::Own(CertificateFault::Unusable),
            ids::AUTH_CERT,
        ),
    ] {
        let files = Files::of_certificate(&[&fleet], &own);
        let started = files.certificate(listening()).start().await;
        let Err(error) = started else { panic!("{expected:?} starts") };
        assert_eq!(failure(&error), expected);
        assert_eq!((error.stage(), error.diagnosis_id()), (Stage::Configuration, id));
    }
    let files = Files::of_certificate(&[&fleet], &fleet.issue(&["127.0.0.1"]));
    for (file, holds) in [
        ("ca.crt", "the authorities"),
        ("tls.crt", "the certificate"),
        ("tls.key", "the private key"),
    ] {
        let right = fs::read_to_string(files.path(file)).unwrap();
        for wrong in ["", "no certificate", "-----BEGIN CERTIFICATE-----\n???\n"] {
            files.put(file, wrong);
            let text = AuthOptions::tls(CertificateFiles::in_directory(files.0.path()));
            let text = text.unwrap_err().to_string();
            let named = format!("{holds} in {}", files.path(file).display());
            assert!(text.contains(&named), "{text}");
        }
        files.put(file, &right);
    }
    fs::set_permissions(files.path("tls.key"), Permissions::from_mode(0o644)).unwrap();
    let error = AuthOptions::tls(CertificateFiles::in_directory(files.0.path())).unwrap_err();
    assert!(error.to_string().contains("chmod 600"), "{error}");
    files.put("tls.key", &fleet.issue(&["127.0.0.1"]).key);
    let error = AuthOptions::tls(CertificateFiles::in_directory(files.0.path())).unwrap_err();
    assert!(error.to_string().contains("the certificate and its key"), "{error}");
}

/// Two nodes with two keys each, one of them behind a relay.
struct Rotation {
    relay: Relay,
    port: u16,
    owner: Owner,
    user: Engine,
    here: Files,
    _there: Files,
}

impl Rotation {
    async fn start() -> Self {
        let (here, there) = (Files::of_keys(&[OLD, NEW]), Files::of_keys(&[OLD, NEW]));
        let (relay, port) = (Relay::start().await, free_port().await);
        relay.lead_to(port);
        let builder = Engine::builder().listen(&format!("127.0.0.1:{port}"));
        let builder = builder.advertise(&relay.address).transport(TransportChoice::Tcp);
        let owner = Owner::start_from(there.keys(builder), BYTES).await;
        let user = here.keys(Engine::builder()).start().await.unwrap();
        Self { relay, port, owner, user, here, _there: there }
    }

    /// Removes the key that the user dials with while `waiting` waits for a lane that is being opened behind the
    /// silent relay; then the relay goes on.
    async fn during<T>(&self, waiting: impl Future<Output = T>) -> T {
        self.relay.stop();
        let sent = || self.relay.beginnings().iter().map(|bytes| 1 + bytes.len()).sum::<usize>();
        let before = sent();
        let rotation = async {
            until("the lane is being opened", || sent() > before).await;
            self.here.put("keys", NEW);
            counted(&self.user, "the lane ends", |it| it.life_cycle.ended > 0).await;
            self.relay.resume();
        };
        let both = async { tokio::join!(waiting, rotation) };
        timeout(PATIENCE, both).await.expect("it ends in time").0
    }
}
