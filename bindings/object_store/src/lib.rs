//! [`UringfsStore`]: the files of a [uringfs](https://github.com/uringfs/uringfs) volume as objects, by the trait
//! [`ObjectStore`](object_store::ObjectStore) of `object_store` 0.14, by which DataFusion, Delta Lake and Lance read
//! and write. The program `uringfs`, mounts, C and Python read and write the same files. For programs whose
//! `object_store` is 0.13, as that of DataFusion 55, the feature `object-store-0-13` has `UringfsStore013`.
//!
//! ```
//! use futures_util::TryStreamExt;
//! use object_store::path::Path;
//! use object_store::{ObjectStore, ObjectStoreExt};
//! use uringfs::{AsyncVolume, FormatOptions};
//! use uringfs_object_store::UringfsStore;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let image = folder.path().join("image");
//! let volume = AsyncVolume::create(&image, &FormatOptions::new().size(64 << 20)).await?;
//! let store = UringfsStore::new(volume);
//! store.put(&Path::from("tables/trips/part-0"), "many rows".into()).await?;
//! let rows = store.get_ranges(&Path::from("tables/trips/part-0"), &[0..4, 5..9]).await?;
//! assert_eq!(rows, ["many", "rows"]);
//! let objects: Vec<_> = store.list(Some(&Path::from("tables"))).try_collect().await?;
//! assert_eq!(objects[0].size, 9);
//! # Ok(())
//! # }
//! ```
//!
//! # What holds
//!
//! - **A put is all or nothing, and durable when it answers.** Its bytes go to a file without a name. The name, which
//!   may be that of an older object, and all that belongs to the file become durable with one commit, which puts that
//!   wait at a time share. A get may see the object shortly before its put answers; after a power cut in that time it
//!   may be gone. The same holds for copies, renames, deletes and completed uploads. A put that fails in the commit
//!   itself has an unknown outcome.
//! - **Conditions are exact**. The link that gives a put its name compares the file that the name is of, and whether it
//!   was written in place, in the same step: of several updates with one ETag exactly one succeeds, also if some come
//!   from other stores or a mount of this process.
//! - **An object does not change.** A get that has begun reads the same object to its end, also when that is replaced
//!   or deleted meanwhile.
//! - **ETags** are made of the inode's number, which no other file of the volume ever gets, the time of its creation,
//!   and its change cookie, which differs after each write ([`Metadata::change_cookie`]). They stay over renames, and
//!   are the same after the volume is opened again. A write *in place*, through a mount or by the library, changes the
//!   ETag when it begins, so a get that runs beside one may return a part of it with the new ETag: programs that write
//!   should write a new file and rename it.
//!
//! [`Metadata::change_cookie`]: uringfs::volume::Metadata::change_cookie
//!
//! - **`a` and `a/b` are not both objects**, because a name in a volume is a file or a directory. The second one gets
//!   [`NameConflict`].
//! - **Directories** are made by puts and removed by the delete or rename that leaves them empty. Empty ones, symbolic
//!   links, devices and other special files are not seen; symbolic links are not followed. An object that gets the name
//!   of a link or special file replaces it, as rename(2) does; with `PutMode::Create` it fails. A rename of an object
//!   to another name of the same file, a hard link, fails: rename(2) would leave both names.
//! - **Owners and permissions**: objects are files of the process's user with mode 0644, and inherit the group and the
//!   default access control list of their directories, as other files do.
//! - **Names** of files that are no segments of object paths (control characters, bytes that are not UTF-8) are
//!   percent-encoded, and the paths that listings return lead to them. All other names are the same on both sides.
//! - **Attributes** are extended attributes: `user.mime_type` is the content type, the others begin with
//!   `user.object_store.`. Tags are ignored, and there are no versions.
//! - **Uploads** that are not completed are not seen, end with their handle or their process, and are at most 10,000 at
//!   a time for a store and its clones. Those of [`MultipartStore`](object_store::multipart::MultipartStore) have no
//!   handle: `create_multipart` removes the ones that had no part for a day, of the same store and its clones only.
//!   Other stores of the volume, such as one under a prefix, have uploads of their own. A completion that fails before
//!   the object has its name leaves the upload, and can be repeated; one whose future is dropped ends it. Parts that
//!   are still being written when an upload is completed never get into the object.
//!
//! # Threads
//!
//! All calls are futures that block no thread, on tokio or any other runtime: background reactors of the process run
//! the operations. One process at a time has a volume open for writing.

// The modules, top down. Each imports only from modules below it.

// The trait of object_store 0.13.
#[cfg(feature = "object-store-0-13")]
mod version_0_13;

// Uploads that have an id.
mod multipart_store;

// The store, and the trait's calls.
mod store;

// The state of uploads that have an id.
mod uploads;

// Uploads, with an id and without.
mod multipart;

// Copies, renames and deletes.
mod rename;

// Puts.
mod put;

// Listings.
mod list;

// Gets.
mod get;

// A file before it has a name.
mod new_object;

// The name of a new or moved object.
mod new_name;

// Directories, and names of objects in them.
mod tree;

// Attributes, metadata, names and errors.
mod attributes;
mod error;
mod etag;
mod names;

pub use error::NameConflict;
pub use store::UringfsStore;
#[cfg(feature = "object-store-0-13")]
pub use version_0_13::UringfsStore013;

/// Compiles the code of the README with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
