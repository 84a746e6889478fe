//! The findings in a crate: import cycles between files, and dependencies that point up.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use crate::dependencies::{Dependency, dependencies};
use crate::tree::Tree;

/// Examines a crate. `root` is its `lib.rs` or `main.rs`, and `read` returns the text of a file.
///
/// # Errors
/// When a declared file does not exist or cannot be parsed.
pub fn examine(root: &Path, read: &dyn Fn(&Path) -> Option<String>) -> Result<Findings, String> {
    let dependencies = dependencies(&Tree::read(root, read)?);
    let upward = dependencies.iter().filter(|dependency| dependency.is_upward).cloned().collect();
    Ok(Findings { cycles: cycles(&dependencies), upward })
}

/// The violations in a crate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Findings {
    /// The cycles, each of maximal size (strongly connected components).
    pub cycles: Vec<Cycle>,
    /// The dependencies that point up.
    pub upward: Vec<Dependency>,
}

/// Files that import each other, directly or through others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cycle {
    /// The files.
    pub files: BTreeSet<PathBuf>,
    /// The dependencies between them.
    pub dependencies: Vec<Dependency>,
}

impl Findings {
    /// The number of files in cycles. Removing a dependency never increases it.
    pub fn files_in_cycles(&self) -> usize {
        self.cycles.iter().map(|cycle| cycle.files.len()).sum()
    }

    /// The findings as text: one line for each dependency, prefixed with the crate's name.
    pub fn lines(&self, name: &str) -> String {
        use fmt::Write;
        let mut lines = String::new();
        let mut section = |title: String, dependencies: &[Dependency]| {
            writeln!(lines, "{name}: {title}").expect("writing to a string does not fail");
            for dependency in dependencies {
                writeln!(lines, "{name}:   {dependency}")
                    .expect("writing to a string does not fail");
            }
        };
        for cycle in &self.cycles {
            section(format!("{} files import each other", cycle.files.len()), &cycle.dependencies);
        }
        if !self.upward.is_empty() {
            section(format!("{} dependencies point up", self.upward.len()), &self.upward);
        }
        lines
    }
}

/// Groups files that reach each other.
fn cycles(dependencies: &[Dependency]) -> Vec<Cycle> {
    let mut next: BTreeMap<&PathBuf, Vec<&PathBuf>> = BTreeMap::new();
    for dependency in dependencies {
        next.entry(&dependency.from).or_default().push(&dependency.to);
    }
    let reached: BTreeMap<&PathBuf, BTreeSet<&PathBuf>> =
        next.keys().map(|file| (*file, reach(file, &next))).collect();

    let mut found: Vec<Cycle> = Vec::new();
    for (file, targets) in &reached {
        if targets.contains(file) && !found.iter().any(|cycle| cycle.files.contains(*file)) {
            let back = |other: &&&PathBuf| reached.get(**other).is_some_and(|to| to.contains(file));
            let files: BTreeSet<_> =
                targets.iter().filter(back).map(|file| (*file).clone()).collect();
            let among = |dependency: &&Dependency| {
                files.contains(&dependency.from) && files.contains(&dependency.to)
            };
            let dependencies = dependencies.iter().filter(among).cloned().collect();
            found.push(Cycle { files, dependencies });
        }
    }
    found
}

