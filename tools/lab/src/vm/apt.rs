//! Fetches Debian packages without root: apt with its own state in a directory, from the mirror that this
//! machine's apt uses. It neither reads nor changes the machine's package state.

use super::file_name::file_name;
use super::process::{ProcessLimits, ProcessResult, run};
use crate::Error;
use crate::run::RunProgress;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The Debian release of the guests; its backports have the newer kernels.
const RELEASE: &str = "bookworm";

/// The advice when packages cannot be fetched.
const HELP: &str = "the guest is made of Debian packages (a cloud kernel of bookworm and one of its \
                    backports, busybox-static, e2fsprogs, xfsprogs, and QEMU if it is not \
                    installed); fetch them once with --cache DIR on a Debian machine with a network, \
                    then copy DIR";

/// apt, with its state in a directory.
pub struct Apt<'a> {
    folder: &'a Path,
    /// The limits of each of apt's programs.
    pub limits: ProcessLimits<'a>,
    progress: &'a RunProgress,
}

/// An available package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
}

impl<'a> Apt<'a> {
    /// apt with its state in `folder` and current package lists.
    ///
    /// # Errors
    /// This machine has no apt, or its mirror cannot be reached. The message says what is needed.
    pub fn new(
        folder: &'a Path,
        limits: ProcessLimits<'a>,
        progress: &'a RunProgress,
    ) -> Result<Self, Error> {
        let apt = Self { folder, limits, progress };
        for part in ["lists/partial", "archives/partial"] {
            std::fs::create_dir_all(folder.join(part)).map_err(failed)?;
        }
        std::fs::write(folder.join("status"), "").map_err(failed)?;
        progress.set_activity("Fetching the lists of packages");
        let sources = apt.sources()?;
        std::fs::write(folder.join("sources.list"), sources).map_err(failed)?;
        apt.lines("apt-get", &["update"])?;
        Ok(apt)
    }

    /// Packages whose names match a pattern, in all available versions.
    pub fn search(&self, pattern: &str) -> Result<Vec<Package>, Error> {
        let found = self.lines("apt-cache", &["search", "--names-only", pattern])?;
        let mut names: Vec<&str> =
            found.iter().filter_map(|line| line.split_whitespace().next()).collect();
        names.sort_unstable();
        names.dedup();
        self.show(&names, &["--all-versions"])
    }

    /// The packages with these names, in the versions that apt would install.
    pub fn named(&self, names: &[&str]) -> Result<Vec<Package>, Error> {
        self.show(names, &["--no-all-versions"])
    }

    /// The package `name` and all its dependencies.
    pub fn with_dependencies(&self, name: &str) -> Result<Vec<Package>, Error> {
        let install =
            ["install", "--simulate", "--no-install-recommends", "-o", "Debug::NoLocking=1", name];
        let plan = self.lines("apt-get", &install)?;
        let names: Vec<&str> = plan
            .iter()
            .filter_map(|line| line.strip_prefix("Inst ")?.split_whitespace().next())
            .collect();
        self.named(&names)
    }

    /// Fetches packages and unpacks each into the directory that `place` returns for it.
    pub fn unpack(
        &self,
        packages: &[Package],
        place: &dyn Fn(&Package) -> PathBuf,
    ) -> Result<(), Error> {
        let wanted: Vec<String> = packages
            .iter()
            .map(|Package { name, version, .. }| format!("{name}={version}"))
            .collect();
        // "Get:3 URI SUITE NAME ARCHITECTURE NAME VERSION [SIZE]", one line per package.
        let arguments =
            [&["download", "-q"], &wanted.iter().map(String::as_str).collect::<Vec<_>>()[..]];
        self.run_checked(self.command("apt-get", &arguments.concat()), &mut |line| {
            let mut words = line.split_whitespace().skip(1);
            if let (true, Some(name)) = (line.starts_with("Get:"), words.nth(3)) {
                self.progress
                    .set_activity(&format!("Fetching {} packages: {name}", packages.len()));
            }
        })?;
        let archives = debs(&self.folder.join("archives"))?;
        for package in packages {
            self.progress.set_activity(&format!("Unpacking {}", package.name));
            // NAME_VERSION_ARCHITECTURE.deb, with some characters of the version escaped.
            let begin = format!("{}_", package.name);
            let mut archives = archives.iter();
            let archive = archives
                .find(|path| file_name(path).starts_with(&begin))
                .ok_or_else(|| Error::run(format!("apt-get did not fetch {}", package.name)))?;
            let folder = place(package);
            std::fs::create_dir_all(&folder).map_err(failed)?;
            let mut unpack = Command::new("dpkg-deb");
            unpack.arg("-x").args([archive, &folder]);
            self.run_checked(unpack, &mut |_| {})?;
        }
        Ok(())
    }

