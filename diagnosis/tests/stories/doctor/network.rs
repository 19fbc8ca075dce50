//! Names, ports to listen at, metadata services, proxies.

use crate::scene::Scene;
use handfast_diagnosis::doctor::AskFailure;
use handfast_diagnosis::{Severity, Side};
use std::net::SocketAddr;

const ETCD: &str = "10.1.0.9:2379";

fn at(listen: &str, advertise: Option<&str>) -> Scene {
    let mut scene = Scene::healthy();
    scene.request.listen = Some(listen.to_owned());
    scene.request.advertise = advertise.map(str::to_owned);
    scene
}

#[test]
fn an_address_that_means_whoever_uses_it_is_not_told_to_peers() {
    at("10.1.0.7:7411", None).is_healthy();
    let finding = at("0.0.0.0:7411", None).finding("NET-LOOPBACK");
    assert_eq!(finding.command(), "handfast serve --listen 10.1.0.7:7411 --advertise 10.1.0.7");
    assert_eq!(
        at("10.1.0.7:7411", Some("localhost")).finding("NET-LOOPBACK").severity,
        Severity::Fatal
    );
    // This machine alone is meant.
    at("127.0.0.1:7411", None).is_healthy();
    at("0.0.0.0:7411", Some("10.1.0.7")).is_healthy();
}

#[test]
fn a_name_must_resolve_and_not_to_this_machine_alone() {
    let mut scene = at("node-a:7411", None);
    assert!(scene.finding("NET-UNRESOLVED").observed.contains("not known"));
    assert_eq!(scene.skipped().get("listen"), Some(&"NET-UNRESOLVED"));
    scene.world.names.insert("node-a".into(), vec!["127.0.1.1".parse().unwrap()]);
    let finding = scene.finding("NET-RESOLVES-LOOPBACK");
    assert!(finding.command().contains("10.1.0.7 node-a"), "{}", finding.command());
    let own = "10.1.0.7".parse().unwrap();
    scene.world.names.insert("node-a".into(), vec![own]);
    scene.is_healthy();
    scene.world.names.insert("node-a".into(), vec![own, "10.2.0.7".parse().unwrap()]);
    assert_eq!(scene.finding("NET-MULTI").severity, Severity::Risk);
}

#[test]
fn another_machines_address_cannot_be_listened_at() {
    let finding = at("10.1.0.99:7411", None).finding("NET-NOT-LOCAL");
    assert!(finding.observed.contains("10.1.0.7"), "{}", finding.observed);
    assert_eq!(finding.command(), "handfast serve --listen 10.1.0.7:7411 --advertise 10.1.0.99");
    let mut scene = at("10.1.0.7:7411", None);
    scene.world.binds.insert("10.1.0.7:7411".parse().unwrap(), 99);
    scene.finding("NET-NOT-LOCAL");
}

/// A port that no process holds may be the driver's.
#[test]
fn holder_of_a_port_is_named() {
    let mut scene = at("10.1.0.7:7411", None);
    let address: SocketAddr = "10.1.0.7:7411".parse().unwrap();
    scene.world.binds.insert(address, 98);
    scene.finding("PORT-IN-USE");
    scene.listener("0.0.0.0:7411", Some(4242));
    let finding = scene.finding("PORT-IN-USE");
    assert!(finding.observed.contains("etcd, process 4242"), "{}", finding.observed);
    assert_eq!(finding.command(), "kill 4242");
    let mut scene = at("10.1.0.7:30610", None);
    scene.world.binds.insert("10.1.0.7:30610".parse().unwrap(), 98);
    scene.finding("PORT-IN-USE");
    scene.module("erdma");
    let finding = scene.finding("PORT-RESERVED-ERDMA");
    assert_eq!(finding.command(), "handfast serve --listen 10.1.0.7:30626");
    assert_eq!(finding.severity, Severity::Fatal);
}

