//! Decisions of one end at a time; `sim` explores both ends against an attacker.

use super::*;
use crate::identity::{Incarnation, Lifecycle, NodeName, Pair};
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

fn name(text: &str) -> NodeName {
    NodeName::new(text).unwrap()
}

fn identity(text: &str, run: u128) -> Identity {
    Identity { name: name(text), incarnation: Incarnation(run) }
}

fn key(id: &str, names: &[&str]) -> KeyRule {
    let names = names.iter().map(|name| NamePattern::new(name).unwrap()).collect();
    KeyRule::new(id, names).unwrap()
}

fn policy(own: &str, keys: Vec<KeyRule>) -> AuthPolicy {
    AuthPolicy::new(identity(own, 1), keys).unwrap()
}

fn hello(from: &str, run: u128, to: Option<&str>) -> AuthHello {
    AuthHello { from: identity(from, run), to: to.map(name) }
}

/// A pattern is a name in which `*` stands for any characters.
#[test]
fn pattern_covers_names_with_any_characters_at_its_stars() {
    let covers = |pattern: &str, text: &str| NamePattern::new(pattern).unwrap().covers(&name(text));
    assert!(covers("gpu-1:7000", "gpu-1:7000") && !covers("gpu-1:7000", "gpu-1:70000"));
    assert!(covers("gpu-*", "gpu-1:7000") && covers("gpu-*", "gpu-") && !covers("gpu-*", "cpu-1"));
    assert!(covers("*:7000", "gpu-1:7000") && !covers("*:7000", "gpu-1:7001"));
    assert!(covers("a*b*c", "abc") && covers("a*b*c", "a-b-b-c") && !covers("a*b*c", "acb"));
    assert!(covers("*", "x") && covers("**", "x") && !covers("a*a", "a"), "no overlap");
    assert!(covers("*", "a:1") && covers("a*", "a.b:1") && covers("*.b*", "a.b:1"));
    assert_eq!(NamePattern::new("").err(), Some(KeyRuleError::Pattern));
    assert_eq!(NamePattern::new("a@b").err(), Some(KeyRuleError::Pattern));
}

/// The text that the holder of a certificate chooses behind its host matches no pattern of other hosts,
/// in any form of a name, while each pattern covers the hosts that it is for.
#[test]
fn chosen_text_matches_no_pattern_of_other_hosts() {
    let patterns = ["*.gpu.example", "*trainer", "*trainer*", "*-1:7411", "a*:7411"];
    let covers = |pattern: &str, text: &str| NamePattern::new(pattern).unwrap().covers(&name(text));
    let own = ["evil.example", "2001:db8::1"];
    let mut certified = 0;
    for chosen in ["x.gpu.example", "trainer", "a-1:7411", ":7411", ":b", ".gpu.example"] {
        for text in own.into_iter().flat_map(|host| {
            ["", ":", "::"].into_iter().flat_map(move |between| {
                [format!("{host}{between}{chosen}"), format!("[{host}]{between}{chosen}")]
            })
        }) {
            let is_certified = own.contains(&certified_part(&name(&text)));
            let covering = patterns.into_iter().find(|pattern| covers(pattern, &text));
            assert!(!is_certified || covering.is_none(), "{text}: {covering:?}");
            certified += u32::from(is_certified);
        }
    }
    assert!(certified >= 8, "{certified}");
    for (pattern, text) in [
        ("*.gpu.example", "a.gpu.example"),
        ("*.gpu.example*", "a.gpu.example:7411"),
        ("*.gpu.example:7411", "a.gpu.example:7411"),
        ("*trainer*", "trainer-1:client-7"),
        ("*:b*", "a:b:c"),
        ("[2001:db8::*", "[2001:db8::1]:7411"),
    ] {
        assert!(covers(pattern, text), "{pattern} {text}");
    }
}

