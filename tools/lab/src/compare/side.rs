//! One side of a comparison, as the command line gives it: `engine=fio iodepth=4 direct.simple_read=off`.

use crate::Error;
use crate::engine::{EngineConfig, EngineKind};
use crate::job::{JobSet, Parser, UnknownKeys, VariableLookup, find_key, nearest};
use crate::run::{Overwrite, Plan};
use std::path::{Path, PathBuf};
use uringfs::Options;

/// The keys that say how a side runs its jobs; all others are keys of the jobs, or switches.
const OWN_KEYS: [&str; 4] = ["engine", "exec", "target", "results"];

/// The methods of fio that stand for an engine: fio with that `ioengine`.
const FIO_METHODS: [&str; 3] = ["io_uring", "io_uring_cmd", "libaio"];

/// One side.
#[derive(Debug, Clone)]
pub struct Side {
    /// Its keys, as given; empty for the jobs as they are.
    pub given: String,
    /// Where its figures come from.
    pub source: SideSource,
    /// fio keys that replace those of every job.
    keys: Vec<(String, String)>,
}

/// Where the figures of a side come from.
#[derive(Debug, Clone)]
pub enum SideSource {
    /// An engine of this program, or fio.
    Engine(EngineConfig),
    /// Another build of this program, with an engine and switches.
    Program {
        /// The program.
        path: PathBuf,
        /// Its engine and switches.
        config: EngineConfig,
    },
    /// Files of fio's JSON, one a run.
    Files(Vec<PathBuf>),
}

impl Side {
    /// A side that runs the jobs as they are on an engine of this program.
    pub(super) fn from_engine(engine: EngineKind) -> Self {
        let source = SideSource::Engine(EngineConfig::new(engine));
        Self { given: String::new(), source, keys: Vec::new() }
    }

    /// A side from its keys, `KEY=VALUE` each. The last of equal keys counts.
    ///
    /// # Errors
    /// A key is unknown, or its value is not one of its values.
    pub fn parse(pairs: &[String]) -> Result<Self, Error> {
        let mut side = Self { given: pairs.join(" "), ..Self::from_engine(EngineKind::default()) };
        let (mut config, mut program) = (EngineConfig::new(EngineKind::default()), None);
        let (mut engine_given, mut files) = (false, Vec::new());
        // The position of the key that an engine stands for.
        let mut method: Option<usize> = None;
        for pair in pairs {
            let Some((key, value)) = pair.split_once('=') else {
                let line = format!(
                    "`{pair}` is not KEY=VALUE, as in time_based=1; job files come before --a and --b"
                );
                return Err(Error::input(line));
            };
            match key {
                "engine" => {
                    engine_given = true;
                    if let Some(at) = method.take() {
                        side.keys.remove(at);
                    }
                    if FIO_METHODS.contains(&value) {
                        config.engine = EngineKind::Fio;
                        method = Some(side.keys.len());
                        side.keys.push(("ioengine".into(), value.into()));
                    } else {
                        config.engine = value.parse()?;
                    }
                }
                "exec" => program = Some(PathBuf::from(value)),
                "results" => files.push(PathBuf::from(value)),
                "name" => {
                    let line = "name= renames every job, so that the sides have none in common";
                    return Err(Error::input(line));
                }
                "target" => side.keys.push(("filename".into(), value.into())),
                _ if find_key(key).is_some() => side.keys.push((key.into(), value.into())),
                _ => config.settings.push(switch(key, value)?),
            }
        }
        side.source = match program {
            _ if !files.is_empty() => {
                if files.len() < pairs.len() {
                    return Err(Error::input(
                        "results= is of runs that have ended; it has no other keys",
                    ));
                }
                SideSource::Files(files)
            }
            Some(path) if is_fio(&path)? => {
                if engine_given && config.engine != EngineKind::Fio {
                    let line = format!("exec={} is fio; its engine is ioengine=", path.display());
                    return Err(Error::input(line));
                }
                SideSource::Engine(EngineConfig {
                    engine: EngineKind::Fio,
                    program: path,
                    ..config
                })
            }
            Some(path) => SideSource::Program { path, config },
            None => SideSource::Engine(config),
        };
        let engine = side.engine();
        match side.settings().first() {
            Some((name, _)) if engine.is_some_and(|engine| engine != EngineKind::Uringfs) => {
                Err(Error::input(format!("{name}: only engine uringfs has switches")))
            }
            _ => Ok(side),
        }
    }

    /// The engine that runs its jobs; `None` if they have been run.
    pub fn engine(&self) -> Option<EngineKind> {
        match &self.source {
            SideSource::Engine(config) | SideSource::Program { config, .. } => Some(config.engine),
            SideSource::Files(_) => None,
        }
    }

    pub(super) fn settings(&self) -> &[(String, String)] {
        match &self.source {
            SideSource::Engine(config) | SideSource::Program { config, .. } => &config.settings,
            SideSource::Files(_) => &[],
        }
    }

