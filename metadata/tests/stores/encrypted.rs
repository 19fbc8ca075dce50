//! A metadata server behind TLS, and what goes wrong with certificates.

use crate::certificates::Certificates;
use crate::http::server;
use handfast_metadata::{
    Credentials, HttpStore, ServerLimits, Source, Store, StoreCause, TLS_FILE_BYTES_MAX, Tls,
    TlsFailure, TlsFiles,
};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

#[tokio::test]
async fn mutually_authenticated_store_works() {
    let certificates = Certificates::make();
    let (base, _running) = served(&certificates).await;
    let source: Source = base.parse().unwrap();
    let credentials = Credentials { tls: certificates.client(), ..Credentials::default() };
    let store = source.open(credentials).unwrap().unwrap();
    store.put("a/b:1", "{}").await.unwrap();
    assert_eq!(store.get("a/b:1").await, Ok(Some("{}".to_owned())));
    store.remove("a/b:1").await.unwrap();
    assert_eq!(store.get("a/b:1").await, Ok(None));

    let stranger = Certificates::make();
    let client = certificates.client();
    for (tls, why) in [
        (TlsFiles { identity: None, ..client.clone() }, TlsFailure::OursMissing),
        (
            TlsFiles { authority: stranger.client().authority, ..client.clone() },
            TlsFailure::UnknownAuthority,
        ),
        (TlsFiles { identity: stranger.client().identity, ..client }, TlsFailure::OursRefused),
    ] {
        assert_eq!(refused(&base, &tls).await, why);
    }
}

/// As a program does that asks one thing and waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_stream_is_encrypted_or_names_the_failure() {
    let certificates = Certificates::make();
    let (base, _running) = served(&certificates).await;
    let address = base.trim_start_matches("https://").split('/').next().unwrap().to_owned();
    let asked = |tls: TlsFiles, name: &'static str| {
        let address = address.clone();
        let asked = tokio::task::spawn_blocking(move || -> std::io::Result<String> {
            let stream = std::net::TcpStream::connect(address)?;
            let mut stream = Tls::load(&tls).unwrap().connect(name, stream)?;
            stream.write_all(
                b"GET /metadata?key=k HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            )?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        });
        async { asked.await.unwrap() }
    };
    let answer = asked(certificates.client(), "127.0.0.1").await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
    let stranger = Certificates::make();
    let nobody = TlsFiles { identity: None, ..certificates.client() };
    for (tls, name, why) in [
        (stranger.client(), "127.0.0.1", "UnknownIssuer"),
        (certificates.client(), "another.example", "not valid for name"),
        (nobody, "127.0.0.1", "CertificateRequired"),
        (certificates.client(), "no name", "invalid dns name"),
    ] {
        let error = asked(tls, name).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidData, "{error}");
        assert!(error.to_string().contains(why), "{why}: {error}");
    }
}

#[tokio::test]
async fn tls_failures_have_causes_of_their_own() {
    for (certificates, why) in [
        (Certificates::make_for("other.example", 4096), TlsFailure::WrongName),
        (Certificates::make_for("127.0.0.1", 2001), TlsFailure::NotValidNow),
    ] {
        let (base, _running) = served(&certificates).await;
        assert_eq!(refused(&base, &certificates.client()).await, why);
    }
    let (_running, plain) = server(None, ServerLimits::default()).await;
    let base = plain.replace("http://", "https://");
    let certificates = Certificates::make();
    let client = certificates.client();
    assert_eq!(refused(&base, &client).await, TlsFailure::NotSpoken);
    let store = HttpStore::with_tls("https://127.0.0.1:1/metadata", &Tls::load(&client).unwrap());
    let nobody = store.unwrap().get("k").await.unwrap_err();
    assert!(matches!(nobody.cause, StoreCause::Unreachable(_)), "{nobody}");
}

/// Why a store behind TLS cannot be read from; each reason has a cure.
async fn refused(base: &str, tls: &TlsFiles) -> TlsFailure {
    let store = HttpStore::with_tls(base, &Tls::load(tls).unwrap()).unwrap();
    let error = store.get("k").await.unwrap_err();
    let StoreCause::Tls { failure, .. } = error.cause else { panic!("{error}") };
    assert!(error.to_string().contains(&failure.to_string()) && !failure.cure().is_empty());
    failure
}

#[test]
fn malformed_certificate_files_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let certificates = Certificates::make();
    let (letter, long) = (folder.path().join("letter"), folder.path().join("long"));
    fs::write(&letter, "Dear Sir\n").unwrap();
    fs::write(&long, vec![b'x'; TLS_FILE_BYTES_MAX as usize + 1]).unwrap();
    let (certificate, key) = certificates.server();
    let other = Certificates::make();
    let (_, other_key) = other.server();
    let missing = folder.path().join("missing");
    let authority = |path: &Path| TlsFiles { authority: Some(path.into()), identity: None };
    let identity = |certificate: &Path, key: &Path| TlsFiles {
        authority: Some(certificates.authority()),
        identity: Some((certificate.into(), key.into())),
    };
    for (files, why) in [
        (authority(&missing), "missing: No such file"),
        (authority(&letter), "letter: no certificate in it"),
        (authority(&long), "long: it is longer than 1048576 bytes"),
        (identity(&certificate, &certificate), "server.pem: no"),
        (identity(&certificate, &missing), "missing: No such file"),
        (identity(&key, &key), "server.key: no certificate in it"),
        (identity(&certificate, &other_key), "server.pem: "),
    ] {
        let error = Tls::load(&files).expect_err(why);
        let StoreCause::Certificates(text) = &error else { panic!("{error}") };
        assert!(text.contains(why), "{text}");
    }
}

/// A metadata server, and in front of it one that speaks TLS and asks who its clients are.
async fn served(certificates: &Certificates) -> (String, JoinHandle<()>) {
    let (running, plain) = server(None, ServerLimits::default()).await;
    let plain =
        plain.strip_prefix("http://").unwrap().strip_suffix("/metadata").unwrap().to_owned();
    let read = |path: &Path| CertificateDer::pem_file_iter(path).unwrap().map(Result::unwrap);
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(read(&certificates.authority()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let clients = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone());
    let config = ServerConfig::builder_with_provider(provider);
    let config = config.with_safe_default_protocol_versions().unwrap();
    let config = config.with_client_cert_verifier(clients.build().unwrap());
    let (certificate, key) = certificates.server();
    let key = PrivateKeyDer::from_pem_file(key).unwrap();
    let config = config.with_single_cert(read(&certificate).collect(), key).unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("https://{}/metadata", listener.local_addr().unwrap());
    let front = tokio::spawn(async move {
        let _behind = running;
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (acceptor, plain) = (acceptor.clone(), plain.clone());
            tokio::spawn(async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                let mut behind = TcpStream::connect(plain).await.unwrap();
                // Either side may end it.
                let _ = tokio::io::copy_bidirectional(&mut stream, &mut behind).await;
            });
        }
    });
    (base, front)
}
