//! Circles of imports among the files of a crate.

use super::rust_source::{self, Token};
use crate::report::Outcome;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::Path;

/// Most files of one circle. A few files that share a type and its helper are one room.
const FILES_MAX: usize = 3;
/// The crates that hold the bound. A crate joins the list when its last circle is broken.
const CHECKED: [&str; 4] = ["cli", "core", "diagnosis", "engine"];
/// Re-exports that are followed from one path, which bounds a chain that leads back to itself.
const FOLLOWED_MAX: usize = 8;

/// The path of a module from the crate's root, such as `["node", "lane"]`.
type Module = Vec<String>;

/// Reads the sources of every checked crate.
pub(crate) fn check(root: &Path) -> Outcome {
    let mut findings = Vec::new();
    for name in CHECKED {
        match Crate::read(&root.join(name).join("src")) {
            Ok(source) => findings.extend(source.findings(name)),
            Err(error) => findings.push(format!("{name}: {error}")),
        }
    }
    Outcome::of_findings(&findings, format!("circles: {}", CHECKED.join(", ")))
}

/// The modules of a crate, one per file, without tests.
#[derive(Default)]
struct Crate {
    files: BTreeMap<Module, File>,
}

/// The paths that a file names.
#[derive(Default)]
struct File {
    /// By the name that each import binds; the path starts at the crate's root.
    imports: BTreeMap<String, Vec<String>>,
    paths: BTreeSet<Vec<String>>,
}

