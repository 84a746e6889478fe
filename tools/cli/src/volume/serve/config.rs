//! The file of `uringfs serve --config`. Its tables have the options of the commands as keys. Errors have the file, the line and
//! the key in front.

use super::super::exit_codes::with_io_code;
use super::super::mount;
use super::super::quoting::for_message;
use super::metrics_server::MetricsOptions;
use super::problem::Problem;
use super::{mount as served_mount, nbd, ublk, vhost_user_blk};
use serde::Deserialize;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::Spanned;
use uringfs_lab::Error;

/// The longest file in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// What a file asks for.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Config {
    metrics: Option<String>,
    insecure: bool,
    pub(super) nbd: Vec<Spanned<nbd::Options>>,
    pub(super) vhost_user_blk: Vec<Spanned<vhost_user_blk::Options>>,
    pub(super) ublk: Vec<Spanned<ublk::Options>>,
    pub(super) mount: Vec<Spanned<mount::Options>>,
}

impl Config {
    pub(super) fn metrics(&self) -> MetricsOptions {
        MetricsOptions { metrics: self.metrics.clone(), insecure: self.insecure }
    }
}

/// The text of a file.
pub(super) struct Source {
    path: PathBuf,
    text: String,
}

impl Source {
    pub(super) fn read(path: &Path) -> Result<Source, Error> {
        let shown = for_message(path);
        let failed =
            |error: io::Error| with_io_code(Error::input(format!("{shown}: {error}")), &error);
        let mut text = String::new();
        let file = File::open(path).map_err(failed)?;
        let length = file.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
        if length as u64 > MAX_BYTES {
            return Err(Error::input(format!("{shown}: is longer than {MAX_BYTES} bytes")));
        }
        Ok(Source { path: path.to_owned(), text })
    }

    /// Reads the text. Each entry is checked by itself. Sockets, directories and targets of ublk are named once.
    pub(super) fn parse(&self) -> Result<Config, Error> {
        let config: Config = toml::from_str(&self.text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            // Some messages have lines.
            let what = error.message().split('\n').collect::<Vec<_>>().join("; ");
            self.error(at, self.key_before(at), Error::input(what))
        })?;
        let mut taken = Vec::new();
        let metrics = config.metrics.as_deref().map(Path::new);
        Problem::first(&[(
            "insecure",
            config.insecure && metrics.is_none(),
            "only with --metrics",
        )])
        .and_then(|()| once(&mut taken, "metrics", metrics))
        .map_err(|problem| self.locate(&(0..0), problem))?;
        for entry in &config.nbd {
            let options = entry.get_ref();
            let (unix, tcp) = (options.unix.as_deref(), options.tcp.as_deref().map(Path::new));
            let checked = options.check().and_then(|()| once(&mut taken, "unix", unix));
            let checked = checked.and_then(|()| once(&mut taken, "tcp", tcp));
            checked.map_err(|problem| self.locate(&entry.span(), problem))?;
        }
        for entry in &config.vhost_user_blk {
            let (options, socket) = (entry.get_ref(), &entry.get_ref().socket);
            let checked = options.check().and_then(|()| once(&mut taken, "socket", Some(socket)));
            checked.map_err(|problem| self.locate(&entry.span(), problem))?;
        }
        let mut ublk_targets = Vec::new();
        for entry in &config.ublk {
            let (options, target) = (entry.get_ref(), entry.get_ref().target.as_deref());
            let checked = options.check();
            let checked = checked.and_then(|()| once(&mut ublk_targets, "target", target));
            checked.map_err(|problem| self.locate(&entry.span(), problem))?;
        }
        for entry in &config.mount {
            let (options, directory) = (entry.get_ref(), &entry.get_ref().directory);
            let checked = served_mount::check(options);
            let checked = checked.and_then(|()| once(&mut taken, "directory", Some(directory)));
            checked.map_err(|problem| self.locate(&entry.span(), problem))?;
        }
        Ok(config)
    }

    /// The error of an entry, with its place.
    pub(super) fn locate(&self, entry: &Range<usize>, problem: Problem) -> Error {
        let Problem { key, error } = problem;
        let start = self.text[..entry.start].rfind('\n').map_or(0, |end| end + 1);
        let lines = self.text[start..].split_inclusive('\n').scan(start, |at, line| {
            *at += line.len();
            Some((*at - line.len(), line))
        });
        // From its header to the next one.
        let mut own = lines
            .enumerate()
            .take_while(|(number, (_, line))| *number == 0 || !line.starts_with('['));
        let found = own.find(|(_, (_, line))| key_of(line) == Some(key));
        self.error(found.map_or(start, |(_, (at, _))| at), Some(key), error)
    }

    fn error(&self, at: usize, key: Option<&str>, error: Error) -> Error {
        let line = self.text[..at].matches('\n').count() + 1;
        let place = format!("{}:{line}", for_message(&self.path));
        let Some(key) = key else { return error.at(place) };
        // What the command line calls it.
        let text = error.to_string();
        let option = text.strip_prefix("--").and_then(|text| text.strip_prefix(key));
        let text = option.map_or(&*text, |rest| rest.trim_start_matches([':', ' ']));
        Error::input(format!("{place}: {key}: {text}")).exiting_with(error.exit_code())
    }

    /// The key, or the header, of the line at an offset, or of the last line with one before it.
    fn key_before(&self, at: usize) -> Option<&str> {
        let end = self.text[at..].find('\n').map_or(self.text.len(), |length| at + length);
        self.text[..end].rsplit('\n').find_map(|line| {
            key_of(line).or_else(|| Some(line.trim().strip_prefix('[')?.trim_matches(['[', ']'])))
        })
    }
}

