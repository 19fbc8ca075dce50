//! Sessions through TLS: each fault of a certificate, its names, and changed bytes.

use super::super::certificates::{Certificates, Lists, Texts};
use super::*;
use crate::api::auth::{CertificateFile, Part};
use handfast_core::auth::{AuthMethod, CertificateFault};
use rustls::{ClientConfig, ClientConnection};
use rustls_pki_types::ServerName;

#[path = "../../../../tests/stories/certificates.rs"]
#[allow(dead_code, reason = "the stories use the rest")]
pub(in crate::control::auth) mod issuing;

use issuing::{Authority, Issued};

fn material(trusted: &[&Authority], own: &Issued) -> Arc<Certificates> {
    Arc::new(Certificates::new(&texts(trusted, own), Lists::Checked).unwrap())
}

/// The same with a revocation list.
fn material_with(trusted: &[&Authority], own: &Issued, list: String) -> Arc<Certificates> {
    let texts = Texts { revocations: list.into_bytes(), ..texts(trusted, own) };
    Arc::new(Certificates::new(&texts, Lists::Checked).unwrap())
}

fn texts(trusted: &[&Authority], own: &Issued) -> Texts {
    Texts {
        authority: trusted.iter().map(|it| &*it.pem).collect::<String>().into_bytes(),
        certificate: own.certificate.clone().into_bytes(),
        key: own.key.clone().into_bytes(),
        revocations: Vec::new(),
    }
}

/// A node's certificates, without the check at its start.
fn certified(name: &str, run: u128, own: Arc<Certificates>) -> Keys {
    let part = Part { loaded: Loaded::Certificates(own), source: None };
    let options = AuthOptions { parts: vec![part] };
    Keys::new(NodeName::new(name).unwrap(), Incarnation(run), Some(&options)).unwrap()
}

/// A connection of `a` to `b`, and how each side sees its beginning.
async fn meet(
    a: Keys,
    b: Keys,
    to: Option<&str>,
) -> (Result<Channel<TcpStream>, AuthFailure>, Result<Accepted, ReadError>, TcpStream) {
    let (near, mut far) = sockets().await;
    let accepting = tokio::spawn(async move {
        let mut magic = [0; 8];
        far.read_exact(&mut magic).await.unwrap();
        (Accepted::begin(&mut far, &b).await, far)
    });
    let to = to.map(|to| NodeName::new(to).unwrap());
    let dialled = Channel::dial(near, &a, Outbound::new(to), &Look::default()).await;
    let dialled = dialled.map_err(|error| match error {
        DialError::Auth(failure) => failure,
        DialError::Io(error) => panic!("{error}"),
    });
    let (accepted, far) = accepting.await.unwrap();
    (dialled, accepted, far)
}

/// Speaks TLS by a configuration, and returns what is answered to a hello.
async fn greeted(mut stream: TcpStream, config: ClientConfig, hello: &[u8]) -> Vec<u8> {
    use std::io::{Read as _, Write as _};
    let unnamed = ServerName::try_from("handfast").unwrap();
    let mut tls = ClientConnection::new(Arc::new(config), unnamed).unwrap();
    let head = AuthHelloHead { version: AUTH_TLS, key: String::new() }.encode();
    stream.write_all(&message(&[&head])).await.unwrap();
    tls.writer().write_all(&message(&[hello])).unwrap();
    let (mut answer, mut bytes) = (Vec::new(), [0; 4096]);
    let length = message(&[&[0]]).len();
    while answer.len() < length {
        let mut pending = Vec::new();
        while tls.wants_write() {
            tls.write_tls(&mut pending).unwrap();
        }
        stream.write_all(&pending).await.unwrap();
        let read = stream.read(&mut bytes).await.unwrap();
        assert!(read > 0, "it is answered");
        let mut arrived = &bytes[..read];
        while !arrived.is_empty() {
            tls.read_tls(&mut arrived).unwrap();
            tls.process_new_packets().unwrap();
        }
        // Ends with an error where no more has arrived.
        let _ = tls.reader().read_to_end(&mut answer);
    }
    answer.truncate(length);
    answer
}

