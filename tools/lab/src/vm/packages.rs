//! The packages of guests: two kernels, a few tools, and QEMU if it is not installed. The cache's manifests
//! pin the version of each package, so that later runs need no network and are comparable.

use super::apt::{Apt, Package};
use super::archive::Archive;
use super::cache::{Cache, incomplete, sorted_entries};
use super::process::{ProcessLimits, first_line, run};
use crate::Error;
use crate::run::RunProgress;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Time limit of one of apt's programs, and of the wait for another process that fetches: enough for QEMU's
/// packages over a slow line.
const FETCH_TIMEOUT: Duration = Duration::from_secs(3600);

/// Packages of the guest besides its kernel: a shell with tools, mkfs programs, and losetup.
const TOOLS: &[&str] = &[
    "busybox-static",
    "e2fsprogs",
    "xfsprogs",
    "libblkid1",
    "libc6",
    "libcom-err2",
    "libext2fs2",
    "libinih1",
    "libsmartcols1",
    "liburcu8",
    "libuuid1",
    "mount",
];

/// The programs that the guest gets from these packages, besides their libraries.
const PROGRAMS: &[&str] = &["bin/busybox", "sbin/mkfs.ext4", "sbin/mkfs.xfs", "sbin/losetup"];

/// The directories of their libraries, and of the loader.
const LIBRARIES: &[&str] =
    &["lib", "lib/x86_64-linux-gnu", "usr/lib", "usr/lib/x86_64-linux-gnu", "lib64"];

/// Kernel modules that the guest needs, if they are not built in.
const MODULES: &[&str] = &["configfs", "fuse", "libcrc32c", "loop", "null_blk", "xfs"];

/// The names of packages with a kernel for virtual machines.
const KERNELS: &str = "^linux-image-[0-9].*-cloud-amd64(-unsigned)?$";

/// A kernel that a guest can boot.
#[derive(Debug, Clone)]
pub struct Kernel {
    /// The release, as in `uname -r`.
    pub release: String,
    /// The name of its package.
    pub package: String,
    /// The version of the package.
    pub version: String,
    /// The kernel image.
    pub image: PathBuf,
    /// The modules that guests insert.
    pub modules: Vec<PathBuf>,
}

impl Kernel {
    /// Whether its release is `wanted`, or begins with it: 6.1 matches 6.1.0-9, and not 6.12.
    pub(super) fn matches(&self, wanted: &str) -> bool {
        let rest = self.release.strip_prefix(wanted);
        let goes_on = |rest: &str| rest.starts_with(|next: char| next.is_ascii_digit());
        rest.is_some_and(|rest| wanted.is_empty() || !goes_on(rest))
    }
}

/// The program that runs guests.
#[derive(Debug)]
pub struct Qemu {
    /// The directory of its unpacked packages; `None` if QEMU is installed.
    unpacked: Option<PathBuf>,
}

/// The packages in the cache.
#[derive(Debug)]
pub struct Packages {
    /// The kernels, in the order of their versions.
    pub kernels: Vec<Kernel>,
    tools: PathBuf,
    qemu: Qemu,
}

impl Packages {
    /// Opens the cache and fetches what is missing.
    ///
    /// # Errors
    /// Packages cannot be fetched, or are incomplete: the message says what is needed. Or `stop` is set.
    pub fn open(
        cache: &Path,
        stop: &AtomicBool,
        progress: &RunProgress,
    ) -> Result<Packages, Error> {
        let cache =
            Cache { folder: cache, limits: ProcessLimits { stop, limit: FETCH_TIMEOUT }, progress };
        if in_path(QEMU) {
            cache.fetch_missing(&[("guest", &fetch_guest)])?;
        } else {
            cache.fetch_missing(&[("guest", &fetch_guest), ("qemu", &fetch_qemu)])?;
        }
        let unpacked = (!in_path(QEMU)).then(|| cache.part_path("qemu"));
        if let Some(root) = &unpacked {
            require_files(root, [LOADER.to_owned(), format!("usr/bin/{QEMU}")])?;
        }
        let guest = cache.part_path("guest");
        require_files(&guest, PROGRAMS.iter().map(|name| format!("tools/{name}")))?;
        let kernels = kernels(&guest, cache.packages("guest")?)?;
        Ok(Packages { kernels, tools: guest.join("tools"), qemu: Qemu { unpacked } })
    }

