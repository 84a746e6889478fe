"""Other servers of file systems in user space, fetched from Debian and built under a folder. Installs nothing.

- `libfuse`: `passthrough_hp` of Debian 12's source package, over /dev/fuse;
- `libfuse-new`: the same of the newest source package, which speaks io_uring;
- `fuse2fs`: of Debian's binary package;
- `qemu`: the storage daemon that is installed.
"""

import os
import pathlib
import shutil
import subprocess

# Name, and the newest version that is taken for it.
SOURCES = {"libfuse": ("bookworm", "3.14"), "libfuse-new": ("sid", None)}


class Peers:
    """Programs by name, and the reason why one is missing."""

    def __init__(self, folder, wanted):
        self.folder = pathlib.Path(folder).absolute()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.programs, self.missing = {}, {}
        builders = {
            "libfuse": lambda: self.libfuse("libfuse"),
            "libfuse-new": lambda: self.libfuse("libfuse-new"),
            "fuse2fs": self.fuse2fs,
            "qemu": self.qemu,
        }
        for name in wanted:
            try:
                self.programs[name] = builders[name]()
            except (OSError, subprocess.CalledProcessError) as problem:
                detail = (getattr(problem, "stderr", None) or str(problem)).strip().splitlines()
                self.missing[name] = detail[-1] if detail else str(problem)

    def qemu(self):
        found = shutil.which("qemu-storage-daemon")
        if not found:
            raise OSError("qemu-storage-daemon is missing: install qemu-system-common")
        return found

    def fuse2fs(self):
        root = self.unpacked("fuse2fs", "libfuse2", "libext2fs2", "libcom-err2")
        return str(root / "usr/bin/fuse2fs")

    def environment(self):
        """With the libraries of unpacked packages."""
        root = self.folder / "root"
        paths = [root / "lib/x86_64-linux-gnu", root / "usr/lib/x86_64-linux-gnu"]
        return {**os.environ, "LD_LIBRARY_PATH": ":".join(map(str, paths))}

    def libfuse(self, name):
        """Builds the example `passthrough_hp` with a static library."""
        program = self.folder / name / "build/example/passthrough_hp"
        if not program.exists():
            root = self.unpacked("meson", "libnuma1", "libnuma-dev")
            has_io_uring = name == "libfuse-new"
            if has_io_uring:
                self.liburing()
            source = self.source("fuse3", name)
            environment = {
                **os.environ,
                "PYTHONPATH": str(root / "usr/lib/python3/dist-packages"),
                "PKG_CONFIG_PATH": f"{self.folder}/prefix/lib/pkgconfig:{self.numa_description(root)}",
            }
            options = ["--buildtype=release", "--default-library=static", "-Dutils=false", "-Dtests=false"]
            # The example does not include the header that says so. Without it, it sets no times.
            options += ["-Dcpp_args=-DHAVE_UTIMENSAT"]
            options += ["-Denable-io-uring=true"] if has_io_uring else []
            meson = ["python3", root / "usr/bin/meson"]
            run([*meson, "setup", *options, "build"], cwd=source, env=environment)
            run(["ninja", "-C", "build", "example/passthrough_hp"], cwd=source, env=environment)
        return str(program)

    def liburing(self):
        prefix = self.folder / "prefix"
        if not (prefix / "lib/liburing.a").exists():
            source = self.source("liburing", "liburing")
            run(["./configure", f"--prefix={prefix}"], cwd=source)
            run(["make", "-C", "src", "install"], cwd=source)
            run(["make", "liburing.pc"], cwd=source)
            (prefix / "lib/pkgconfig").mkdir(exist_ok=True)
            shutil.copy(source / "liburing.pc", prefix / "lib/pkgconfig")
            # Only the archive is left to link with.
            for library in prefix.glob("lib/liburing*.so*"):
                library.unlink()

    def numa_description(self, root):
        """A folder with a description for pkg-config that names the unpacked library."""
        folder = self.folder / "pkgconfig"
        folder.mkdir(exist_ok=True)
        library = root / "usr/lib/x86_64-linux-gnu"
        text = f"Name: numa\nDescription: numa\nVersion: 2\nCflags: -I{root}/usr/include\nLibs: {library}/libnuma.a\n"
        (folder / "numa.pc").write_text(text)
        return folder

    def unpacked(self, *packages):
        """The folder with the content of binary packages."""
        root, archives = self.folder / "root", self.folder / "archives"
        archives.mkdir(exist_ok=True)
        for package in packages:
            done = archives / f"{package}.unpacked"
            if not done.exists():
                run(["apt-get", "download", "-o", "APT::Sandbox::User=root", package], cwd=archives)
                for archive in archives.glob(f"{package}_*.deb"):
                    run(["dpkg", "-x", archive, root])
                done.touch()
        return root

    def source(self, package, name):
        """The unpacked upstream source of a package."""
        target = self.folder / name
        if not target.exists():
            suite, series = SOURCES.get(name, ("sid", None))
            apt = self.private_apt()
            shown = run(["apt-cache", *apt, "showsrc", "--only-source", package]).stdout.splitlines()
            versions = [line.split()[1] for line in shown if line.startswith("Version:")]
            versions = [version for version in versions if series is None or version.startswith(series)]
            if not versions:
                raise OSError(f"{suite} has no source package {package} {series or ''}")
            newest = versions[0]
            for version in versions[1:]:
                compared = ["dpkg", "--compare-versions", version, "gt", newest]
                newest = version if subprocess.run(compared, check=False).returncode == 0 else newest
            archives = self.folder / "archives"
            run(["apt-get", *apt, "source", "--download-only", f"{package}={newest}"], cwd=archives)
            upstream = newest.rsplit("-", 1)[0]
            archive = next(archives.glob(f"{package}_{upstream}.orig.tar.[gx]z"))
            target.mkdir()
            run(["tar", "xf", archive, "-C", target, "--strip-components=1"])
        return target

    def private_apt(self):
        """Options for a list of sources that is not the machine's."""
        apt = self.folder / "apt"
        lists = apt / "lists"
        words = {
            "Dir::Etc::sourcelist": apt / "sources.list",
            "Dir::Etc::sourceparts": "/dev/null",
            "Dir::State::lists": lists,
            "Dir::Cache": apt / "cache",
            "Dir::Cache::pkgcache": "",
            "Dir::Cache::srcpkgcache": "",
            "APT::Sandbox::User": "root",
        }
        options = [word for key, value in words.items() for word in ("-o", f"{key}={value}")]
        if not lists.exists():
            for folder in ("lists/partial", "cache/archives/partial"):
                (apt / folder).mkdir(parents=True, exist_ok=True)
            suites = sorted({suite for suite, _ in SOURCES.values()})
            archive = debian_archive()
            (apt / "sources.list").write_text("".join(f"deb-src {archive} {suite} main\n" for suite in suites))
            run(["apt-get", *options, "update"])
        return options


def debian_archive():
    """The archive that this machine's packages come from."""
    wanted = ["Created-By: Packages", "Component: main", "Release: bookworm"]
    listed = run(["apt-get", "indextargets", "--format", "$(REPO_URI)", *wanted]).stdout.split()
    if not listed:
        raise OSError("no source of apt has the component main of bookworm")
    return listed[0]


def run(command, **options):
    words = [str(word) for word in command]
    return subprocess.run(words, check=True, capture_output=True, text=True, **options)
