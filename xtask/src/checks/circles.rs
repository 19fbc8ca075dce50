//! Import cycles among the files of a crate.

use crate::report::{Outcome, of_findings};
use anyhow::{Context, Result, anyhow};
use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree, token_stream};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::iter::Peekable;
use std::path::Path;

/// Maximum number of files in a cycle. A few files may share a type and its helper.
const FILES_MAX: usize = 3;
/// The checked crates. A crate is added once its last cycle is broken.
const CHECKED: [&str; 4] = ["cli", "core", "diagnosis", "engine"];
/// Maximum re-exports followed from one path, which bounds a chain that leads back to itself.
const FOLLOWED_MAX: usize = 8;
/// The path of a module from the crate's root, such as `["node", "lane"]`.
type Module = Vec<String>;

/// Reads the sources of every checked crate.
pub(crate) fn check(root: &Path) -> Outcome {
    let mut findings = Vec::new();
    for name in CHECKED {
        match Crate::read(&root.join(name).join("src")) {
            Ok(source) => findings.extend(source.findings(name)),
            Err(error) => findings.push(format!("{name}: {error:#}")),
        }
    }
    of_findings(&findings, format!("circles: {}", CHECKED.join(", ")))
}

/// The modules of a crate, one per file, without tests.
#[derive(Default)]
struct Crate {
    files: BTreeMap<Module, File>,
}

/// The paths in a file, each from the crate's root.
#[derive(Default)]
struct File {
    /// Paths by the name that the import binds.
    imports: BTreeMap<String, Module>,
    paths: BTreeSet<Module>,
}

impl Crate {
    fn read(folder: &Path) -> Result<Self> {
        let root = ["lib.rs", "main.rs"].map(|name| folder.join(name));
        let root = root.iter().find(|path| path.exists()).context("no lib.rs and no main.rs")?;
        let mut source = Self::default();
        let mut waiting = vec![(Module::new(), root.clone())];
        while let Some((module, path)) = waiting.pop() {
            let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            for child in source.add(&module, &text)? {
                let inner = [module.as_slice(), &[child]].concat();
                let path = folder.join(inner.join("/"));
                let files = [path.with_extension("rs"), path.join("mod.rs")];
                // A module with a `path` attribute has no file here, and no cycle.
                waiting.extend(files.into_iter().find(|file| file.exists()).map(|it| (inner, it)));
            }
        }
        Ok(source)
    }

    /// Adds a file and returns the names of the modules that it declares.
    fn add(&mut self, module: &Module, text: &str) -> Result<Vec<String>> {
        let tokens = text.parse::<TokenStream>().map_err(|error| anyhow!("{error}"))?;
        let mut names = Names::default();
        names.read(tokens, 0);
        self.files.insert(module.clone(), File::of(module, &names));
        Ok(names.children)
    }

    /// Returns the module whose file contains the item behind a path.
    fn home(&self, path: &[String]) -> Option<Module> {
        let mut path = path.to_vec();
        for _ in 0..FOLLOWED_MAX {
            let depth =
                (0..=path.len()).rev().find(|end| self.files.contains_key(&path[..*end]))?;
            let module = path[..depth].to_vec();
            let followed = path.get(depth).and_then(|name| self.files[&module].imports.get(name));
            let Some(target) = followed else { return Some(module) };
            path = [target.as_slice(), &path[depth + 1..]].concat();
        }
        None
    }

    /// Returns the modules that each module's file imports from.
    fn arrows(&self) -> BTreeMap<&Module, BTreeSet<Module>> {
        let arrows = self.files.iter().map(|(module, file)| {
            let homes = file.paths.iter().filter_map(|path| self.home(path));
            (module, homes.filter(|home| !is_one_room(module, home)).collect())
        });
        arrows.collect()
    }

    /// Returns the sets of files that all reach each other, largest first.
    fn circles(&self) -> Vec<BTreeSet<Module>> {
        let arrows = self.arrows();
        let reached: BTreeMap<&Module, BTreeSet<&Module>> =
            self.files.keys().map(|module| (module, reachable(&arrows, module))).collect();
        // A module that reaches itself is in a cycle with all modules that it reaches and that
        // reach it.
        let circles = reached.iter().filter(|(module, seen)| seen.contains(*module));
        let circles = circles.map(|(module, seen)| {
            let back = seen.iter().filter(|other| reached[**other].contains(module));
            back.map(|other| (*other).clone()).collect()
        });
        let circles: BTreeSet<BTreeSet<Module>> = circles.collect();
        let mut circles: Vec<_> = circles.into_iter().collect();
        circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
        circles
    }

    fn findings(&self, name: &str) -> Vec<String> {
        let arrows = self.arrows();
        let too_long = self.circles().into_iter().filter(|circle| circle.len() > FILES_MAX);
        let describe = |circle: BTreeSet<Module>| {
            let mut text = format!("{name}: a circle of {} files", circle.len());
            for module in &circle {
                let inside = arrows[module].iter().filter(|target| circle.contains(*target));
                let inside: Vec<_> = inside.map(shown).collect();
                text.push_str(&format!("\n  {} imports {}", shown(module), inside.join(", ")));
            }
            text
        };
        too_long.map(describe).collect()
    }
}

