//! Parses fio job files and fio keys of the command line into jobs with typed, checked options. All keys
//! and values that cannot be used are one error, each with file, line and the nearest known key.
//!
//! A parser takes any number of files and keys, in order. Keys before the first `--name` are global, as
//! with fio; later files may set them again.

mod block_split;
mod direction;
mod distribution;
mod file_service;
mod help;
mod iolog;
mod keys;
mod nearest;
mod normalize;
mod options;
mod pattern;
mod replay_options;
mod steady_state;
mod text;
mod unsupported;
mod value;
mod variables;
mod zones;

#[cfg(test)]
mod tests;

pub use block_split::BlockShare;
pub use direction::{DIRECTIONS, IoOp};
pub use distribution::Distribution;
pub use file_service::{FileOrder, FileService};
pub use help::{describe_key, list_keys};
pub use iolog::{IoLog, ReplayAction, ReplayStep};
pub use keys::{KEYS, Key, find as find_key};
pub use nearest::nearest;
pub use options::{
    BlockRange, Fallocate, Measure, Options, SyncRange, SyncWrites, ThinkBlocks, UnifiedReport,
    Verify,
};
pub use pattern::Pattern;
pub use replay_options::{ReplayOptions, ReplaySkip};
pub use steady_state::{SteadyMeasure, SteadyRate, SteadyState};
pub use text::{SourceLocation, check_file};
pub use unsupported::UNSUPPORTED;
pub use value::{SizeOrPercent, seconds, split_names};
pub use variables::{VariableLookup, environment};
pub use zones::Zone;

use crate::Error;
use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use text::Line;

/// One section: a job that `options.jobs` threads run.
#[derive(Debug, Clone)]
pub struct Job {
    /// Its name, in reports and in the names of its files.
    pub name: String,
    /// The position of its section.
    pub location: SourceLocation,
    /// The values of all keys.
    pub options: Options,
    /// Its own keys and values, as written, for the report.
    pub own_keys: Vec<(String, String)>,
    /// The global keys and values that apply to it, as written.
    pub inherited_keys: Arc<Vec<(String, String)>>,
}

impl Job {
    /// Its position and name, for messages.
    pub fn label(&self) -> String {
        format!("{}: job `{}`", self.location, self.name)
    }

    /// The value of this key as the job sets it, by any of the key's names.
    pub fn value(&self, name: &str) -> Option<&str> {
        let named = |key: &str| find_key(key).is_some_and(|key| key.name == name);
        let given = self.own_keys.iter().rfind(|(key, _)| named(key));
        let given = given.or_else(|| self.inherited_keys.iter().rfind(|(key, _)| named(key)));
        given.map(|(_, value)| value.as_str())
    }

    /// Whether the job sets this key, by any of its names, to a value other than 0.
    pub fn enables(&self, name: &str) -> bool {
        self.value(name).is_some_and(|value| !["0", "off"].contains(&value))
    }
}

/// How the parser treats unknown keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UnknownKeys {
    /// An error that names the nearest key.
    #[default]
    Refuse,
    /// A warning.
    Ignore,
}

/// The parsed jobs.
#[derive(Debug, Default)]
pub struct JobSet {
    /// The jobs, in order.
    pub jobs: Vec<Job>,
    /// The global keys and values, as written; jobs share them.
    pub globals: Arc<Vec<(String, String)>>,
    /// Warnings, one line each.
    pub warnings: Vec<String>,
}

/// Reads job files and keys into a [`JobSet`].
pub struct Parser<'a> {
    lookup: VariableLookup<'a>,
    unknown: UnknownKeys,
    globals: Options,
    /// The open section.
    section: Option<Job>,
    set: JobSet,
    /// Keys that replace those of every job.
    replacements: Vec<(String, String)>,
    /// The first job of another file waits for all jobs before it.
    stonewall_next: bool,
    /// The only sections of job files to read, and whether each was found; empty for all.
    only: Vec<(String, bool)>,
    /// The sections of job files that were not read.
    left_out: Vec<String>,
    /// The lines of a section that is not read.
    skips: bool,
    /// Whether to read the traces that jobs name.
    reads_iologs: bool,
    traces: Traces,
    /// Keys and values that cannot be used, one line each.
    problems: Vec<String>,
    problem_count: usize,
}

