//! The promises of the store beyond the suite: conflicts of names, directories, names of other files, ETags, and
//! concurrent calls.

use std::ffi::OsStr;
use std::fs::Permissions;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;

use futures_util::future::join_all;
use futures_util::{StreamExt, TryStreamExt};
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, CopyOptions, Error, GetOptions, ObjectStore, ObjectStoreExt, PutMode,
    PutOptions, PutPayload, UpdateVersion,
};
use proptest::prelude::*;
use uringfs::cache::Cache;
use uringfs::device::backend::memory::Memory;
use uringfs::device::backend::sim::{Fault, Rule, Sim, SimOptions, When};
use uringfs::device::{Device, Op};
use uringfs::volume::{FileType, Follow, Inode, SetXattr};
use uringfs::{AsyncVolume, Errno, FormatOptions, Volume};
use uringfs_object_store::{NameConflict, UringfsStore};

fn new_store() -> UringfsStore {
    let device = Device::new(Memory::new(64 << 20).unwrap()).unwrap();
    UringfsStore::new(Volume::create_on(device, &FormatOptions::new()).unwrap())
}

fn path(text: &str) -> Path {
    Path::from(text)
}

async fn paths(store: &UringfsStore) -> Vec<String> {
    let listed: Vec<_> = store.list(None).try_collect().await.unwrap();
    listed.into_iter().map(|object| object.location.to_string()).collect()
}