/// A port that the driver takes in compat mode is a risk while it is free, on a machine with the driver alone.
#[test]
fn free_port_of_erdma_is_a_risk() {
    let has =
        |scene: &Scene| scene.findings().iter().any(|it| it.id.as_str() == "PORT-RESERVED-ERDMA");
    for (port, is_reserved) in [(30_607, false), (30_608, true), (30_623, true), (30_624, false)] {
        let scene = at(&format!("10.1.0.7:{port}"), None);
        assert!(!has(&scene), "{port}");
        scene.module("erdma");
        assert_eq!(has(&scene), is_reserved, "{port}");
        if is_reserved {
            let finding = scene.finding("PORT-RESERVED-ERDMA");
            assert_eq!(finding.severity, Severity::Risk);
            let command = format!("handfast serve --listen 10.1.0.7:{}", port + 16);
            assert_eq!(finding.command(), command);
        }
    }
}

#[test]
fn a_port_that_needs_a_right_is_told() {
    let mut scene = at("10.1.0.7:80", None);
    scene.world.binds.insert("10.1.0.7:80".parse().unwrap(), 13);
    assert!(scene.finding("CONFIG-INVALID").observed.contains("below 1024"));
}

pub(super) fn with_metadata(url: &str) -> Scene {
    let mut scene = Scene::healthy();
    scene.request.metadata = Some(url.to_owned());
    scene
}

pub(super) fn http(body: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nContent-Type: x\r\n\r\n{body}").into_bytes()
}

