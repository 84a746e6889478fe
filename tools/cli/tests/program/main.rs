//! The program `uringfs` as a user meets it, a module for each of its commands.

mod bench_run;
mod bench_vm;
mod info;
mod root;
mod process;
mod volume;
