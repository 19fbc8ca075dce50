//! Dependencies and features of packages, as resolved by cargo for each package alone.

use super::output_of;
use crate::command::cargo;
use crate::project::Project;
use crate::report::{Outcome, of_findings};
use anyhow::{Result, bail, ensure};
use std::collections::BTreeSet;

const CORE: &str = "handfast-core";
const LIBRARY: &str = "handfast";
/// HTTP, metadata clients, the exporter of metrics and the catalogue of problems: each requires a
/// feature of the library.
const LIBRARY_LACKS: &[&str] = &[
    "aho-corasick",
    "etcd-client",
    "handfast-diagnosis",
    "handfast-metadata",
    "http",
    "http-body",
    "hyper",
    "hyper-rustls",
    "hyper-util",
    "prometheus-client",
    "redis",
    "reqwest",
    "rustls",
    "tonic",
    "ureq",
];
/// Supported targets, as in deny.toml. Not `all`, which includes dependencies of a private cfg,
/// such as loom in the core's own tests.
const TARGETS: [&str; 3] =
    ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "aarch64-apple-darwin"];
/// Allowed dependencies of the core. Each must build without the standard library on request.
const CORE_MAY_USE: &[&str] = &[
    "bytes",
    "itoa",
    "memchr",
    "ppv-lite86",
    "rand_chacha",
    "rand_core",
    "ryu",
    "serde",
    "serde_core",
    "serde_json",
    "thiserror",
    "zerocopy",
    "zmij",
    // These run in the compiler and are not linked.
    "proc-macro2",
    "quote",
    "serde_derive",
    "syn",
    "thiserror-impl",
    "unicode-ident",
    "zerocopy-derive",
];

/// A check of each package in a resolved graph, by its name and its features there.
pub(crate) struct Rule {
    package: &'static str,
    /// Options of `cargo tree`.
    options: &'static [&'static str],
    fault: fn(&str, &[&str]) -> Option<String>,
}

/// The core's dependencies, with all features and on every target, are on the list.
pub(crate) const CORE_DEPENDENCIES: Rule = Rule {
    package: CORE,
    options: &["-e", "normal,build", "--all-features"],
    fault: |name, _| {
        let known = name == CORE || CORE_MAY_USE.contains(&name);
        (!known).then(|| format!("{CORE} depends on {name}, which is not on the list"))
    },
};

/// No dependency of the core is built with the standard library because of the core.
pub(crate) const CORE_FEATURES: Rule = Rule {
    package: CORE,
    options: &["-e", "normal,no-proc-macro"],
    fault: |name, features| {
        features.contains(&"std").then(|| format!("{CORE} turns on 'std' of {name}"))
    },
};

/// The library links nothing that only programs and operators need, unless a feature enables it.
pub(crate) const LIBRARY_DEPENDENCIES: Rule = Rule {
    package: LIBRARY,
    options: &["-e", "normal"],
    fault: |name, _| {
        let heavy = LIBRARY_LACKS.contains(&name);
        heavy.then(|| format!("{LIBRARY} depends on {name} by default"))
    },
};

pub(crate) fn check(project: &Project, rule: &Rule) -> Outcome {
    let format = ["tree", "--prefix", "none", "--format", "{p}|{f}", "--package", rule.package];
    let mut command = cargo(project.root(), format.iter().chain(rule.options).copied());
    command.args(TARGETS.iter().flat_map(|target| ["--target", target]));
    of_findings(&rule.findings(&output_of(command, &[0])?)?, "")
}

impl Rule {
    /// Reads lines of `NAME vVERSION (WHERE)|FEATURE,FEATURE (*)`; a title begins with a bracket.
    fn findings(&self, tree: &str) -> Result<Vec<String>> {
        let mut findings = BTreeSet::new();
        let mut has_package = false;
        for line in tree.lines().filter(|line| !line.is_empty() && !line.starts_with('[')) {
            let Some((package, features)) = line.rsplit_once('|') else {
                bail!("cargo tree printed '{line}'");
            };
            let name = package.split(' ').next().unwrap_or_default();
            let features: Vec<_> = features.trim_end_matches("(*)").trim().split(',').collect();
            has_package |= name == self.package;
            findings.extend((self.fault)(name, &features));
        }
        ensure!(has_package, "cargo tree did not list {} itself\n{tree}", self.package);
        Ok(findings.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HARMLESS: &str = "\
handfast-core v0.1.0 (/a folder/core)|
handfast v0.1.0 (/x/engine)|
serde v1.0.229|alloc,derive,serde_derive

[build-dependencies]
serde_derive v1.0.229 (proc-macro)|default
serde_json v1.0.154|alloc
serde v1.0.229|alloc,derive,serde_derive (*)
";

    #[test]
    fn package_that_breaks_a_rule_is_found() {
        let cases = [
            (
                CORE_DEPENDENCIES,
                "tokio v1.54.1|net",
                "handfast-core depends on tokio, which is not on the list",
            ),
            (
                CORE_FEATURES,
                "serde_json v1.0.154|alloc,std",
                "handfast-core turns on 'std' of serde_json",
            ),
            (LIBRARY_DEPENDENCIES, "hyper v1.12.0|http1", "handfast depends on hyper by default"),
        ];
        for (rule, line, finding) in cases {
            let harmless = HARMLESS.replace("handfast v0.1.0 (/x/engine)|\n", "");
            let harmless = if rule.package == CORE { harmless.as_str() } else { HARMLESS };
            assert_eq!(rule.findings(harmless).unwrap(), [""; 0]);
            assert_eq!(rule.findings(&format!("{harmless}{line}\n")).unwrap(), [finding]);
        }
    }

    #[test]
    fn output_that_is_no_tree_of_the_package_is_an_error() {
        assert!(CORE_FEATURES.findings("error: no such package\n").is_err());
        assert!(CORE_FEATURES.findings("serde v1.0.229|alloc\n").is_err());
    }
}
