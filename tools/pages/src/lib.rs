//! Compiles the code in the pages of `docs/guide` as documentation tests, and looks up the names in its tables
//! ([`coming_from`]). A test compares the README with the manifest. There is nothing else here.

pub mod coming_from;

/// A page of `docs/guide`.
macro_rules! page {
    ($name:ident, $path:literal) => {
        #[cfg(doctest)]
        #[doc = include_str!($path)]
        mod $name {}
    };
}

page!(files, "../../../docs/guide/files.md");
page!(log, "../../../docs/guide/log.md");
page!(cache, "../../../docs/guide/cache.md");
page!(tokio_service, "../../../docs/guide/tokio.md");
page!(cancellation, "../../../docs/guide/cancellation.md");
page!(thread_per_core, "../../../docs/guide/thread-per-core.md");
page!(object_store, "../../../docs/guide/object-store.md");
page!(nvme, "../../../docs/guide/nvme.md");
page!(ublk, "../../../docs/guide/ublk.md");
page!(vhost_user, "../../../docs/guide/vhost-user.md");

#[cfg(test)]
mod tests {
    #[test]
    fn the_readme_names_the_oldest_rust() {
        let needs = concat!("needs Rust ", env!("CARGO_PKG_RUST_VERSION"), " or newer");
        assert!(include_str!("../../../README.md").contains(needs), "{needs}");
    }
}