/// Whether one module is inside the other. A facade and its files are one unit, and imports between
/// them form no cycle. The whole crate is not a unit.
fn is_one_room(one: &Module, other: &Module) -> bool {
    let inside = |inner: &Module, outer: &Module| !outer.is_empty() && inner.starts_with(outer);
    one == other || inside(one, other) || inside(other, one)
}

/// Returns the modules reachable from one by at least one import.
fn reachable<'a>(
    arrows: &'a BTreeMap<&Module, BTreeSet<Module>>,
    from: &'a Module,
) -> BTreeSet<&'a Module> {
    let (mut seen, mut waiting) = (BTreeSet::new(), vec![from]);
    while let Some(module) = waiting.pop() {
        waiting.extend(arrows[module].iter().filter(|target| seen.insert(*target)));
    }
    seen
}

fn shown(module: &Module) -> String {
    if module.is_empty() { "the root".to_owned() } else { module.join("::") }
}

/// The paths in a file, as written there.
#[derive(Default)]
struct Names {
    /// The modules that the file declares.
    children: Vec<String>,
    /// The name bound by an import, if any, the path, and the number of inline modules around it: a
    /// `super` inside one stays in the file.
    paths: Vec<(Option<String>, Vec<String>, usize)>,
}

type Tokens = Peekable<token_stream::IntoIter>;

impl Names {
    /// Omits items with `#[cfg(test)]`, or with another condition that begins with `test`.
    fn read(&mut self, tokens: TokenStream, inline: usize) {
        let mut rest = tokens.into_iter().peekable();
        while let Some(token) = rest.next() {
            match token {
                TokenTree::Punct(hash) if hash.as_char() == '#' => {
                    let condition = rest.next_if(|next| is_block(next, Delimiter::Bracket));
                    let text = condition.map(|it| it.to_string().replace(' ', ""));
                    if text.is_some_and(|text| text.starts_with("[cfg(test")) {
                        rest.find(|token| {
                            is_block(token, Delimiter::Brace) || token.to_string() == ";"
                        });
                    }
                }
                TokenTree::Ident(word) if word == "use" => self.import(&mut rest, &[], inline),
                TokenTree::Ident(word) if word == "mod" => {
                    let name = rest.next().map(|name| name.to_string());
                    match rest.next_if(|next| is_block(next, Delimiter::Brace)) {
                        Some(TokenTree::Group(group)) => self.read(group.stream(), inline + 1),
                        _ => self.children.extend(name),
                    }
                }
                TokenTree::Ident(word) => {
                    let mut path = vec![word.to_string()];
                    while separated(&mut rest) {
                        let word = rest.next_if(|next| matches!(next, TokenTree::Ident(_)));
                        path.extend(word.map(|word| word.to_string()));
                    }
                    if path.len() > 1 {
                        self.paths.push((None, path, inline));
                    }
                }
                TokenTree::Group(group) => self.read(group.stream(), inline),
                _ => {}
            }
        }
    }

    /// Reads one tree of a `use`.
    fn import(&mut self, tokens: &mut Tokens, prefix: &[String], inline: usize) {
        let mut path = prefix.to_vec();
        loop {
            match tokens.next_if(|token| !matches!(token.to_string().as_str(), "," | ";")) {
                Some(TokenTree::Ident(word)) if word == "as" => {
                    let name = tokens.next().map(|name| name.to_string());
                    return self.paths.push((name, path, inline));
                }
                Some(TokenTree::Ident(word)) => path.push(word.to_string()),
                Some(TokenTree::Group(group)) => {
                    let mut trees = group.stream().into_iter().peekable();
                    while trees.peek().is_some() {
                        self.import(&mut trees, &path, inline);
                        trees.next();
                    }
                    return;
                }
                Some(token) if token.to_string() == "*" => {
                    return self.paths.push((None, path, inline));
                }
                Some(_) => {}
                None => break,
            }
        }
        path.pop_if(|last| *last == "self");
        self.paths.push((path.last().cloned(), path, inline));
    }
}

fn is_block(token: &TokenTree, delimiter: Delimiter) -> bool {
    matches!(token, TokenTree::Group(group) if group.delimiter() == delimiter)
}

/// Consumes `::`.
fn separated(tokens: &mut Tokens) -> bool {
    let is_joint = |token: &TokenTree| matches!(token, TokenTree::Punct(colon) if colon.as_char() == ':' && colon.spacing() == Spacing::Joint);
    tokens.next_if(is_joint).and_then(|_| tokens.next()).is_some()
}

