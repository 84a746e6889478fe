//! The suite of `object_store` 0.13, on the same store by the trait of that version.

use futures_util::{StreamExt, stream};
use object_store_013::integration::*;
use object_store_013::path::Path;
use object_store_013::{Error, ObjectStore, ObjectStoreExt};
use uringfs::device::Device;
use uringfs::device::backend::memory::Memory;
use uringfs::{FormatOptions, Volume};
use uringfs_object_store::{NameConflict, UringfsStore, UringfsStore013};

fn new_store() -> UringfsStore013 {
    let device = Device::new(Memory::new(256 << 20).unwrap()).unwrap();
    UringfsStore::new(Volume::create_on(device, &FormatOptions::new()).unwrap()).into()
}

#[tokio::test]
async fn the_suite_of_version_0_13_passes() {
    let store = new_store();
    put_get_delete_list(&store).await;
    list_with_offset_exclusivity(&store).await;
    get_opts(&store).await;
    put_opts(&store, true).await;
    list_uses_directories_correctly(&store).await;
    list_with_delimiter(&store).await;
    rename_and_copy(&store).await;
    copy_if_not_exists(&store).await;
    copy_rename_nonexistent_object(&store).await;
    put_get_attributes(&store).await;
    let error = get_nonexistent_object(&store, None).await.unwrap_err();
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
    multipart_out_of_order(&store).await;
    multipart_race_condition(&store, true).await;
    // It expects an empty store.
    stream_get(&new_store()).await;
}

#[tokio::test]
async fn errors_keep_their_kind_and_source() {
    let store = new_store();
    store.put(&Path::from("a"), "1".into()).await.unwrap();
    match store.put(&Path::from("a/b"), "1".into()).await {
        Err(Error::Generic { source, .. }) => assert!(source.is::<NameConflict>(), "{source}"),
        other => panic!("{other:?}"),
    }
    let put = store.put(&Path::default(), "1".into()).await;
    assert!(matches!(put, Err(Error::InvalidPath { .. })), "{put:?}");
    // The caller's own error, too.
    let precondition = Error::Precondition { path: "b".to_owned(), source: "planned".into() };
    let locations = stream::iter([Err(precondition), Ok(Path::from("c"))]).boxed();
    let deleted: Vec<_> = store.delete_stream(locations).collect().await;
    assert!(matches!(&deleted[0], Err(Error::Precondition { path, .. }) if path == "b"));
    assert!(matches!(&deleted[1], Err(Error::NotFound { path, .. }) if path == "c"), "{deleted:?}");
    let store = UringfsStore::from(store);
    let got = object_store::ObjectStoreExt::get(&store, &"a".into()).await.unwrap();
    assert_eq!(got.bytes().await.unwrap(), "1");
}