/// A side that names no protocol in the handshake is another program with the certificates of a node: each side
/// refuses it, and the dialling one before its hello.
#[tokio::test]
async fn session_without_the_protocol_is_refused() {
    let fleet = Authority::new("fleet");
    let issued = fleet.issue(&["a", "b"]);
    let own = || material(&[&fleet], &issued);
    for (is_named, status) in [(true, ACCEPTED), (false, AuthRefusal::Unusable as u8)] {
        let (near, mut far) = sockets().await;
        let listening = certified("b", 2, own());
        let accepting = tokio::spawn(async move {
            let mut magic = [0; 8];
            far.read_exact(&mut magic).await.unwrap();
            Accepted::begin(&mut far, &listening).await.map(drop)
        });
        let dialling = certified("a", 1, own());
        let (_, hello) = Outbound::new(None).hello(&dialling.current().policy).unwrap();
        let mut config = (*own().client).clone();
        if !is_named {
            config.alpn_protocols.clear();
        }
        let answer = greeted(near, config, &hello.encode()).await;
        assert_eq!(answer.last(), Some(&status), "named: {is_named}");
        let accepted = accepting.await.unwrap();
        match is_named {
            true => accepted.unwrap(),
            false => assert!(
                matches!(accepted, Err(ReadError::Refused(AuthRefusal::Unusable))),
                "{accepted:?}"
            ),
        }
    }
    let texts = texts(&[&fleet], &issued);
    let mut without = Certificates::new(&texts, Lists::Checked).unwrap();
    let mut server = (*without.server).clone();
    server.alpn_protocols.clear();
    without.server = Arc::new(server);
    let listening = certified("b", 2, Arc::new(without));
    let (dialled, accepted, _) = meet(certified("a", 1, own()), listening, None).await;
    assert_eq!(dialled.err(), Some(AuthFailure::Certificate(CertificateFault::Unusable)));
    assert!(accepted.is_err());
}

/// Frames of any length pass both ways through TLS, and both ends name each other.
#[tokio::test]
async fn frames_pass_through_tls() {
    let fleet = Authority::new("fleet");
    let (a, b) = (fleet.issue(&["a.example"]), fleet.issue(&["*.nodes.example", "10.0.0.7"]));
    let (a, b) = (material(&[&fleet], &a), material(&[&fleet], &b));
    let keys = certified("b.nodes.example:7411", 2, b.clone());
    let met = meet(certified("a.example", 1, a), keys, Some("b.nodes.example:7411")).await;
    let (Ok(mut near), Ok(mut accepted), mut far) = met else { panic!("the session opens") };
    let (look, keys) = (Look::default(), certified("b.nodes.example:7411", 2, b));
    for bytes in [0, 1, 16_375, 16_376, 100_000, LIMIT - 1] {
        let text = "x".repeat(bytes);
        let (sent, frame) = tokio::join!(
            near.send(FrameKind::Metadata, &text),
            accepted.receive(&mut far, &keys, &look, LIMIT)
        );
        sent.unwrap();
        assert_eq!(frame.unwrap().text.len(), bytes);
        let (sent, frame) = tokio::join!(
            accepted.send(&mut far, FrameKind::Metadata, &text),
            near.receive(&look, LIMIT)
        );
        sent.unwrap();
        assert_eq!(frame.unwrap().text.len(), bytes);
    }
    assert_eq!(near.peer().map(|peer| peer.name.as_str()), Some("b.nodes.example:7411"));
    assert_eq!(accepted.inbound.peer().map(|peer| peer.name.as_str()), Some("a.example"));
    near.send(FrameKind::Metadata, &"x".repeat(100)).await.unwrap();
    let refused = accepted.receive(&mut far, &keys, &look, 50).await;
    assert!(matches!(refused, Err(ReadError::Frame(FrameError::TooLong { .. }))), "{refused:?}");
}