impl Crate {
    fn read(folder: &Path) -> Result<Self, String> {
        let root = ["lib.rs", "main.rs"].map(|name| folder.join(name));
        let root = root.iter().find(|path| path.exists()).ok_or("no lib.rs and no main.rs")?;
        let mut source = Self::default();
        let mut waiting = vec![(Module::new(), root.clone())];
        while let Some((module, path)) = waiting.pop() {
            let text = fs::read_to_string(&path);
            let text = text.map_err(|error| format!("{}: {error}", path.display()))?;
            let children = source.add(&module, &text);
            for child in children {
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
        let tokens = rust_source::without_tests(rust_source::tokens(text));
        let children = declared(&tokens);
        let mut parser = Parser { module, children: &children, file: File::default() };
        parser.read(&tokens);
        self.files.insert(module.clone(), parser.file);
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
    fn circles(&self) -> Vec<BTreeSet<&Module>> {
        let arrows = self.arrows();
        let reached: BTreeMap<_, _> =
            self.files.keys().map(|module| (module, reachable(&arrows, module))).collect();
        let mut circles: Vec<BTreeSet<&Module>> = Vec::new();
        for (module, leads_to) in &reached {
            let back = |other: &&&Module| reached[*other].contains(*module);
            let circle: BTreeSet<_> = leads_to.iter().filter(back).copied().collect();
            if circle.len() > 1 && !circles.contains(&circle) {
                circles.push(circle);
            }
        }
        circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
        circles
    }

    fn findings(&self, name: &str) -> Vec<String> {
        let arrows = self.arrows();
        let too_long = self.circles().into_iter().filter(|circle| circle.len() > FILES_MAX);
        let describe = |circle: BTreeSet<&Module>| {
            let head = format!("{name}: a circle of {} files", circle.len());
            let lines = circle.iter().map(|module| {
                let inside = arrows[module].iter().filter(|target| circle.contains(target));
                let inside: Vec<_> = inside.map(shown).collect();
                format!("  {} imports {}", shown(module), inside.join(", "))
            });
            [head].into_iter().chain(lines).collect::<Vec<_>>().join("\n")
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

/// The modules that can be reached from one, itself included.
fn reachable<'a>(
    arrows: &BTreeMap<&'a Module, BTreeSet<Module>>,
    from: &'a Module,
) -> BTreeSet<&'a Module> {
    let (mut seen, mut waiting) = (BTreeSet::from([from]), VecDeque::from([from]));
    while let Some(module) = waiting.pop_front() {
        for target in &arrows[module] {
            let (target, _) = arrows.get_key_value(target).expect("homes are modules");
            if seen.insert(target) {
                waiting.push_back(target);
            }
        }
    }
    seen
}

fn shown(module: impl AsRef<[String]>) -> String {
    match module.as_ref() {
        [] => "the root".to_owned(),
        path => path.join("::"),
    }
}

/// The names of modules with a file of their own.
fn declared(tokens: &[Token]) -> Vec<String> {
    let declarations = tokens.windows(3).filter_map(|three| match three {
        [Token::Word(word), Token::Word(name), Token::Sign(';')] if word == "mod" => Some(name),
        _ => None,
    });
    declarations.cloned().collect()
}

/// Collects the paths of one file.
struct Parser<'a> {
    module: &'a Module,
    children: &'a [String],
    file: File,
}

impl Parser<'_> {
    fn read(&mut self, tokens: &[Token]) {
        // The braces that each inline module was opened at: a `super` inside it stays in the file.
        let (mut braces, mut inline) = (0_usize, Vec::new());
        let mut at = 0;
        while at < tokens.len() {
            let follows_path = at > 0 && tokens[at - 1] == Token::PathSign;
            match &tokens[at] {
                Token::Word(word) if word == "use" && !follows_path => {
                    at = self.import(tokens, at + 1, &[], inline.len());
                    continue;
                }
                Token::Word(word)
                    if word == "mod" && tokens.get(at + 2) == Some(&Token::Sign('{')) =>
                {
                    inline.push(braces);
                    at += 2;
                    continue;
                }
                Token::Word(_) if !follows_path && tokens.get(at + 1) == Some(&Token::PathSign) => {
                    let path = leading_path(&tokens[at..]);
                    self.add(&path, inline.len());
                }
                Token::Sign('{') => braces += 1,
                Token::Sign('}') => {
                    braces = braces.saturating_sub(1);
                    inline.pop_if(|opened| *opened == braces);
                }
                _ => {}
            }
            at += 1;
        }
    }

    /// Reads one tree of a `use` and yields the place after it.
    fn import(
        &mut self,
        tokens: &[Token],
        mut at: usize,
        prefix: &[String],
        inline: usize,
    ) -> usize {
        let mut path = prefix.to_vec();
        while let Some(token) = tokens.get(at) {
            match token {
                Token::Word(word) if word == "as" => {
                    if let Some(Token::Word(name)) = tokens.get(at + 1) {
                        self.bind(name, &path, inline);
                    }
                    return at + 2;
                }
                Token::Word(word) => path.push(word.clone()),
                Token::Sign('{') => {
                    at += 1;
                    while at < tokens.len() && tokens[at] != Token::Sign('}') {
                        at = self.import(tokens, at, &path, inline);
                        at += usize::from(tokens.get(at) == Some(&Token::Sign(',')));
                    }
                    return at + 1;
                }
                Token::Sign('*') => {
                    self.add(&path, inline);
                    return at + 1;
                }
                Token::PathSign => {}
                Token::Sign(_) => break,
            }
            at += 1;
        }
        if path.last().is_some_and(|last| last == "self") {
            path.pop();
        }
        if let Some(name) = path.last().cloned() {
            self.bind(&name, &path, inline);
        }
        at
    }

    fn bind(&mut self, name: &str, path: &[String], inline: usize) {
        if let Some(path) = self.add(path, inline)
            && inline == 0
            && path.last().is_some()
        {
            self.file.imports.insert(name.to_owned(), path);
        }
    }

    /// Adds a path of this crate, from its root; paths of other crates are none.
    fn add(&mut self, path: &[String], inline: usize) -> Option<Vec<String>> {
        let first = path.first()?;
        let supers = path.iter().take_while(|word| *word == "super").count();
        let (base, rest) = match first.as_str() {
            "crate" => (0, &path[1..]),
            "self" => (self.module.len(), &path[1..]),
            "super" => {
                let up = supers.saturating_sub(inline);
                (self.module.len().saturating_sub(up), &path[supers..])
            }
            name if self.children.iter().any(|child| child == name) => (self.module.len(), path),
            _ => return None,
        };
        let whole = [&self.module[..base], rest].concat();
        self.file.paths.insert(whole.clone());
        Some(whole)
    }
}

fn leading_path(tokens: &[Token]) -> Vec<String> {
    let mut path = Vec::new();
    for pair in tokens.chunks(2) {
        let Token::Word(word) = &pair[0] else { break };
        path.push(word.clone());
        if pair.get(1) != Some(&Token::PathSign) {
            break;
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crate_of(files: &[(&str, &str)]) -> Crate {
        let mut source = Crate::default();
        for (module, text) in files {
            let module = module.split("::").filter(|part| !part.is_empty()).map(str::to_owned);
            source.add(&module.collect(), text);
        }
        source
    }

    fn circles(files: &[(&str, &str)]) -> Vec<String> {
        let source = crate_of(files);
        let shown = |circle: BTreeSet<&Module>| circle.into_iter().map(shown).collect::<Vec<_>>();
        source.circles().into_iter().map(|circle| shown(circle).join(" ")).collect()
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
        let findings = crate_of(&files).findings("x");
        assert_eq!(findings.len(), 1);
        let expected = "x: a circle of 4 files\n  a imports b\n  b imports c\n  c imports d\n  \
                        d imports a, b";
        assert_eq!(findings[0], expected);
        assert_eq!(crate_of(&files[..4]).findings("x"), [""; 0]);
    }

    #[test]
    fn circle_of_three_files_is_within_bound() {
        let files = [
            ("", "mod a; mod b; mod c;"),
            ("a", "use crate::b::B;"),
            ("b", "use crate::c::C;"),
            ("c", "use crate::a::A;"),
        ];
        assert_eq!(circles(&files), ["a b c"]);
        assert_eq!(crate_of(&files).findings("x"), [""; 0]);
    }

    /// An import through a facade leads to the file of the item, not to the facade.
    #[test]
    fn reexports_are_followed_to_their_file() {
        let files = [
            ("", "mod a; mod b; pub use b::B; pub use a::run;"),
            ("a", "use crate::B;"),
            ("b", "pub struct B;"),
        ];
        assert_eq!(circles(&files), [""; 0]);
        let defined = [("", "mod a; type B = (); pub use a::run;"), ("a", "use crate::B;")];
        assert_eq!(circles(&defined), ["the root a"]);
        let endless = [("", "mod a; pub use a::X;"), ("a", "pub use crate::X;")];
        assert_eq!(circles(&endless), [""; 0]);
    }

    #[test]
    fn tests_comments_and_texts_make_no_arrow() {
        let files = [
            ("", "mod a; mod b;"),
            ("a", "// use crate::b::B;\nconst T: &str = \"crate::b::B\"; /* crate::b::B */"),
            ("b", "use crate::a::A;"),
        ];
        assert_eq!(circles(&files), [""; 0]);
        let tests = [
            ("", "mod a; mod b;"),
            ("a", "#[cfg(test)]\nmod tests { use crate::b::B; }\n#[cfg(test)] use crate::b::C;"),
            ("b", "use crate::a::A;"),
        ];
        assert_eq!(circles(&tests), [""; 0]);
    }

    #[test]
    fn super_in_inline_module_stays_in_its_file() {
        let files = [
            ("", "mod a; use a::A;"),
            ("a", "pub(crate) mod hex { use super::A; fn f() { super::g() } } pub struct A;"),
        ];
        assert_eq!(circles(&files), [""; 0]);
        let outside = [("", "mod a; use a::A; struct B;"), ("a", "mod hex { } use super::B;")];
        assert_eq!(circles(&outside), ["the root a"]);
    }

    #[test]
    fn names_of_child_modules_begin_paths() {
        let files = [
            ("", "mod a; mod c;"),
            ("a", "mod b; fn f() { b::g() } pub use b::B;"),
            ("a::b", "use crate::c::C;"),
            ("c", "use crate::a::B;"),
        ];
        assert_eq!(circles(&files), ["a::b c"]);
    }

    #[test]
    fn facade_and_its_files_are_one_room() {
        let files = [
            ("", "mod a;"),
            ("a", "mod b; fn f() { b::g() } pub struct A;"),
            ("a::b", "use super::A;"),
        ];
        assert_eq!(circles(&files), [""; 0]);
    }
}