impl File {
    fn of(module: &Module, names: &Names) -> Self {
        let mut file = Self::default();
        for (name, path, inline) in &names.paths {
            let Some(path) = from_root(module, &names.children, path, *inline) else { continue };
            if let Some(name) = name.as_ref().filter(|_| *inline == 0 && !path.is_empty()) {
                file.imports.insert(name.clone(), path.clone());
            }
            file.paths.insert(path);
        }
        file
    }
}

/// Returns a path of this crate from its root; `None` for paths of other crates.
fn from_root(
    module: &Module,
    children: &[String],
    path: &[String],
    inline: usize,
) -> Option<Module> {
    let supers = path.iter().take_while(|word| *word == "super").count();
    let (base, rest) = match path.first()?.as_str() {
        "crate" => (0, &path[1..]),
        "self" => (module.len(), &path[1..]),
        "super" => (module.len().saturating_sub(supers.saturating_sub(inline)), &path[supers..]),
        name if children.iter().any(|child| child == name) => (module.len(), path),
        _ => return None,
    };
    Some([&module[..base], rest].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    type Files<'a> = &'a [(&'a str, &'a str)];

    fn crate_of(files: Files<'_>) -> Crate {
        let mut source = Crate::default();
        for (module, text) in files {
            let module = module.split("::").filter(|part| !part.is_empty()).map(str::to_owned);
            source.add(&module.collect(), text).unwrap();
        }
        source
    }

    #[test]
    fn circle_over_four_files_is_found_and_described() {
        let files = [
            ("", "mod a; mod b; mod c; mod d;"),
            ("a", "use crate::b::B; pub struct A;"),
            ("b", "use super::c::{self, C as Other}; pub struct B;"),
            ("c", "fn f() { crate::d::f() } pub struct C;"),
            ("d", "use crate::{a::A, b}; fn f() {}"),
        ];
        let expected = "x: a circle of 4 files\n  a imports b\n  b imports c\n  c imports d\n  \
                        d imports a, b";
        assert_eq!(crate_of(&files).findings("x"), [expected]);
        assert_eq!(crate_of(&files[..4]).findings("x"), [""; 0]);
    }

    const TESTS: &str =
        "#[cfg(test)]\nmod tests { use crate::b::B; }\n#[cfg(test)] use crate::b::C;";
    const PROSE: &str = "// use crate::b::B;\nconst T: &str = \"crate::b::B\"; \
        /* crate::b::B */ const R: &str = r#\"\" crate::b::B\"#; const C: char = '\"';";
    const USE_A: (&str, &str) = ("b", "use crate::a::A;");
    /// A name, the cycles, the files.
    const CASES: [(&str, &[&str], Files<'static>); 10] = [
        (
            "three files",
            &["a b c"],
            &[
                ("", "mod a; mod b; mod c;"),
                ("a", "use crate::b::B;"),
                ("b", "use crate::c::C;"),
                ("c", "use crate::a::A;"),
            ],
        ),
        (
            "a re-export leads to the file of the item",
            &[],
            &[
                ("", "mod a; mod b; pub use b::B; pub use a::run;"),
                ("a", "use crate::B;"),
                ("b", "pub struct B;"),
            ],
        ),
        (
            "an item of the facade itself",
            &["the root a"],
            &[("", "mod a; type B = (); pub use a::run;"), ("a", "use crate::B;")],
        ),
        ("endless re-exports", &[], &[("", "mod a; pub use a::X;"), ("a", "pub use crate::X;")]),
        ("comments and texts", &[], &[("", "mod a; mod b;"), ("a", PROSE), USE_A]),
        ("tests", &[], &[("", "mod a; mod b;"), ("a", TESTS), USE_A]),
        (
            "`super` in an inline module stays in its file",
            &[],
            &[
                ("", "mod a; use a::A;"),
                ("a", "pub(crate) mod hex { use super::A; fn f() { super::g() } } pub struct A;"),
            ],
        ),
        (
            "`super` after an inline module leaves the file",
            &["the root a"],
            &[("", "mod a; use a::A; struct B;"), ("a", "mod hex { } use super::B;")],
        ),
        (
            "the name of a child begins a path",
            &["a::b c"],
            &[
                ("", "mod a; mod c;"),
                ("a", "mod b; fn f() { b::g() } pub use b::B;"),
                ("a::b", "use crate::c::C;"),
                ("c", "use crate::a::B;"),
            ],
        ),
        (
            "a facade and its files are one room",
            &[],
            &[
                ("", "mod a;"),
                ("a", "mod b; fn f() { b::g() } pub struct A;"),
                ("a::b", "use super::A;"),
            ],
        ),
    ];

    #[test]
    fn circle_is_seen_through_every_form_of_import() {
        for (case, expected, files) in CASES {
            let circles = crate_of(files).circles();
            let shown = |circle: &BTreeSet<Module>| circle.iter().map(shown).collect::<Vec<_>>();
            let found: Vec<_> = circles.iter().map(|circle| shown(circle).join(" ")).collect();
            assert_eq!(found, expected, "{case}");
            assert_eq!(crate_of(files).findings("x"), [""; 0], "{case}");
        }
    }
}
