//! `uringfs check`: checks a volume, repairs it with `--repair`, and first upgrades it to the current version with
//! `--upgrade`. The exit codes follow `e2fsck`: 0 no errors, 1 all errors repaired, 4 errors are left, 8 the device
//! failed.

use super::exit_codes::IN_USE;
use super::mounts::mounted_from;
use super::open_volume::{open_device, open_quietly};
use super::quiet::QuietOptions;
use super::quoting::for_message;
use super::saving_server::wait_for_saving_server;
use super::server::connect;
use super::size_change::BLOCK;
use super::volume_path::with_path;
use super::{byte_progress, format};
use crate::json::{document, with_bytes};
use crate::output::print;
use clap::{Arg, ArgAction};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::path::Path;
use std::sync::atomic::Ordering;
use uringfs::Errno;
use uringfs::device::Access;
use uringfs::volume::{CheckOptions, CheckReport, CheckStep, Finding};
use uringfs::{Error as VolumeError, ErrorKind as VolumeErrorKind, Volume};
use uringfs_lab::Error;
use uringfs_lab::run::stop_on_interrupt;

/// The arguments of the command.
#[derive(clap::Args)]
#[command(arg = no_changes())]
pub struct Arguments {
    /// A file or a block device with a volume that no program writes to
    target: OsString,

    /// Also read every block that files use. This finds blocks that cannot be read, but not changed contents, as
    /// file data has no checksums
    #[arg(long)]
    deep: bool,

    /// Repair errors; no program may have the volume open
    #[arg(short = 'y', long)]
    repair: bool,

    /// Repair even if blocks of the catalog cannot be read. Their records are lost, and blocks that may belong to files
    /// whose extents are lost stay allocated until the next --repair. Without this option such a volume is not
    /// repaired (exit code 8): copy the device to a good one first, and repair the copy
    #[arg(long, requires = "repair")]
    accept_unreadable: bool,

    /// Repair even if another format was made over the volume, such as a file system, a partition table or swap. The
    /// repair destroys it. Without this option such a target is left alone: uringfs wipe erases what is left of the volume
    #[arg(long, requires = "repair")]
    force: bool,

    /// Upgrade a volume without errors from an older version to the current one. Older programs cannot open it any
    /// more. No program may have it open
    #[arg(long)]
    upgrade: bool,

    /// Check a volume that is mounted or served while programs use it: its state after one commit. Its server does that, and
    /// repairs nothing. A volume that no server has open is checked as without this option
    #[arg(long, conflicts_with_all = ["repair", "upgrade"])]
    online: bool,

    #[command(flatten)]
    quiet: QuietOptions,

    /// Print JSON
    #[arg(long, conflicts_with_all = ["quiet"])]
    json: bool,
}

impl Arguments {
    /// A check or a repair by `fsck.uringfs`.
    pub(super) fn of_fsck(target: OsString, repair: bool) -> Self {
        Self {
            target,
            deep: false,
            repair,
            accept_unreadable: false,
            force: false,
            upgrade: false,
            online: false,
            quiet: QuietOptions::default(),
            json: false,
        }
    }
}

/// The option of `fsck` for a check without repair, which is the default here.
fn no_changes() -> Arg {
    Arg::new("no_changes")
        .short('n')
        .long("no-changes")
        .help("Change nothing, as without --repair and --upgrade")
        .action(ArgAction::SetTrue)
        .conflicts_with_all(["repair", "upgrade"])
}