/// Each fault of a certificate is refused with its reason on both sides, whichever side shows it.
#[tokio::test]
async fn faulty_certificates_are_refused_with_the_fault() {
    let (fleet, other) = (Authority::new("fleet"), Authority::new("other"));
    let good = || material(&[&fleet], &fleet.issue(&["a", "b"]));
    for (fault, own) in [
        (CertificateFault::Expired, fleet.expired(&["a", "b"])),
        (CertificateFault::NotYetValid, fleet.not_yet_valid(&["a", "b"])),
        (CertificateFault::UnknownAuthority, other.issue(&["a", "b"])),
    ] {
        let faulty = || material(&[&fleet], &own);
        assert_eq!(
            faulty().check(&NodeName::new("a").unwrap()),
            Err(AuthFailure::Own(fault)),
            "a node does not start with it"
        );
        let (dialled, accepted, _) =
            meet(certified("a", 1, faulty()), certified("b", 2, good()), None).await;
        let refusal = AuthRefusal::from(fault);
        assert_eq!(dialled.err(), Some(AuthFailure::Refused(refusal)), "{fault:?}");
        assert!(matches!(accepted, Err(ReadError::Refused(it)) if it == refusal), "{fault:?}");
        let (dialled, accepted, _) =
            meet(certified("a", 1, good()), certified("b", 2, faulty()), None).await;
        assert_eq!(dialled.err(), Some(AuthFailure::Certificate(fault)));
        assert!(accepted.is_err());
    }
    let server = fleet.for_servers(&["a"]);
    let (dialled, _, _) =
        meet(certified("a", 1, material(&[&fleet], &server)), certified("b", 2, good()), None)
            .await;
    assert_eq!(dialled.err(), Some(AuthFailure::Refused(AuthRefusal::Unusable)), "no client");
}

/// A revoked certificate is refused with the reason on both sides, whichever side has the list; those
/// of an authority without a list stay. A list of another authority revokes nothing.
#[tokio::test]
async fn revoked_certificate_is_refused_with_the_fault() {
    let (fleet, other) = (Authority::new("fleet"), Authority::new("other"));
    let (a, b) = (fleet.issue(&["a"]), fleet.issue(&["b"]));
    let c = other.issue(&["c"]);
    let list = || fleet.revoke(&[&a]);
    let knowing = |own: &Issued| material_with(&[&fleet, &other], own, list());
    let own = AuthFailure::Own(CertificateFault::Revoked);
    assert_eq!(knowing(&a).check(&NodeName::new("a").unwrap()), Err(own));
    let unaware = || certified("a", 1, material(&[&fleet], &a));
    let (dialled, accepted, _) = meet(unaware(), certified("b", 2, knowing(&b)), None).await;
    assert_eq!(dialled.err(), Some(AuthFailure::Refused(AuthRefusal::Revoked)));
    assert!(matches!(accepted, Err(ReadError::Refused(AuthRefusal::Revoked))));
    let (dialled, _, _) = meet(certified("b", 2, knowing(&b)), unaware(), None).await;
    assert_eq!(dialled.err(), Some(AuthFailure::Certificate(CertificateFault::Revoked)));
    let unlisted = certified("c", 3, material(&[&fleet, &other], &c));
    assert!(meet(unlisted, certified("b", 2, knowing(&b)), None).await.0.is_ok());
    let many = |count: usize| Texts {
        revocations: list().repeat(count).into_bytes(),
        ..texts(&[&fleet], &b)
    };
    let parse = |texts: &Texts| Certificates::new(texts, Lists::Checked);
    assert!(parse(&many(256)).is_ok(), "at the limit");
    for (unusable, words) in [
        (many(257), "more than 256"),
        (Texts { revocations: fleet.pem.clone().into_bytes(), ..many(0) }, "no revocation list"),
    ] {
        let (file, text) = parse(&unusable).err().unwrap();
        assert!(file == CertificateFile::Revocations && text.contains(words), "{text}");
    }
}

/// A serial number on any list of its authority is revoked, whichever list is first.
#[test]
fn each_list_of_an_authority_revokes() {
    let fleet = Authority::new("fleet");
    let (a, b) = (fleet.issue(&["a"]), fleet.issue(&["b"]));
    let (older, newer) = (fleet.revoke(&[]), fleet.revoke(&[&a]));
    for lists in [[&*older, &*newer], [&*newer, &*older]] {
        let check = |own: &Issued, name: &str| {
            material_with(&[&fleet], own, lists.concat()).check(&NodeName::new(name).unwrap())
        };
        assert_eq!(check(&a, "a"), Err(AuthFailure::Own(CertificateFault::Revoked)));
        assert_eq!(check(&b, "b"), Ok(()));
    }
}

