//! Every problem that guides name has a probe or a message, a test that brings it about, and one of
//! the healthy state. `coverage.tsv` is the table.

use crate::corpus::{NAMED_BY_GUIDES, ids_of_excerpts};
use crate::scene::Scene;
use handfast_diagnosis::Id;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const TABLE: &str = include_str!("../coverage.tsv");
/// Problems that a test provokes without naming them.
const BY_CONSTRUCTION: [&str; 1] = ["REPORT"];

struct Row {
    id: &'static str,
    probe: &'static str,
    wrong: &'static str,
    healthy: &'static str,
}

fn rows() -> Vec<Row> {
    let lines = TABLE.lines().filter(|line| !line.starts_with('#'));
    let row = |line: &'static str| {
        let columns: Vec<_> = line.split('\t').collect();
        let [id, probe, wrong, healthy] = columns[..] else { panic!("four columns: {line}") };
        Row { id, probe, wrong, healthy }
    };
    lines.map(row).collect()
}

/// The text of the file of a test, which must be in it.
#[track_caller]
fn file_with(test: &str) -> String {
    let (file, name) = test.split_once(' ').unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{file}: {error}"));
    let at = text.find(&format!("fn {name}("));
    let at = at.unwrap_or_else(|| panic!("{file} has no {name}"));
    let before = text[..at].trim_end_matches("async ").trim_end();
    let attribute = before.lines().next_back().unwrap_or_default();
    assert!(attribute.contains("test") && attribute.starts_with("#["), "{name} is no test");
    text
}

#[test]
fn every_problem_that_guides_name_is_in_the_table_once() {
    let rows = rows();
    let ids: BTreeSet<_> = rows.iter().map(|row| row.id).collect();
    assert_eq!(ids.len(), rows.len(), "one row each");
    let missing: Vec<_> = NAMED_BY_GUIDES.iter().filter(|id| !ids.contains(*id)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    assert!(ids.contains("ERDMA-RESET"));
}

#[test]
fn what_the_table_names_is_there() {
    let mut scene = Scene::healthy();
    let request = &mut scene.request;
    (request.peer, request.segment) = (Some("10.1.0.8:1".into()), Some("node-b".into()));
    request.metadata = Some("etcd://10.1.0.9:2379".into());
    request.listen = Some("10.1.0.7:1".into());
    let probes: BTreeSet<_> = scene.report().checks.iter().map(|check| check.name).collect();
    let excerpts = ids_of_excerpts();
    for row in rows() {
        assert_eq!(Id::parse(row.id).map(Id::as_str), Some(row.id));
        assert!(row.probe == "-" || probes.contains(row.probe), "{}: {}", row.id, row.probe);
        // A problem that no probe finds must be recognised by its message.
        assert!(excerpts.contains(row.id), "{} has no excerpt", row.id);
        let text = file_with(row.wrong);
        let constant = format!("ids::{}", row.id.replace('-', "_"));
        let is_named = text.contains(&format!("\"{}\"", row.id)) || text.contains(&constant);
        assert!(is_named || BY_CONSTRUCTION.contains(&row.id), "{}", row.id);
        file_with(row.healthy);
    }
}