    fn show(&self, names: &[&str], versions: &[&str]) -> Result<Vec<Package>, Error> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let lines = self.lines("apt-cache", &[&["show"], versions, names].concat())?;
        Ok(parse_stanzas(&lines))
    }

    /// The sources.list for the guest's release, on the mirror that this machine uses.
    ///
    /// The signed release files show which of the machine's sources are Debian's. They are fetched, because
    /// the machine may have none yet. Suite names are not enough: other repositories use them, too.
    fn sources(&self) -> Result<String, Error> {
        const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
        let mut update = self.with_state("apt-get");
        update.args(["-o", "Acquire::IndexTargets::deb::Packages::DefaultEnabled=false", "update"]);
        // A source that is unreachable or invalid matters only if no other source is Debian's.
        let updated = self.run(&mut update, &mut |_| {})?;
        let mut list_uris = self.with_state("apt-get");
        list_uris.args(["update", "--print-uris"]);
        let mut releases = Vec::new();
        self.run(&mut list_uris, &mut |line| {
            if let Some((uri, name)) = release_file(line) {
                let text = std::fs::read_to_string(self.folder.join("lists").join(name));
                releases.push((uri.to_owned(), text.unwrap_or_default()));
            }
        })?;
        let keyring = Some(KEYRING).filter(|path| Path::new(path).exists());
        sources_list(&releases, keyring).ok_or_else(|| {
            let why = if updated.succeeded() && updated.stderr.is_empty() {
                String::new()
            } else {
                format!(" ({})", error_line(&updated))
            };
            let what = "none of the sources of this machine's apt is a reachable Debian mirror";
            Error::run(format!("{what}{why}; {HELP}"))
        })
    }

    /// The output lines of one of apt's programs, run with our state and sources.
    fn lines(&self, program: &str, arguments: &[&str]) -> Result<Vec<String>, Error> {
        let mut lines = Vec::new();
        self.run_checked(self.command(program, arguments), &mut |line| {
            lines.push(line.to_owned())
        })?;
        Ok(lines)
    }

    /// A command of one of apt's programs, with our state and our sources.
    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = self.with_state(program);
        let list = self.folder.join("sources.list");
        command.arg("-o").arg(format!("Dir::Etc::sourcelist={}", list.display()));
        command.args(["-o", "Dir::Etc::sourceparts=/dev/null"]);
        // Without this option a list that cannot be fetched gives only a warning.
        command.args(["-o", "APT::Update::Error-Mode=any"]).args(arguments);
        command
    }

    /// A command of one of apt's programs, with our state and the machine's sources.
    fn with_state(&self, program: &str) -> Command {
        let at = |name: &str| self.folder.join(name).display().to_string();
        let options = [
            ("Dir::Etc::preferencesparts", "/dev/null".into()),
            ("Dir::State", at("")),
            ("Dir::State::lists", at("lists")),
            ("Dir::State::status", at("status")),
            ("Dir::Cache", at("")),
            ("Dir::Cache::archives", at("archives")),
            ("Acquire::Languages", "none".into()),
            ("Acquire::IndexTargets::deb::DEP-11::DefaultEnabled", "false".into()),
            ("Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled", "false".into()),
            // As root, apt would fetch as a user without write permission here.
            ("APT::Sandbox::User", "root".into()),
            ("APT::Architecture", "amd64".into()),
            // Give up early on a mirror that does not respond, and retry after errors.
            ("Acquire::http::Timeout", "30".into()),
            ("Acquire::Retries", "3".into()),
        ];
        let mut command = Command::new(program);
        for (name, value) in options {
            command.arg("-o").arg(format!("{name}={value}"));
        }
        command.current_dir(self.folder.join("archives"));
        command
    }

    /// Runs a command that must succeed.
    fn run_checked(&self, mut command: Command, line: &mut dyn FnMut(&str)) -> Result<(), Error> {
        let ended = self.run(&mut command, line)?;
        if ended.succeeded() {
            return Ok(());
        }
        let name = command.get_program().to_string_lossy();
        Err(Error::run(format!("{name} failed: {}; {HELP}", error_line(&ended))))
    }

    /// Runs a command in the C locale, so that its output is not translated.
    fn run(
        &self,
        command: &mut Command,
        line: &mut dyn FnMut(&str),
    ) -> Result<ProcessResult, Error> {
        run(command.env("LC_ALL", "C"), self.limits, line)
    }
}