/// Refuses a name that is taken.
fn once<'a>(
    taken: &mut Vec<&'a Path>,
    key: &'static str,
    name: Option<&'a Path>,
) -> Result<(), Problem> {
    let Some(name) = name else { return Ok(()) };
    if taken.contains(&name) {
        let what = format!("{} stands in this file already", for_message(name));
        return Err(Problem::new(key, &what));
    }
    taken.push(name);
    Ok(())
}

/// The key of a line.
fn key_of(line: &str) -> Option<&str> {
    let key = line.split_once('=')?.0.trim();
    let is_key = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    (!key.is_empty() && key.bytes().all(is_key)).then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        let source = Source { path: "f.toml".into(), text: text.into() };
        source.parse().map(|_| ()).unwrap_err().to_string()
    }

    #[test]
    fn an_error_has_file_line_and_key() {
        for (text, expected) in [
            ("nbd = 1", "f.toml:1: nbd: invalid type: integer `1`, expected a sequence"),
            ("# a\ninsecure = true\n[[nbd]]", "f.toml:2: insecure: only with --metrics"),
            ("\n[[disk]]\n", "f.toml:2: disk: unknown field `disk`, expected one of "),
            (
                "[[nbd]]\ntargets = [\"a\"]\nunix = \"s\"\nmod = \"660\"",
                "f.toml:4: mod: unknown field `mod`",
            ),
            (
                "[[nbd]]\ntargets = [\n  \"a\",\n  7,\n]\n",
                "f.toml:4: targets: invalid type: integer `7`",
            ),
            (
                "[[nbd]]\ntargets = [\"a\"]\nunix = \"s\"\nmode = \"8\"",
                "f.toml:4: mode: write up to three octal",
            ),
            (
                "[[nbd]]\ntargets = [\"a\"]\nunix = \"s\"\nthreads = 65",
                "f.toml:4: threads: 65 is not a number from 1 to 64",
            ),
            ("[[nbd]]\nunix = \"s\"\n", "f.toml:1: targets: name a disk"),
            ("[[nbd]]\ntargets = [\"a\"]\n", "f.toml:1: unix: name a socket"),
            (
                "# a\n[[nbd]]\ntargets = [\"a\"]\nunix = \"s\"\ntls-ca = \"c\"\n",
                "f.toml:5: tls-ca: only with --tls-cert",
            ),
            ("[[vhost-user-blk]]\ntarget = \"a\"\n", "f.toml:1: socket: name a socket"),
            ("[[ublk]]\nqueues = 2\n", "f.toml:1: target: name a disk"),
            ("[[ublk]]\ntarget = \"a\"\nqueues = 65", "f.toml:3: queues: 65 is not a number"),
            ("[[ublk]]\ntarget = \"a\"\nremove = \"b\"", "f.toml:3: remove: unknown field"),
            (
                "[[ublk]]\ntarget = \"a\"\n[[ublk]]\nread-only = true\ntarget = \"a\"",
                "f.toml:5: target: a stands in this file already",
            ),
            (
                "[[mount]]\ntarget = \"a\"\ndirectory = \"d\"\noptions = [\"fly\"]",
                "f.toml:4: options: -o fly: ",
            ),
            (
                "[[mount]]\ntarget = \"a\"\ndirectory = \"d\"\nforeground = true",
                "f.toml:4: foreground: unknown field",
            ),
            (
                "[[vhost-user-blk]]\ntarget = \"a\"\nsocket = \"s\"\n\n[[nbd]]\nunix = \"s\"\ntargets = [\"b\"]",
                "f.toml:3: socket: s stands in this file already",
            ),
            ("[[nbd]]\ntargets = [\"a\"\nunix = 1\n", "f.toml:"),
        ] {
            let found = error(text);
            assert!(found.starts_with(expected) && !found.contains('\n'), "{text:?}: {found}");
        }
    }

    #[test]
    fn keys_are_the_options() {
        let text = "
            [[nbd]]
            targets = [\"v:/a\", \"v:/b\"]
            unix = \"/run/nbd.sock\"
            tcp = \"127.0.0.1\"
            mode = \"660\"
            read-only = true
            cache = \"volume\"
            max-connections = 7
            [[vhost-user-blk]]
            target = \"v:/c\"
            socket = \"/run/c.sock\"
            pin-memory = \"off\"
            queues = 2
            [[ublk]]
            target = \"v:/d\"
            queues = 2
            read-only = true
            unprivileged = true
            [[mount]]
            target = \"w\"
            directory = \"/mnt\"
            options = [\"noatime\", \"commit=1\"]
        ";
        let config = Source { path: "f".into(), text: text.into() }.parse();
        let config = config.map_err(|error| error.to_string()).unwrap();
        assert_eq!((config.nbd.len(), config.vhost_user_blk.len(), config.mount.len()), (1, 1, 1));
        assert_eq!(config.nbd[0].get_ref().targets.len(), 2);
        assert_eq!(config.ublk[0].get_ref().target.as_deref(), Some(Path::new("v:/d")));
    }
}
