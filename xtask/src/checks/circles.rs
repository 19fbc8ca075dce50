//! Circles of imports among the files of a crate.

use crate::report::{Outcome, of_findings};
use anyhow::{Context, Result};
use regex_lite::Regex;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::iter::Peekable;
use std::path::Path;

/// Most files of one circle. A few files that share a type and its helper are one room.
const FILES_MAX: usize = 3;
/// The crates that hold the bound. A crate joins the list when its last circle is broken.
const CHECKED: [&str; 4] = ["cli", "core", "diagnosis", "engine"];
/// Re-exports that are followed from one path, which bounds a chain that leads back to itself.
const FOLLOWED_MAX: usize = 8;
/// Comments, literals and lifetimes, and in the group everything else.
const TOKEN: &str = r##"(?xs) //[^\n]* | /\*.*?\*/
    | [bc]?r\#\#".*?"\#\# | [bc]?r\#".*?"\# | [bc]?r"[^"]*" | [bc]?"(?:\\.|[^"\\])*"
    | b?'(?:\\.[^']*|[^\\'])' | '\w+ | ( \w+ | :: | \S )"##;

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

/// The paths that a file names, each from the crate's root.
#[derive(Default)]
struct File {
    /// By the name that each import binds.
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
            for child in source.add(&module, &text) {
                let inner = [module.as_slice(), &[child]].concat();
                let path = folder.join(inner.join("/"));
                let files = [path.with_extension("rs"), path.join("mod.rs")];
                // A module with a `path` attribute of its own has no file here, and no circle.
                waiting.extend(files.into_iter().find(|file| file.exists()).map(|it| (inner, it)));
            }
        }
        Ok(source)
    }

    /// Adds a file and yields the names of the modules that it declares.
    fn add(&mut self, module: &Module, text: &str) -> Vec<String> {
        let tokens = without_tests(&tokens(text));
        let declared = tokens.windows(3).filter(|three| three[0] == "mod" && three[2] == ";");
        let children: Vec<String> = declared.map(|three| three[1].to_owned()).collect();
        self.files.insert(module.clone(), File::read(module, &children, &tokens));
        children
    }

    /// The module in whose file the item behind a path is.
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

    /// The modules that each module's file imports from.
    fn arrows(&self) -> BTreeMap<&Module, BTreeSet<Module>> {
        let arrows = self.files.iter().map(|(module, file)| {
            let homes = file.paths.iter().filter_map(|path| self.home(path));
            (module, homes.filter(|home| !is_one_room(module, home)).collect())
        });
        arrows.collect()
    }

    /// Sets of files that all lead to each other, largest first.
    fn circles(&self) -> Vec<BTreeSet<Module>> {
        let arrows = self.arrows();
        let reached: BTreeMap<&Module, BTreeSet<&Module>> =
            self.files.keys().map(|module| (module, reachable(&arrows, module))).collect();
        // A module that reaches itself is in a circle with all that reach it and that it reaches.
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

/// One module is inside the other: a facade and its files are one room, and imports between them
/// form no circle. The whole crate is no room.
fn is_one_room(one: &Module, other: &Module) -> bool {
    let inside = |inner: &Module, outer: &Module| !outer.is_empty() && inner.starts_with(outer);
    one == other || inside(one, other) || inside(other, one)
}

/// The modules that can be reached from one by an arrow at least.
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

/// The tokens of a source, without comments, literals and lifetimes.
fn tokens(text: &str) -> Vec<&str> {
    let pattern = Regex::new(TOKEN).expect("the pattern is constant");
    let code = pattern.captures_iter(text).filter_map(|token| token.get(1));
    code.map(|token| token.as_str()).collect()
}

/// Leaves out items with `#[cfg(test)]`, or with another condition that begins with `test`.
fn without_tests<'a>(tokens: &[&'a str]) -> Vec<&'a str> {
    let mut kept = Vec::new();
    let mut rest = tokens;
    while let [first, others @ ..] = rest {
        if rest.starts_with(&["#", "[", "cfg", "(", "test"]) {
            rest = &rest[item_length(rest)..];
        } else {
            kept.push(*first);
            rest = others;
        }
    }
    kept
}

