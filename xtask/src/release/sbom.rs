//! A bill of materials in the form of CycloneDX 1.5: the packages that cargo links into an archive, or
//! runs to build it, of the versions and checksums in Cargo.lock.

use super::Build;
use crate::project::Project;
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

/// A package by its name and version.
type Id = (String, String);

/// Packages that depend on each other, as cargo resolves them for some roots with some features.
#[derive(Default, Debug, PartialEq, Eq)]
struct Graph {
    roots: BTreeSet<Id>,
    /// Each package with those that it depends on.
    edges: BTreeMap<Id, BTreeSet<Id>>,
}

/// Writes the bill of a build.
///
/// # Errors
/// Names a package without a licence, or one of a registry without a checksum.
pub(super) fn write(project: &Project, build: &Build, name: &str, path: &Path) -> Result<usize> {
    let all = tree(project, build, "normal,build")?;
    let linked = tree(project, build, "normal,no-proc-macro")?;
    let known = packages(project)?;
    let checksums = fs::read_to_string(project.root().join("Cargo.lock"))?;
    let checksums = checksums_in(&checksums);
    let version = project.version()?;
    let root = format!("{name}@{version}");
    let mut components = Vec::new();
    for id in all.edges.keys() {
        let package = known.get(id).with_context(|| format!("no package {} {}", id.0, id.1))?;
        let is_linked = linked.edges.contains_key(id);
        components.push(component(id, package, checksums.get(id), is_linked)?);
    }
    let edge = |of: &str, on: &BTreeSet<Id>| {
        let on: Vec<_> = on.iter().map(purl).collect();
        json!({ "ref": of, "dependsOn": on })
    };
    let mut dependencies = vec![edge(&root, &all.roots)];
    dependencies.extend(all.edges.iter().map(|(id, on)| edge(&purl(id), on)));
    let mut metadata = json!({
        "lifecycles": [{ "phase": "build" }],
        "component": {
            "type": "application",
            "bom-ref": root,
            "name": name,
            "version": version,
            "licenses": [{ "expression": "Apache-2.0" }],
        },
        "properties": [
            { "name": "handfast:target", "value": build.target },
            { "name": "handfast:features", "value": build.features },
        ],
    });
    if let Some(time) = committed(project) {
        metadata["timestamp"] = json!(time);
    }
    let count = components.len();
    let bill = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": metadata,
        "components": components,
        "dependencies": dependencies,
    });
    fs::write(path, serde_json::to_string_pretty(&bill)? + "\n")?;
    Ok(count)
}

/// Describes a package; `package` is its entry in cargo's metadata.
fn component(id: &Id, package: &Value, sum: Option<&String>, is_linked: bool) -> Result<Value> {
    let (name, version) = id;
    let licence = licence(package).with_context(|| format!("{name} has no licence"))?;
    let mut component = json!({
        "type": "library",
        "bom-ref": purl(id),
        "name": name,
        "version": version,
        // Packages that only run in the build are not distributed.
        "scope": if is_linked { "required" } else { "excluded" },
        "licenses": [licence],
        "purl": purl(id),
    });
    if let Some(repository) = package["repository"].as_str() {
        component["externalReferences"] = json!([{ "type": "vcs", "url": repository }]);
    }
    let is_of_registry = package["source"].as_str().is_some();
    ensure!(is_of_registry == sum.is_some(), "Cargo.lock has no checksum of {name} {version}");
    if let Some(sum) = sum {
        component["hashes"] = json!([{ "alg": "SHA-256", "content": sum }]);
    }
    Ok(component)
}

/// Returns the licence of a package: an expression of SPDX, or the text of its file.
fn licence(package: &Value) -> Result<Value> {
    if let Some(expression) = package["license"].as_str() {
        // The slash of the registry's older packages is no part of SPDX.
        return Ok(json!({ "expression": expression.replace('/', " OR ") }));
    }
    let file = package["license_file"].as_str().context("no file is named")?;
    let manifest = Path::new(package["manifest_path"].as_str().unwrap_or_default());
    let path = manifest.with_file_name(file);
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Ok(json!({ "license": { "name": file, "text": { "content": text } } }))
}

