//! Mistakes for tests: calls that panic. Programs have no declaration of them, the shared library and release builds
//! have no symbol.

use crate::handle::call;
use crate::reactor::ReactorHandle;
use crate::volume::VolumeHandle;

/// Panics in a call with a volume.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_planted_panic_of_volume(volume: Option<&VolumeHandle>) -> i32 {
    call(volume, |_| panic!("planted in a call with a volume"))
}

/// Panics in a call with a reactor.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_planted_panic_of_reactor(reactor: Option<&ReactorHandle>) -> i32 {
    call(reactor, |_| std::panic::panic_any(7))
}