/// The traces that were read, which jobs share.
type Traces = HashMap<(String, ReplayOptions), Arc<IoLog>>;

/// Problems with keys that are shown; others are counted.
const MAX_SHOWN_PROBLEMS: usize = 50;

impl fmt::Debug for Parser<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("Parser").field("section", &self.section).finish_non_exhaustive()
    }
}

impl<'a> Parser<'a> {
    /// A parser that takes the values of `${NAME}` from `lookup`; see [`environment`].
    pub fn new(lookup: VariableLookup<'a>, unknown: UnknownKeys) -> Self {
        Self {
            lookup,
            unknown,
            globals: Options::default(),
            section: None,
            set: JobSet::default(),
            replacements: Vec::new(),
            stonewall_next: false,
            only: Vec::new(),
            left_out: Vec::new(),
            skips: false,
            reads_iologs: true,
            traces: Traces::new(),
            problems: Vec::new(),
            problem_count: 0,
        }
    }

    /// Parses one `--key=value` of the command line; `name` begins a job.
    pub fn argument(&mut self, key: &str, value: Option<&str>) -> Result<(), Error> {
        if key == "name" {
            let name = value.filter(|name| !name.is_empty());
            let name = name.ok_or_else(|| Error::input("--name needs a value"))?;
            self.begin_section(name, SourceLocation::CommandLine)?;
        }
        self.key(key, value, SourceLocation::CommandLine);
        Ok(())
    }

    /// Reads only this section of the job files, and others that are named so; always the global ones.
    pub fn only_section(&mut self, name: &str) {
        self.only.push((name.to_owned(), false));
    }

    /// Sets a key in every job that follows, whatever the job file says.
    pub fn replace(&mut self, key: &str, value: &str) {
        self.replacements.push((key.to_owned(), value.to_owned()));
    }

    /// Leaves out the traces that jobs name with `read_iolog`, so that nothing is read but the job files.
    pub fn leave_out_iologs(&mut self) {
        self.reads_iologs = false;
    }

    /// Parses a job file; `-` is standard input.
    pub fn file(&mut self, path: &Path) -> Result<(), Error> {
        self.end_section()?;
        self.stonewall_next = !self.set.jobs.is_empty();
        let mut in_section = false;
        text::read_file(path, &mut |line, location| self.line(line, location, &mut in_section))?;
        self.end_section()
    }

    /// Parses a job file in memory; messages call it `name`.
    pub fn bytes(&mut self, bytes: &[u8], name: &str) -> Result<(), Error> {
        let name: Arc<str> = name.into();
        let mut in_section = false;
        text::read_bytes(bytes, &name, &mut |line, location| {
            self.line(line, location, &mut in_section)
        })?;
        self.end_section()
    }

    /// Ends the parsing.
    ///
    /// # Errors
    /// Keys or values cannot be used, or there is no job at all.
    pub fn finish(mut self) -> Result<JobSet, Error> {
        self.end_section()?;
        match self.problem_count {
            0 => {}
            1 => return Err(Error::input(self.problems.remove(0))),
            count => {
                let more = count - self.problems.len();
                if more > 0 {
                    self.problems.push(format!("and {more} more"));
                }
                let line = format!("{count} keys of the jobs cannot be used");
                return Err(Error::input(line).with_details(self.problems));
            }
        }
        if let Some((name, _)) = self.only.iter().find(|(_, found)| !found) {
            let others = self.left_out.iter().map(String::as_str);
            let hint = nearest(name, others);
            let hint = hint.map_or(String::new(), |near| format!("; the nearest is `{near}`"));
            return Err(Error::input(format!("--section {name}: no job file has it{hint}")));
        }
        if self.set.jobs.is_empty() {
            return Err(Error::input("no job: give a job file, or --name=NAME and keys"));
        }
        Ok(self.set)
    }

