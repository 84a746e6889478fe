//! Files, one module a subject. One program, since linking takes longer than most modules' tests. A test that counts
//! threads or system calls of the process, or forks, is a program of its own.

#[path = "../harness/mod.rs"]
mod harness;

mod allocating;
mod batch;
mod buffered_faults;
mod called;
mod chosen_again;
mod completions;
mod concurrent_writers;
mod drops;
mod exact;
mod fairness;
mod faults;
mod foreign_loop;
mod model;
mod nvme;
mod owned_memory;
mod resized_device;
mod searches;
mod several_tokens;
mod shrunken_device;
mod truncation;