    /// Its jobs: those of the files, with its own keys. In the files `${TARGET}` is its target.
    pub fn jobs(
        &self,
        files: &[PathBuf],
        lookup: VariableLookup<'_>,
        unknown: UnknownKeys,
    ) -> Result<JobSet, Error> {
        let target = self.keys.iter().rfind(|(key, _)| key == "filename");
        let with_target = |name: &str| match target {
            Some((_, target)) if name == "TARGET" => Some(target.clone()),
            _ => lookup(name),
        };
        let mut parser = Parser::new(&with_target, unknown);
        self.replace_keys(&mut parser);
        files.iter().try_for_each(|path| parser.file(path))?;
        parser.finish()
    }

    /// Sets its job keys in every job that the parser reads from now on.
    pub(crate) fn replace_keys(&self, parser: &mut Parser<'_>) {
        self.keys.iter().for_each(|(key, value)| parser.replace(key, value));
    }

    /// Plans its jobs, and inspects their targets.
    pub(crate) fn plan(&self, set: &JobSet, overwrite: Overwrite) -> Result<Option<Plan>, Error> {
        let plan = |engine: EngineKind| Plan::new(&set.jobs, engine.capabilities(), overwrite);
        self.engine().map(plan).transpose()
    }
}

/// A checked switch of the stack.
fn switch(name: &str, value: &str) -> Result<(String, String), Error> {
    match Options::default().set(name, value) {
        Ok(()) => Ok((name.into(), value.into())),
        Err(problem) if Options::switches().any(|(known, _)| known == name) => {
            Err(Error::input(problem))
        }
        Err(_) => {
            let switches = Options::switches().map(|(known, _)| known);
            let hint = nearest(name, switches.chain(OWN_KEYS));
            let hint = hint.map_or(String::new(), |near| format!("; the nearest is `{near}`"));
            let line = format!(
                "`{name}` is no key of jobs, no switch, and none of {}{hint}",
                OWN_KEYS.join(", ")
            );
            Err(Error::input(line))
        }
    }
}

/// Whether a program is fio, by what it says of itself.
fn is_fio(path: &Path) -> Result<bool, Error> {
    let output = std::process::Command::new(path).arg("--version").output();
    let output = output.map_err(|error| {
        Error::input(format!("exec={}: cannot run it", path.display())).because(error)
    })?;
    match String::from_utf8_lossy(&output.stdout) {
        version if version.starts_with("fio-") => Ok(true),
        version if version.starts_with("uringfs ") => Ok(false),
        version => Err(Error::input(format!(
            "exec={}: is neither fio nor uringfs: --version prints {:?}",
            path.display(),
            version.lines().next().unwrap_or_default()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Side, String> {
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        Side::parse(&words).map_err(|error| error.to_string())
    }

    #[test]
    fn keys_are_sorted_into_engine_switches_and_job_keys() {
        let side =
            parse("engine=uringfs direct.simple_read=off iodepth=4 completion=worker").unwrap();
        assert_eq!(side.engine(), Some(EngineKind::Uringfs));
        let pair = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        assert_eq!(
            side.settings(),
            [("direct.simple_read", "off"), ("completion", "worker")].map(pair)
        );
        assert_eq!(side.keys, [("iodepth", "4")].map(pair));
        assert_eq!(parse("").unwrap().engine(), Some(EngineKind::default()));
        assert_eq!(parse("results=a.json results=b.json").unwrap().engine(), None);
    }

    #[test]
    fn a_method_of_fio_is_an_engine() {
        let side = parse("engine=libaio iodepth=4").unwrap();
        let pair = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        assert_eq!(side.engine(), Some(EngineKind::Fio));
        assert_eq!(side.keys, [("ioengine", "libaio"), ("iodepth", "4")].map(pair));
        let later = parse("engine=libaio iodepth=4 engine=fio").unwrap();
        assert_eq!((later.engine(), later.keys.len()), (Some(EngineKind::Fio), 1));
    }

    #[test]
    fn wrong_keys_are_refused_with_a_hint() {
        for (text, part) in [
            ("direct.simple_reed=off", "nearest is `direct.simple_read`"),
            ("direct.simple_read=maybe", "direct.simple_read"),
            ("engine=fyo", "unknown engine"),
            ("engine=ring direct.simple_read=off", "only engine uringfs has switches"),
            ("job.fio", "job files come before"),
            ("results=a.json engine=fio", "no other keys"),
            ("exec=/nonexistent", "/nonexistent: cannot run it"),
            ("exec=/bin/true", "neither fio nor uringfs"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn the_target_of_a_side_is_its_file_and_the_variable() {
        let folder = tempfile::tempdir().unwrap();
        let job = folder.path().join("j.fio");
        std::fs::write(&job, "[a]\nfilename=${TARGET}\n[b]\nsize=1m\n").unwrap();
        let jobs = |text: &str| {
            parse(text).unwrap().jobs(std::slice::from_ref(&job), &|_| None, UnknownKeys::Refuse)
        };
        let set = jobs("target=null:1m").unwrap();
        assert!(set.jobs.iter().all(|job| job.options.filename.as_deref() == Some("null:1m")));
        assert!(jobs("").unwrap_err().to_string().contains("TARGET"));
    }
}
