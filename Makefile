# The project's commands. `make demo` and `make test` set up what they need by themselves.

.PHONY: demo test soak check bench-build bench-check record vm static docs deb c setup

# Fills a volume and an image, reads both back, kills a writer, and runs the example jobs and the experiments, beside ext4.
demo:
	scripts/demo

# Everything that a change must pass; up to 70 minutes from nothing on two cores.
test:
	scripts/test

# The same with more cases, deeper searches and more programs; up to three hours from nothing.
soak:
	scripts/test --soak

# The fast inner loop; under two minutes once things are built.
check:
	cargo fmt --all --check
	cargo clippy --workspace --all-features --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet
	cargo test --workspace --all-features --lib

# Measures the promised figures on this machine. By hand, as root, on an idle machine.
bench-check: bench-build static
	scripts/bench/run

# Records all figures of the documentation on this machine, and draws them. By hand, as root, on an idle machine.
record: bench-build static
	scripts/bench/record

# Only builds what is measured.
bench-build:
	scripts/setup bench
	cargo build --release --locked --bin uringfs --example durable_appends --example cached_reads --example many_files

# Counts the instructions of a read in a guest: raw, through file systems, and through this stack.
vm: static
	target/x86_64-unknown-linux-gnu/release/uringfs bench vm

# Only builds the program for the guest.
static:
	scripts/setup demo
	RUSTFLAGS='-C target-feature=+crt-static' cargo build --release --locked \
		--target x86_64-unknown-linux-gnu --bin uringfs

# Builds a site of docs/ into target/docs.
docs:
	scripts/setup docs
	PATH=$(CURDIR)/target/tools/bin:$$PATH mdbook build

# Builds Debian packages of the program, and of its debugging information, into target/deb.
deb:
	scripts/setup deb
	scripts/deb

# Builds the C library into target/c, for /usr/local.
c:
	bindings/c/build

# Only installs the required packages.
setup:
	scripts/setup test
