//! Compiles the code in the pages of `docs/guide` as documentation tests, and looks up the names in its tables
//! ([`coming_from`]). There is nothing else here.

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
