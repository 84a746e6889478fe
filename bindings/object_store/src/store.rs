//! [`UringfsStore`]: the trait `ObjectStore` over a directory of a volume.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result,
};
use uringfs::AsyncVolume;

use crate::attributes::to_xattrs;
use crate::multipart::{Upload, UploadPermit};
use crate::new_object::NewObject;
use crate::tree::Tree;
use crate::uploads::Uploads;

/// The files of a volume, or those under a prefix, as objects. Clones are the same store.
///
/// Each put, copy, rename and delete is atomic and durable when it answers; those that run at a time share commits. No
/// call blocks its thread, on any runtime.
///
/// ```
/// use object_store::path::Path;
/// use object_store::{Error, ObjectStoreExt, ObjectStore, PutMode};
/// use uringfs_object_store::UringfsStore;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let image = folder.path().join("image");
/// # let options = uringfs::FormatOptions::new().size(64 << 20);
/// # uringfs::AsyncVolume::create(&image, &options).await?.close().await?;
/// let store = UringfsStore::open(&image).await?;
/// let path = Path::from("logs/2026/first");
/// let first = store.put(&path, "hello".into()).await?;
/// assert_eq!(store.get(&path).await?.bytes().await?, "hello");
///
/// // Replaces what was read, and nothing else.
/// let expected = PutMode::Update(first.into());
/// store.put_opts(&path, "hello again".into(), expected.clone().into()).await?;
/// let late = store.put_opts(&path, "too late".into(), expected.into()).await;
/// assert!(matches!(late, Err(Error::Precondition { .. })));
///
/// store.into_volume().close().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct UringfsStore {
    pub(crate) tree: Tree,
    pub(crate) uploads: Arc<Uploads>,
}

impl UringfsStore {
    /// Opens the volume on a file or a block device, for reading and writing.
    ///
    /// # Errors
    /// As [`Volume::open`](uringfs::Volume::open).
    pub async fn open(path: impl AsRef<std::path::Path>) -> uringfs::Result<UringfsStore> {
        Ok(UringfsStore::new(AsyncVolume::open(path).await?))
    }

    /// The files of an open volume: a [`Volume`](uringfs::Volume) or an [`AsyncVolume`].
    pub fn new(volume: impl Into<AsyncVolume>) -> UringfsStore {
        UringfsStore { tree: Tree::new(volume.into()), uploads: Arc::default() }
    }

    /// The objects under a prefix, as a store whose paths are relative to it. The prefix need not exist: the first put
    /// makes it. [`MultipartStore`](object_store::multipart::MultipartStore)'s uploads belong to the store that began
    /// them.
    ///
    /// ```
    /// use object_store::ObjectStoreExt;
    /// use object_store::path::Path;
    /// use uringfs_object_store::UringfsStore;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let options = uringfs::FormatOptions::new().size(64 << 20).label("lake");
    /// # let volume = uringfs::AsyncVolume::create(folder.path().join("image"), &options).await?;
    /// let whole = UringfsStore::new(volume);
    /// let tables = whole.with_prefix(&Path::from("tables"));
    /// tables.put(&Path::from("a"), "1".into()).await?;
    /// assert_eq!(whole.get(&Path::from("tables/a")).await?.bytes().await?, "1");
    /// assert_eq!(tables.to_string(), "UringfsStore(lake:/tables)");
    /// # Ok(())
    /// # }
    /// ```
    pub fn with_prefix(&self, prefix: &Path) -> UringfsStore {
        UringfsStore { tree: self.tree.inner(prefix), uploads: Arc::default() }
    }

    /// The volume.
    pub fn volume(&self) -> &AsyncVolume {
        &self.tree.volume
    }

    /// The volume, without the store, to close it. [`AsyncVolume::close`] fails while clones of the store are alive, or
    /// uploads and streams of gets are.
    pub fn into_volume(self) -> AsyncVolume {
        self.tree.volume
    }
}

/// The label of the volume, or its identity, and the directory.
impl fmt::Display for UringfsStore {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (volume, path) = (self.tree.volume.volume(), self.tree.volume_path(&Path::default()));
        let path = path.display();
        match volume.label() {
            "" => {
                let identity = u128::from_be_bytes(volume.uuid());
                write!(out, "UringfsStore({identity:032x}:{path})")
            }
            label => write!(out, "UringfsStore({label}:{path})"),
        }
    }
}

#[async_trait]
impl ObjectStore for UringfsStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.tree.put(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let permit = UploadPermit::acquire(&self.uploads.count)?;
        let xattrs = to_xattrs(&options.attributes)?;
        let new = NewObject::create(&self.tree, location, &xattrs).await?;
        Ok(Box::new(Upload::new(new, permit)))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.tree.get(location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.tree.get_ranges(location, ranges).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.tree.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.tree.list(prefix, None)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.tree.list(prefix, Some(offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.tree.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.tree.copy(from, to, options.mode).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.tree.rename(from, to, options.target_mode).await
    }
}