    /// The newest kernel whose release begins with `release`; without one the newest of all.
    pub fn kernel(&self, release: Option<&str>) -> Result<&Kernel, Error> {
        let wanted = release.unwrap_or_default();
        let found = self.kernels.iter().rev().find(|kernel| kernel.matches(wanted));
        found.ok_or_else(|| {
            let all: Vec<_> = self.kernels.iter().map(|kernel| kernel.release.as_str()).collect();
            Error::input(format!("no kernel {wanted} (known: {})", all.join(", ")))
        })
    }

    /// The program that runs guests.
    pub fn qemu(&self) -> &Qemu {
        &self.qemu
    }

    /// Adds the tools of a guest to its files.
    pub(super) fn add_tools<W: Write>(&self, archive: &mut Archive<W>) -> io::Result<()> {
        for name in PROGRAMS {
            archive.program(name, &std::fs::read(self.tools.join(name))?)?;
        }
        for folder in LIBRARIES {
            archive.folder(folder)?;
            for path in sorted_entries(&self.tools.join(folder))? {
                let name = format!("{folder}/{}", super::file_name::file_name(&path));
                if name.contains(".so") && !path.is_dir() {
                    match std::fs::read_link(&path) {
                        Ok(target) => archive.link(&name, &target.to_string_lossy())?,
                        Err(_) => archive.program(&name, &std::fs::read(&path)?)?,
                    }
                }
            }
        }
        Ok(())
    }
}

const QEMU: &str = "qemu-system-x86_64";

/// The loader that is unpacked with QEMU's libraries.
const LOADER: &str = "lib64/ld-linux-x86-64.so.2";

impl Qemu {
    /// A command that runs QEMU, with the options to find its files.
    pub(super) fn command(&self) -> Command {
        let Some(root) = &self.unpacked else { return Command::new(QEMU) };
        // Run it by the loader that came with its libraries: this machine's may differ.
        let libraries = ["lib", "usr/lib"].map(|folder| root.join(folder).join("x86_64-linux-gnu"));
        let libraries = libraries.map(|folder| folder.display().to_string()).join(":");
        let mut command = Command::new(root.join(LOADER));
        command.args(["--library-path", &libraries]).arg(root.join("usr/bin").join(QEMU));
        command.env("QEMU_MODULE_DIR", root.join("usr/lib/x86_64-linux-gnu/qemu"));
        for folder in ["usr/share/qemu", "usr/share/seabios"] {
            command.arg("-L").arg(root.join(folder));
        }
        command
    }

    /// The first line of `--version`.
    pub(super) fn version(&self, limits: ProcessLimits<'_>) -> Result<Option<String>, Error> {
        first_line(self.command().arg("--version"), limits)
    }
}

/// Fetches the kernels and the tools.
fn fetch_guest(apt: &Apt<'_>, folder: &Path) -> Result<Vec<Package>, Error> {
    let (older, newest) = choose_kernels(&apt.search(KERNELS)?).ok_or_else(|| {
        Error::run("the mirror does not have both a stable kernel and one of the backports")
    })?;
    let mut packages = apt.named(TOOLS)?;
    apt.unpack(&packages, &|_| folder.join("tools"))?;
    let kernels = [older, newest];
    apt.unpack(&kernels, &|package| folder.join("kernels").join(&package.name))?;
    for kernel in &kernels {
        trim(
            &folder.join("kernels").join(&kernel.name),
            &folder.join("tools/bin/busybox"),
            apt.limits,
        )?;
    }
    packages.extend(kernels);
    Ok(packages)
}

/// Fetches QEMU and its libraries.
fn fetch_qemu(apt: &Apt<'_>, folder: &Path) -> Result<Vec<Package>, Error> {
    let packages = apt.with_dependencies("qemu-system-x86")?;
    apt.unpack(&packages, &|_| folder.to_owned())?;
    Ok(packages)
}

/// The newest kernel of Debian 12 itself, and the newest of the others.
fn choose_kernels(all: &[Package]) -> Option<(Package, Package)> {
    const STABLE: &[u64] = &[6, 1];
    let newest = |filter: &dyn Fn(&Vec<u64>) -> bool| {
        let fitting = all.iter().filter(|package| filter(&version_numbers(&package.version)));
        fitting
            .max_by_key(|package| (version_numbers(&package.version), package.name.clone()))
            .cloned()
    };
    let older = newest(&|version| version.starts_with(STABLE))?;
    let newer = newest(&|version| !version.starts_with(STABLE))?;
    Some((older, newer))
}

/// The numbers in a version. They give the order of Debian's kernel versions.
fn version_numbers(version: &str) -> Vec<u64> {
    let words = version.split(|c: char| !c.is_ascii_digit());
    words.filter_map(|word| word.parse().ok()).collect()
}