/// Of two trusted authorities of one name, the list of each revokes its own certificates alone. A list
/// that none of them has signed is refused, with its file.
#[tokio::test]
async fn list_is_for_the_key_that_signed_it() {
    let (old, new) = (Authority::new("fleet"), Authority::new("fleet"));
    let both = [&old, &new];
    let (a, b) = (old.issue(&["a"]), new.issue(&["b"]));
    for lists in
        [new.revoke(&[&a]), old.revoke(&[&b]), [new.revoke(&[&a]), old.revoke(&[&b])].concat()]
    {
        let near = certified("a", 1, material_with(&both, &a, lists.clone()));
        let far = certified("b", 2, material_with(&both, &b, lists));
        let (dialled, accepted, _) = meet(near, far, None).await;
        assert!(dialled.is_ok() && accepted.is_ok(), "{:?}", dialled.err());
    }
    let lists = [new.revoke(&[&b]), old.revoke(&[&a])].concat();
    for (own, name) in [(&a, "a"), (&b, "b")] {
        let checked = material_with(&both, own, lists.clone()).check(&NodeName::new(name).unwrap());
        assert_eq!(checked, Err(AuthFailure::Own(CertificateFault::Revoked)), "{name}");
    }
    let strange = Texts { revocations: new.revoke(&[&a]).into_bytes(), ..texts(&[&old], &a) };
    let (file, text) = Certificates::new(&strange, Lists::Checked).err().unwrap();
    assert!(file == CertificateFile::Revocations && text.contains("has not signed it"), "{text}");
    let earlier = Certificates::new(&strange, Lists::Earlier).unwrap();
    assert_eq!(earlier.check(&NodeName::new("a").unwrap()), Ok(()), "it revokes nothing");
}

/// A certificate stands for the names in it: hosts with any port, and addresses.
#[test]
fn certificate_has_the_names_in_it() {
    let fleet = Authority::new("fleet");
    let names = |own: &[&str], name: &str| {
        material(&[&fleet], &fleet.issue(own)).check(&NodeName::new(name).unwrap()).is_ok()
    };
    let own: &[&str] = &["gpu-1.example.org", "*.pods.example.org", "10.0.0.7", "::1"];
    for name in [
        "gpu-1.example.org",
        "gpu-1.example.org:7411",
        "gpu-1.example.org:client-1",
        "x.pods.example.org:1",
        "10.0.0.7:7411",
        "[::1]:7411",
    ] {
        assert!(names(own, name), "{name}");
    }
    for name in ["gpu-2.example.org", "a.b.pods.example.org", "10.0.0.8", "example.org", "client-1"]
    {
        assert!(!names(own, name), "{name}");
    }
}

/// A chain is taken at its bounds in number and bytes, and refused past them, whatever else is in it.
#[test]
fn longest_chain_is_refused_past_its_bound() {
    let fleet = Authority::new("fleet");
    let own = material(&[&fleet], &fleet.issue(&["own"]));
    let valid = |more: Vec<usize>| {
        let junk =
            more.into_iter().map(|bytes| rustls_pki_types::CertificateDer::from(vec![0; bytes]));
        own.is_valid(&own.own.iter().cloned().chain(junk).collect::<Vec<_>>())
    };
    let left = (16 << 10) - own.own[0].len();
    assert!(valid(vec![1; 7]) && !valid(vec![1; 8]));
    assert!(valid(vec![left]) && !valid(vec![left + 1]));
}

