//! What is found in a crate: circles of files, and arrows that point up.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use crate::arrows::{Arrow, arrows};
use crate::tree::Tree;

/// Looks at a crate: `root` is its `lib.rs` or `main.rs`, and `read` gives the text of a file.
///
/// # Errors
/// A file that is declared is not there, or cannot be parsed.
pub fn examine(root: &Path, read: &dyn Fn(&Path) -> Option<String>) -> Result<Findings, String> {
    let arrows = arrows(&Tree::read(root, read)?);
    let up = arrows.iter().filter(|arrow| arrow.up).cloned().collect();
    Ok(Findings { circles: circles(&arrows), up })
}

/// What should not be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Findings {
    /// The circles, each as large as it can be.
    pub circles: Vec<Circle>,
    /// The arrows that point up.
    pub up: Vec<Arrow>,
}

/// Files each of which imports each other, if only through others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Circle {
    /// The files.
    pub files: BTreeSet<PathBuf>,
    /// The arrows among them.
    pub arrows: Vec<Arrow>,
}

impl Findings {
    /// How many files are in circles. To take an arrow away never makes this more.
    pub fn circled(&self) -> usize {
        self.circles.iter().map(|circle| circle.files.len()).sum()
    }

    /// One line for each arrow, after the crate's name.
    pub fn lines(&self, name: &str) -> String {
        use fmt::Write;
        let mut lines = String::new();
        let mut section = |title: String, arrows: &[Arrow]| {
            writeln!(lines, "{name}: {title}").expect("a string takes all");
            for arrow in arrows {
                writeln!(lines, "{name}:   {arrow}").expect("a string takes all");
            }
        };
        for circle in &self.circles {
            section(format!("{} files import each other", circle.files.len()), &circle.arrows);
        }
        if !self.up.is_empty() {
            section(format!("{} arrows point up", self.up.len()), &self.up);
        }
        lines
    }
}

/// Files that reach each other are in one circle.
fn circles(arrows: &[Arrow]) -> Vec<Circle> {
    let mut next: BTreeMap<&PathBuf, Vec<&PathBuf>> = BTreeMap::new();
    for arrow in arrows {
        next.entry(&arrow.from).or_default().push(&arrow.to);
    }
    let reached: BTreeMap<&PathBuf, BTreeSet<&PathBuf>> =
        next.keys().map(|file| (*file, reach(file, &next))).collect();

    let mut found: Vec<Circle> = Vec::new();
    for (file, there) in &reached {
        if there.contains(file) && !found.iter().any(|circle| circle.files.contains(*file)) {
            let back = |other: &&&PathBuf| reached.get(**other).is_some_and(|to| to.contains(file));
            let files: BTreeSet<_> =
                there.iter().filter(back).map(|file| (*file).clone()).collect();
            let among = |arrow: &&Arrow| files.contains(&arrow.from) && files.contains(&arrow.to);
            let arrows = arrows.iter().filter(among).cloned().collect();
            found.push(Circle { files, arrows });
        }
    }
    found
}

