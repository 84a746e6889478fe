//! `uringfs bench vm`: runs this program in a Linux guest whose clock counts instructions. So the
//! cost of an I/O is repeatable on any machine.

use crate::guest_options::GuestArguments;
use crate::output::print;
use std::path::PathBuf;
use uringfs_lab::Error;
use uringfs_lab::job::JobSet;
use uringfs_lab::report::Format;
use uringfs_lab::vm::guest::GuestDevice;
use uringfs_lab::vm::{GuestRunner, functional, jobs, passthrough, standard};

/// The arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// fio job files, or `experiment NAME`, or `passthrough` (NVMe passthrough beside the block
    /// device); if omitted, a fixed set of measurements, printed as tables
    jobs: Vec<PathBuf>,

    /// The device in the guest: null_blk or nvme [default: null_blk; for the table, both]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,

    /// Run static test programs under every kernel, without counting instructions
    #[arg(long, value_name = "PROGRAM", num_args = 1.., conflicts_with_all = ["jobs", "device"])]
    test: Vec<PathBuf>,

    #[command(flatten)]
    guest: GuestArguments,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let device = arguments.device.as_deref().map(str::parse::<GuestDevice>).transpose()?;
    let work = GuestWork::from_arguments(&arguments, device)?;
    let format = if arguments.json { Format::Json } else { Format::Normal };
    let (text, passed) = arguments.guest.run(|runner, _, _| work.run(runner, format))?;
    print(&text)?;
    Ok(u8::from(!passed))
}

/// The work to do in guests, parsed from the arguments.
enum GuestWork {
    Tables(Vec<GuestDevice>, Passthrough),
    Passthrough,
    Jobs(GuestDevice, Vec<JobSet>),
    Experiment(GuestDevice, String),
    Tests(Vec<PathBuf>),
}

/// Whether the tables have one of NVMe passthrough.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Passthrough {
    With,
    Without,
}

impl GuestWork {
    fn from_arguments(arguments: &Arguments, device: Option<GuestDevice>) -> Result<Self, Error> {
        let one = device.unwrap_or(GuestDevice::NullBlk);
        if !arguments.test.is_empty() {
            return Ok(Self::Tests(arguments.test.clone()));
        }
        let words: Vec<_> = arguments.jobs.iter().map(|word| word.to_str()).collect();
        match words[..] {
            [] => Ok(match device {
                None => {
                    let devices = vec![GuestDevice::NullBlk, GuestDevice::Nvme];
                    Self::Tables(devices, Passthrough::With)
                }
                Some(device) => Self::Tables(vec![device], Passthrough::Without),
            }),
            [Some("passthrough")] if device.is_some() => {
                Err(Error::input("passthrough: its device is nvme; give no --device"))
            }
            [Some("passthrough")] => Ok(Self::Passthrough),
            [Some("experiment"), Some(name)] => {
                uringfs_lab::experiments::find(name)?;
                Ok(Self::Experiment(one, name.to_owned()))
            }
            [Some("experiment"), ..] => {
                Err(Error::input("experiment: give the name of one experiment"))
            }
            _ => Ok(Self::Jobs(one, jobs::parse(&arguments.jobs, one)?)),
        }
    }

    /// Returns the text to print, and whether all tests passed.
    fn run(self, runner: &GuestRunner<'_>, format: Format) -> Result<(String, bool), Error> {
        let render = |table: String, json: serde_json::Value| match format {
            Format::Normal => table,
            Format::Json => format!("{json:#}\n"),
        };
        match self {
            Self::Tables(devices, with) => {
                let measured = standard::run(runner, &devices)?;
                let (mut text, mut json) = (standard::table(&measured), standard::json(&measured));
                if with == Passthrough::With {
                    let measured = passthrough::run(runner)?;
                    text += &format!("\n{}", passthrough::table(&measured));
                    json["passthrough"] = passthrough::json(&measured)["passthrough"].take();
                }
                Ok((render(text, json), true))
            }
            Self::Passthrough => {
                let measured = passthrough::run(runner)?;
                Ok((render(passthrough::table(&measured), passthrough::json(&measured)), true))
            }
            Self::Jobs(device, sets) => {
                let measured = jobs::run(runner, device, &sets)?;
                Ok((render(jobs::table(&measured), jobs::json(&measured)), true))
            }
            Self::Experiment(device, name) => {
                Ok((jobs::experiment(runner, device, &name, format)?, true))
            }
            Self::Tests(programs) => {
                let trials = functional::run(runner, &programs)?;
                let passed = functional::passed(&trials);
                Ok((render(functional::table(&trials), functional::json(&trials)), passed))
            }
        }
    }
}