    fn line(
        &mut self,
        line: Line<'_>,
        location: SourceLocation,
        in_section: &mut bool,
    ) -> Result<(), Error> {
        match line {
            Line::Section(name) => {
                *in_section = true;
                self.skips = !self.is_wanted(name);
                match self.skips {
                    true => self.end_section(),
                    false => self.begin_section(name, location),
                }
            }
            Line::Key(..) if *in_section && self.skips => Ok(()),
            Line::Key(key, _) if !*in_section => {
                Err(Error::input(format!("{location}: `{key}` is before the first [section]")))
            }
            Line::Key(key, value) => {
                self.key(key, value, location);
                Ok(())
            }
        }
    }

    /// Whether a section of a job file is to be read.
    fn is_wanted(&mut self, name: &str) -> bool {
        if self.only.is_empty() || name.starts_with("global") {
            return true;
        }
        match self.only.iter_mut().find(|(wanted, _)| wanted == name) {
            Some((_, found)) => *found = true,
            None => {
                self.left_out.push(name.to_owned());
                return false;
            }
        }
        true
    }

    /// Begins a section. A name that begins with `global` is the global section, as with fio.
    fn begin_section(&mut self, name: &str, location: SourceLocation) -> Result<(), Error> {
        const MAX_JOBS: usize = 65_536;
        self.end_section()?;
        if name.starts_with("global") {
            return Ok(());
        }
        if self.set.jobs.len() >= MAX_JOBS {
            return Err(Error::input(format!("{location}: more than {MAX_JOBS} jobs")));
        }
        let mut options = self.globals.clone();
        // As with fio, jobs do not inherit a name.
        options.name = None;
        options.stonewall |= std::mem::take(&mut self.stonewall_next);
        let job = Job {
            name: name.to_owned(),
            location,
            options,
            own_keys: Vec::new(),
            inherited_keys: Arc::clone(&self.set.globals),
        };
        self.section = Some(job);
        Ok(())
    }

    /// Refuses to replace the block size of a job that has `bssplit` or `bsrange`, which come first as with fio: nothing would
    /// change.
    fn refuse_covered_size(&self, name: &str) -> Result<(), Error> {
        let Some(job) = &self.section else { return Ok(()) };
        let Options { block_split, block_range, .. } = &job.options;
        let splits = block_split.iter().any(|split| !split.is_empty());
        let covers = match find_key(name).map(|key| key.name) {
            Some("bs" | "bsrange") if splits => "bssplit",
            Some("bs") if block_range.iter().all(Option::is_some) => "bsrange",
            _ => return Ok(()),
        };
        Err(Error::input(format!(
            "{name}= changes nothing in job `{}`, which has {covers}=; give {covers}=",
            job.name
        )))
    }

    /// Ends the open section and checks its keys against each other.
    fn end_section(&mut self) -> Result<(), Error> {
        if self.section.is_some() {
            for (key, value) in self.replacements.clone() {
                self.refuse_covered_size(&key)?;
                self.key(&key, Some(&value), SourceLocation::CommandLine);
            }
        }
        let Some(mut job) = self.section.take() else { return Ok(()) };
        // A key that could not be used may be what another one needs.
        if self.problem_count == 0 {
            let traces = match self.reads_iologs {
                true => read_iologs(&mut job.options, &mut self.traces),
                false => Ok(()),
            };
            let checked = traces.and_then(|()| job.options.normalize());
            checked.map_err(|problem| Error::input(problem).at(job.label()))?;
        }
        if let Some(name) = &job.options.name {
            job.name.clone_from(name);
        }
        self.set.jobs.push(job);
        Ok(())
    }