/// Each limit is taken at its bound and refused past it.
#[test]
fn rules_are_refused_past_their_limits() {
    let id = |bytes: usize| String::from_utf8(vec![b'k'; bytes]).unwrap();
    assert!(KeyRule::new(&id(KEY_ID_BYTES_MAX), Vec::new()).is_ok());
    for wrong in [id(KEY_ID_BYTES_MAX + 1), String::new(), "a b".into(), "a/b".into()] {
        assert_eq!(KeyRule::new(&wrong, Vec::new()), Err(KeyRuleError::Id), "{wrong}");
    }
    let names = |count| vec![NamePattern::new("*").unwrap(); count];
    assert!(KeyRule::new("k", names(KEY_NAMES_MAX)).is_ok());
    assert_eq!(KeyRule::new("k", names(KEY_NAMES_MAX + 1)), Err(KeyRuleError::Names));
    let keys = |count| (0..count).map(|at| key(&format!("k{at}"), &[])).collect();
    let own = || identity("a", 1);
    assert!(AuthPolicy::new(own(), keys(KEYS_MAX)).is_ok());
    assert_eq!(AuthPolicy::new(own(), keys(KEYS_MAX + 1)), Err(KeyRuleError::Keys));
    let twice = vec![key("k", &[]), key("k", &["b"])];
    assert_eq!(AuthPolicy::new(own(), twice), Err(KeyRuleError::Twice));
}

/// A node with keys answers no plain message, neither first nor later.
#[test]
fn node_with_keys_refuses_plain_messages_at_any_time() {
    let (keyed, open) = (policy("b", vec![key("k", &[])]), policy("b", Vec::new()));
    let mut first = Inbound::default();
    assert_eq!(first.handle_plain(&keyed), Err(AuthRefusal::Plain));
    assert_eq!(first.handle_plain(&open), Err(AuthRefusal::Plain), "the connection is over");
    let mut later = Inbound::default();
    later.handle_head(&keyed, AUTH_VERSION, "k").unwrap();
    later.handle_hello(&keyed, Some(hello("a", 2, None))).unwrap();
    assert!(later.handle_record(&keyed, true));
    assert_eq!(later.handle_plain(&keyed), Err(AuthRefusal::Plain));
    assert_eq!(later.peer(), None);
    let mut plain = Inbound::default();
    assert_eq!(plain.handle_plain(&open), Ok(()));
    assert_eq!(plain.handle_plain(&open), Ok(()), "a kept connection");
    assert!(plain.admits(&name("anyone"), Incarnation(9)));
    assert_eq!(Inbound::default().handle_head(&open, 1, "k"), Err(AuthRefusal::NoKeys));
}

/// Each step of the accepting end has its refusal, and a refused connection stays refused.
#[test]
fn accepting_end_refuses_with_the_reason() {
    let keyed = policy("b", vec![key("new", &[]), key("old", &["a*"])]);
    let head = |version, id| Inbound::default().handle_head(&keyed, version, id);
    assert_eq!(head(AUTH_VERSION, "old"), Ok(1));
    assert_eq!(head(AUTH_VERSION + 2, "old"), Err(AuthRefusal::Version));
    assert_eq!(head(AUTH_TLS, "old"), Err(AuthRefusal::Method));
    assert_eq!(head(AUTH_VERSION, "gone"), Err(AuthRefusal::UnknownKey));
    let opened = |hello: Option<AuthHello>| {
        let mut end = Inbound::default();
        end.handle_head(&keyed, AUTH_VERSION, "old").unwrap();
        let answered = end.handle_hello(&keyed, hello);
        assert!(answered.is_ok() || !end.handle_record(&keyed, true), "a refusal is final");
        answered
    };
    assert_eq!(opened(Some(hello("a-1", 2, Some("b")))), Ok(()));
    assert_eq!(opened(None), Err(AuthRefusal::Unopened));
    assert_eq!(opened(Some(hello("c", 2, None))), Err(AuthRefusal::Name));
    assert_eq!(opened(Some(hello("a", 2, Some("c")))), Err(AuthRefusal::Addressed));
    let mut own = Inbound::default();
    own.handle_head(&keyed, AUTH_VERSION, "new").unwrap();
    assert_eq!(own.handle_hello(&keyed, Some(hello("b", 2, None))), Err(AuthRefusal::Conflict));
    assert_eq!(opened(Some(hello("a-1", 1, None))), Err(AuthRefusal::Conflict), "its incarnation");
    let mut itself = Inbound::default();
    itself.handle_head(&keyed, AUTH_VERSION, "new").unwrap();
    assert_eq!(itself.handle_hello(&keyed, Some(hello("b", 1, None))), Ok(()));
    assert_eq!(itself.handle_head(&keyed, AUTH_VERSION, "new"), Err(AuthRefusal::Unopened));
}

