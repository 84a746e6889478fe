//! The attributes of objects as extended attributes of files.
//!
//! The type is in `user.mime_type`, the name that desktops and web servers share. All others have names of this crate,
//! under `user.object_store.`. Other extended attributes of a file are no attributes of the object.

use object_store::path::Path;
use object_store::{Attribute, AttributeValue, Attributes, Error, Result};
use uringfs::Errno;
use uringfs::volume::InodeRef;

use crate::error::{generic, object_error};

/// The names of all attributes but metadata.
const NAMES: [(Attribute, &str); 6] = [
    (Attribute::ContentType, "user.mime_type"),
    (Attribute::CacheControl, "user.object_store.cache_control"),
    (Attribute::ContentDisposition, "user.object_store.content_disposition"),
    (Attribute::ContentEncoding, "user.object_store.content_encoding"),
    (Attribute::ContentLanguage, "user.object_store.content_language"),
    (Attribute::StorageClass, "user.object_store.storage_class"),
];

/// A key of metadata follows.
const METADATA: &str = "user.object_store.metadata.";

/// The name and the value of each extended attribute.
pub(crate) type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// The extended attributes of a new object.
///
/// # Errors
/// `NotImplemented` for an attribute that this crate does not know.
pub(crate) fn to_xattrs(attributes: &Attributes) -> Result<Xattrs> {
    let xattr = |(attribute, value): (&Attribute, &AttributeValue)| {
        let name = match attribute {
            Attribute::Metadata(key) => format!("{METADATA}{key}"),
            attribute => match NAMES.iter().find(|(known, _)| known == attribute) {
                Some((_, name)) => (*name).to_owned(),
                None => {
                    return Err(Error::NotImplemented {
                        operation: format!("a put with the attribute {attribute:?}"),
                        implementer: "UringfsStore".to_owned(),
                    });
                }
            },
        };
        Ok((name.into_bytes(), value.as_bytes().to_vec()))
    };
    attributes.iter().map(xattr).collect()
}

/// The attributes of an object. A value that is not UTF-8 has characters replaced.
pub(crate) async fn read(location: &Path, inode: &InodeRef) -> Result<Attributes> {
    let xattrs = read_xattrs(inode, |name| attribute(name).is_some()).await;
    let xattrs = xattrs.map_err(|error| object_error(location, error))?;
    let attributes = xattrs.into_iter().filter_map(|(name, value)| {
        let value = String::from_utf8_lossy(&value).into_owned();
        Some((attribute(&name)?, AttributeValue::from(value)))
    });
    Ok(attributes.collect())
}

/// The extended attributes whose names `wants` accepts.
///
/// # Errors
/// Errors of the volume.
pub(crate) async fn read_xattrs(
    inode: &InodeRef,
    wants: impl Fn(&[u8]) -> bool,
) -> uringfs::Result<Xattrs> {
    let mut xattrs = Xattrs::new();
    for name in inode.list_xattrs().await? {
        if !wants(&name) {
            continue;
        }
        match inode.get_xattr(&name).await {
            Ok(value) => xattrs.push((name, value)),
            // It was removed meanwhile, through a mount.
            Err(error) if error.errno() == Errno::NODATA => {}
            Err(error) => return Err(error),
        }
    }
    Ok(xattrs)
}

fn attribute(name: &[u8]) -> Option<Attribute> {
    let name = str::from_utf8(name).ok()?;
    if let Some(key) = name.strip_prefix(METADATA) {
        return Some(Attribute::Metadata(key.to_owned().into()));
    }
    NAMES.iter().find(|(_, known)| *known == name).map(|(attribute, _)| attribute.clone())
}

/// The error when a file cannot have its attributes.
pub(crate) fn refused(location: &Path, error: uringfs::Error) -> Error {
    match error.errno() {
        Errno::RANGE | Errno::OPNOTSUPP | Errno::TOOBIG => generic(format!(
            "object {:?}: {error}; an attribute has at most 65536 bytes, a key of metadata 228, none of them 0",
            location.as_ref()
        )),
        _ => object_error(location, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_attribute_has_a_name_and_comes_back() {
        for (known, name) in NAMES {
            let attributes = Attributes::from_iter([(known.clone(), "value")]);
            assert_eq!(to_xattrs(&attributes).unwrap(), [(name.into(), b"value".to_vec())]);
            assert_eq!(attribute(name.as_bytes()), Some(known));
        }
        let metadata = Attribute::Metadata("a key".into());
        let name = to_xattrs(&Attributes::from_iter([(metadata.clone(), "")])).unwrap().remove(0).0;
        assert_eq!(attribute(&name), Some(metadata));
        assert_eq!(attribute(b"user.other"), None);
        assert_eq!(255 - METADATA.len(), 228);
    }
}
