//! The suite that the crate `object_store` has for stores, on a volume in a file, in memory, and under a prefix.

use object_store::integration::*;
use object_store::path::Path;
use object_store::{Error, ObjectStore};
use uringfs::device::Device;
use uringfs::device::backend::memory::Memory;
use uringfs::{AsyncVolume, FormatOptions, Volume};
use uringfs_object_store::UringfsStore;

const BYTES: u64 = 256 << 20;

/// All functions of the suite but those for pages of listings and for HTTP, which stores of files do not have.
async fn run(store: UringfsStore) {
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
    // It expects an empty store.
    remove_all(&store).await;
    stream_get(&store).await;
    multipart(&store, &store).await;
    multipart_with_opts(&store, &store).await;
    multipart_put_part_out_of_order(&store, &store).await;
    multipart_out_of_order(&store).await;
    multipart_race_condition(&store, true).await;
    remove_all(&store).await;
}

async fn remove_all(store: &dyn ObjectStore) {
    use futures_util::{StreamExt, TryStreamExt};
    let paths = store.list(None).map_ok(|object| object.location).boxed();
    store.delete_stream(paths).try_collect::<Vec<Path>>().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_suite_passes_on_a_volume_in_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let options = FormatOptions::new().size(BYTES);
    let volume = AsyncVolume::create(&image, &options).await.unwrap();
    let store = UringfsStore::new(volume);
    run(store.clone()).await;
    let volume = store.into_volume();
    assert_eq!(volume.read_dir("/").await.unwrap().next_entry().await.unwrap(), None);
    volume.close().await.unwrap();
}

/// The thread of a current-thread runtime also runs the test's other tasks: a call that blocked it would hang.
#[tokio::test]
async fn the_suite_passes_on_a_volume_in_memory_and_under_a_prefix() {
    let device = Device::new(Memory::new(BYTES).unwrap()).unwrap();
    let volume = Volume::create_on(device, &FormatOptions::new().label("memory")).unwrap();
    let store = UringfsStore::new(volume).with_prefix(&Path::from("some/tables"));
    assert_eq!(store.to_string(), "UringfsStore(memory:/some/tables)");
    run(store).await;
}