/// A workload has its whole SPIFFE id as its name: one that differs in its trust domain or in any part
/// of its path is another, and a host has no such name.
#[test]
fn workloads_of_other_namespaces_have_other_names() {
    const ID: &str = "spiffe://example.org/ns/a/gpu-1";
    let fleet = Authority::new("fleet");
    let of = |own: &str| material(&[&fleet], &fleet.issue(&[own]));
    let names = |own: &str, name: &str| of(own).check(&NodeName::new(name).unwrap()).is_ok();
    assert!(names(ID, ID) && names(ID, &format!("{ID}:10.0.0.7:7411")));
    for other in [
        "spiffe://example.org/ns/b/gpu-1",
        "spiffe://other.org/ns/a/gpu-1",
        "spiffe://example.org/gpu-1",
        "spiffe://example.org/ns/a/gpu-1/x",
        "spiffe://example.org/ns/a/gpu-12",
        "spiffe://example.org/ns/a",
        "gpu-1",
        "gpu-1:7411",
        "example.org",
        "spiffe",
    ] {
        assert!(!names(ID, other), "{other}");
    }
    assert!(!names("spiffe", ID) && names("spiffe", "spiffe:7411"), "a host of that name");
    let own = of(ID);
    assert_eq!(own.host().as_deref(), Some(ID));
    assert_eq!(own.listening_name("10.0.0.7:7411"), format!("{ID}:10.0.0.7:7411"));
    assert_eq!(of("10.0.0.7").listening_name("10.0.0.7:7411"), "10.0.0.7:7411");
    let evil = of("spiffe://example.org/ns/b/gpu-1");
    let name = NodeName::new("spiffe://example.org/ns/b/gpu-1").unwrap();
    assert!(own.names(&evil.own, &name), "of the same domain");
    assert!(!own.names(&evil.own, &NodeName::new(ID).unwrap()), "it is not the other one");
    assert!(!own.names(&of("spiffe://other.org/ns/a/gpu-1").own, &NodeName::new(ID).unwrap()));
}

/// A certificate with several URIs has no SPIFFE id: an SVID has one. Its other names stay.
#[test]
fn certificate_with_two_uris_is_no_workload() {
    const ID: &str = "spiffe://example.org/ns/a/gpu-1";
    let fleet = Authority::new("fleet");
    let of = |own: &[&str]| material(&[&fleet], &fleet.issue(own));
    let name = |text: &str| NodeName::new(text).unwrap();
    let own = of(&[ID, "gpu-1"]);
    assert!(own.check(&name(ID)).is_ok() && own.check(&name("gpu-1:7411")).is_ok());
    for second in ["spiffe://example.org/ns/b/gpu-1", "https://example.org/gpu-1"] {
        for uris in [[ID, second], [second, ID]] {
            let peer = of(&[uris[0], uris[1], "gpu-1"]);
            assert!(!own.names(&peer.own, &name(uris[0])) && !own.names(&peer.own, &name(uris[1])));
            assert!(own.names(&peer.own, &name("gpu-1:7411")), "its host stays");
            assert_eq!(peer.check(&name(ID)), Err(AuthFailure::OwnName));
            assert_eq!(peer.host().as_deref(), Some("gpu-1"));
        }
    }
}

/// Nodes with certificates of another name, another domain, or the address of another node are refused.
#[tokio::test]
async fn identity_is_bound_to_the_certificate() {
    let fleet = Authority::new("fleet");
    let of = |names: &[&str]| material(&[&fleet], &fleet.issue(names));
    let refused = |a: (&'static str, &[&str]), b: (&'static str, &[&str]), to| {
        meet(certified(a.0, 1, of(a.1)), certified(b.0, 2, of(b.1)), to)
    };
    let (dialled, accepted, _) = refused(("a", &["c"]), ("b", &["b"]), None).await;
    assert_eq!(dialled.err(), Some(AuthFailure::Refused(AuthRefusal::Name)));
    assert!(matches!(accepted, Err(ReadError::Refused(AuthRefusal::Name))));
    let (dialled, _, _) = refused(("a", &["a"]), ("b", &["c"]), None).await;
    assert_eq!(dialled.err(), Some(AuthFailure::Name));
    let (dialled, _, _) = refused(("a", &["a"]), ("b", &["b"]), Some("c")).await;
    assert_eq!(dialled.err(), Some(AuthFailure::Refused(AuthRefusal::Addressed)));
    let ids: [&[&str]; 2] = [&["spiffe://one.org/a"], &["spiffe://two.org/b"]];
    let (dialled, _, _) = refused((ids[0][0], ids[0]), (ids[1][0], ids[1]), None).await;
    assert_eq!(dialled.err(), Some(AuthFailure::Refused(AuthRefusal::Name)), "another domain");
}