/// A hello may be a repetition: nothing is served before a record of this session opens, and nothing
/// after one that does not.
#[test]
fn session_begins_with_a_record_and_ends_with_a_broken_one() {
    let keyed = policy("b", vec![key("k", &[])]);
    let mut end = Inbound::default();
    assert!(!Inbound::default().handle_record(&keyed, true), "no record comes first");
    end.handle_head(&keyed, AUTH_VERSION, "k").unwrap();
    assert!(end.announced().is_none());
    end.handle_hello(&keyed, Some(hello("a", 2, None))).unwrap();
    assert_eq!(end.announced(), Some(&identity("a", 2)));
    assert!(end.peer().is_none() && !end.admits(&name("a"), Incarnation(2)));
    assert!(end.handle_record(&keyed, true));
    assert_eq!(end.peer(), Some(&identity("a", 2)));
    assert!(end.admits(&name("a"), Incarnation(2)));
    assert!(!end.admits(&name("c"), Incarnation(2)) && !end.admits(&name("a"), Incarnation(3)));
    assert!(!end.handle_record(&keyed, false));
    assert!(!end.handle_record(&keyed, true), "it stays over");
    assert!(end.peer().is_none() && !end.admits(&name("a"), Incarnation(2)));
}

/// The dialling end takes its first key, accepts the addressed node alone and never falls back.
#[test]
fn dialling_end_accepts_the_addressed_node_alone() {
    let keyed = policy("a", vec![key("new", &["b*", "a"]), key("old", &[])]);
    assert_eq!(Outbound::new(None).hello(&policy("a", Vec::new())), None);
    let sent = Outbound::new(Some(name("b"))).hello(&keyed).unwrap();
    assert_eq!(sent, (Some(0), hello("a", 1, Some("b"))));
    let answered = |expected: Option<&str>, answer| {
        Outbound::new(expected.map(name)).handle_answer(&keyed, answer)
    };
    let opened = |from, run| AnswerSeen::Opened(identity(from, run));
    assert_eq!(answered(Some("b"), opened("b", 5)), Ok(()));
    assert_eq!(answered(None, opened("b2", 5)), Ok(()));
    assert_eq!(answered(Some("b"), opened("b2", 5)), Err(AuthFailure::Addressed));
    assert_eq!(answered(None, opened("c", 5)), Err(AuthFailure::Name));
    assert_eq!(answered(None, opened("a", 5)), Err(AuthFailure::Conflict));
    assert_eq!(answered(None, opened("b", 1)), Err(AuthFailure::Conflict), "its incarnation");
    assert_eq!(answered(Some("b"), opened("b", 1)), Err(AuthFailure::Conflict));
    let itself = |expected: Option<&str>, is_own| {
        let mut end = Outbound::new(expected.map(name)).at_own_address(is_own);
        end.handle_answer(&keyed, opened("a", 1))
    };
    assert_eq!(itself(None, true), Ok(()), "the node itself");
    assert_eq!(itself(None, false), Err(AuthFailure::Itself), "the connection was led back");
    assert_eq!(itself(Some("a"), false), Ok(()), "by its name");
    for is_own in [false, true] {
        assert_eq!(itself(Some("b"), is_own), Err(AuthFailure::Addressed));
    }
    assert_eq!(answered(None, AnswerSeen::Nothing), Err(AuthFailure::Unproven));
    assert_eq!(answered(None, AnswerSeen::Unopened), Err(AuthFailure::Unopened));
    let refused = AnswerSeen::Refused(AuthRefusal::NoKeys);
    assert_eq!(answered(None, refused), Err(AuthFailure::Refused(AuthRefusal::NoKeys)));
    let mut end = Outbound::new(None);
    end.handle_answer(&keyed, opened("b", 5)).unwrap();
    assert_eq!(end.peer(), Some(&identity("b", 5)));
}

