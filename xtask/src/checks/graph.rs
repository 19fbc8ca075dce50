//! Dependencies and features of packages, as cargo resolves each by itself.

use super::output_of;
use crate::command::cargo;
use crate::project::Project;
use crate::report::Outcome;
use std::collections::BTreeSet;

const CORE: &str = "handfast-core";
const LIBRARY: &str = "handfast";
/// HTTP, metadata clients, the exporter of metrics and the catalogue of problems: each is behind a
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

/// A package in a resolved graph, with the features it is built with there.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Resolved {
    name: String,
    features: Vec<String>,
}

/// Checks the core's dependencies, with all its features and on every target, against the list.
pub(crate) fn core_dependencies(project: &Project) -> Outcome {
    let graph = tree(project, CORE, &["-e", "normal,build", "--all-features"]);
    judge(graph, "every dependency allowed", not_allowed)
}

/// Nothing the core links to is built with the standard library on the core's account.
pub(crate) fn core_features(project: &Project) -> Outcome {
    let graph = tree(project, CORE, &["-e", "normal,no-proc-macro"]);
    judge(graph, "", with_std)
}

/// The library links nothing that only programs and operators need, unless a feature asks for it.
pub(crate) fn library_dependencies(project: &Project) -> Outcome {
    let graph = tree(project, LIBRARY, &["-e", "normal"]);
    judge(graph, "default features", too_much)
}

fn judge(
    graph: Result<BTreeSet<Resolved>, String>,
    note: &str,
    rule: fn(&BTreeSet<Resolved>) -> Vec<String>,
) -> Outcome {
    match graph {
        Ok(graph) => Outcome::of_findings(&rule(&graph), note),
        Err(error) => Outcome::failed("cargo tree gave no graph", error),
    }
}

fn not_allowed(graph: &BTreeSet<Resolved>) -> Vec<String> {
    let strange = graph.iter().map(|package| package.name.as_str()).filter(|name| *name != CORE);
    let strange = strange.filter(|name| !CORE_MAY_USE.contains(name));
    strange.map(|name| format!("{CORE} depends on {name}, which is not on the list")).collect()
}

fn too_much(graph: &BTreeSet<Resolved>) -> Vec<String> {
    let found = graph.iter().filter(|package| LIBRARY_LACKS.contains(&&*package.name));
    let text = |package: &Resolved| format!("{LIBRARY} depends on {} by default", package.name);
    found.map(text).collect()
}

fn with_std(graph: &BTreeSet<Resolved>) -> Vec<String> {
    let with_std = graph.iter().filter(|package| package.features.iter().any(|f| f == "std"));
    with_std.map(|package| format!("{CORE} turns on 'std' of {}", package.name)).collect()
}

fn tree(project: &Project, package: &str, options: &[&str]) -> Result<BTreeSet<Resolved>, String> {
    let format = ["tree", "--prefix", "none", "--format", "{p}|{f}", "--package", package];
    let mut command = cargo(project.root(), format.iter().chain(options).copied());
    command.args(TARGETS.iter().flat_map(|target| ["--target", target]));
    let output = output_of(command)?;
    let graph = parse_tree(&output)?;
    if graph.iter().any(|resolved| resolved.name == package) {
        Ok(graph)
    } else {
        Err(format!("cargo tree did not list {package} itself:\n{output}"))
    }
}

/// Parses lines of `NAME vVERSION (WHERE)|FEATURE,FEATURE (*)`.
fn parse_tree(output: &str) -> Result<BTreeSet<Resolved>, String> {
    let line = |line: &str| {
        let (package, features) = line.rsplit_once('|')?;
        let name = package.split(' ').next().filter(|name| !name.is_empty())?;
        let features = features.trim_end_matches("(*)").trim().split(',');
        let features = features.filter(|feature| !feature.is_empty()).map(str::to_owned);
        Some(Resolved { name: name.to_owned(), features: features.collect() })
    };
    let packages = output.lines().filter(|line| !line.is_empty() && !line.starts_with('['));
    packages.map(|text| line(text).ok_or(format!("cargo tree printed '{text}'"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HARMLESS: &str = "\
handfast-core v0.1.0 (/a folder/core)|
serde v1.0.229|alloc,derive,serde_derive
serde_derive v1.0.229 (proc-macro)|default
serde_json v1.0.154|alloc
serde v1.0.229|alloc,derive,serde_derive (*)
";

    #[test]
    fn a_graph_of_allowed_packages_without_std_has_no_findings() {
        let graph = parse_tree(HARMLESS).unwrap();
        assert_eq!(graph.len(), 4, "a repeated package counts once");
        let serde = graph.iter().find(|package| package.name == "serde").unwrap();
        assert_eq!(serde.features, ["alloc", "derive", "serde_derive"]);
        assert_eq!(not_allowed(&graph), [""; 0]);
        assert_eq!(with_std(&graph), [""; 0]);
    }

    #[test]
    fn a_package_off_the_list_is_found() {
        let graph = parse_tree(&format!("{HARMLESS}tokio v1.54.1|net\n")).unwrap();
        assert_eq!(
            not_allowed(&graph),
            ["handfast-core depends on tokio, which is not on the list"]
        );
    }

    #[test]
    fn a_dependency_built_with_std_is_found() {
        let graph = HARMLESS.replace("|alloc\n", "|alloc,std\n");
        assert_eq!(
            with_std(&parse_tree(&graph).unwrap()),
            ["handfast-core turns on 'std' of serde_json"]
        );
    }

    #[test]
    fn http_in_the_library_is_found() {
        let lean = "handfast v0.1.0 (/x/engine)|\ntokio v1.54.1|net\n";
        assert_eq!(too_much(&parse_tree(lean).unwrap()), [""; 0]);
        let heavy = format!("{lean}hyper v1.12.0|http1\n");
        assert_eq!(
            too_much(&parse_tree(&heavy).unwrap()),
            ["handfast depends on hyper by default"]
        );
    }

    #[test]
    fn what_is_not_a_tree_is_an_error_and_section_titles_are_not_packages() {
        assert!(parse_tree("error: no such package\n").is_err());
        assert_eq!(parse_tree("a v1.0.0|\n\n[build-dependencies]\nb v1.0.0|x\n").unwrap().len(), 2);
    }
}