/// An etcd that is well, but for what is answered before.
pub(super) fn etcd(scene: &mut Scene, before: Vec<(&'static str, &str)>) {
    let address: SocketAddr = ETCD.parse().unwrap();
    scene.world.answers =
        before.into_iter().map(|(start, body)| (address, start, Ok(http(body)))).collect();
    for (start, body) in [
        ("GET /version ", r#"{"etcdserver":"3.5.9","etcdcluster":"3.5.0"}"#),
        ("GET /health ", r#"{"health":"true"}"#),
        (
            "POST /v3/cluster/member/list ",
            r#"{"members":[{"clientURLs":["http://10.1.0.9:2379"]}]}"#,
        ),
    ] {
        scene.world.answers.push((address, start, Ok(http(body))));
    }
}

#[test]
fn an_etcd_that_is_well_is_asked_and_left_alone() {
    let mut scene = with_metadata("etcd://10.1.0.9:2379");
    etcd(&mut scene, vec![]);
    scene.is_healthy();
    assert!(scene.world.asked.borrow().len() >= 3);
}

#[test]
fn a_metadata_service_behind_tls_is_looked_into_as_one_without() {
    let mut scene = with_metadata("etcd://https://10.1.0.9:2379");
    etcd(&mut scene, vec![]);
    scene.is_healthy();
    etcd(&mut scene, vec![("GET /health ", r#"{"health":"false"}"#)]);
    scene.finding("ETCD-DOWN");
    // Its certificate is refused.
    let refused = "invalid peer certificate: UnknownIssuer";
    scene.world.tls = Some(AskFailure::Encryption(refused.into()));
    let finding = scene.finding("ETCD-TLS");
    assert!(finding.observed.contains(refused), "{}", finding.observed);
    assert!(finding.command().contains("-connect 10.1.0.9:2379"), "{}", finding.command());
    // This program has no TLS: that is said, and that somebody listens.
    scene.world.tls = Some(AskFailure::NotBuilt);
    let finding = scene.finding("ETCD-TLS");
    assert_eq!(finding.severity, Severity::CannotTell);
    assert!(finding.observed.contains("10.1.0.9:2379 accepts connections"), "{}", finding.observed);
    scene.world.tls = Some(AskFailure::Connect(111));
    scene.finding("ETCD-DOWN");
}

#[test]
fn a_service_that_wants_tls_is_told_from_one_that_is_none() {
    let go = "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n";
    for (url, answer, written) in [
        ("etcd://10.1.0.9:2379", go.as_bytes(), "etcd://https://10.1.0.9:2379"),
        ("http://10.1.0.9:2379/metadata", b"\x15\x03\x03\x00\x02\x02\x46", "https://10.1.0.9:2379"),
    ] {
        let mut scene = with_metadata(url);
        scene.world.answers = vec![(ETCD.parse().unwrap(), "", Ok(answer.to_vec()))];
        let finding = scene.finding("ETCD-TLS");
        assert!(finding.observed.contains(&format!("write {written}")), "{}", finding.observed);
    }
    // An etcd closes without a word, and answers who begins as TLS does.
    let mut scene = with_metadata("etcd://10.1.0.9:2379");
    let address: SocketAddr = ETCD.parse().unwrap();
    scene.world.answers = vec![
        (address, "GET", Err(AskFailure::Broken)),
        (address, "\u{16}\u{3}\u{1}", Ok(vec![21, 3, 3, 0, 2, 2, 40])),
    ];
    scene.finding("ETCD-TLS");
    scene.world.answers.pop();
    assert!(scene.finding("ETCD-DOWN").observed.contains("without an answer"));
}

#[test]
fn malformed_endpoints_are_refused_before_any_request() {
    for url in ["etc://10.1.0.9:2379", "etcd://10.1.0.9", "etcd://10.1.0.9:2379 10.1.0.8:2379"] {
        let scene = with_metadata(url);
        let finding = scene.finding("ETCD-URL");
        assert!(finding.command().contains("etcd://10.1.0.9:2379"), "{}", finding.command());
        assert!(scene.world.asked.borrow().is_empty());
    }
}

/// One live endpoint of two is enough to continue.
#[test]
fn down_or_leaderless_etcd_is_found() {
    let mut scene = with_metadata("etcd://10.1.0.9:2379");
    assert!(scene.finding("ETCD-DOWN").observed.contains("refused"));
    let address = ETCD.parse().unwrap();
    scene.world.answers = vec![(address, "", Err(AskFailure::Connect(0)))];
    assert!(scene.finding("ETCD-DOWN").observed.contains("no answer in time"));
    etcd(&mut scene, vec![("GET /health ", r#"{"health":"false","reason":"RAFT NO LEADER"}"#)]);
    assert!(scene.finding("ETCD-DOWN").observed.contains("NO LEADER"));
    let mut scene = with_metadata("etcd://10.1.0.9:2379,10.1.0.8:2379");
    etcd(&mut scene, vec![]);
    assert_eq!(scene.finding("ETCD-DOWN").severity, Severity::Degraded);
}

#[test]
fn an_etcd_on_loopback_is_told_from_one_that_is_down() {
    let mut scene = with_metadata("etcd://10.1.0.7:2379");
    scene.finding("ETCD-DOWN");
    scene.listener("127.0.0.1:2379", None);
    let finding = scene.finding("ETCD-LOOPBACK");
    assert_eq!(finding.side, Side::Local);
    assert!(finding.command().contains("--advertise-client-urls http://10.1.0.7:2379"));
    etcd(&mut scene, vec![]);
}

#[test]
fn etcd_at_localhost_and_foreign_web_page_are_found() {
    let mut scene = with_metadata("etcd://10.1.0.9:2379");
    etcd(&mut scene, vec![("POST ", r#"{"members":[{"clientURLs":["http://localhost:2379"]}]}"#)]);
    assert!(scene.finding("ETCD-ADVERTISE").observed.contains("localhost"));
    etcd(&mut scene, vec![("GET /version ", "<!DOCTYPE html><html>")]);
    assert!(scene.finding("META-CAPTIVE").observed.contains("a web page"));
    etcd(&mut scene, vec![("GET /version ", "{}")]);
    scene.finding("META-CAPTIVE");
    scene.world.answers = vec![(ETCD.parse().unwrap(), "", Ok(b"SSH-2.0".to_vec()))];
    scene.finding("NET-RESET");
}

#[test]
fn proxy_for_the_metadata_service_is_a_risk() {
    let mut scene = with_metadata("etcd://10.1.0.9:2379");
    etcd(&mut scene, vec![]);
    scene.variable("http_proxy", "http://user:secret@proxy.corp:3128");
    let finding = scene.finding("PROXY-SET");
    assert!(
        finding.observed.contains("proxy.corp") && !finding.observed.contains("secret"),
        "{}",
        finding.observed
    );
    assert!(finding.command().starts_with("unset http_proxy"));
    scene.variable("no_proxy", "localhost,10.1.0.9");
    scene.is_healthy();
    scene.request.metadata = None;
    scene.request.environment.remove("no_proxy");
    scene.is_healthy();
}
