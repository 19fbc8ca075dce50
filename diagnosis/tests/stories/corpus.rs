//! Lines in the shape that logs have them, made up here, and what each must be taken for.

use handfast_diagnosis::explain::explain;

const CORPUS: &str = include_str!("../corpus.txt");
/// Begins the excerpt of a problem: id, side.
const HEAD: &str = "### ";

struct Case<'a> {
    id: &'a str,
    side: &'a str,
    text: String,
}

fn cases() -> Vec<Case<'static>> {
    let mut cases: Vec<Case<'static>> = Vec::new();
    for line in CORPUS.lines() {
        if let Some(head) = line.strip_prefix(HEAD) {
            let (id, side) = head.split_once(' ').unwrap();
            cases.push(Case { id, side, text: String::new() });
        } else if let Some(case) = cases.last_mut() {
            case.text += &line.replace("\\e", "\u{1b}");
            case.text.push('\n');
        }
    }
    cases
}

/// The problems with excerpts.
pub(crate) fn ids_of_excerpts() -> std::collections::BTreeSet<&'static str> {
    cases().iter().map(|case| case.id).collect()
}

#[test]
fn every_excerpt_is_taken_for_what_it_is() {
    let mut wrong = Vec::new();
    let cases = cases();
    for case in &cases {
        let explained = explain(case.text.trim_end());
        let (id, side) = explained.first.map_or(("NONE", "none".to_owned()), |first| {
            (first.id.as_str(), format!("{:?}", first.side).to_lowercase())
        });
        if (id, &*side) != (case.id, case.side) {
            wrong.push(format!(
                "{} {} was taken for {id} {side}:\n{}",
                case.id, case.side, case.text
            ));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[test]
fn corpus_covers_both_languages_and_all_guides() {
    let cases = cases();
    assert!(cases.len() >= 80, "{}", cases.len());
    let is_han = |c: char| ('\u{4e00}'..='\u{9fff}').contains(&c);
    assert!(cases.iter().filter(|case| case.text.contains(is_han)).count() >= 25);
    let missing: Vec<_> =
        NAMED_BY_GUIDES.iter().filter(|id| !cases.iter().any(|case| case.id == **id)).collect();
    assert!(missing.is_empty(), "no excerpt of {missing:?}");
}

/// Problems that troubleshooting guides in both languages name.
pub(crate) const NAMED_BY_GUIDES: [&str; 62] = [
    "NET-LOOPBACK",
    "NET-NOT-LOCAL",
    "NET-UNRESOLVED",
    "NET-RESOLVES-LOOPBACK",
    "MTU-MISMATCH",
    "MTU-OVER-ACTIVE",
    "MTU-BLACKHOLE",
    "GID-ZERO",
    "GID-INDEX-RANGE",
    "GID-TYPE",
    "GID-FAMILY",
    "DEV-NAME",
    "PORT-DOWN",
    "PORT-NUMBER",
    "ETCD-DOWN",
    "ETCD-LOOPBACK",
    "ETCD-ADVERTISE",
    "NET-FILTERED",
    "ETCD-URL",
    "PROXY-SET",
    "PORT-IN-USE",
    "PORT-RESERVED-ERDMA",
    "NET-REFUSED",
    "ROCE-UDP-FILTERED",
    "META-STALE",
    "HS-FAILED",
    "QP-RTR",
    "QP-RTR-TIMEOUT",
    "QP-NOMEM",
    "WC-STORM",
    "WC-FLUSH-ONLY",
    "SEG-NAME",
    "ERDMA-STANDARD-MODE",
    "QP-RTS",
    "ERRNO-STALE",
    "LIM-NOFILE",
    "LIM-MEMLOCK",
    "LIM-CGROUP",
    "BUILD-FEATURE",
    "ERDMA-COMPAT-GID",
    "DEV-NONE",
    "MOD-MISSING",
    "MOD-MISMATCH",
    "PROV-MISSING",
    "HW-PCI-ABSENT",
    "HW-PCI-ERRORS",
    "FW-RDMA-OFF",
    "IP-MISSING",
    "IP-SUBNET",
    "K8S-NO-RESOURCE",
    "K8S-PLUGIN",
    "DEV-NODE",
    "KOORD-GATE",
    "KOORD-NAME",
    "KOORD-HEALTH",
    "IB-NO-SM",
    "REPORT",
    "PERF-LOW",
    "HS-SIMULTANEOUS",
    "PEER-RESTARTED",
    "PEER-TWIN",
    "ENV-NO-RDMA-CI",
];