/// Keeps a kernel's image and the needed modules, decompressed; removes everything else.
fn trim(folder: &Path, busybox: &Path, limits: ProcessLimits<'_>) -> Result<(), Error> {
    let failed = |error| Error::run(format!("cannot use {}", folder.display())).because(error);
    let image = sorted_entries(&folder.join("boot")).map_err(failed)?;
    let image =
        image.into_iter().find(|path| super::file_name::file_name(path).starts_with("vmlinuz-"));
    let image = image.ok_or_else(|| failed(io::Error::other("no kernel in it")))?;
    std::fs::rename(&image, folder.join(super::file_name::file_name(&image))).map_err(failed)?;
    std::fs::create_dir(folder.join("modules")).map_err(failed)?;
    let mut folders = vec![folder.join("lib/modules")];
    while let Some(next) = folders.pop() {
        for path in sorted_entries(&next).map_err(failed)? {
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = super::file_name::file_name(&path);
            let Some((stem, end)) = name.split_once(".ko") else { continue };
            if !MODULES.contains(&stem) {
                continue;
            }
            let kept = folder.join("modules").join(format!("{stem}.ko"));
            std::fs::rename(&path, kept.with_extension(format!("ko{end}"))).map_err(failed)?;
            if end == ".xz" {
                // Decompressing in the guest would take seconds at each boot.
                let mut unpack = Command::new(busybox);
                unpack.arg("unxz").arg(kept.with_extension("ko.xz"));
                let ended = run(&unpack, limits, &mut |_| {})?;
                if !ended.succeeded() {
                    return Err(failed(io::Error::other(ended.error_line().to_owned())));
                }
            }
        }
    }
    for rest in ["boot", "lib", "usr"] {
        let rest = folder.join(rest);
        if rest.exists() {
            std::fs::remove_dir_all(rest).map_err(failed)?;
        }
    }
    Ok(())
}

/// The kernels in a directory that [`fetch_guest`] has filled from these packages.
fn kernels(folder: &Path, packages: Vec<Package>) -> Result<Vec<Kernel>, Error> {
    let mut kernels = Vec::new();
    for Package { name: package, version } in packages {
        let place = folder.join("kernels").join(&package);
        let files = sorted_entries(&place).map_err(|error| incomplete(folder, error))?;
        let image = files.iter().find_map(|path| {
            let name = super::file_name::file_name(path);
            Some((name.strip_prefix("vmlinuz-")?.to_owned(), path.clone()))
        });
        if let Some((release, image)) = image {
            let modules = sorted_entries(&place.join("modules"))
                .map_err(|error| incomplete(folder, error))?;
            kernels.push(Kernel { release, package, version, image, modules });
        }
    }
    if kernels.is_empty() {
        return Err(incomplete(folder, io::Error::other("no kernel in it")));
    }
    kernels.sort_by_key(|kernel| version_numbers(&kernel.version));
    Ok(kernels)
}

/// An error unless a directory of the cache has these files.
fn require_files(folder: &Path, names: impl IntoIterator<Item = String>) -> Result<(), Error> {
    match names.into_iter().find(|name| !folder.join(name).is_file()) {
        None => Ok(()),
        Some(name) => Err(incomplete(folder, io::Error::other(format!("no {name} in it")))),
    }
}

fn in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_matches_the_beginning_of_its_release() {
        let kernel = Kernel {
            release: "6.12.3-cloud".into(),
            package: String::new(),
            version: String::new(),
            image: PathBuf::new(),
            modules: Vec::new(),
        };
        let is = ["", "6", "6.12", "6.12.3-c", "6.1", "6.12.30", "5"]
            .map(|wanted| kernel.matches(wanted));
        assert_eq!(is, [true, true, true, true, false, false, false]);
    }

    #[test]
    fn the_newest_stable_and_the_newest_other_kernel_are_chosen() {
        let package =
            |name: &str, version: &str| Package { name: name.into(), version: version.into() };
        let all = [
            package("linux-image-6.12.95+deb12-cloud-amd64", "6.12.95-1~bpo12+1"),
            package("linux-image-6.12.117+deb12-cloud-amd64", "6.12.117-1~deb12u1"),
            package("linux-image-6.1.0-9-cloud-amd64", "6.1.99-1"),
            package("linux-image-6.1.0-56-cloud-amd64", "6.1.192-2"),
        ];
        let (older, newest) = choose_kernels(&all).unwrap();
        assert_eq!(
            (older.version.as_str(), newest.version.as_str()),
            ("6.1.192-2", "6.12.117-1~deb12u1")
        );
        assert_eq!(choose_kernels(&all[2..]), None);
    }
}
