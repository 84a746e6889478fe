//! [`UringfsStore013`]: the same store by the trait of `object_store` 0.13, which DataFusion 55 has. Converts arguments
//! and results, and does nothing else.

use std::fmt;
use std::ops::Range;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::stream::{BoxStream, StreamExt, TryStreamExt};
use object_store as new;
use object_store::ObjectStore as _;
use object_store_013 as old;

use crate::error::STORE;
use crate::store::UringfsStore;

/// A [`UringfsStore`] by the trait `ObjectStore` of `object_store` 0.13 (feature `object-store-0-13`), for programs
/// whose DataFusion, Delta Lake or Lance has that version. The results are the same.
///
/// ```
/// use object_store_013::path::Path;
/// use object_store_013::ObjectStoreExt;
/// use uringfs_object_store::{UringfsStore, UringfsStore013};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let options = uringfs::FormatOptions::new().size(64 << 20);
/// # let volume = uringfs::AsyncVolume::create(folder.path().join("image"), &options).await?;
/// let store = UringfsStore013::from(UringfsStore::new(volume));
/// store.put(&Path::from("a"), "1".into()).await?;
/// assert_eq!(store.get(&Path::from("a")).await?.bytes().await?, "1");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct UringfsStore013(UringfsStore);

impl From<UringfsStore> for UringfsStore013 {
    fn from(store: UringfsStore) -> UringfsStore013 {
        UringfsStore013(store)
    }
}

impl From<UringfsStore013> for UringfsStore {
    fn from(store: UringfsStore013) -> UringfsStore {
        store.0
    }
}

impl fmt::Display for UringfsStore013 {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

#[async_trait]
impl old::ObjectStore for UringfsStore013 {
    async fn put_opts(
        &self,
        location: &old::path::Path,
        payload: old::PutPayload,
        options: old::PutOptions,
    ) -> old::Result<old::PutResult> {
        let mode = match options.mode {
            old::PutMode::Overwrite => new::PutMode::Overwrite,
            old::PutMode::Create => new::PutMode::Create,
            old::PutMode::Update(old::UpdateVersion { e_tag, version }) => {
                new::PutMode::Update(new::UpdateVersion { e_tag, version })
            }
        };
        let attributes = new_attributes(&options.attributes)?;
        let options = new::PutOptions { mode, attributes, ..Default::default() };
        let put = self.0.put_opts(&new_path(location), new_payload(payload), options).await;
        put.map(old_put).map_err(old_error)
    }

    async fn put_multipart_opts(
        &self,
        location: &old::path::Path,
        options: old::PutMultipartOptions,
    ) -> old::Result<Box<dyn old::MultipartUpload>> {
        let attributes = new_attributes(&options.attributes)?;
        let options = new::PutMultipartOptions { attributes, ..Default::default() };
        let upload = self.0.put_multipart_opts(&new_path(location), options).await;
        Ok(Box::new(Upload(upload.map_err(old_error)?)))
    }

    async fn get_opts(
        &self,
        location: &old::path::Path,
        options: old::GetOptions,
    ) -> old::Result<old::GetResult> {
        let range = options.range.map(|range| match range {
            old::GetRange::Bounded(range) => new::GetRange::Bounded(range),
            old::GetRange::Offset(offset) => new::GetRange::Offset(offset),
            old::GetRange::Suffix(length) => new::GetRange::Suffix(length),
        });
        let options = new::GetOptions {
            if_match: options.if_match,
            if_none_match: options.if_none_match,
            if_modified_since: options.if_modified_since,
            if_unmodified_since: options.if_unmodified_since,
            range,
            version: options.version,
            head: options.head,
            extensions: Default::default(),
        };
        let got = self.0.get_opts(&new_path(location), options).await.map_err(old_error)?;
        let attributes = got.attributes.iter().filter_map(|(name, value)| {
            Some((old_attribute(name)?, old::AttributeValue::from(value.to_string())))
        });
        Ok(old::GetResult {
            meta: old_meta(got.meta.clone()),
            range: got.range.clone(),
            attributes: attributes.collect(),
            payload: old::GetResultPayload::Stream(got.into_stream().map_err(old_error).boxed()),
        })
    }

