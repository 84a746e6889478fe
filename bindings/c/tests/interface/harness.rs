//! Compiles C programs against the header and the library that these tests are built with.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tempfile::TempDir;

/// The folder of this crate.
pub fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[derive(Clone, Copy)]
pub enum Language {
    C,
    Cpp,
}

impl Language {
    fn compiler(self) -> &'static str {
        match self {
            Language::C => "cc",
            Language::Cpp => "c++",
        }
    }
}

/// Runs the compiler, with a program on its standard input if there is one.
///
/// # Panics
/// With all that it prints, when it fails.
pub fn run_compiler<S: AsRef<OsStr>>(language: Language, arguments: &[S], input: Option<&str>) {
    let mut command = Command::new(language.compiler());
    command.arg("-I").arg(folder().join("include")).args(arguments);
    if input.is_some() {
        let name = match language {
            Language::C => "c",
            Language::Cpp => "c++",
        };
        command.args(["-x", name, "-"]);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| {
        panic!("{}: {error}; install it: apt-get install build-essential", language.compiler())
    });
    let mut stdin = child.stdin.take().expect("it is a pipe");
    stdin.write_all(input.unwrap_or_default().as_bytes()).expect("the compiler reads its input");
    drop(stdin);
    let output = child.wait_with_output().expect("the compiler ends");
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{printed}", output.status);
}

/// A compiled program.
pub struct Program {
    folder: TempDir,
    library: Arc<Library>,
}

impl Program {
    /// Compiles a program of these tests.
    pub fn test(name: &str) -> Program {
        Program::compile(&folder().join("tests/programs").join(name), &[])
    }

    /// Compiles a program with all warnings and these options, for the shared library.
    pub fn compile(source: &Path, options: &[&str]) -> Program {
        let library = Library::installed();
        let mut flags = library.pkg_config(&["--cflags", "--libs", "liburingfs"]);
        flags.extend(options.iter().map(|option| (*option).to_owned()));
        Program::link(source, library, &flags)
    }

    /// Compiles a program with all warnings and these options.
    pub fn link<S: AsRef<OsStr>>(source: &Path, library: Arc<Library>, options: &[S]) -> Program {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let program = Program { folder, library };
        let is_cpp = source.extension().is_some_and(|extension| extension == "cpp");
        let (language, standard) =
            if is_cpp { (Language::Cpp, "-std=c++17") } else { (Language::C, "-std=c11") };
        let warnings = [standard, "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror"];
        let mut arguments: Vec<&OsStr> = warnings.map(OsStr::new).into();
        let path = program.path();
        arguments.extend([source.as_os_str(), OsStr::new("-o"), path.as_os_str()]);
        arguments.extend(options.iter().map(AsRef::as_ref));
        run_compiler(language, &arguments, None);
        program
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("program")
    }

    /// Runs the program. Returns what it prints.
    ///
    /// # Panics
    /// With what it prints, when it fails.
    pub fn run<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> String {
        self.run_by(Command::new(self.path()), arguments)
    }

    /// Runs the program in this folder. Returns what it prints.
    ///
    /// # Panics
    /// With what it prints, when it fails.
    pub fn run_in(&self, folder: &Path) -> String {
        let mut command = Command::new(self.path());
        command.current_dir(folder);
        self.run_by::<&str>(command, [])
    }

    /// Runs the program by another one, whose options are there.
    pub fn run_under<S: AsRef<OsStr>>(
        &self,
        mut wrapper: Command,
        arguments: impl IntoIterator<Item = S>,
    ) -> String {
        wrapper.arg(self.path());
        self.run_by(wrapper, arguments)
    }

    fn run_by<S: AsRef<OsStr>>(
        &self,
        mut command: Command,
        arguments: impl IntoIterator<Item = S>,
    ) -> String {
        command.args(arguments).env("LD_LIBRARY_PATH", self.library.prefix().join("lib"));
        run(&mut command, "apt-get install valgrind")
    }
}

/// The library of these tests, installed below a folder that is gone with its last user.
pub struct Library(TempDir);

impl Library {
    /// Builds it, unless another test uses it.
    pub fn installed() -> Arc<Library> {
        static INSTALLED: Mutex<Weak<Library>> = Mutex::new(Weak::new());
        let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(library) = installed.upgrade() {
            return library;
        }
        let root = tempfile::tempdir().expect("a temporary folder can be made");
        let mut command = Command::new(folder().join("build"));
        command.args(["--prefix", PREFIX, "--archive"]).arg(archive());
        run(command.arg("--destdir").arg(root.path()), "it is part of the repository");
        let library = Arc::new(Library(root));
        *installed = Arc::downgrade(&library);
        library
    }

    /// The folder that is the prefix.
    pub fn prefix(&self) -> PathBuf {
        self.0.path().join(PREFIX.trim_start_matches('/'))
    }

    /// The output of pkg-config, one option an item.
    pub fn pkg_config(&self, arguments: &[&str]) -> Vec<String> {
        let mut command = Command::new("pkg-config");
        command.args(arguments).env("PKG_CONFIG_PATH", self.prefix().join("lib/pkgconfig"));
        command.env("PKG_CONFIG_SYSROOT_DIR", self.0.path());
        let printed = run(&mut command, "apt-get install pkg-config");
        printed.split_whitespace().map(str::to_owned).collect()
    }
}

/// No folder where compilers look by themselves.
const PREFIX: &str = "/opt/uringfs";

/// The archive of this crate, which cargo has made for these tests: the newest, beside them.
pub fn archive() -> PathBuf {
    let tests = env::current_exe().expect("a test has a path");
    let entries =
        fs::read_dir(tests.parent().expect("it is in a folder")).expect("the folder can be listed");
    let archives = entries.map(|entry| entry.expect("the folder can be listed")).filter(|entry| {
        let name = entry.file_name().into_string().unwrap_or_default();
        name.starts_with("liburingfs_c-") && name.ends_with(".a")
    });
    let changed =
        |entry: &fs::DirEntry| entry.metadata().and_then(|metadata| metadata.modified()).ok();
    archives.max_by_key(changed).expect("cargo makes the archive for its tests").path()
}

/// Runs a command. Returns what it prints.
///
/// # Panics
/// With what it prints, when it fails, and with how to install it, when it is missing.
pub fn run(command: &mut Command, install: &str) -> String {
    let output = command.output();
    let output =
        output.unwrap_or_else(|error| panic!("{command:?}: {error}; install it: {install}"));
    let [printed, errors] =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success(), "{command:?}: {}\n{printed}{errors}", output.status);
    printed
}

/// The functions of the header.
pub fn declared_functions() -> BTreeSet<String> {
    let header = fs::read_to_string(folder().join("include/uringfs.h"));
    let header = header.expect("the header can be read");
    // Lines of declarations begin with a type; those of comments mention functions, too.
    let declarations =
        header.lines().filter(|line| line.starts_with(|first: char| first.is_ascii_lowercase()));
    let names = declarations.filter_map(|line| line.split_once('(')?.0.rsplit([' ', '*']).next());
    names.map(str::to_owned).collect()
}