/// The files reachable from `start`; `start` itself only if a dependency leads back.
fn reach<'a>(
    start: &PathBuf,
    next: &BTreeMap<&'a PathBuf, Vec<&'a PathBuf>>,
) -> BTreeSet<&'a PathBuf> {
    let mut reached = BTreeSet::new();
    let mut open = vec![start];
    while let Some(file) = open.pop() {
        for to in next.get(file).into_iter().flatten() {
            if reached.insert(*to) {
                open.push(to);
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The findings in a crate of these files, the root first.
    fn findings_in(files: &[(&str, &str)]) -> Findings {
        let read = |path: &Path| {
            let (_, text) = files.iter().find(|(name, _)| Path::new(name) == path)?;
            Some((*text).to_owned())
        };
        examine(files[0].0.as_ref(), &read).unwrap()
    }

    fn cycles_in(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let files_of =
            |cycle: &Cycle| cycle.files.iter().map(|file| file.display().to_string()).collect();
        findings_in(files).cycles.iter().map(files_of).collect()
    }

    const B: &str = "use crate::a::A; pub struct B(A); pub const C: B = B(A); pub fn f() {}";

    #[test]
    fn a_cycle_is_found_by_any_form_of_import() {
        for text in [
            "use crate::b::B;",
            "use super::b::B;",
            "use self::deep::B; mod deep { pub use super::super::b::B; }",
            "use crate::b::B as Other;",
            "use {std::fmt, crate::{b::{B, C}}};",
            "use crate::b::{self as other}; fn g() { other::f(); }",
            "fn g() { use super::b; b::f(); }",
            "use crate::b::*;",
            "use crate::*; fn g() { b::f(); }",
            "fn g() { crate::b::f(); }",
            "fn g(b: Vec<crate::b::B>) {}",
            "fn g(a: u8) { match a { crate::b::C => {} _ => {} } }",
            "impl crate::b::B { fn g() {} }",
            "fn g() { assert!(true || crate::b::f() == ()); }",
            "fn g() { println!(\"{}\", [super::b::f()].len()); }",
            "fn g() { vec![0..crate::b::f()]; }",
            "macro_rules! g { ($a:tt) => { $crate::b::f($a) }; }",
            "macro_rules! g { () => { use crate::{b::B}; }; }",
            "#[arg(value_parser = crate::b::f)] struct G;",
        ] {
            let a = format!("{text} pub struct A;");
            let files = [("lib.rs", "mod a; mod b;"), ("a.rs", a.as_str()), ("b.rs", B)];
            assert_eq!(cycles_in(&files), [["a.rs", "b.rs"]], "{text}");
            assert_eq!(findings_in(&files).upward.len(), 1, "{text}");
        }
    }

    #[test]
    fn code_without_an_import_has_no_dependency() {
        for text in [
            "",
            "use std::b::B;",
            "use crate::b;",
            "use ::b::B;",
            "pub(in crate::b) fn g() {}",
            "/// As [`crate::b::B`]. \nfn g() { \"crate::b::B\"; }",
            "fn g() { println!(\"{}\", other::b::B); }",
            "fn g(b: G) { b.crate_b(); println!(\"{}\", b.b::<u8>()); }",
            "#[cfg(test)] use crate::b::B;",
            "#[cfg(loom)] fn g() { crate::b::f(); }",
            "fn g() { #[cfg(all(test, unix))] crate::b::f(); }",
            "#[cfg(not(not(loom)))] mod sync { use crate::b::B; }",
            "#[cfg(test)] mod not_there;",
        ] {
            let a = format!("{text} pub struct A;");
            let files = [("lib.rs", "mod b; mod a;"), ("a.rs", a.as_str()), ("b.rs", B)];
            assert_eq!(findings_in(&files), Findings { cycles: vec![], upward: vec![] }, "{text}");
        }
    }

    #[test]
    fn a_cycle_through_a_reexport_does_not_include_the_parent() {
        let low = "use crate::high::High; pub struct Low;";
        let files = [
            ("lib.rs", "mod high; mod low; pub use high::High;"),
            ("high/mod.rs", "mod deep; pub(crate) use deep::High;"),
            ("high/deep.rs", "pub struct High(crate::low::Low);"),
            ("low.rs", low),
        ];
        assert_eq!(cycles_in(&files), [["high/deep.rs", "low.rs"]]);
        let low = low.replace("high::", "");
        let files = [files[0], files[1], files[2], ("low.rs", low.as_str())];
        assert_eq!(cycles_in(&files), [["high/deep.rs", "low.rs"]]);
    }

    #[test]
    fn siblings_that_use_their_parents_reexports_are_no_cycle() {
        let files = [
            ("lib.rs", "mod p; pub use p::A;"),
            ("p.rs", "mod a; mod b; pub use a::A; pub(crate) use b::b;"),
            ("p/a.rs", "pub struct A; fn g() { super::b(); crate::p::b::b(); }"),
            ("p/b.rs", "pub fn b() {}"),
        ];
        assert_eq!(cycles_in(&files), [[""; 0]; 0]);
    }

    #[test]
    fn a_parent_and_a_child_that_use_each_other_are_a_cycle() {
        for parent in ["mod a; pub struct P; fn g() { a::f() }", "mod a; use a::f; pub struct P;"] {
            let files = [
                ("main.rs", "mod p; fn main() {}"),
                ("p/mod.rs", parent),
                ("p/a.rs", "use super::P; pub fn f() {}"),
            ];
            assert_eq!(cycles_in(&files), [["p/a.rs", "p/mod.rs"]], "{parent}");
        }
    }

    #[test]
    fn a_reexport_by_a_file_without_children_is_a_dependency() {
        let files = [
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a.rs", "pub use crate::c::C; use crate::b::B;"),
            ("b.rs", "use crate::a::C; pub struct B;"),
            ("c.rs", "pub struct C;"),
        ];
        assert_eq!(cycles_in(&files), [["a.rs", "b.rs"]]);
    }

    #[test]
    fn files_are_found_by_path_attributes_and_inline_modules() {
        let files = [
            ("lib.rs", "#[path = \"else/where.rs\"] mod a; mod b { pub mod c; }"),
            ("else/where.rs", "mod d; pub fn a() { d::d() }"),
            ("else/d.rs", "pub fn d() { crate::b::c::c() }"),
            ("b/c.rs", "pub fn c() { crate::a::a() }"),
        ];
        assert_eq!(cycles_in(&files), [["b/c.rs", "else/d.rs", "else/where.rs"]]);
    }

    #[test]
    fn a_dependency_on_a_module_above_points_up() {
        let (high, low) =
            ("pub struct High;", "fn g() { crate::high::deep::f(crate::high::High) }");
        let files = [
            ("lib.rs", "mod high; mod low;"),
            ("high.rs", &format!("pub mod deep; {high}")),
            ("high/deep.rs", "pub fn f(_: super::High) {}"),
            ("low.rs", low),
        ];
        let upward: Vec<_> = findings_in(&files).upward.iter().map(Dependency::to_string).collect();
        assert_eq!(upward, ["low.rs -> high/deep.rs: f", "low.rs -> high.rs: High"]);
        let files = [("lib.rs", "mod low; mod high;"), files[1], files[2], files[3]];
        assert!(findings_in(&files).upward.is_empty());
    }

    #[test]
    fn separate_cycles_are_reported_with_each_dependency() {
        let files = [
            ("lib.rs", "mod a; mod b; mod c; mod d;"),
            ("a.rs", "use crate::b::B; pub struct A;"),
            ("b.rs", "use crate::{a::A, c::C}; pub struct B;"),
            ("c.rs", "use crate::d::D; pub struct C;"),
            ("d.rs", "use crate::c::C; pub struct D;"),
        ];
        let found = findings_in(&files);
        assert_eq!((found.cycles.len(), found.files_in_cycles()), (2, 4));
        assert!(
            found.lines("x").starts_with("x: 2 files import each other\nx:   a.rs -> b.rs: B\n")
        );
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = examine("lib.rs".as_ref(), &|_| None).unwrap_err();
        assert_eq!(error, "lib.rs does not exist");
    }
}