/// Messages decode to what was encoded; each truncation and each excess is an error.
#[test]
fn messages_survive_the_wire_and_no_truncation_does() {
    let head = AuthHelloHead { version: AUTH_VERSION, key: "fleet-2".into() };
    let mut bytes = head.encode();
    bytes.extend_from_slice(b"sealed");
    assert_eq!(AuthHelloHead::decode(&bytes), Ok((head.clone(), &b"sealed"[..])));
    for cut in 0..head.encode().len() {
        assert_eq!(AuthHelloHead::decode(&bytes[..cut]), Err(AuthMessageError), "{cut}");
    }
    let long = [&[AUTH_VERSION, KEY_ID_BYTES_MAX as u8 + 1][..], &[b'k'; 64]].concat();
    assert_eq!(AuthHelloHead::decode(&long), Err(AuthMessageError));
    let longest = String::from_utf8(vec![b'n'; NodeName::BYTES_MAX]).unwrap();
    for hello in [hello("a:1", 7, None), hello(&longest, 7, Some(&longest))] {
        let bytes = hello.encode();
        assert_eq!(AuthHello::decode(&bytes), Ok(hello));
        assert!((0..bytes.len()).all(|cut| AuthHello::decode(&bytes[..cut]).is_err()));
        assert!(AuthHello::decode(&[&bytes[..], &[0]].concat()).is_err());
        assert!(bytes.len() + 64 + KEY_ID_BYTES_MAX < AUTH_MESSAGE_BYTES_MAX);
    }
    assert_eq!(AuthHello::decode(&hello("a", 0, None).encode()), Err(AuthMessageError));
}

/// The text of a proof differs in every field, so that no proof fits another side, lane or connection.
#[test]
fn proof_text_names_side_lane_and_connection() {
    let pair = |run, lane| Pair { incarnation: Incarnation(run), lifecycle: Lifecycle(lane) };
    let proofs = LaneProofs {
        dialling: pair(1, 2),
        listening: pair(3, 4),
        depth: 5,
        dialling_nonce: [6; LANE_NONCE_BYTES],
        listening_nonce: [7; LANE_NONCE_BYTES],
    };
    let others = [
        LaneProofs { dialling: pair(1, 9), ..proofs },
        LaneProofs { dialling: pair(9, 2), ..proofs },
        LaneProofs { listening: pair(3, 9), ..proofs },
        LaneProofs { listening: pair(9, 4), ..proofs },
        LaneProofs { depth: 9, ..proofs },
        LaneProofs { dialling_nonce: [9; LANE_NONCE_BYTES], ..proofs },
        LaneProofs { listening_nonce: [9; LANE_NONCE_BYTES], ..proofs },
    ];
    let text = proofs.text(LaneEnd::Dialling);
    assert_ne!(text, proofs.text(LaneEnd::Listening));
    assert!(others.iter().all(|other| other.text(LaneEnd::Dialling) != text));
}

/// A node with certificates takes them alone, and one with keys takes keys alone.
#[test]
fn keys_and_certificates_exclude_each_other() {
    let certified = AuthPolicy::certified(identity("b", 1));
    let keyed = policy("b", vec![key("k", &[])]);
    assert!(!certified.is_open() && certified.has_certificates());
    assert!(!keyed.has_certificates());
    assert_eq!(Inbound::default().handle_plain(&certified), Err(AuthRefusal::Plain));
    let head = |policy: &AuthPolicy, version| Inbound::default().handle_head(policy, version, "k");
    let tls = |policy: &AuthPolicy, version| Inbound::default().handle_tls(policy, version);
    assert_eq!(head(&certified, AUTH_VERSION), Err(AuthRefusal::Method));
    assert_eq!(tls(&keyed, AUTH_TLS), Err(AuthRefusal::Method));
    assert_eq!(tls(&certified, 9), Err(AuthRefusal::Version));
    assert_eq!(tls(&policy("b", Vec::new()), AUTH_TLS), Err(AuthRefusal::NoKeys));
    assert_eq!(tls(&certified, AUTH_TLS), Ok(()));
    let mut no_tls = Inbound::default();
    let refused = no_tls.handle_certificate(&certified, Ok((hello("a", 2, None), true)));
    assert_eq!(refused, Err(AuthRefusal::Unusable), "TLS comes first");
    let answered = |policy: &AuthPolicy, answer| Outbound::new(None).handle_answer(policy, answer);
    let by_key = AnswerSeen::Opened(identity("a", 2));
    assert_eq!(answered(&certified, by_key), Err(AuthFailure::Unproven));
    let by_certificate = AnswerSeen::Certified(identity("a", 2), true);
    assert_eq!(answered(&keyed, by_certificate), Err(AuthFailure::Unproven));
    let sent = Outbound::new(None).hello(&certified);
    assert_eq!(sent, Some((None, hello("b", 1, None))), "no key is sealed with");
}