const EXIT_REPAIRED: u8 = 1;
const EXIT_DAMAGED: u8 = 4;
const EXIT_IO_ERROR: u8 = 8;

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let path = Path::new(&arguments.target);
    let shown = for_message(path);
    let options = CheckOptions::new()
        .repair(arguments.repair)
        .deep(arguments.deep)
        .accept_unreadable(arguments.accept_unreadable)
        .overwrite_other_format(arguments.force);
    let line = ProgressLine::start(&arguments);
    let stop = stop_on_interrupt()?;
    let mut progress = |step, done| {
        line.update(step, done);
        if stop.load(Ordering::Relaxed) {
            line.clear();
            exit_stopped(&arguments);
        }
    };
    let server = if arguments.online { connect(&arguments.target)? } else { None };
    let online = server.map(|server| server.check(arguments.deep, &mut progress));
    // The server has the target open, but not as a volume, or is closing it.
    let is_elsewhere = |checked: &Result<_, VolumeError>| matches!(checked, Err(error) if error.errno() == Errno::NOENT);
    let online = online.filter(|checked| !is_elsewhere(checked));
    let is_in_use = online.is_some();
    let checked = match online {
        Some(checked) => checked.map(|report| (false, report)),
        None => check_closed(&arguments, options, &mut progress)?,
    };
    drop(line);
    let (upgraded, report) = match checked {
        Ok(checked) => checked,
        Err(error) => {
            if arguments.json {
                print(&document(json_of_error(&error.to_string())))?;
            }
            let code = match error.kind() {
                VolumeErrorKind::Damaged | VolumeErrorKind::NoSpace => EXIT_DAMAGED,
                VolumeErrorKind::Io(_) => EXIT_IO_ERROR,
                _ => return Err(with_advice(path, with_path(shown, error))),
            };
            crate::output::print_error(&format!("{shown}: {error}"));
            return Ok(code);
        }
    };
    match arguments.json {
        true => print(&document(json(&report, options, upgraded)))?,
        false => {
            let upgraded = if upgraded { format!("{shown}: upgraded\n") } else { String::new() };
            let verdict = verdict(&report, options, is_in_use);
            arguments.quiet.print(&format!("{upgraded}{}{shown}: {verdict}\n", lines(&report)))?;
        }
    }
    Ok(match report {
        _ if report.is_sound() => 0,
        _ if report.is_repaired() => EXIT_REPAIRED,
        _ => EXIT_DAMAGED,
    })
}

/// Whether the volume was upgraded, and the report of the check.
type Checked = Result<(bool, CheckReport), VolumeError>;

/// Upgrades a volume that no program has open, if that is asked for, and checks it.
fn check_closed(
    arguments: &Arguments,
    options: CheckOptions,
    progress: &mut dyn FnMut(CheckStep, u64),
) -> Result<Checked, Error> {
    let path = Path::new(&arguments.target);
    let writes = arguments.repair || arguments.upgrade;
    let access = if writes { Access::ReadWrite } else { Access::Read };
    wait_for_saving_server(path);
    let device = open_device(path, access).map_err(|error| with_advice(path, error))?;
    let upgraded = match arguments.upgrade {
        true => Volume::upgrade(&device, progress),
        false => Ok(false),
    };
    Ok(upgraded.and_then(|upgraded| Ok((upgraded, Volume::check(&device, options, progress)?))))
}

/// Adds how a mounted volume can be checked.
fn with_advice(path: &Path, error: Error) -> Error {
    match error.exit_code() == IN_USE && mounted_from(path).is_some() {
        true => Error::in_use(format!("{error}; uringfs check --online checks it in use")),
        false => error,
    }
}

/// Ends the program after Ctrl-C. This may happen in the middle of a repair: the volume is as after a power cut then.
fn exit_stopped(arguments: &Arguments) -> ! {
    let state = match arguments.repair || arguments.upgrade {
        true => {
            "the volume can be opened, and some errors may be repaired: run uringfs check again"
        }
        false => "nothing was changed",
    };
    let stopped = Error::interrupted().because(state);
    crate::output::print_error(&stopped.to_string());
    std::process::exit(stopped.exit_code().into())
}

fn lines(report: &CheckReport) -> String {
    let line = |finding: &Finding| match finding.is_repaired {
        true => format!("repaired: {finding}\n"),
        false => format!("{finding}\n"),
    };
    let mut lines: String = report.findings.iter().map(line).collect();
    if report.unlisted > 0 {
        lines += &format!("and {} more\n", report.unlisted);
    }
    lines
}