    async fn get_ranges(
        &self,
        location: &old::path::Path,
        ranges: &[Range<u64>],
    ) -> old::Result<Vec<Bytes>> {
        self.0.get_ranges(&new_path(location), ranges).await.map_err(old_error)
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, old::Result<old::path::Path>>,
    ) -> BoxStream<'static, old::Result<old::path::Path>> {
        // The caller's own error passes through the other version's.
        let locations = locations.map(|location| match location {
            Ok(location) => Ok(new_path(&location)),
            Err(error) => Err(new::Error::Generic { store: STORE, source: Box::new(error) }),
        });
        let deleted = self.0.delete_stream(locations.boxed());
        deleted.map(|location| location.map(|path| old_path(&path)).map_err(old_error)).boxed()
    }

    fn list(
        &self,
        prefix: Option<&old::path::Path>,
    ) -> BoxStream<'static, old::Result<old::ObjectMeta>> {
        old_metas(self.0.list(prefix.map(new_path).as_ref()))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&old::path::Path>,
        offset: &old::path::Path,
    ) -> BoxStream<'static, old::Result<old::ObjectMeta>> {
        old_metas(self.0.list_with_offset(prefix.map(new_path).as_ref(), &new_path(offset)))
    }

    async fn list_with_delimiter(
        &self,
        prefix: Option<&old::path::Path>,
    ) -> old::Result<old::ListResult> {
        let listed = self.0.list_with_delimiter(prefix.map(new_path).as_ref()).await;
        let listed = listed.map_err(old_error)?;
        Ok(old::ListResult {
            common_prefixes: listed.common_prefixes.iter().map(old_path).collect(),
            objects: listed.objects.into_iter().map(old_meta).collect(),
        })
    }

    async fn copy_opts(
        &self,
        from: &old::path::Path,
        to: &old::path::Path,
        options: old::CopyOptions,
    ) -> old::Result<()> {
        let mode = match options.mode {
            old::CopyMode::Overwrite => new::CopyMode::Overwrite,
            old::CopyMode::Create => new::CopyMode::Create,
        };
        let options = new::CopyOptions::new().with_mode(mode);
        self.0.copy_opts(&new_path(from), &new_path(to), options).await.map_err(old_error)
    }

    async fn rename_opts(
        &self,
        from: &old::path::Path,
        to: &old::path::Path,
        options: old::RenameOptions,
    ) -> old::Result<()> {
        let mode = match options.target_mode {
            old::RenameTargetMode::Overwrite => new::RenameTargetMode::Overwrite,
            old::RenameTargetMode::Create => new::RenameTargetMode::Create,
        };
        let options = new::RenameOptions::new().with_target_mode(mode);
        self.0.rename_opts(&new_path(from), &new_path(to), options).await.map_err(old_error)
    }
}

#[derive(Debug)]
struct Upload(Box<dyn new::MultipartUpload>);

#[async_trait]
impl old::MultipartUpload for Upload {
    fn put_part(&mut self, data: old::PutPayload) -> old::UploadPart {
        self.0.put_part(new_payload(data)).map(|put| put.map_err(old_error)).boxed()
    }

    async fn complete(&mut self) -> old::Result<old::PutResult> {
        self.0.complete().await.map(old_put).map_err(old_error)
    }

    async fn abort(&mut self) -> old::Result<()> {
        self.0.abort().await.map_err(old_error)
    }
}

/// Both versions accept the same paths.
fn new_path(path: &old::path::Path) -> new::path::Path {
    new::path::Path::parse(path).expect("a path of one version is one of the other")
}

fn old_path(path: &new::path::Path) -> old::path::Path {
    old::path::Path::parse(path).expect("a path of one version is one of the other")
}

