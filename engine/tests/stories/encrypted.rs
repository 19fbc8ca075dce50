//! Nodes whose lanes over TCP are encrypted.

use crate::certificates::Authority;
use crate::helpers::{Owner, PATIENCE, content, free_port, pattern, write_and_check};
use handfast::{AuthOptions, Builder, CertificateFiles, Engine, Side, Stage, TransportChoice};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;
use tokio::time::timeout;

const KEY: &str = "old 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const BYTES: usize = 3 << 20;

fn keyed(builder: Builder) -> Builder {
    builder.auth(AuthOptions::psk(KEY).unwrap()).transport(TransportChoice::Tcp)
}

fn sealed(builder: Builder) -> Builder {
    keyed(builder).encrypt_lanes(true)
}

fn at(port: u16) -> Builder {
    Engine::builder().listen(&format!("127.0.0.1:{port}"))
}

/// Batches and slices of several MiB cross an encrypted lane, also to an owner that has restarted at its
/// address.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn encrypted_lanes_move_bytes_also_after_a_restart() {
    let port = free_port().await;
    let user = sealed(Engine::builder()).start().await.unwrap();
    for run in 0..2 {
        let owner = Owner::start_from(sealed(at(port)), BYTES).await;
        let segment = timeout(PATIENCE, async {
            loop {
                match user.open(&owner.segment()).await {
                    Ok(segment) => return segment,
                    Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
                }
            }
        });
        let segment = segment.await.expect("it opens in time");
        write_and_check(&segment, &owner.memory, 1 << 10, run).await;
        write_and_check(&segment, &owner.memory, BYTES, run + 2).await;
        let (block, read) = (pattern(64 * 4096, run + 4), pattern(64 * 4096, 0));
        let mut batch = segment.batch();
        for piece in 0..64 {
            let (place, span) = (piece * 4096, 4096);
            batch = batch.write(&block.span(place, span).unwrap(), (place * 2) as u64);
        }
        timeout(PATIENCE, batch).await.unwrap().unwrap();
        for piece in 0..64 {
            let there = content(&owner.memory, piece * 2 * 4096, 4096);
            assert!(there == content(&block, piece * 4096, 4096), "piece {piece}");
        }
        timeout(PATIENCE, segment.read(&read.whole(), 0)).await.unwrap().unwrap();
        assert!(content(&read, 0, 64 * 4096) == content(&owner.memory, 0, 64 * 4096));
        assert!(owner.engine.counters().tcp.lanes_started > 0);
        owner.engine.close().await;
    }
    user.close().await;
}

/// A lane of which one end alone is encrypted does not open, in either direction: the error names the
/// side that encrypts, and the option.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_end_that_encrypts_is_told() {
    for encrypts in [true, false] {
        let there = keyed(Engine::builder().listen("127.0.0.1:0")).encrypt_lanes(!encrypts);
        let owner = Owner::start_from(there, 4096).await;
        let user = keyed(Engine::builder()).encrypt_lanes(encrypts).start().await.unwrap();
        let moved = async {
            let segment = user.open(&owner.segment()).await?;
            segment.write(&pattern(4096, 1).whole(), 0).await
        };
        let error = timeout(PATIENCE, moved).await.expect("it ends in time").unwrap_err();
        let text = error.to_string();
        assert_eq!(error.side(), Side::Configuration, "{text}");
        assert!(text.contains("encrypts its lanes") && text.contains("--encrypt-lanes"), "{text}");
        assert_eq!(owner.engine.counters().tcp.lanes_started, 0);
        assert_eq!(content(&owner.memory, 0, 4096), [0; 4096]);
        user.close().await;
    }
}

/// Certificates do as keys: the lane's secret comes through TLS.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_with_certificates_encrypt_lanes() {
    let fleet = Authority::new("fleet");
    let node = |builder: Builder| {
        let (files, own) = (tempfile::tempdir().unwrap(), fleet.issue(&["127.0.0.1"]));
        for (name, text) in
            [("ca.crt", &fleet.pem), ("tls.crt", &own.certificate), ("tls.key", &own.key)]
        {
            fs::write(files.path().join(name), text).unwrap();
            let private = Permissions::from_mode(0o600);
            fs::set_permissions(files.path().join(name), private).unwrap();
        }
        let auth = AuthOptions::tls(CertificateFiles::in_directory(files.path())).unwrap();
        builder.listen("127.0.0.1:0").auth(auth).transport(TransportChoice::Tcp).encrypt_lanes(true)
    };
    let owner = Owner::start_from(node(Engine::builder()), 100_000).await;
    let user = node(Engine::builder()).start().await.unwrap();
    let segment = user.open(&owner.segment()).await.unwrap();
    write_and_check(&segment, &owner.memory, 100_000, 1).await;
    user.close().await;
}

/// Encryption without keys, or over RDMA alone, is refused at the start.
#[tokio::test]
async fn encryption_needs_keys_and_tcp() {
    for (builder, word) in [
        (Engine::builder().encrypt_lanes(true), "--auth"),
        (sealed(Engine::builder()).transport(TransportChoice::Rdma), "RDMA"),
    ] {
        let Err(error) = builder.start().await else { panic!("it starts") };
        assert_eq!((error.stage(), error.to_string().contains(word)), (Stage::Configuration, true));
    }
}