/// Tokens up to the end of an item: a semicolon or a block, outside parentheses and brackets.
fn item_length(tokens: &[&str]) -> usize {
    let mut depth = 0_usize;
    let mut in_block = false;
    for (at, token) in tokens.iter().enumerate() {
        match *token {
            "{" | "(" | "[" => {
                in_block |= *token == "{" && depth == 0 && tokens[at - 1] != "::";
                depth += 1;
            }
            "}" | ")" | "]" => depth = depth.saturating_sub(1),
            ";" if depth == 0 => return at + 1,
            _ => {}
        }
        if *token == "}" && depth == 0 && in_block {
            return at + 1;
        }
    }
    tokens.len()
}

impl File {
    fn read(module: &Module, children: &[String], tokens: &[&str]) -> Self {
        let mut file = Self::default();
        // The braces that each inline module was opened at: a `super` inside it stays in the file.
        let (mut braces, mut inline) = (0_usize, Vec::new());
        let mut before = "";
        let mut rest = tokens.iter().copied().peekable();
        while let Some(token) = rest.next() {
            match (token, rest.peek().copied()) {
                ("use", Some(next)) if next != "<" => {
                    let mut found = Vec::new();
                    use_tree(&mut rest, &[], &mut found);
                    for (name, path) in found {
                        let Some(path) = from_root(module, children, &path, inline.len()) else {
                            continue;
                        };
                        if inline.is_empty() && name != "*" && !path.is_empty() {
                            file.imports.insert(name.to_owned(), path.clone());
                        }
                        file.paths.insert(path);
                    }
                }
                ("mod", Some(_)) => {
                    rest.next();
                    inline.extend((rest.peek() == Some(&"{")).then_some(braces));
                }
                ("{", _) => braces += 1,
                ("}", _) => {
                    braces = braces.saturating_sub(1);
                    inline.pop_if(|opened| *opened == braces);
                }
                (_, Some("::")) if before != "::" => {
                    let mut path = vec![token];
                    while rest.next_if_eq(&"::").is_some() {
                        path.extend(rest.next_if(|word| word.starts_with(is_letter)));
                    }
                    file.paths.extend(from_root(module, children, &path, inline.len()));
                }
                _ => {}
            }
            before = token;
        }
        file
    }
}

fn is_letter(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// Reads one tree of a `use`: the name that each path binds, or `*`, and the path.
fn use_tree<'a>(
    tokens: &mut Peekable<impl Iterator<Item = &'a str>>,
    prefix: &[&'a str],
    found: &mut Vec<(&'a str, Vec<&'a str>)>,
) {
    let mut path = prefix.to_vec();
    while let Some(token) = tokens.next_if(|token| !matches!(*token, "," | "}" | ";")) {
        match token {
            "::" => {}
            "as" => return found.extend(tokens.next().map(|name| (name, path))),
            "*" => return found.push(("*", path)),
            "{" => {
                while tokens.peek().is_some_and(|token| *token != "}") {
                    use_tree(tokens, &path, found);
                    tokens.next_if_eq(&",");
                }
                tokens.next();
                return;
            }
            word => path.push(word),
        }
    }
    path.pop_if(|last| *last == "self");
    found.extend(path.last().copied().map(|name| (name, path)));
}

/// A path of this crate, from its root; paths of other crates are none.
fn from_root(module: &Module, children: &[String], path: &[&str], inline: usize) -> Option<Module> {
    let supers = path.iter().take_while(|word| **word == "super").count();
    let (base, rest) = match *path.first()? {
        "crate" => (0, &path[1..]),
        "self" => (module.len(), &path[1..]),
        "super" => (module.len().saturating_sub(supers.saturating_sub(inline)), &path[supers..]),
        name if children.iter().any(|child| child == name) => (module.len(), path),
        _ => return None,
    };
    let rest = rest.iter().map(|word| (*word).to_owned());
    Some(module[..base].iter().cloned().chain(rest).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    type Files<'a> = &'a [(&'a str, &'a str)];

    fn crate_of(files: Files<'_>) -> Crate {
        let mut source = Crate::default();
        for (module, text) in files {
            let module = module.split("::").filter(|part| !part.is_empty()).map(str::to_owned);
            source.add(&module.collect(), text);
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
    /// A name, the circles, the files.
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