fn new_payload(payload: old::PutPayload) -> new::PutPayload {
    payload.into_iter().collect()
}

fn old_put(put: new::PutResult) -> old::PutResult {
    old::PutResult { e_tag: put.e_tag, version: put.version }
}

fn old_meta(meta: new::ObjectMeta) -> old::ObjectMeta {
    let new::ObjectMeta { location, last_modified, size, e_tag, version } = meta;
    old::ObjectMeta { location: old_path(&location), last_modified, size, e_tag, version }
}

fn old_metas(
    metas: BoxStream<'static, new::Result<new::ObjectMeta>>,
) -> BoxStream<'static, old::Result<old::ObjectMeta>> {
    metas.map(|meta| meta.map(old_meta).map_err(old_error)).boxed()
}

/// # Errors
/// `NotImplemented` for an attribute that the store does not have.
fn new_attributes(attributes: &old::Attributes) -> old::Result<new::Attributes> {
    let convert = |(name, value): (&old::Attribute, &old::AttributeValue)| {
        let name = match name {
            old::Attribute::ContentDisposition => new::Attribute::ContentDisposition,
            old::Attribute::ContentEncoding => new::Attribute::ContentEncoding,
            old::Attribute::ContentLanguage => new::Attribute::ContentLanguage,
            old::Attribute::ContentType => new::Attribute::ContentType,
            old::Attribute::CacheControl => new::Attribute::CacheControl,
            old::Attribute::StorageClass => new::Attribute::StorageClass,
            old::Attribute::Metadata(key) => new::Attribute::Metadata(key.clone()),
            other => {
                return Err(old::Error::NotImplemented {
                    operation: format!("a put with the attribute {other:?}"),
                    implementer: "UringfsStore".to_owned(),
                });
            }
        };
        Ok((name, new::AttributeValue::from(value.to_string())))
    };
    attributes.iter().map(convert).collect()
}

/// `None` for an attribute that version 0.13 does not have.
fn old_attribute(name: &new::Attribute) -> Option<old::Attribute> {
    Some(match name {
        new::Attribute::ContentDisposition => old::Attribute::ContentDisposition,
        new::Attribute::ContentEncoding => old::Attribute::ContentEncoding,
        new::Attribute::ContentLanguage => old::Attribute::ContentLanguage,
        new::Attribute::ContentType => old::Attribute::ContentType,
        new::Attribute::CacheControl => old::Attribute::CacheControl,
        new::Attribute::StorageClass => old::Attribute::StorageClass,
        new::Attribute::Metadata(key) => old::Attribute::Metadata(key.clone()),
        _ => return None,
    })
}

/// Keeps kind, path and source. An error of the caller comes back as it was.
fn old_error(error: new::Error) -> old::Error {
    match error {
        new::Error::Generic { store, source } => match source.downcast() {
            Ok(caller) => *caller,
            Err(source) => old::Error::Generic { store, source },
        },
        new::Error::NotFound { path, source } => old::Error::NotFound { path, source },
        new::Error::AlreadyExists { path, source } => old::Error::AlreadyExists { path, source },
        new::Error::Precondition { path, source } => old::Error::Precondition { path, source },
        new::Error::NotModified { path, source } => old::Error::NotModified { path, source },
        new::Error::NotSupported { source } => old::Error::NotSupported { source },
        new::Error::NotImplemented { operation, implementer } => {
            old::Error::NotImplemented { operation, implementer }
        }
        new::Error::PermissionDenied { path, source } => {
            old::Error::PermissionDenied { path, source }
        }
        new::Error::Unauthenticated { path, source } => {
            old::Error::Unauthenticated { path, source }
        }
        new::Error::InvalidPath { source: new::path::Error::EmptySegment { path } } => {
            old::Error::InvalidPath { source: old::path::Error::EmptySegment { path } }
        }
        other => old::Error::Generic { store: STORE, source: Box::new(other) },
    }
}