    /// Sets a key, or notes why it cannot be set.
    fn key(&mut self, name: &str, value: Option<&str>, location: SourceLocation) {
        let Err(problem) = self.set_key(name, value, &location) else { return };
        let line = format!("{location}: {problem}");
        // Each job repeats the problem of a key that replaces those of all jobs.
        if !self.problems.contains(&line) {
            self.problem_count += 1;
            if self.problems.len() < MAX_SHOWN_PROBLEMS {
                self.problems.push(line);
            }
        }
    }

    fn set_key(
        &mut self,
        name: &str,
        value: Option<&str>,
        location: &SourceLocation,
    ) -> Result<(), String> {
        let refuse = |problem: String| format!("{name}: {problem}");
        let value = match value {
            Some(value) => Some(variables::expand(value, self.lookup).map_err(refuse)?),
            None => None,
        };
        let (options, given) = match &mut self.section {
            Some(job) => (&mut job.options, &mut job.own_keys),
            None => (&mut self.globals, Arc::make_mut(&mut self.set.globals)),
        };
        let key = match (find_key(name), &value) {
            (Some(key), _) => key,
            (None, Some(value)) if name.contains('.') => {
                options.settings.push((name.to_owned(), value.clone()));
                return Ok(());
            }
            // It is only counted: a large file that is no job file has very many.
            (None, _)
                if self.unknown == UnknownKeys::Refuse
                    && self.problems.len() >= MAX_SHOWN_PROBLEMS =>
            {
                return Err(String::new());
            }
            (None, _) => {
                let problem = unsupported::explain(name);
                return match self.unknown {
                    UnknownKeys::Refuse => Err(problem),
                    UnknownKeys::Ignore => {
                        self.set.warnings.push(format!("{location}: {problem}"));
                        Ok(())
                    }
                };
            }
        };
        key.apply(options, value.as_deref()).map_err(refuse)?;
        let value = value.unwrap_or_else(|| key.value_if_alone().unwrap_or("").into());
        // Appended, after other keys that set the same option: with fio, too, the last one wins.
        given.retain(|(name, old)| !replaces((key, &value), (name, old)));
        given.push((name.to_owned(), value));
        Ok(())
    }
}

/// Reads the traces of a job: they decide its directions and block sizes.
fn read_iologs(options: &mut Options, known: &mut Traces) -> Result<(), String> {
    let Some(names) = &options.iolog else { return Ok(()) };
    let mut traces = Vec::new();
    for name in split_names(names) {
        let key = (name, options.replay_options.clone());
        let trace = match known.get(&key) {
            Some(trace) => Arc::clone(trace),
            None => Arc::new(IoLog::read(&key.0, &key.1)?),
        };
        traces.push(Arc::clone(&trace));
        known.insert(key, trace);
    }
    let has = |op| traces.iter().any(|log| log.has(op));
    let [reads, writes, trims] = IoOp::ALL.map(has);
    options.pattern = Pattern::Replay { reads, writes, trims };
    options.block_split = Default::default();
    options.size = None;
    options.number_ios = 0;
    options.block_align = Default::default();
    options.append = false;
    options.zones = Default::default();
    options.distribution = Distribution::Uniform;
    for op in IoOp::ALL {
        let lengths = || traces.iter().filter_map(|log| log.lengths(op));
        let (min, max) = (lengths().map(|(min, _)| min).min(), lengths().map(|(_, max)| max).max());
        if let (Some(min), Some(max)) = (min, max) {
            options.block[op as usize] = BlockRange { min, max };
        }
    }
    options.replays = traces;
    Ok(())
}

/// Whether a new line replaces an old one completely: both set the same key, and the new one sets each
/// direction that the old one sets. `,8k` leaves the value for reads.
pub(crate) fn replaces(new: (&Key, &str), old: (&str, &str)) -> bool {
    let part = |value: &str| value.split(',').take(DIRECTIONS).position(str::is_empty);
    new.0.has_name(old.0) && (part(new.1).is_none() || part(new.1) == part(old.1))
}