async fn text(store: &UringfsStore, location: &str) -> String {
    let bytes = store.get(&path(location)).await.unwrap().bytes().await.unwrap();
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The names in the volume's root.
async fn root_names(store: &UringfsStore) -> Vec<String> {
    let entries = store.volume().read_dir("/").await.unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.collect().await
}

fn conflict<T: std::fmt::Debug>(result: object_store::Result<T>) -> (String, String) {
    match result {
        Err(Error::Generic { source, .. }) => {
            let conflict = source.downcast_ref::<NameConflict>().expect("a conflict");
            (conflict.existing.to_string(), conflict.to_string())
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_name_is_an_object_or_a_directory_and_the_error_says_which() {
    let store = new_store();
    store.put(&path("a"), "1".into()).await.unwrap();
    store.put(&path("b/c/d"), "2".into()).await.unwrap();
    let create = || PutOptions::from(PutMode::Create);
    let (existing, message) = conflict(store.put(&path("a/x/y"), "3".into()).await);
    assert_eq!(existing, "a");
    assert_eq!(
        message,
        "\"a/x/y\" cannot be an object beside \"a\": in a volume a name is either an object or a directory; delete or \
         rename \"a\", or choose another path"
    );
    assert_eq!(conflict(store.put_opts(&path("a/x"), "3".into(), create()).await).0, "a");
    assert_eq!(conflict(store.put(&path("b/c"), "3".into()).await).0, "b/c/d");
    assert_eq!(conflict(store.put_opts(&path("b"), "3".into(), create()).await).0, "b/c/d");
    assert_eq!(conflict(store.copy(&path("a"), &path("b")).await).0, "b/c/d");
    assert_eq!(conflict(store.copy_if_not_exists(&path("a"), &path("b")).await).0, "b/c/d");
    assert_eq!(conflict(store.rename(&path("a"), &path("b/c")).await).0, "b/c/d");
    assert_eq!(conflict(store.rename_if_not_exists(&path("a"), &path("b/c")).await).0, "b/c/d");
    assert_eq!(conflict(store.rename(&path("b/c/d"), &path("a/b")).await).0, "a");
    let mut upload = store.put_multipart(&path("a/part")).await.unwrap();
    assert_eq!(conflict(upload.complete().await).0, "a");
    assert_eq!(paths(&store).await, ["a", "b/c/d"]);
    // Nothing of the failed puts is left.
    assert_eq!(root_names(&store).await, ["a", "b"]);
    let inner = store.with_prefix(&path("a"));
    assert_eq!(conflict(inner.put(&path("x"), "3".into()).await).0, "a");
}

#[tokio::test]
async fn directories_come_and_go_with_objects() {
    let store = new_store();
    let volume = store.volume().clone();
    volume.create_dir_all("/empty/inner").await.unwrap();
    assert_eq!(paths(&store).await, [""; 0]);
    let listed = store.list_with_delimiter(None).await.unwrap();
    assert_eq!((listed.objects.len(), listed.common_prefixes.len()), (0, 0));
    // An empty directory makes room for an object, and for a rename to its name.
    store.put(&path("empty"), "1".into()).await.unwrap();
    volume.create_dir_all("/also/empty").await.unwrap();
    store.rename_if_not_exists(&path("empty"), &path("also")).await.unwrap();
    assert_eq!(root_names(&store).await, ["also"]);
    store.put(&path("x/y/z"), "2".into()).await.unwrap();
    store.put(&path("x/w"), "3".into()).await.unwrap();
    store.delete(&path("x/y/z")).await.unwrap();
    assert!(!volume.exists("/x/y").await.unwrap());
    store.rename(&path("x/w"), &path("moved/w")).await.unwrap();
    assert_eq!(root_names(&store).await, ["also", "moved"]);
    // A put whose condition fails makes no directory.
    let update = PutMode::Update(UpdateVersion { e_tag: Some("1-2-3".into()), version: None });
    let put = store.put_opts(&path("none/x"), "4".into(), update.into()).await;
    assert!(matches!(put, Err(Error::Precondition { .. })), "{put:?}");
    let put = store.put(&Path::default(), "5".into()).await;
    assert!(matches!(put, Err(Error::InvalidPath { .. })), "{put:?}");
    let long = Path::from("d/".repeat(2100));
    let put = store.put(&long, "5".into()).await.unwrap_err();
    assert!(put.to_string().contains("choose one of at most 4096"), "{put}");
    let put = store.put(&path(&"n".repeat(256)), "5".into()).await.unwrap_err();
    assert!(put.to_string().contains("a name of 256 bytes: the maximum is 255"), "{put}");
    assert_eq!(root_names(&store).await, ["also", "moved"]);
}

#[tokio::test]
async fn only_regular_files_are_objects_and_links_are_not_followed() {
    let store = new_store();
    let volume = store.volume();
    store.put(&path("real/object"), "1".into()).await.unwrap();
    volume.symlink("/real", "/link").await.unwrap();
    volume.symlink("/real/object", "/object").await.unwrap();
    assert_eq!(paths(&store).await, ["real/object"]);
    for name in ["link", "link/object", "object", "real", "real/object/x", ""] {
        let got = store.get(&path(name)).await;
        assert!(matches!(got, Err(Error::NotFound { .. })), "{name}: {got:?}");
        let deleted = store.delete(&path(name)).await;
        assert!(matches!(deleted, Err(Error::NotFound { .. })), "{name}: {deleted:?}");
    }
    let listed: Vec<_> = store.list(Some(&path("link"))).try_collect().await.unwrap();
    assert_eq!(listed, []);
}

/// As rename(2) does, and as the puts of a store of local files do.
#[tokio::test]
async fn a_put_replaces_a_link_or_special_file_and_not_what_it_leads_to() {
    let store = new_store();
    let volume = store.volume();
    store.put(&path("real"), "1".into()).await.unwrap();
    volume.symlink("/real", "/link").await.unwrap();
    let fifo = Inode::new(FileType::Fifo, 0o644);
    volume.mknod("/fifo", &fifo).await.unwrap();
    for name in ["link", "fifo"] {
        let create = PutOptions::from(PutMode::Create);
        let put = store.put_opts(&path(name), "2".into(), create).await;
        assert!(matches!(put, Err(Error::AlreadyExists { .. })), "{name}: {put:?}");
        store.put(&path(name), "2".into()).await.unwrap();
        assert_eq!(text(&store, name).await, "2");
    }
    assert_eq!(text(&store, "real").await, "1");
}

#[tokio::test]
async fn names_that_are_no_segments_are_reached_by_their_escapes() {
    let store = new_store();
    let names: [&[u8]; 4] = [b"line\nfeed", b"\xFFbytes", b"%0A", b"100%"];
    for name in names {
        let name = OsStr::from_bytes(name);
        store.volume().write(std::path::Path::new("/").join(name), name.as_bytes()).await.unwrap();
    }
    let mut listed = paths(&store).await;
    listed.sort();
    assert_eq!(listed, ["%250A", "%FFbytes", "100%", "line%0Afeed"]);
    for (segment, name) in [("line%0Afeed", names[0]), ("%FFbytes", names[1]), ("%250A", names[2])]
    {
        let location = Path::parse(segment).unwrap();
        assert_eq!(store.get(&location).await.unwrap().bytes().await.unwrap(), name);
        store.put(&location, "new".into()).await.unwrap();
        let file = std::path::Path::new("/").join(OsStr::from_bytes(name));
        assert_eq!(store.volume().read(file).await.unwrap(), b"new");
        store.delete(&location).await.unwrap();
    }
    assert_eq!(paths(&store).await, ["100%"]);
}

/// A put makes a new file, and the listing knows the old one's number.
#[tokio::test]
async fn a_listing_has_an_object_that_is_replaced_meanwhile() {
    let store = new_store();
    for name in ["a", "b", "c"] {
        store.put(&path(name), "1".into()).await.unwrap();
    }
    let mut listed = store.list(None);
    assert_eq!(listed.next().await.unwrap().unwrap().location, path("a"));
    let put = store.put(&path("b"), "22".into()).await.unwrap();
    store.delete(&path("c")).await.unwrap();
    let rest: Vec<_> = listed.try_collect().await.unwrap();
    let [b] = &rest[..] else { panic!("{rest:?}") };
    assert_eq!((&b.location, b.size, &b.e_tag), (&path("b"), 2, &put.e_tag));
}

#[tokio::test]
async fn a_listing_passes_directories_that_are_too_deep_for_objects() {
    let store = new_store();
    let directory = Inode::new(FileType::Directory, 0o755);
    let mut at = store.volume().volume().root();
    for _ in 0..10_000 {
        at = at.create("a", &directory).await.unwrap().0;
    }
    store.put(&path("z"), "1".into()).await.unwrap();
    assert_eq!(paths(&store).await, ["z"]);
    let longer_than_names = path(&"z".repeat(300));
    assert_eq!(store.list(Some(&longer_than_names)).count().await, 0);
}

/// The mode, the group and the access list of a file.
async fn access(volume: &AsyncVolume, path: &str) -> (u32, u32, Option<Vec<u8>>) {
    let metadata = volume.metadata(path).await.unwrap();
    let list = volume.get_xattr(path, Follow::No, "system.posix_acl_access").await.ok();
    (metadata.mode(), metadata.gid(), list)
}

#[tokio::test]
async fn an_object_inherits_from_its_directory_as_a_file_does() {
    let store = new_store();
    let volume = store.volume();
    // Of the owner, user 1000, the group, the mask and others.
    let entries = [
        (0x01, 7, u32::MAX),
        (0x02, 7, 1000),
        (0x04, 5, u32::MAX),
        (0x10, 7, u32::MAX),
        (0x20, 0, u32::MAX),
    ];
    let list =
        entries.iter().fold(2u32.to_le_bytes().to_vec(), |mut list, (tag, permissions, id)| {
            list.extend_from_slice(&u16::to_le_bytes(*tag));
            list.extend_from_slice(&u16::to_le_bytes(*permissions));
            list.extend_from_slice(&u32::to_le_bytes(*id));
            list
        });
    volume.create_dir("/d").await.unwrap();
    volume.chown("/d", None, Some(77)).await.unwrap();
    volume.set_permissions("/d", Permissions::from_mode(0o2755)).await.unwrap();
    let default = "system.posix_acl_default";
    volume.set_xattr("/d", Follow::No, default, &list, SetXattr::Either).await.unwrap();
    drop(volume.create_file("/d/file").await.unwrap());
    let expected = access(volume, "/d/file").await;
    assert_eq!(expected.1, 77);
    assert!(expected.2.is_some());

    store.put(&path("d/put"), "1".into()).await.unwrap();
    store.put(&path("d/new/inner/put"), "1".into()).await.unwrap();
    store.put(&path("outside"), "1".into()).await.unwrap();
    store.copy(&path("outside"), &path("d/copy")).await.unwrap();
    store.put_multipart(&path("d/upload")).await.unwrap().complete().await.unwrap();
    let location = path("d/parts");
    let id = store.create_multipart(&location).await.unwrap();
    store.complete_multipart(&location, &id, Vec::new()).await.unwrap();
    store.with_prefix(&path("d")).put(&path("prefixed"), "1".into()).await.unwrap();
    for name in ["put", "new/inner/put", "copy", "upload", "parts", "prefixed"] {
        assert_eq!(access(volume, &format!("/d/{name}")).await, expected, "{name}");
    }
    assert_eq!(access(volume, "/outside").await.2, None);
}

/// rename(2) does nothing then.
#[tokio::test]
async fn a_rename_to_another_name_of_the_same_file_is_refused() {
    let store = new_store();
    store.put(&path("a"), "1".into()).await.unwrap();
    store.volume().create_dir("/d").await.unwrap();
    store.volume().hard_link("/a", "/d/b").await.unwrap();
    let renamed = store.rename(&path("a"), &path("d/b")).await.unwrap_err();
    assert!(renamed.to_string().contains("delete \"a\""), "{renamed}");
    assert_eq!(paths(&store).await, ["a", "d/b"]);
    let renamed = store.rename_if_not_exists(&path("a"), &path("d/b")).await;
    assert!(matches!(renamed, Err(Error::AlreadyExists { .. })), "{renamed:?}");
    store.rename(&path("a"), &path("a")).await.unwrap();
    store.delete(&path("a")).await.unwrap();
    assert_eq!(text(&store, "d/b").await, "1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_updates_with_one_etag_exactly_one_succeeds() {
    let store = new_store();
    let location = path("log/commit");
    let mut expected = store.put(&location, "0".into()).await.unwrap();
    for round in 1..=20 {
        let update = |number: usize| {
            // Two stores of one volume.
            let store = UringfsStore::new(store.volume().clone());
            let mode = PutMode::Update(expected.clone().into());
            let location = location.clone();
            tokio::spawn(async move {
                let content = format!("{round} {number}").into();
                store.put_opts(&location, content, mode.into()).await
            })
        };
        let results: Vec<_> =
            join_all((0..8).map(update)).await.into_iter().map(Result::unwrap).collect();
        let won: Vec<_> = (0..8).filter(|number| results[*number].is_ok()).collect();
        assert_eq!(won.len(), 1, "{results:?}");
        for lost in results.iter().filter_map(|result| result.as_ref().err()) {
            assert!(matches!(lost, Error::Precondition { .. }), "{lost}");
        }
        assert_eq!(text(&store, "log/commit").await, format!("{round} {}", won[0]));
        expected = results.into_iter().find_map(Result::ok).unwrap();
        assert_eq!(store.head(&location).await.unwrap().e_tag, expected.e_tag);
    }
    // Of puts that create, too.
    let create = |number: usize| {
        let store = store.clone();
        tokio::spawn(async move {
            store.put_opts(&path("once"), number.to_string().into(), PutMode::Create.into()).await
        })
    };
    let created = join_all((0..8).map(create)).await;
    assert_eq!(created.into_iter().filter(|result| result.as_ref().unwrap().is_ok()).count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn puts_and_deletes_of_one_directory_lose_no_object() {
    let store = new_store();
    let writer = |number: usize| {
        let store = store.clone();
        tokio::spawn(async move {
            let location = path(&format!("shared/deep/{number}"));
            for round in 0..50 {
                let content = round.to_string();
                store.put(&location, content.clone().into()).await.unwrap();
                assert_eq!(text(&store, location.as_ref()).await, content);
                store.delete(&location).await.unwrap();
                let head = store.head(&location).await;
                assert!(matches!(head, Err(Error::NotFound { .. })), "{head:?}");
            }
        })
    };
    for writer in (0..4).map(writer).collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    assert_eq!(root_names(&store).await, [""; 0]);
}

#[tokio::test]
async fn a_get_reads_the_object_that_it_has_found() {
    let store = new_store();
    let location = path("large");
    let old: Vec<u8> = (0..20_000_000).map(|at: u32| (at / 11) as u8).collect();
    store.put(&location, old.clone().into()).await.unwrap();
    let got = store.get(&location).await.unwrap();
    store.put(&location, "new".into()).await.unwrap();
    store.delete(&location).await.unwrap();
    let mut chunks = got.into_stream();
    let mut read = Vec::new();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.unwrap();
        assert!(chunk.len() <= 8 << 20);
        read.extend_from_slice(&chunk);
    }
    assert!(read == old);
}

#[tokio::test]
async fn ranges_may_be_longer_than_a_read() {
    let store = new_store();
    // A hole needs no blocks.
    let file = store.volume().create_file("/large").await.unwrap();
    let length = (1 << 30) + (9 << 20);
    file.set_len(length).await.unwrap();
    file.write_at("end", length - 3).await.0.unwrap();
    let ranges = [5..length, length - 3..length];
    let got = store.get_ranges(&path("large"), &ranges).await.unwrap();
    assert_eq!(got[0].len() as u64, length - 5);
    assert!(got[0].ends_with(b"\0end"));
    assert_eq!(got[1], "end");
}

/// Programs that use the volume's files beside the store see their own losses, and decide when bytes are written back.
#[tokio::test]
async fn deletes_and_renames_write_no_other_file_back_and_take_no_report_of_a_loss() {
    let sim = Sim::new(SimOptions::new(64 << 20));
    let device = Device::new(sim.clone()).unwrap();
    let store = UringfsStore::new(Volume::create_on(device, &FormatOptions::new()).unwrap());
    let volume = store.volume();
    for name in ["deleted", "renamed", "lost", "dirty"] {
        store.put(&path(name), "old".into()).await.unwrap();
    }
    let cache = Cache::new(1 << 20);
    let open = async |name: &str| {
        let options = uringfs::OpenOptions::new().read(true).write(true).direct(true);
        volume.open_with(name, options).await.unwrap().buffered(&cache)
    };
    sim.inject(Rule::new(Op::Write, When::From(1), Fault::Error(Errno::IO)));
    let lost = open("/lost").await;
    lost.write_at("new", 0).await.0.unwrap();
    drop(lost);
    while cache.statistics().dirty_bytes > 0 {
        std::thread::yield_now();
    }
    sim.clear_faults();
    let dirty = open("/dirty").await;
    dirty.write_at("new", 0).await.0.unwrap();
    let dirty_bytes = cache.statistics().dirty_bytes;
    assert!(dirty_bytes > 0);
    store.delete(&path("deleted")).await.unwrap();
    store.rename(&path("renamed"), &path("a/b")).await.unwrap();
    assert_eq!(cache.statistics().dirty_bytes, dirty_bytes);
    assert_eq!(volume.sync().await.unwrap_err().errno(), Errno::IO);
    volume.sync().await.unwrap();
}

#[tokio::test]
async fn etags_stay_over_renames_and_openings_and_change_with_puts() {
    let store = new_store();
    let etag = async |name: &str| store.head(&path(name)).await.unwrap().e_tag.unwrap();
    let put = store.put(&path("a"), "1".into()).await.unwrap();
    let first = etag("a").await;
    assert_eq!(put.e_tag.as_ref(), Some(&first));
    store.rename(&path("a"), &path("b")).await.unwrap();
    assert_eq!(etag("b").await, first);
    store.copy(&path("b"), &path("c")).await.unwrap();
    assert_ne!(etag("c").await, first);
    store.put(&path("b"), "1".into()).await.unwrap();
    assert_ne!(etag("b").await, first);
    // A write in place, as through a mount, changes it, and an update that expects the old one fails.
    let before = etag("b").await;
    let options = uringfs::OpenOptions::new().write(true);
    let file = store.volume().open_with("/b", options).await.unwrap();
    for content in ["2", "3"] {
        let before = etag("b").await;
        file.write_at(content, 0).await.0.unwrap();
        assert_ne!(etag("b").await, before);
    }
    let update = |e_tag| PutMode::Update(UpdateVersion { e_tag: Some(e_tag), version: None });
    let refused = store.put_opts(&path("b"), "4".into(), update(before).into()).await;
    assert!(matches!(refused, Err(Error::Precondition { .. })), "{refused:?}");
    store.put_opts(&path("b"), "4".into(), update(etag("b").await).into()).await.unwrap();
    let version = GetOptions::new().with_version(Some("1"));
    let got = store.get_opts(&path("b"), version).await;
    assert!(matches!(got, Err(Error::NotSupported { .. })), "{got:?}");
}

#[tokio::test]
async fn attributes_are_extended_attributes_of_the_file_and_are_copied() {
    let store = new_store();
    let attributes = Attributes::from_iter([
        (Attribute::ContentType, "text/csv"),
        (Attribute::Metadata("owner".into()), "me"),
    ]);
    store.put_opts(&path("a"), "1".into(), attributes.clone().into()).await.unwrap();
    let kind = store.volume().get_xattr("/a", Follow::No, "user.mime_type").await.unwrap();
    assert_eq!(kind, b"text/csv");
    let copy = CopyOptions::default();
    store.copy_opts(&path("a"), &path("b"), copy).await.unwrap();
    assert_eq!(store.get(&path("b")).await.unwrap().attributes, attributes);
    store.put(&path("b"), "2".into()).await.unwrap();
    assert!(store.get(&path("b")).await.unwrap().attributes.is_empty());
    let long = Attributes::from_iter([(Attribute::Metadata("k".repeat(229).into()), "")]);
    let put = store.put_opts(&path("c"), "1".into(), long.into()).await.unwrap_err();
    assert!(put.to_string().contains("a key of metadata 228"), "{put}");
}

#[tokio::test]
async fn a_read_only_volume_refuses_puts() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let options = FormatOptions::new().size(64 << 20);
    let store = UringfsStore::new(Volume::create(&image, &options).unwrap());
    store.put(&path("a"), "1".into()).await.unwrap();
    store.into_volume().close().await.unwrap();
    let volume = uringfs::VolumeOptions::new().read_only(true).open(&image).unwrap();
    let store = UringfsStore::new(volume);
    assert_eq!(text(&store, "a").await, "1");
    let put = store.put(&path("b"), "1".into()).await;
    assert!(matches!(put, Err(Error::PermissionDenied { .. })), "{put:?}");
}

#[tokio::test]
async fn a_full_volume_refuses_a_put_and_keeps_the_old_object() {
    let store = new_store();
    store.put(&path("a"), "old".into()).await.unwrap();
    let put = store.put(&path("a"), vec![1; 80 << 20].into()).await.unwrap_err();
    assert!(put.to_string().contains("full"), "{put}");
    assert_eq!(text(&store, "a").await, "old");
    store.put(&path("a"), "new".into()).await.unwrap();
    assert_eq!(text(&store, "a").await, "new");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Against the bytes of the object: payloads in any pieces, ranges of any number and place.
    #[test]
    fn ranges_have_the_bytes_of_the_payload(
        pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9000), 0..5),
        ranges in prop::collection::vec((0u64..40_000, 1u64..20_000), 0..20),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let store = new_store();
            let whole = pieces.concat();
            let payload = PutPayload::from_iter(pieces.into_iter().map(bytes::Bytes::from));
            store.put(&path("o"), payload).await.unwrap();
            let ranges: Vec<_> = ranges.iter().map(|(begin, length)| *begin..begin + length).collect();
            let size = whole.len() as u64;
            let got = store.get_ranges(&path("o"), &ranges).await;
            if ranges.iter().any(|range| range.start >= size) {
                assert!(got.is_err());
            } else {
                for (range, bytes) in ranges.iter().zip(got.unwrap()) {
                    let end = range.end.min(size);
                    assert_eq!(bytes, whole[range.start as usize..end as usize]);
                }
            }
        });
    }
}
