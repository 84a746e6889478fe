//! The expression of `find`: tests and actions with `!`, `-a`, `-o`, `,` and parentheses, and options.

use super::find_tests::{Candidate, Test, number};
use super::quoting::for_message;
use super::volume_path::VolumePath;
use std::ffi::{OsStr, OsString};
use uringfs_lab::Error;

/// The help about expressions.
pub const HELP: &str = "\
Tests:
  -name GLOB, -iname GLOB  the name matches; -iname ignores the case of ASCII
                           letters
  -path GLOB, -ipath GLOB  the path in the volume matches; * also matches
                           slashes
  -type LETTERS            f file, d directory, l link, b and c device, p FIFO,
                           s socket; as in f,l
  -size [+-]N[cwbkMG]      the size, rounded up to the unit: c bytes, w 2 bytes,
                           b 512 bytes (the default), k, M, G; + more than,
                           - less than
  -mtime [+-]DAYS          modified so many days ago; -mmin the same in minutes;
                           -atime, -amin of the access, -ctime, -cmin of the
                           change of the inode
  -newer TARGET:/path      modified after this file; -newermt DATE after this
                           time, as in touch -d
  -empty                   a file of size 0, or a directory without entries
  -perm MODE               exactly this octal mode; -MODE all of these bits,
                           /MODE any of them
  -user NAME, -group NAME  of this owner, by name or number; -uid N, -gid N,
                           -inum N, -links N with [+-]
  -true, -false
Operators: ! TEST, TEST -a TEST (-a may be left out), TEST -o TEST,
TEST , TEST, and ( ) around them.
Actions, -print if there is none:
  -print, -print0          print the path; -print0 ends it with a zero byte, as
                           xargs -0 reads it
  -ls                      print the path with its attributes, as ls -dils
  -delete                  remove the file or the empty directory; contents come
                           before their directory
  -prune                   do not look into the directory; has no effect with
                           -depth, and is refused beside -delete without it
Options:
  -maxdepth N, -mindepth N levels of directories below the path
  -depth                   contents before their directory
  -json                    print JSON, with the attributes of each file";

/// The deepest nesting of parentheses and negations.
const MAX_NESTING: u32 = 100;

/// A command line after the paths.
pub struct Expression {
    root: Node,
    pub options: Options,
    /// The files of `-newer`.
    pub references: Vec<VolumePath>,
}

/// The options, which hold for the whole walk.
pub struct Options {
    pub min_depth: u64,
    pub max_depth: u64,
    pub is_contents_first: bool,
    pub prints_json: bool,
    pub expands_globs: bool,
    pub deletes: bool,
}

/// An action on a file that the tests before it accept.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Print,
    PrintZero,
    List,
    Delete,
    Prune,
}

enum Node {
    Test(Test),
    Action(Action),
    Constant(bool),
    Not(Box<Node>),
    And(Vec<Node>),
    Or(Vec<Node>),
    List(Vec<Node>),
}

impl Expression {
    /// Parses the arguments after the paths. `top` is the first path.
    pub fn parse(arguments: &[OsString], top: &VolumePath) -> Result<Self, Error> {
        let options = Options {
            min_depth: 0,
            max_depth: u64::MAX,
            is_contents_first: false,
            prints_json: false,
            expands_globs: false,
            deletes: false,
        };
        let mut parser = Parser {
            left: arguments,
            top,
            options,
            references: Vec::new(),
            has_output: false,
            prunes: false,
            has_depth_option: false,
            nesting: 0,
        };
        let mut root = match parser.left {
            [] => Node::Constant(true),
            _ => parser.list("find")?,
        };
        if let Some(left) = parser.peek() {
            return Err(Error::input(format!("find: {left} without (")));
        }
        if parser.prunes && parser.options.deletes && !parser.has_depth_option {
            return Err(Error::input(
                "find: -prune keeps nothing from -delete, which removes contents before their directory; use ! -path, or add \
                 -depth if nothing is to be kept",
            ));
        }
        if !parser.has_output {
            root = Node::And(vec![root, Node::Action(Action::Print)]);
        }
        Ok(Self { root, options: parser.options, references: parser.references })
    }

    /// Evaluates the expression for a file. `act` does an action and returns its result.
    pub fn evaluate(
        &self,
        file: &Candidate<'_>,
        act: &mut impl FnMut(Action) -> Result<bool, Error>,
    ) -> Result<bool, Error> {
        self.root.evaluate(file, act)
    }
}

impl Node {
    fn evaluate(
        &self,
        file: &Candidate<'_>,
        act: &mut impl FnMut(Action) -> Result<bool, Error>,
    ) -> Result<bool, Error> {
        match self {
            Node::Test(test) => test.accepts(file),
            Node::Action(action) => act(*action),
            Node::Constant(value) => Ok(*value),
            Node::Not(node) => Ok(!node.evaluate(file, act)?),
            Node::And(nodes) => Ok(Self::find(nodes, false, file, act)?.is_none()),
            Node::Or(nodes) => Ok(Self::find(nodes, true, file, act)?.is_some()),
            Node::List(nodes) => {
                let mut value = true;
                for node in nodes {
                    value = node.evaluate(file, act)?;
                }
                Ok(value)
            }
        }
    }

    /// The first of the nodes that has this value. Those behind it are not evaluated.
    fn find<'n>(
        nodes: &'n [Node],
        value: bool,
        file: &Candidate<'_>,
        act: &mut impl FnMut(Action) -> Result<bool, Error>,
    ) -> Result<Option<&'n Node>, Error> {
        for node in nodes {
            if node.evaluate(file, act)? == value {
                return Ok(Some(node));
            }
        }
        Ok(None)
    }
}