/// A node with keys and a certificate takes both, and dials by the first: an answer by the other is none.
#[test]
fn node_with_both_accepts_both_and_dials_by_the_first() {
    let keyed = policy("b", vec![key("k", &[])]);
    for (first, sealed_with) in [(AuthMethod::Key, Some(0)), (AuthMethod::Certificate, None)] {
        let both = keyed.clone().with_certificates(first);
        assert_eq!(both.dials_by(), Some(first));
        let sent = Outbound::new(None).hello(&both);
        assert_eq!(sent, Some((sealed_with, hello("b", 1, None))));
        assert_eq!(Inbound::default().handle_plain(&both), Err(AuthRefusal::Plain));
        assert_eq!(Inbound::default().handle_head(&both, AUTH_VERSION, "k"), Ok(0));
        assert_eq!(Inbound::default().handle_tls(&both, AUTH_TLS), Ok(()));
        assert_eq!(Inbound::default().handle_head(&both, 9, "k"), Err(AuthRefusal::Version));
        for (answer, method) in [
            (AnswerSeen::Opened(identity("a", 2)), AuthMethod::Key),
            (AnswerSeen::Certified(identity("a", 2), true), AuthMethod::Certificate),
        ] {
            let answered = Outbound::new(None).handle_answer(&both, answer);
            let expected = if method == first { Ok(()) } else { Err(AuthFailure::Unproven) };
            assert_eq!(answered, expected, "{first:?}, {method:?}");
        }
    }
    let none = policy("b", Vec::new()).with_certificates(AuthMethod::Key);
    assert_eq!(none.dials_by(), Some(AuthMethod::Certificate), "there is no key");
    assert_eq!(Inbound::default().handle_head(&none, AUTH_VERSION, "k"), Err(AuthRefusal::Method));
}

/// Each fault of a certificate has its refusal, and a valid one belongs to the names in it.
#[test]
fn certificate_is_refused_with_its_fault_or_its_name() {
    let certified = AuthPolicy::certified(identity("b", 1));
    let presented = |certificate| {
        let mut end = Inbound::default();
        end.handle_tls(&certified, AUTH_TLS).unwrap();
        let answered = end.handle_certificate(&certified, certificate);
        assert_eq!(end.handle_record(&certified, true), answered.is_ok());
        answered
    };
    assert_eq!(presented(Ok((hello("a", 2, Some("b")), true))), Ok(()));
    assert_eq!(presented(Ok((hello("a", 2, None), false))), Err(AuthRefusal::Name));
    assert_eq!(presented(Ok((hello("a", 2, Some("c")), true))), Err(AuthRefusal::Addressed));
    assert_eq!(presented(Ok((hello("b", 2, None), true))), Err(AuthRefusal::Conflict));
    assert_eq!(presented(Ok((hello("a", 1, None), true))), Err(AuthRefusal::Conflict));
    let answered = |answer| Outbound::new(Some(name("a"))).handle_answer(&certified, answer);
    for (fault, refusal) in [
        (CertificateFault::Expired, AuthRefusal::Expired),
        (CertificateFault::NotYetValid, AuthRefusal::NotYetValid),
        (CertificateFault::UnknownAuthority, AuthRefusal::UnknownAuthority),
        (CertificateFault::Revoked, AuthRefusal::Revoked),
        (CertificateFault::Unusable, AuthRefusal::Unusable),
    ] {
        assert_eq!(presented(Err(fault)), Err(refusal));
        assert_eq!(answered(AnswerSeen::Faulty(fault)), Err(AuthFailure::Certificate(fault)));
    }
    assert_eq!(answered(AnswerSeen::Certified(identity("a", 5), true)), Ok(()));
    let own_run = AnswerSeen::Certified(identity("a", 1), true);
    assert_eq!(answered(own_run), Err(AuthFailure::Conflict));
    let unnamed = AnswerSeen::Certified(identity("a", 5), false);
    assert_eq!(answered(unnamed), Err(AuthFailure::Name));
    let other = AnswerSeen::Certified(identity("c", 5), true);
    assert_eq!(answered(other), Err(AuthFailure::Addressed));
}