/// The address of a package in CycloneDX.
fn purl((name, version): &Id) -> String {
    format!("pkg:cargo/{name}@{}", version.replace('+', "%2B"))
}

/// Asks cargo for the packages of a build over some kinds of dependencies, without the network.
fn tree(project: &Project, build: &Build, kinds: &str) -> Result<Graph> {
    let mut tree = project.cargo(&["tree", "--locked", "--offline", "--prefix", "depth"]);
    tree.args(["--format", " {p}", "--edges", kinds, "--target", build.target]);
    tree.args(["--features", build.features]);
    tree.args(build.packages.iter().flat_map(|package| ["--package", package]));
    graph_in(&output(tree)?)
}

/// Reads lines of `DEPTH NAME vVERSION (WHERE) (*)`.
fn graph_in(tree: &str) -> Result<Graph> {
    let mut graph = Graph::default();
    let mut path: Vec<Id> = Vec::new();
    for line in tree.lines().filter(|line| !line.trim().is_empty()) {
        let mut words = line.split_whitespace();
        let (Some(depth), Some(name), Some(version)) = (words.next(), words.next(), words.next())
        else {
            anyhow::bail!("cargo tree: {line}");
        };
        let depth: usize = depth.parse().with_context(|| line.to_owned())?;
        let version = version.strip_prefix('v').with_context(|| line.to_owned())?;
        let id: Id = (name.to_owned(), version.to_owned());
        ensure!(depth <= path.len(), "cargo tree: {line}");
        path.truncate(depth);
        match path.last() {
            Some(parent) => drop(graph.edges.entry(parent.clone()).or_default().insert(id.clone())),
            None => drop(graph.roots.insert(id.clone())),
        }
        graph.edges.entry(id.clone()).or_default();
        path.push(id);
    }
    ensure!(!graph.roots.is_empty(), "cargo tree lists no package");
    Ok(graph)
}

/// Returns the packages of Cargo.lock with their descriptions.
fn packages(project: &Project) -> Result<BTreeMap<Id, Value>> {
    let words = ["metadata", "--format-version", "1", "--locked", "--offline", "--all-features"];
    let metadata: Value = serde_json::from_str(&output(project.cargo(&words))?)?;
    let packages = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    let text = |package: &Value, field: &str| package[field].as_str().map(str::to_owned);
    let described = packages.iter().map(|package| {
        let id = (text(package, "name")?, text(package, "version")?);
        Some((id, package.clone()))
    });
    described.collect::<Option<_>>().context("cargo metadata has a package without a name")
}

/// Reads the checksums of packages in the text of Cargo.lock.
fn checksums_in(lock: &str) -> BTreeMap<Id, String> {
    let value = |entry: &str, key: &str| {
        let line = entry.lines().find_map(|line| line.strip_prefix(key))?;
        Some(line.strip_prefix(" = \"")?.strip_suffix('"')?.to_owned())
    };
    let entries = lock.split("[[package]]").filter_map(|entry| {
        Some(((value(entry, "name")?, value(entry, "version")?), value(entry, "checksum")?))
    });
    entries.collect()
}

/// Returns the time of the commit, so that the same sources have the same bill. There is none outside
/// a repository.
fn committed(project: &Project) -> Option<String> {
    let mut log = Command::new("git");
    log.args(["log", "-1", "--date=format-local:%Y-%m-%dT%H:%M:%SZ", "--format=%cd"]);
    log.env("TZ", "UTC").current_dir(project.root());
    output(log).ok().map(|time| time.trim().to_owned()).filter(|time| !time.is_empty())
}