/// The files that arrows lead to from `start`; `start` itself only if one leads back.
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

    /// A crate of these files, the root first.
    fn found_in(files: &[(&str, &str)]) -> Findings {
        let read = |path: &Path| {
            let (_, text) = files.iter().find(|(name, _)| Path::new(name) == path)?;
            Some((*text).to_owned())
        };
        examine(files[0].0.as_ref(), &read).unwrap()
    }

    fn circles_in(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let files_of =
            |circle: &Circle| circle.files.iter().map(|file| file.display().to_string()).collect();
        found_in(files).circles.iter().map(files_of).collect()
    }

    const B: &str = "use crate::a::A; pub struct B(A); pub const C: B = B(A); pub fn f() {}";

    #[test]
    fn a_circle_is_found_however_the_import_is_written() {
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
            assert_eq!(circles_in(&files), [["a.rs", "b.rs"]], "{text}");
            assert_eq!(found_in(&files).up.len(), 1, "{text}");
        }
    }

    #[test]
    fn no_import_is_found_where_there_is_none() {
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
            assert_eq!(found_in(&files), Findings { circles: vec![], up: vec![] }, "{text}");
        }
    }

    #[test]
    fn a_circle_through_a_parent_that_hands_on_is_found_and_leaves_the_parent_out() {
        let low = "use crate::high::High; pub struct Low;";
        let files = [
            ("lib.rs", "mod high; mod low; pub use high::High;"),
            ("high/mod.rs", "mod deep; pub(crate) use deep::High;"),
            ("high/deep.rs", "pub struct High(crate::low::Low);"),
            ("low.rs", low),
        ];
        assert_eq!(circles_in(&files), [["high/deep.rs", "low.rs"]]);
        let low = low.replace("high::", "");
        let files = [files[0], files[1], files[2], ("low.rs", low.as_str())];
        assert_eq!(circles_in(&files), [["high/deep.rs", "low.rs"]]);
    }

    #[test]
    fn siblings_that_meet_through_their_parent_are_no_circle_with_it() {
        let files = [
            ("lib.rs", "mod p; pub use p::A;"),
            ("p.rs", "mod a; mod b; pub use a::A; pub(crate) use b::b;"),
            ("p/a.rs", "pub struct A; fn g() { super::b(); crate::p::b::b(); }"),
            ("p/b.rs", "pub fn b() {}"),
        ];
        assert_eq!(circles_in(&files), [[""; 0]; 0]);
    }

    #[test]
    fn a_parent_that_uses_its_child_which_uses_it_is_a_circle() {
        for parent in ["mod a; pub struct P; fn g() { a::f() }", "mod a; use a::f; pub struct P;"] {
            let files = [
                ("main.rs", "mod p; fn main() {}"),
                ("p/mod.rs", parent),
                ("p/a.rs", "use super::P; pub fn f() {}"),
            ];
            assert_eq!(circles_in(&files), [["p/a.rs", "p/mod.rs"]], "{parent}");
        }
    }

    #[test]
    fn a_file_that_is_no_parent_is_imported_from_though_it_only_hands_on() {
        let files = [
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a.rs", "pub use crate::c::C; use crate::b::B;"),
            ("b.rs", "use crate::a::C; pub struct B;"),
            ("c.rs", "pub struct C;"),
        ];
        assert_eq!(circles_in(&files), [["a.rs", "b.rs"]]);
    }

    #[test]
    fn a_file_under_another_name_or_beside_the_folder_is_found() {
        let files = [
            ("lib.rs", "#[path = \"else/where.rs\"] mod a; mod b { pub mod c; }"),
            ("else/where.rs", "mod d; pub fn a() { d::d() }"),
            ("else/d.rs", "pub fn d() { crate::b::c::c() }"),
            ("b/c.rs", "pub fn c() { crate::a::a() }"),
        ];
        assert_eq!(circles_in(&files), [["b/c.rs", "else/d.rs", "else/where.rs"]]);
    }

    #[test]
    fn an_arrow_to_a_module_that_stands_above_points_up() {
        let (high, low) =
            ("pub struct High;", "fn g() { crate::high::deep::f(crate::high::High) }");
        let files = [
            ("lib.rs", "mod high; mod low;"),
            ("high.rs", &format!("pub mod deep; {high}")),
            ("high/deep.rs", "pub fn f(_: super::High) {}"),
            ("low.rs", low),
        ];
        let up: Vec<_> = found_in(&files).up.iter().map(Arrow::to_string).collect();
        assert_eq!(up, ["low.rs -> high/deep.rs: f", "low.rs -> high.rs: High"]);
        let files = [("lib.rs", "mod low; mod high;"), files[1], files[2], files[3]];
        assert!(found_in(&files).up.is_empty());
    }

    #[test]
    fn circles_that_do_not_meet_are_told_apart_and_each_arrow_has_its_line() {
        let files = [
            ("lib.rs", "mod a; mod b; mod c; mod d;"),
            ("a.rs", "use crate::b::B; pub struct A;"),
            ("b.rs", "use crate::{a::A, c::C}; pub struct B;"),
            ("c.rs", "use crate::d::D; pub struct C;"),
            ("d.rs", "use crate::c::C; pub struct D;"),
        ];
        let found = found_in(&files);
        assert_eq!((found.circles.len(), found.circled()), (2, 4));
        assert!(
            found.lines("x").starts_with("x: 2 files import each other\nx:   a.rs -> b.rs: B\n")
        );
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = examine("lib.rs".as_ref(), &|_| None).unwrap_err();
        assert_eq!(error, "lib.rs is not there");
    }
}