/// The first line with apt's prefix for errors, else the last error line.
fn error_line(ended: &ProcessResult) -> &str {
    let error = ended.stderr.lines().find_map(|line| line.strip_prefix("E: "));
    error.filter(|_| ended.status.is_some()).unwrap_or(ended.error_line())
}

/// Parses a line of `apt-get update --print-uris`: `'ADDRESS/dists/SUITE/InRelease' NAME SIZE`. Returns the
/// repository's address and the name of its release file; `None` for other files.
fn release_file(line: &str) -> Option<(&str, &str)> {
    let (uri, rest) = line.strip_prefix('\'')?.split_once('\'')?;
    let (repository, _) = uri.strip_suffix("/InRelease")?.rsplit_once("/dists/")?;
    Some((repository, rest.split_whitespace().next()?))
}

/// The text of a sources.list. `releases` has the addresses of this machine's repositories, with the texts
/// of their release files. `None` if Debian is not among them.
fn sources_list(releases: &[(String, String)], keyring: Option<&str>) -> Option<String> {
    let mirror = |label: &str| {
        let fields = ["Origin: Debian", label];
        let mut mirrors = releases
            .iter()
            .filter(|(_, text)| fields.iter().all(|field| text.lines().any(|line| line == *field)));
        mirrors.next().map(|(uri, _)| uri)
    };
    let option = keyring.map(|path| format!("[signed-by={path}] ")).unwrap_or_default();
    let main = mirror("Label: Debian")?;
    let mut lines = format!("deb {option}{main} {RELEASE} main\n");
    lines += &format!("deb {option}{main} {RELEASE}-backports main\n");
    if let Some(security) = mirror("Label: Debian-Security") {
        lines += &format!("deb {option}{security} {RELEASE}-security main\n");
    }
    Some(lines)
}

/// Parses the output of `apt-cache show`: stanzas of `Field: value`, separated by empty lines.
fn parse_stanzas(lines: &[String]) -> Vec<Package> {
    let stanzas = lines.split(|line| line.is_empty());
    let packages = stanzas.filter_map(|stanza| {
        let field = |name: &str| {
            let mut fields = stanza.iter().filter_map(|line| line.split_once(": "));
            fields.find(|(field, _)| *field == name).map(|(_, value)| value.to_owned())
        };
        Some(Package { name: field("Package")?, version: field("Version")? })
    });
    packages.collect()
}

fn debs(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = std::fs::read_dir(folder).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let paths = entries.map_err(failed)?.into_iter().map(|entry| entry.path());
    Ok(paths.filter(|path| path.extension().is_some_and(|end| end == "deb")).collect())
}

fn failed(error: std::io::Error) -> Error {
    Error::run("cannot write packages to the cache").because(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn the_mirror_is_this_machine_s_for_any_suite_name() {
        let release = |uri: &str, origin: &str, label: &str| {
            let text = format!("Hash: SHA256\n\nOrigin: {origin}\nLabel: {label}\nSuite: stable\n");
            (uri.to_owned(), text)
        };
        let releases = [
            release("http://other.example/debian", "Other", "Debian"),
            release("http://gone.example/debian", "", ""),
            release("http://mirror.example/backports", "Debian", "Debian Backports"),
            release("http://mirror.example/debian", "Debian", "Debian"),
            release("http://mirror.example/security", "Debian", "Debian-Security"),
        ];
        let list = sources_list(&releases, Some("/k.gpg")).unwrap();
        let expected = "deb [signed-by=/k.gpg] http://mirror.example/debian bookworm main\n\
                        deb [signed-by=/k.gpg] http://mirror.example/debian bookworm-backports main\n\
                        deb [signed-by=/k.gpg] http://mirror.example/security bookworm-security main\n";
        assert_eq!(list, expected);
        assert_eq!(sources_list(&releases[..3], None), None);
    }

    #[test]
    fn release_files_are_distinguished_from_other_lists() {
        let file = "'http://m.example/debian/dists/stable/InRelease' m.example_InRelease 0 ";
        let expected = ("http://m.example/debian", "m.example_InRelease");
        assert_eq!(release_file(file), Some(expected));
        let list =
            "'http://m.example/debian/dists/stable/main/binary-amd64/Packages.xz' m.example_P 0 ";
        assert_eq!(release_file(list), None);
    }

    #[test]
    fn stanzas_become_packages() {
        let text = "Package: a\nVersion: 1.2-3\nDescription: x: y\n more\n\nPackage: b\n\n";
        let expected = Package { name: "a".into(), version: "1.2-3".into() };
        assert_eq!(parse_stanzas(&lines(text)), [expected]);
    }
}