struct Parser<'p> {
    left: &'p [OsString],
    top: &'p VolumePath,
    options: Options,
    references: Vec<VolumePath>,
    /// Whether an action other than `-prune` was given.
    has_output: bool,
    prunes: bool,
    has_depth_option: bool,
    nesting: u32,
}

impl<'p> Parser<'p> {
    fn peek(&self) -> Option<&'p str> {
        // An argument that is not UTF-8 is no operator, and an unknown test.
        self.left.first().map(|first| first.to_str().unwrap_or("?"))
    }

    fn next_if(&mut self, names: &[&str]) -> Option<&'p str> {
        let found = self.peek().filter(|name| names.contains(name))?;
        self.left = &self.left[1..];
        Some(found)
    }

    fn value(&mut self, name: &str) -> Result<&'p OsStr, Error> {
        let (first, behind) = self
            .left
            .split_first()
            .ok_or_else(|| Error::input(format!("find: {name}: the value is missing")))?;
        self.left = behind;
        Ok(first)
    }

    /// Expressions between commas. `after` is the argument before them.
    fn list(&mut self, after: &str) -> Result<Node, Error> {
        self.joined(after, &[","], Self::or, Node::List)
    }

    fn or(&mut self, after: &str) -> Result<Node, Error> {
        self.joined(after, &["-o", "-or"], Self::and, Node::Or)
    }

    fn and(&mut self, after: &str) -> Result<Node, Error> {
        let mut nodes = vec![self.primary(after)?];
        loop {
            let operator = self.next_if(&["-a", "-and"]);
            match (operator, self.peek()) {
                (None, None | Some(")" | "," | "-o" | "-or")) => break,
                (operator, _) => nodes.push(self.primary(operator.unwrap_or("find"))?),
            }
        }
        Ok(if nodes.len() == 1 { nodes.remove(0) } else { Node::And(nodes) })
    }

    /// Operands of one kind with an operator between each two.
    fn joined(
        &mut self,
        after: &str,
        operators: &[&str],
        operand: fn(&mut Self, &str) -> Result<Node, Error>,
        join: fn(Vec<Node>) -> Node,
    ) -> Result<Node, Error> {
        let mut nodes = vec![operand(self, after)?];
        while let Some(operator) = self.next_if(operators) {
            nodes.push(operand(self, operator)?);
        }
        Ok(if nodes.len() == 1 { nodes.remove(0) } else { join(nodes) })
    }

    fn primary(&mut self, after: &str) -> Result<Node, Error> {
        let missing =
            |place, name| Error::input(format!("find: {name}: a test is missing {place} it"));
        let name = match self.peek() {
            None | Some(")") => return Err(missing("after", after)),
            Some(operator @ ("-o" | "-or" | "-a" | "-and" | ",")) => {
                return Err(missing("before", operator));
            }
            Some(name) => name,
        };
        let argument = &self.left[0];
        self.left = &self.left[1..];
        match name {
            "!" | "-not" => self.nested(|parser| Ok(Node::Not(Box::new(parser.primary(name)?)))),
            "(" => self.nested(|parser| {
                let inner = parser.list(name)?;
                match parser.next_if(&[")"]) {
                    Some(_) => Ok(inner),
                    None => Err(Error::input("find: ( without )")),
                }
            }),
            _ => self.leaf(name, argument),
        }
    }

    fn nested(
        &mut self,
        parse: impl FnOnce(&mut Self) -> Result<Node, Error>,
    ) -> Result<Node, Error> {
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            return Err(Error::input(format!("find: more than {MAX_NESTING} levels of ( and !")));
        }
        let node = parse(self);
        self.nesting -= 1;
        node
    }

    /// A test, an action or an option.
    fn leaf(&mut self, name: &str, argument: &OsStr) -> Result<Node, Error> {
        let action = match name {
            "-print" => Some(Action::Print),
            "-print0" => Some(Action::PrintZero),
            "-ls" => Some(Action::List),
            "-delete" => Some(Action::Delete),
            "-prune" => Some(Action::Prune),
            _ => None,
        };
        if let Some(action) = action {
            self.has_output |= action != Action::Prune;
            self.prunes |= action == Action::Prune;
            self.options.deletes |= action == Action::Delete;
            self.options.is_contents_first |= action == Action::Delete;
            return Ok(Node::Action(action));
        }
        match name {
            "-json" | "--json" => self.options.prints_json = true,
            "--glob" => self.options.expands_globs = true,
            "-depth" => {
                self.options.is_contents_first = true;
                self.has_depth_option = true;
            }
            "-maxdepth" => self.options.max_depth = number(name, self.value(name)?)?,
            "-mindepth" => self.options.min_depth = number(name, self.value(name)?)?,
            "-true" => {}
            "-false" => return Ok(Node::Constant(false)),
            "-empty" => return Ok(Node::Test(Test::Empty)),
            "-newer" => {
                let path = VolumePath::parse(self.value(name)?)?;
                path.require_volume_of(self.top, "name paths of one volume")?;
                self.references.push(path);
                return Ok(Node::Test(Test::NewerThanFile(self.references.len() - 1)));
            }
            _ => {
                let test = Test::with_value(name, &mut || self.value(name));
                let unknown = || {
                    let known = "see uringfs find --help for the known ones";
                    let shown = for_message(argument);
                    Err(Error::input(format!("find: {shown}: unknown test; {known}")))
                };
                return test.unwrap_or_else(unknown).map(Node::Test);
            }
        }
        Ok(Node::Constant(true))
    }
}
