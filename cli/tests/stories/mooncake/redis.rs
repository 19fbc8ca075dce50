//! The program with a real Redis as the metadata store.

use super::doctor::{asked, one, own_address};
use super::servers::Metadata;
use crate::helpers::{Folder, MIB, PROGRAM, Server, free_address, run, skipped, succeed};
use serde_json::Value;
use std::fs;
use std::process::{Command, Output};

const HOST: &str = "127.0.0.1";
const NODE: &str = "handfast-node:2";
const ABSENT: &str = "no redis-server; `cargo xtask test --stage fleet` unpacks one";

/// A Redis with these arguments that answers, or a note that there is none.
fn redis(host: &str, arguments: &[&str]) -> Option<Metadata> {
    let store = Metadata::redis(&free_address(host), arguments);
    if store.is_none() {
        skipped(ABSENT);
    }
    store
}

fn node(url: &str) -> Server {
    let words = ["--memory", "4M", "--compat", "mooncake", "--name", NODE, "--metadata", url];
    Server::start(&words)
}

#[test]
fn nodes_find_each_other_through_a_redis() {
    let Some(store) = redis(HOST, &["--requirepass", "secret"]) else { return };
    let url = store.url.replace("redis://", "redis://:secret@") + "/3";
    let folder = Folder::new();
    let source = folder.patterned("source", 3 * MIB + 7, 1);
    for _ in 0..2 {
        let server = node(&url);
        succeed(&["put", &source, &format!("{NODE}/memory:64"), "--metadata", &url]);
        let (place, copy) = (format!("{NODE}/memory:64,{}", 3 * MIB + 7), folder.name("copy"));
        succeed(&["get", &place, &copy, "--metadata", &url]);
        assert!(fs::read(&copy).unwrap() == fs::read(&source).unwrap());
        // The next one takes the name and the entries of a killed one.
        server.process.signal(rustix::process::Signal::KILL);
    }
}

#[test]
fn redis_faults_have_pages() {
    let Some(store) = redis(HOST, &["--requirepass", "secret"]) else { return };
    let asked = |url: &str| run(&["get", NODE, "x", "--metadata", url]);
    asked(&store.url).failed(3, &["NOAUTH", "MC_REDIS_PASSWORD", "[REDIS-AUTH]"]);
    let with = |user: &str| store.url.replace("redis://", &format!("redis://{user}@"));
    let wrong = asked(&with(":guess")).failed(3, &["WRONGPASS", "[REDIS-AUTH]"]);
    assert!(!wrong.errors.contains("guess"), "{wrong:?}");
    let twenty = with(":secret") + "/20";
    let wrong = asked(&twenty).failed(3, &["DB index", "`databases`", "[REDIS-DATABASE]"]);
    assert!(!wrong.errors.contains("secret"), "{wrong:?}");
    asked(&(with(":secret") + "/256")).failed(2, &["0 to 255"]);
    drop(store);
    let Some(replica) = redis(HOST, &["--replicaof", "127.0.0.1 1"]) else { return };
    let serve = ["serve", "--listen", "127.0.0.1:0", "--metadata", &replica.url];
    run(&serve).failed(3, &["READONLY", "name the primary", "REDIS-READONLY"]);
    let url = replica.url.clone();
    drop(replica);
    asked(&url).failed(3, &["cannot be reached", &url, "[REDIS-DOWN]"]);
}

/// The answer of a command with variables set.
fn with(variables: &[(&str, &str)], arguments: &[&str]) -> Output {
    let mut command = Command::new(PROGRAM);
    command.args(arguments).envs(variables.iter().copied()).output().unwrap()
}

#[test]
fn redis_password_is_taken_from_the_environment() {
    let Some(store) = redis(HOST, &["--requirepass", "secret"]) else { return };
    let password = [("MC_REDIS_PASSWORD", "secret"), ("MC_REDIS_DB_INDEX", "3")];
    let missing = ["get", NODE, "x", "--metadata", &store.url];
    let ended = with(&password, &missing);
    let told = String::from_utf8(ended.stderr).unwrap();
    assert!(told.contains(&format!("knows no node '{NODE}'")), "{told}");
    assert!(told.contains(&format!("{}/3", store.url)) && !told.contains("secret"), "{told}");
    let shown = with(&password, &["config"]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("MC_REDIS_PASSWORD = ... (environment") && !shown.contains("secret"));
}

#[test]
fn stopped_redis_is_found_until_it_runs_again() {
    let Some(store) = redis(HOST, &[]) else { return };
    let url = store.url.clone();
    assert_eq!(asked(&url, &[]), [] as [Value; 0]);
    one(&asked(&url, &["--segment", NODE]), "SEG-NAME");
    let server = node(&url);
    assert_eq!(asked(&url, &["--segment", NODE]), [] as [Value; 0]);
    server.process.signal(rustix::process::Signal::KILL);
    drop(server);
    one(&asked(&url, &["--segment", NODE]), "META-STALE");
    drop(store);
    one(&asked(&url, &[]), "REDIS-DOWN");
    let _store = Metadata::redis(url.strip_prefix("redis://").unwrap(), &[]).unwrap();
    assert_eq!(asked(&url, &[]), [] as [Value; 0]);
}

#[test]
fn doctor_authenticates_at_a_redis_as_a_node_does() {
    let Some(store) = redis(HOST, &["--requirepass", "secret"]) else { return };
    one(&asked(&store.url, &[]), "REDIS-AUTH");
    let url = store.url.replace("redis://", "redis://:secret@");
    assert_eq!(asked(&url, &[]), [] as [Value; 0]);
    one(&asked(&format!("{url}/20"), &[]), "REDIS-DATABASE");
    one(&asked(&format!("{url},127.0.0.1:1"), &[]), "ETCD-URL");
}

#[test]
fn redis_in_protected_mode_is_told_from_one_that_is_down() {
    let Some(own) = own_address() else { return };
    let Some(store) = redis(HOST, &[]) else { return };
    one(&asked(&store.url.replace(HOST, &own), &[]), "REDIS-LOOPBACK");
    let Some(store) = redis(&own, &["--protected-mode", "yes"]) else { return };
    one(&asked(&store.url, &[]), "REDIS-LOOPBACK");
    drop(store);
    let Some(store) = redis(&own, &["--protected-mode", "no"]) else { return };
    assert_eq!(asked(&store.url, &[]), [] as [Value; 0]);
}
