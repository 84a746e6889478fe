# The project's commands. `make demo` and `make test` set up what they need by themselves.

.PHONY: demo test soak check bench-check setup

# Fills an image, reads it back through the direct path, runs the jobs and the experiments.
demo:
	scripts/demo

# Everything that must hold before a change lands; about half an hour from nothing on two cores.
test:
	scripts/test

# The same with far more cases and hours of fuzzing.
soak:
	scripts/test --soak

# The fast inner loop; under two minutes once things are built.
check:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet
	cargo test --workspace --lib

# The figures the project promises, measured on this machine. By hand, as root, on an idle machine.
bench-check:
	scripts/setup bench
	cargo build --release --locked --bin uringfs
	scripts/bench-check

# Only what has to be installed.
setup:
	scripts/setup test