fn output(mut command: Command) -> Result<String> {
    let output = command.output().context("a bill of materials")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {}", errors.trim());
    Ok(String::from_utf8(output.stdout)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::release::BUILDS;

    fn id(name: &str, version: &str) -> Id {
        (name.to_owned(), version.to_owned())
    }

    /// A package that appears again has its dependencies at its first place alone.
    #[test]
    fn depths_become_edges() {
        let text = "0 a v0.1.0 (/a)\n1 b v1.2.3+x\n2 c v3.0.0 (proc-macro)\n1 c v3.0.0 (*)\n\n\
                    0 d v0.1.0 (/d)\n1 b v1.2.3+x (*)\n";
        let graph = graph_in(text).unwrap();
        let [a, b, c, d] = [("a", "0.1.0"), ("b", "1.2.3+x"), ("c", "3.0.0"), ("d", "0.1.0")]
            .map(|(n, v)| id(n, v));
        assert_eq!(graph.roots, [a.clone(), d.clone()].into());
        let expected = [
            (a, [b.clone(), c.clone()].into()),
            (b.clone(), [c.clone()].into()),
            (c, BTreeSet::new()),
            (d, [b.clone()].into()),
        ];
        assert_eq!(graph.edges, expected.into());
        assert_eq!(purl(&b), "pkg:cargo/b@1.2.3%2Bx");
        for broken in ["", "x a v1\n", "0 a\n", "0 a 1\n", "1 a v1\n"] {
            assert!(graph_in(broken).is_err(), "{broken}");
        }
    }

    #[test]
    fn checksums_are_those_of_the_registry() {
        let lock = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"0.1.0\"\n\n\
                    [[package]]\nname = \"b\"\nversion = \"1.2.3\"\nsource = \"s\"\n\
                    checksum = \"ab\"\n";
        assert_eq!(checksums_in(lock), [(id("b", "1.2.3"), "ab".to_owned())].into());
    }

    #[test]
    fn package_needs_a_licence_and_a_checksum() {
        let package =
            json!({ "license": "MIT/Apache-2.0", "source": "registry", "repository": "r" });
        let sum = "ab".to_owned();
        let described = component(&id("b", "1.0.0"), &package, Some(&sum), false).unwrap();
        assert_eq!(described["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(
            (&described["scope"], &described["hashes"][0]["content"]),
            (&json!("excluded"), &json!("ab"))
        );
        assert!(component(&id("b", "1.0.0"), &package, None, true).is_err());
        let own = json!({ "license": "MIT", "source": null });
        let described = component(&id("b", "1.0.0"), &own, None, true).unwrap();
        assert_eq!((&described["scope"], described.get("hashes")), (&json!("required"), None));
        assert!(component(&id("b", "1.0.0"), &json!({}), None, true).is_err());
        let folder = tempfile::tempdir().unwrap();
        let manifest = folder.path().join("Cargo.toml");
        let own = json!({ "license_file": "LICENCE", "source": null, "manifest_path": manifest });
        assert!(component(&id("b", "1.0.0"), &own, None, true).is_err(), "there is no such file");
        fs::write(manifest.with_file_name("LICENCE"), "words").unwrap();
        let described = component(&id("b", "1.0.0"), &own, None, true).unwrap();
        let licence = &described["licenses"][0]["license"];
        assert_eq!(
            (&licence["name"], &licence["text"]["content"]),
            (&json!("LICENCE"), &json!("words"))
        );
    }

    /// Every reference in the bill of this workspace leads to a component. Packages that only run in
    /// the build are marked, and those of tests are absent.
    #[test]
    fn bill_of_the_workspace_is_complete() {
        let project = Project::find().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bill.json");
        let count = write(&project, &BUILDS[0], "handfast", &path).unwrap();
        let bill: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        let components = bill["components"].as_array().unwrap();
        assert!(components.len() == count && count > 50, "{count}");
        let scope = |name: &str| {
            let found = components.iter().find(|component| component["name"] == name);
            found.map(|component| component["scope"].as_str().unwrap())
        };
        assert_eq!((scope("tokio"), scope("handfast-core")), (Some("required"), Some("required")));
        assert_eq!((scope("serde_derive"), scope("bindgen")), (Some("excluded"), Some("excluded")));
        assert_eq!(scope("proptest"), None, "tests are not part of the program");
        let known: BTreeSet<_> =
            components.iter().map(|it| it["bom-ref"].as_str().unwrap()).collect();
        assert_eq!(known.len(), count);
        let dependencies = bill["dependencies"].as_array().unwrap();
        assert_eq!(dependencies.len(), count + 1);
        for dependency in dependencies {
            let on = dependency["dependsOn"].as_array().unwrap();
            assert!(on.iter().all(|on| known.contains(on.as_str().unwrap())), "{dependency}");
        }
    }
}