fn verdict(report: &CheckReport, options: CheckOptions, is_in_use: bool) -> String {
    if report.is_sound() {
        let files = match options.deep {
            true => {
                "all blocks of files can be read; their contents were not verified, as file data has no \
                     checksums"
            }
            false => "file data was not verified",
        };
        return format!(
            "metadata is clean: {}, {}, {} in use; {files}",
            format::count(report.directories, "directory", "directories"),
            format::count(report.files, "file", "files"),
            format::size(report.used_blocks * BLOCK),
        );
    }
    let found = report.findings.len() as u64 + report.unlisted;
    let listed = report.findings.iter().filter(|finding| finding.is_repaired).count();
    let repaired = listed as u64 + report.unlisted - report.unlisted_left;
    match (report.is_repaired(), repaired) {
        (true, _) => format!("errors found: {found}, all repaired{}", given_up(report)),
        (false, 0) => {
            let first = if is_in_use { "unmount it, and " } else { "" };
            format!(
                "errors found: {found}; {first}run with --repair to repair what can be repaired"
            )
        }
        (false, _) => {
            format!("errors found: {found}, repaired: {repaired}{}", given_up(report))
        }
    }
}

/// The losses that a repair could not undo, for the end of its report.
fn given_up(report: &CheckReport) -> String {
    match report.recreated {
        0 => String::new(),
        files => {
            let files = format::count(files, "file", "files");
            format!("; owners, modes, times and exact sizes of {files} are lost")
        }
    }
}

fn json(report: &CheckReport, options: CheckOptions, upgraded: bool) -> Value {
    let finding = |finding: &Finding| {
        let fields = json!({
            "inode": finding.inode.map(|inode| inode.0),
            "what": finding.what,
            "repaired": finding.is_repaired,
        });
        match &finding.path {
            Some(path) => with_bytes("path", path, fields),
            None => fields,
        }
    };
    json!({
        "upgraded": upgraded,
        "sound": report.is_sound(),
        "repaired": !report.is_sound() && report.is_repaired(),
        "findings": report.findings.iter().map(finding).collect::<Vec<_>>(),
        "unlisted": report.unlisted,
        "files": report.files,
        "directories": report.directories,
        "used": report.used_blocks * BLOCK,
        "read": report.read_blocks * BLOCK,
        "verified": {"metadata": true, "readable": options.deep, "contents": false},
    })
}

/// The document of a check that could not be made.
fn json_of_error(error: &str) -> Value {
    json!({ "upgraded": false, "sound": false, "repaired": false, "findings": [], "unlisted": 0, "error": error })
}

/// The progress line on the terminal. Draws nothing if standard error is not a terminal, and with -q.
struct ProgressLine(Option<ProgressBar>);

impl ProgressLine {
    fn start(arguments: &Arguments) -> Self {
        if !byte_progress::is_drawn(arguments.quiet) {
            return Self(None);
        }
        // With --deep, the time is that of reading the blocks in use.
        let used = || {
            let found = open_quietly(&arguments.target, Access::Read).ok()?.statistics();
            Some((found.blocks - found.free_blocks) * BLOCK)
        };
        Self(Some(match arguments.deep.then(used).flatten() {
            Some(bytes) => byte_progress::bar(bytes),
            None => {
                let style = ProgressStyle::with_template("{spinner} {wide_msg}");
                ProgressBar::new_spinner().with_style(style.expect("the template is a constant"))
            }
        }))
    }

    fn update(&self, step: CheckStep, done: u64) {
        let Some(bar) = &self.0 else { return };
        bar.set_message(match step {
            CheckStep::Pages => "catalog pages".into(),
            CheckStep::Records => format!("records: {done}"),
            CheckStep::Names => format!("names: {done}"),
            CheckStep::Blocks => format!("extents: {done}"),
            CheckStep::Data => {
                bar.set_position(done * BLOCK);
                format!("file data: {}", format::size(done * BLOCK))
            }
            step => format!("{step:?}: {done}"),
        });
        bar.tick();
    }
}

impl ProgressLine {
    fn clear(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.clear();
    }
}