/// A session lasts beyond a change of keys or certificates if its peer's proof is accepted still.
#[test]
fn session_ends_with_the_proof_that_it_rests_on() {
    let before = policy("b", vec![key("old", &[])]);
    let renewed = policy("b", vec![key("new", &[]), key("old", &["a"])]).at_epoch(1);
    let session = || {
        let mut end = Inbound::default();
        end.handle_head(&before, AUTH_VERSION, "old").unwrap();
        end.handle_hello(&before, Some(hello("a", 2, None))).unwrap();
        assert!(end.handle_record(&before, true));
        end
    };
    let record = |proof| {
        let mut end = session();
        end.handle_change(&renewed, proof);
        end.handle_record(&renewed, true)
    };
    assert!(record(Some(Proof::Key(1))), "the key is there still");
    assert!(!record(None), "the key was removed");
    assert!(!record(Some(Proof::Key(7))));
    assert!(!session().handle_record(&renewed, true), "the change was not looked at");
    let narrowed = policy("b", vec![key("old", &["c"])]).at_epoch(1);
    let mut end = session();
    end.handle_change(&narrowed, Some(Proof::Key(0)));
    assert!(!end.handle_record(&narrowed, true), "the name is no longer allowed");
    let (certified, later) = (
        AuthPolicy::certified(identity("b", 1)),
        AuthPolicy::certified(identity("b", 1)).at_epoch(1),
    );
    for names_peer in [true, false] {
        let mut end = Inbound::default();
        end.handle_tls(&certified, AUTH_TLS).unwrap();
        end.handle_certificate(&certified, Ok((hello("a", 2, None), true))).unwrap();
        end.handle_change(&later, Some(Proof::Certificate { names_peer }));
        assert_eq!(end.handle_record(&later, true), names_peer);
    }
    let mut end = Outbound::new(None);
    end.handle_answer(&certified, AnswerSeen::Certified(identity("a", 2), true)).unwrap();
    assert!(end.is_current(&certified) && !end.is_current(&later));
}

/// A certificate has the host of a node's name, or its SPIFFE id as a whole.
#[test]
fn certificates_name_hosts_and_workloads() {
    for (text, part) in [
        ("gpu-1", "gpu-1"),
        ("gpu-1.example.org:7411", "gpu-1.example.org"),
        ("gpu-1:client-0011", "gpu-1"),
        ("10.0.0.7:7411", "10.0.0.7"),
        ("[::1]:7411", "::1"),
        ("[::1]x", "[::1]x"),
        ("[gpu-1].x", "[gpu-1].x"),
        ("fe80::1", "fe80::1"),
        ("spiffe://example.org/ns/a/gpu-1", "spiffe://example.org/ns/a/gpu-1"),
        ("spiffe://example.org/ns/a/gpu-1:10.0.0.7:7411", "spiffe://example.org/ns/a/gpu-1"),
        ("spiffe:7411", "spiffe"),
    ] {
        assert_eq!(certified_part(&name(text)), part, "{text}");
    }
    for id in ["spiffe://example.org/ns/a/gpu-1", "spiffe://example.org/gpu-1"] {
        assert_eq!(spiffe_domain(id), Some("example.org"), "{id}");
    }
    for wrong in [
        "spiffe://example.org",
        "spiffe://example.org/",
        "spiffe://example.org//a",
        "spiffe:///a",
        "spiffe://example.org:1/a",
        "spiffe://example.org/a:b",
        "https://a/b",
    ] {
        assert_eq!(spiffe_domain(wrong), None, "{wrong}");
    }
}
