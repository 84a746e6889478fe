//! The interface as C and C++ programs see it: the header, and programs that are compiled and run with the library.

mod calls;
mod examples;
mod header;
mod install;
mod pages;

mod harness;