/// Keys and certificates refuse each other with the reason, in both directions.
#[tokio::test]
async fn keys_and_certificates_refuse_each_other() {
    let fleet = Authority::new("fleet");
    let own = || certified("a", 1, material(&[&fleet], &fleet.issue(&["a", "b"])));
    let method = AuthFailure::Refused(AuthRefusal::Method);
    let (dialled, accepted, _) = meet(own(), keys("b", 2), None).await;
    assert_eq!(dialled.err(), Some(method));
    assert!(matches!(accepted, Err(ReadError::Refused(AuthRefusal::Method))));
    let (dialled, _, _) = meet(keys("b", 2), own(), None).await;
    assert_eq!(dialled.err(), Some(method));
    let open = Keys::new(NodeName::new("o").unwrap(), Incarnation(3), None).unwrap();
    let (dialled, _, _) = meet(own(), open, None).await;
    assert_eq!(dialled.err(), Some(AuthFailure::Refused(AuthRefusal::NoKeys)));
}

/// A session lasts beyond a new certificate, and ends with the authority of its peer or its validity.
#[tokio::test]
async fn session_ends_with_the_authority_of_its_peer() {
    let (fleet, next) = (Authority::new("fleet"), Authority::new("next"));
    let own = |trusted: &[&Authority]| material(trusted, &fleet.issue(&["a", "b"]));
    let listening = certified("b", 2, own(&[&fleet]));
    let met = meet(certified("a", 1, own(&[&fleet])), certified("b", 2, own(&[&fleet])), None);
    let (Ok(mut near), Ok(mut accepted), mut far) = met.await else { panic!("it opens") };
    let look = Look::default();
    for (replaced, is_kept) in
        [(None, true), (Some(own(&[&fleet, &next])), true), (Some(own(&[&next])), false)]
    {
        if let Some(replaced) = replaced {
            listening.replace(vec![Loaded::Certificates(replaced)]).unwrap();
        }
        near.send(FrameKind::Probe, "call").await.unwrap();
        let received = accepted.receive(&mut far, &listening, &look, LIMIT).await;
        match is_kept {
            true => assert_eq!(received.unwrap().text, "call"),
            false => assert!(matches!(received, Err(ReadError::Withdrawn)), "{received:?}"),
        }
    }
    assert!(accepted.inbound.peer().is_none());
}

/// A session ends with the revocation of its peer's certificate, and with no other.
#[tokio::test]
async fn session_ends_with_the_revocation_of_its_peer() {
    let fleet = Authority::new("fleet");
    let (a, b, c) = (fleet.issue(&["a"]), fleet.issue(&["b"]), fleet.issue(&["c"]));
    let own = |revoked: &[&Issued]| material_with(&[&fleet], &b, fleet.revoke(revoked));
    let listening = certified("b", 2, own(&[]));
    let near = certified("a", 1, material(&[&fleet], &a));
    let met = meet(near, certified("b", 2, own(&[])), None);
    let (Ok(mut near), Ok(mut accepted), mut far) = met.await else { panic!("it opens") };
    for (revoked, is_kept) in [(&[&c][..], true), (&[&c, &a], false)] {
        listening.replace(vec![Loaded::Certificates(own(revoked))]).unwrap();
        near.send(FrameKind::Probe, "call").await.unwrap();
        let received = accepted.receive(&mut far, &listening, &Look::default(), LIMIT).await;
        match is_kept {
            true => assert_eq!(received.unwrap().text, "call"),
            false => assert!(matches!(received, Err(ReadError::Withdrawn)), "{received:?}"),
        }
    }
}

/// A node with a key and a certificate.
fn both(name: &str, run: u128, certificates: Arc<Certificates>, first: AuthMethod) -> Keys {
    let part = Part { loaded: Loaded::Certificates(certificates), source: None };
    let certificates = AuthOptions { parts: vec![part] };
    let options = match first {
        AuthMethod::Key => options().and(certificates),
        AuthMethod::Certificate => certificates.and(options()),
    };
    Keys::new(NodeName::new(name).unwrap(), Incarnation(run), Some(&options.unwrap())).unwrap()
}

