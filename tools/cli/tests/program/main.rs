//! Tests of the program `uringfs` by its command line. One module per command.

mod bench_compare;
mod bench_experiment;
mod bench_gate;
mod bench_run;
mod bench_sweep;
mod bench_vm;
mod generate;
mod info;
mod process;
mod root;
mod volume;
