//! A node's entries in a scripted metadata service.

use super::network::{http, with_metadata};
use crate::scene::Scene;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use handfast_diagnosis::Severity;
use handfast_diagnosis::doctor::AskFailure;
use serde_json::json;
use std::net::SocketAddr;

const NODE: &str = "10.1.0.8:15428";
const ENTRY: &str = r#"{"ip_or_host_name":"10.1.0.8","rpc_port":15428}"#;

fn range(entries: &[(&str, &str)]) -> Vec<u8> {
    let entries = entries.iter().map(
        |(key, value)| json!({ "key": STANDARD.encode(key), "value": STANDARD.encode(value) }),
    );
    http(&json!({ "header": {}, "kvs": entries.collect::<Vec<_>>() }).to_string())
}

/// An etcd that answers a question for one key, then one for many.
fn etcd(name: &str, one: Vec<u8>, many: Vec<u8>) -> Scene {
    let mut scene = with_metadata("etcd://10.1.0.9:2379");
    super::network::etcd(&mut scene, vec![]);
    scene.request.segment = Some(name.to_owned());
    let address: SocketAddr = "10.1.0.9:2379".parse().unwrap();
    let is_many = "\"keys_only\"";
    scene.world.bodies = vec![(address, is_many, many), (address, "/v3/kv/range", one)];
    scene
}

#[test]
fn stale_entry_is_reported_with_its_key() {
    let entry = range(&[("mooncake/rpc_meta/node-b", ENTRY)]);
    let mut scene = etcd("node-b", entry, vec![]);
    let finding = scene.finding("META-STALE");
    assert!(
        finding.observed.contains("10.1.0.8:15428: Connection refused"),
        "{}",
        finding.observed
    );
    assert_eq!(finding.command(), "etcdctl del mooncake/rpc_meta/node-b");
    let node: SocketAddr = NODE.parse().unwrap();
    scene.world.answers.push((node, "", Err(AskFailure::Broken)));
    scene.is_healthy();
}

#[test]
fn a_name_that_nobody_published_leads_to_the_nearest() {
    let known = range(&[("mooncake/rpc_meta/node-b", ""), ("mooncake/rpc_meta/gpu-9", "")]);
    let scene = etcd("nodeb", range(&[]), known);
    let finding = scene.finding("SEG-NAME");
    assert!(finding.observed.contains("the nearest is node-b"), "{}", finding.observed);
    let mut scene = etcd("node-b", range(&[("mooncake/rpc_meta/node-b", ENTRY)]), vec![]);
    scene.world.answers.push((NODE.parse().unwrap(), "", Ok(vec![])));
    scene.is_healthy();
}

#[test]
fn a_store_over_http_is_asked_for_the_key_of_the_cluster() {
    let mut scene = with_metadata("http://10.1.0.9:8080/metadata");
    scene.request.segment = Some("node-b".into());
    scene.variable("MC_METADATA_CLUSTER_ID", "blue");
    let address: SocketAddr = "10.1.0.9:8080".parse().unwrap();
    let ask = "GET /metadata?key=mooncake/blue/rpc_meta/node-b ";
    scene.world.answers = vec![
        (address, ask, Ok(http(ENTRY))),
        (NODE.parse().unwrap(), "", Ok(vec![])),
        (address, "", Ok(b"HTTP/1.1 404 Not Found\r\n\r\nmetadata not found".to_vec())),
    ];
    scene.is_healthy();
    scene.request.segment = Some("node-c".into());
    assert_eq!(scene.finding("SEG-NAME").severity, Severity::Fatal);
    scene.request.segment = Some("node-b".into());
    scene.world.answers[0].2 = Ok(http("no JSON"));
    scene.finding("META-VERSION");
    scene.world.answers[0].2 = Ok(b"HTTP/1.1 500 Oops\r\n\r\n".to_vec());
    assert_eq!(scene.finding("META-STALE").severity, Severity::CannotTell);
}