/// A node with both accepts peers with either, and dials by the first. It calls no peer by the second
/// that refuses the first.
#[tokio::test]
async fn node_with_both_meets_peers_with_either() {
    let fleet = Authority::new("fleet");
    let own = || material(&[&fleet], &fleet.issue(&["a", "b"]));
    let methods = [AuthMethod::Key, AuthMethod::Certificate];
    for (near, far) in methods.into_iter().flat_map(|near| methods.map(|far| (near, far))) {
        let met = meet(both("a", 1, own(), near), both("b", 2, own(), far), Some("b")).await;
        let Ok(Channel { seal: Some(seal), .. }) = met.0 else { panic!("{near:?} to {far:?}") };
        assert_eq!(matches!(seal, Seal::Noise(_)), near == AuthMethod::Key);
        assert!(met.1.is_ok());
    }
    let method = Some(AuthFailure::Refused(AuthRefusal::Method));
    for first in methods {
        let is_key = first == AuthMethod::Key;
        let (a, b) = (|| both("a", 1, own(), first), || both("b", 2, own(), first));
        assert!(meet(keys("a", 1), b(), None).await.0.is_ok());
        assert!(meet(certified("a", 1, own()), b(), None).await.0.is_ok());
        let to_keys = meet(a(), keys("b", 2), None).await.0.err();
        assert_eq!(to_keys, method.filter(|_| !is_key), "{first:?}");
        let to_certified = meet(a(), certified("b", 2, own()), None).await.0.err();
        assert_eq!(to_certified, method.filter(|_| is_key), "{first:?}");
    }
}

/// A record that was altered or repeated ends the session.
#[tokio::test]
async fn changed_records_end_a_session_through_tls() {
    let fleet = Authority::new("fleet");
    for is_repeated in [false, true] {
        let own = || material(&[&fleet], &fleet.issue(&["a", "b"]));
        let met = meet(certified("a", 1, own()), certified("b", 2, own()), None).await;
        let (Ok(near), Ok(mut accepted), mut far) = met else { panic!("it opens") };
        let Channel { mut stream, seal: Some(Seal::Tls(mut session)), .. } = near else {
            panic!("it is sealed")
        };
        let mut bytes = session.sealed(&encode_frame(FrameKind::Probe, "call")).unwrap();
        let (look, keys) = (Look::default(), certified("b", 2, own()));
        if is_repeated {
            stream.write_all(&bytes).await.unwrap();
            accepted.receive(&mut far, &keys, &look, LIMIT).await.unwrap();
        } else {
            *bytes.last_mut().unwrap() ^= 1;
        }
        stream.write_all(&bytes).await.unwrap();
        let ended = accepted.receive(&mut far, &keys, &look, LIMIT).await;
        assert!(matches!(ended, Err(ReadError::Unsealed)), "{ended:?}");
        assert!(accepted.inbound.peer().is_none());
    }
}

/// A frame is read whatever the lengths of its records are: behind a record of the greatest length, a short one
/// arrives together with others.
#[tokio::test]
async fn frame_in_records_of_any_length_is_read_through_tls() {
    let fleet = Authority::new("fleet");
    let own = || material(&[&fleet], &fleet.issue(&["a", "b"]));
    let met = meet(certified("a", 1, own()), certified("b", 2, own()), None).await;
    let (Ok(near), Ok(mut accepted), mut far) = met else { panic!("it opens") };
    let Channel { mut stream, seal: Some(Seal::Tls(mut session)), .. } = near else {
        panic!("it is sealed")
    };
    let text = "x".repeat(60_000);
    let frame = encode_frame(FrameKind::Metadata, &text);
    let mut rest = &frame[..];
    let mut bytes = Vec::new();
    for length in [16 << 10, 100, 16 << 10, 1, 1, 1, 4_000].into_iter().cycle() {
        let (record, further) = rest.split_at(rest.len().min(length));
        bytes.extend(session.sealed(record).unwrap());
        rest = further;
        if rest.is_empty() {
            break;
        }
    }
    let (look, keys) = (Look::default(), certified("b", 2, own()));
    let sent = stream.write_all(&bytes);
    let (sent, read) = tokio::join!(sent, accepted.receive(&mut far, &keys, &look, LIMIT));
    sent.unwrap();
    assert_eq!(read.unwrap().text, text);
}
