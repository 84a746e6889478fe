// Volumes, options of all sizes, directories and attributes.

#include "check.h"

// An option struct as a program has it that was built for a newer library.
struct newer_options {
    struct uringfs_volume_options known;
    uint64_t unknown;
};

static void options_carry_their_size(const char *image) {
    struct uringfs_format_options format = {.size = sizeof format, .bytes = 64 << 20, .label = "label"};
    struct uringfs_volume *volume = (void *)1;
    format.size = 0;
    EXPECT_EQ(uringfs_volume_create(image, &format, &volume), -EINVAL);
    EXPECT_TEXT("size of a struct is 0");
    EXPECT(volume == NULL);
    format.size = sizeof format - 4;
    EXPECT_EQ(uringfs_volume_create(image, &format, &volume), -EINVAL);
    EXPECT_TEXT("too small");
    format.size = 1u << 30;
    EXPECT_EQ(uringfs_volume_create(image, &format, &volume), -E2BIG);
    format.size = sizeof format;
    format.flags = 1u << 31;
    EXPECT_EQ(uringfs_volume_create(image, &format, &volume), -EINVAL);
    EXPECT_TEXT("flag of uringfs_format_options is unknown");
    format.flags = 0;
    format.label = "\xff";
    EXPECT_EQ(uringfs_volume_create(image, &format, &volume), -EINVAL);
    format.label = "label";
    EXPECT_OK(uringfs_volume_create(image, &format, &volume));
    EXPECT_OK(uringfs_volume_close(volume));

    struct newer_options newer = {.known = {.size = sizeof newer}};
    EXPECT_OK(uringfs_volume_open(image, &newer.known, &volume));
    EXPECT_OK(uringfs_volume_close(volume));
    newer.unknown = 1;
    EXPECT_EQ(uringfs_volume_open(image, &newer.known, &volume), -E2BIG);
    EXPECT_TEXT("does not know");
}

static void a_volume_says_why_it_is_not_opened(const char *image) {
    struct uringfs_volume *volume, *second;
    EXPECT_EQ(uringfs_volume_open("/no/such/file", NULL, &volume), -ENOENT);
    EXPECT_TEXT("/no/such/file");
    EXPECT_TEXT("or make a volume with uringfs_volume_create");
    EXPECT_EQ(uringfs_volume_open(NULL, NULL, &volume), -EINVAL);
    EXPECT_EQ(uringfs_volume_open(image, NULL, NULL), -EINVAL);
    EXPECT_EQ(uringfs_volume_create(image, NULL, &volume), -EEXIST);
    EXPECT_TEXT("open it with uringfs_volume_open, or replace all that is in it with URINGFS_FORMAT_OVERWRITE");
    EXPECT_EQ(uringfs_volume_create("null:64m", NULL, &volume), -EINVAL);
    EXPECT_OK(uringfs_volume_open(image, NULL, &volume));
    EXPECT_EQ(uringfs_volume_open(image, NULL, &second), -EBUSY);
    struct uringfs_file *file = new_file(volume, "/open", 0);
    struct uringfs_directory *directory;
    EXPECT_OK(uringfs_directory_open(volume, "/", &directory));
    EXPECT_EQ(uringfs_volume_close(volume), -EBUSY);
    EXPECT_TEXT("1 file is open: close it");
    EXPECT_TEXT("1 other handle of the volume (a directory that is being listed) is open: close it");
    EXPECT_OK(uringfs_directory_close(directory));
    EXPECT_OK(uringfs_file_close(file));

    struct uringfs_volume_options read_only = {
        .size = sizeof read_only,
        .flags = URINGFS_VOLUME_READ_ONLY,
        .page_cache_bytes = 8 << 20,
        .catalog_cache_bytes = 8 << 20,
    };
    EXPECT_OK(uringfs_volume_open(image, &read_only, &volume));
    EXPECT_OK(uringfs_volume_open(image, &read_only, &second));
    EXPECT_EQ(uringfs_mkdir(volume, "/directory", 0755), -EROFS);
    EXPECT_OK(uringfs_volume_close(second));
    EXPECT_OK(uringfs_volume_close(volume));
    EXPECT_OK(uringfs_volume_close(NULL));
    EXPECT_EQ(uringfs_volume_sync(NULL), -EINVAL);
}

static void statistics_fit_the_callers_struct(void) {
    struct uringfs_volume *volume = new_volume();
    struct {
        struct uringfs_statistics known;
        uint64_t unknown;
    } newer = {.known = {.size = sizeof newer}, .unknown = 7};
    EXPECT_OK(uringfs_volume_sync(volume));
    EXPECT_OK(uringfs_volume_statistics(volume, &newer.known));
    EXPECT_EQ(newer.known.size, sizeof newer);
    EXPECT_EQ(newer.known.blocks * newer.known.block_bytes, 64 << 20);
    EXPECT(newer.known.free_blocks > 0 && newer.known.free_blocks < newer.known.blocks);
    EXPECT_EQ(newer.unknown, 0);
    newer.known.size = 0;
    EXPECT_EQ(uringfs_volume_statistics(volume, &newer.known), -EINVAL);
    EXPECT_EQ(uringfs_volume_statistics(volume, NULL), -EINVAL);
    EXPECT_OK(uringfs_volume_close(volume));
}

static void names_are_listed_renamed_and_removed(void) {
    struct uringfs_volume *volume = new_volume();
    EXPECT_OK(uringfs_mkdir(volume, "/d", 0700));
    EXPECT_EQ(uringfs_mkdir(volume, "/d", 0700), -EEXIST);
    EXPECT_OK(uringfs_mkdir(volume, "/d/sub", 0755));
    struct uringfs_file *file = new_file(volume, "/d/file", 0);
    EXPECT_EQ(uringfs_file_write(file, "hello", 5, 0, 0), 5);
    EXPECT_OK(uringfs_file_flush(file, 0));
    struct uringfs_attributes of_path = {.size = sizeof of_path}, of_file = {.size = sizeof of_file};
    EXPECT_OK(uringfs_stat(volume, "/d/file", &of_path));
    EXPECT_OK(uringfs_stat_file(volume, file, &of_file));
    EXPECT_OK(memcmp(&of_path, &of_file, sizeof of_path));
    EXPECT_EQ(of_path.file_type, URINGFS_TYPE_FILE);
    EXPECT_EQ(of_path.bytes, 5);
    EXPECT_EQ(of_path.allocated_bytes, 4096);
    EXPECT_EQ(of_path.mode, 0644);
    EXPECT_EQ(of_path.links, 1);
    EXPECT(of_path.modified_s > 0);
    EXPECT_OK(uringfs_file_close(file));

    EXPECT_OK(uringfs_rename(volume, "/d/file", "/d/renamed"));
    EXPECT_EQ(uringfs_rename(volume, "/d/file", "/d/renamed"), -ENOENT);
    struct uringfs_directory *directory;
    EXPECT_EQ(uringfs_directory_open(volume, "/d/renamed", &directory), -ENOTDIR);
    EXPECT_OK(uringfs_directory_open(volume, "/d", &directory));
    struct uringfs_entry entry = {.size = 0};
    EXPECT_EQ(uringfs_directory_next(directory, &entry), -EINVAL);
    entry.size = sizeof entry;
    EXPECT_EQ(uringfs_directory_next(directory, &entry), 1);
    EXPECT_OK(strcmp(entry.name, "renamed"));
    EXPECT_EQ(entry.file_type, URINGFS_TYPE_FILE);
    EXPECT_EQ(entry.inode, of_path.inode);
    EXPECT_EQ(uringfs_directory_next(directory, &entry), 1);
    EXPECT_OK(strcmp(entry.name, "sub"));
    EXPECT_EQ(entry.file_type, URINGFS_TYPE_DIRECTORY);
    EXPECT_EQ(uringfs_directory_next(directory, &entry), 0);
    EXPECT_EQ(uringfs_directory_next(directory, &entry), 0);
    EXPECT_OK(uringfs_directory_close(directory));

    EXPECT_EQ(uringfs_unlink(volume, "/d"), -EISDIR);
    EXPECT_EQ(uringfs_rmdir(volume, "/d"), -ENOTEMPTY);
    EXPECT_OK(uringfs_unlink(volume, "/d/renamed"));
    EXPECT_OK(uringfs_rmdir(volume, "/d/sub"));
    EXPECT_OK(uringfs_rmdir(volume, "/d"));
    EXPECT_EQ(uringfs_stat(volume, "/d", &of_path), -ENOENT);
    EXPECT_TEXT("'/d' does not exist");
    EXPECT_OK(uringfs_volume_close(volume));
}

static uint64_t inode_of(struct uringfs_volume *volume, const char *path) {
    struct uringfs_attributes attributes = {.size = sizeof attributes};
    EXPECT_OK(uringfs_stat(volume, path, &attributes));
    return attributes.inode;
}

static void a_rename_replaces_exchanges_or_fails(void) {
    struct uringfs_volume *volume = new_volume();
    EXPECT_OK(uringfs_file_close(new_file(volume, "/a", 0)));
    EXPECT_OK(uringfs_file_close(new_file(volume, "/b", 0)));
    uint64_t a = inode_of(volume, "/a"), b = inode_of(volume, "/b");
    EXPECT_EQ(uringfs_rename2(volume, "/a", "/b", URINGFS_RENAME_NO_REPLACE), -EEXIST);
    EXPECT_TEXT("'/b'");
    EXPECT_OK(uringfs_rename2(volume, "/a", "/b", URINGFS_RENAME_EXCHANGE));
    EXPECT(inode_of(volume, "/a") == b && inode_of(volume, "/b") == a);
    EXPECT_EQ(uringfs_rename2(volume, "/a", "/c", URINGFS_RENAME_EXCHANGE), -ENOENT);
    EXPECT_OK(uringfs_rename2(volume, "/a", "/c", URINGFS_RENAME_NO_REPLACE));
    EXPECT_EQ(inode_of(volume, "/c"), b);
    EXPECT_OK(uringfs_rename2(volume, "/b", "/c", 0));
    EXPECT_EQ(inode_of(volume, "/c"), a);
    EXPECT_EQ(uringfs_rename2(volume, "/c", "/d", URINGFS_RENAME_NO_REPLACE | URINGFS_RENAME_EXCHANGE), -EINVAL);
    EXPECT_TEXT("the flags of a rename are 0");
    EXPECT_EQ(uringfs_rename2(volume, "/c", NULL, 0), -EINVAL);
    EXPECT_EQ(uringfs_rename2(NULL, "/c", "/d", 0), -EINVAL);
    EXPECT_OK(uringfs_volume_close(volume));
}

static void links_lead_to_their_files(void) {
    struct uringfs_volume *volume = new_volume();
    EXPECT_OK(uringfs_mkdir(volume, "/d", 0755));
    EXPECT_OK(uringfs_file_close(new_file(volume, "/d/file", 0)));
    EXPECT_OK(uringfs_link(volume, "/d/file", "/name"));
    EXPECT_EQ(inode_of(volume, "/name"), inode_of(volume, "/d/file"));
    struct uringfs_attributes attributes = {.size = sizeof attributes};
    EXPECT_OK(uringfs_stat(volume, "/name", &attributes));
    EXPECT_EQ(attributes.links, 2);
    EXPECT_EQ(uringfs_link(volume, "/d/file", "/name"), -EEXIST);
    EXPECT_EQ(uringfs_link(volume, "/d", "/e"), -EPERM);
    EXPECT_EQ(uringfs_link(volume, "/missing", "/e"), -ENOENT);
    EXPECT_EQ(uringfs_link(volume, NULL, "/e"), -EINVAL);
    EXPECT_EQ(uringfs_link(NULL, "/d/file", "/e"), -EINVAL);

    EXPECT_OK(uringfs_symlink(volume, "d/file", "/symlink"));
    EXPECT_OK(uringfs_stat(volume, "/symlink", &attributes));
    EXPECT_EQ(attributes.file_type, URINGFS_TYPE_SYMLINK);
    EXPECT_OK(uringfs_stat_follow(volume, "/symlink", &attributes));
    EXPECT_EQ(attributes.file_type, URINGFS_TYPE_FILE);
    EXPECT_EQ(attributes.inode, inode_of(volume, "/d/file"));
    EXPECT_OK(uringfs_symlink(volume, "missing", "/dangling"));
    EXPECT_EQ(uringfs_stat_follow(volume, "/dangling", &attributes), -ENOENT);
    EXPECT_OK(uringfs_symlink(volume, "circle", "/circle"));
    EXPECT_EQ(uringfs_stat_follow(volume, "/circle", &attributes), -ELOOP);
    EXPECT_EQ(uringfs_stat_follow(volume, NULL, &attributes), -EINVAL);
    EXPECT_EQ(uringfs_stat_follow(volume, "/symlink", NULL), -EINVAL);
    EXPECT_EQ(uringfs_stat_follow(NULL, "/symlink", &attributes), -EINVAL);
    EXPECT_OK(uringfs_file_close(open_file(volume, "/symlink", URINGFS_OPEN_READ)));
    EXPECT_EQ(uringfs_symlink(volume, "x", "/symlink"), -EEXIST);
    EXPECT_EQ(uringfs_symlink(volume, "", "/empty"), -EINVAL);
    EXPECT_EQ(uringfs_symlink(volume, NULL, "/none"), -EINVAL);
    EXPECT_EQ(uringfs_symlink(NULL, "x", "/none"), -EINVAL);
    EXPECT_OK(uringfs_volume_close(volume));
}

static void a_link_is_read_as_a_whole(void) {
    struct uringfs_volume *volume = new_volume();
    EXPECT_OK(uringfs_symlink(volume, "d/file", "/symlink"));
    char target[4096];
    memset(target, 'x', sizeof target);
    EXPECT_EQ(uringfs_readlink(volume, "/symlink", target, sizeof target), 6);
    EXPECT_OK(memcmp(target, "d/file\0x", 8));
    memset(target, 'x', sizeof target);
    EXPECT_EQ(uringfs_readlink(volume, "/symlink", target, 6), -ERANGE);
    EXPECT_TEXT("4096 bytes hold every target");
    EXPECT_EQ(target[0], 'x');
    EXPECT_EQ(uringfs_readlink(volume, "/symlink", target, 7), 6);
    EXPECT_OK(strcmp(target, "d/file"));
    EXPECT_EQ(uringfs_readlink(volume, "/symlink", NULL, 0), 6);
    EXPECT_EQ(uringfs_readlink(volume, "/symlink", NULL, 7), -EINVAL);
    EXPECT_EQ(uringfs_readlink(volume, "/", target, sizeof target), -EINVAL);
    EXPECT_EQ(uringfs_readlink(volume, "/missing", target, sizeof target), -ENOENT);
    EXPECT_EQ(uringfs_readlink(NULL, "/symlink", target, sizeof target), -EINVAL);
    // The longest target fills a buffer of 4096 bytes.
    char longest[4097];
    memset(longest, 'y', sizeof longest);
    longest[4096] = '\0';
    EXPECT_EQ(uringfs_symlink(volume, longest, "/long"), -ENAMETOOLONG);
    longest[4095] = '\0';
    EXPECT_OK(uringfs_symlink(volume, longest, "/long"));
    EXPECT_EQ(uringfs_readlink(volume, "/long", target, sizeof target), 4095);
    EXPECT_OK(strcmp(target, longest));
    EXPECT_OK(uringfs_volume_close(volume));
}

static void permissions_are_set(void) {
    struct uringfs_volume *volume = new_volume();
    EXPECT_OK(uringfs_mkdir(volume, "/d", 0755));
    EXPECT_OK(uringfs_symlink(volume, "d", "/symlink"));
    EXPECT_OK(uringfs_chmod(volume, "/symlink", 01700));
    struct uringfs_attributes attributes = {.size = sizeof attributes};
    EXPECT_OK(uringfs_stat(volume, "/d", &attributes));
    EXPECT_EQ(attributes.mode, 01700);
    EXPECT_EQ(attributes.file_type, URINGFS_TYPE_DIRECTORY);
    EXPECT_EQ(uringfs_chmod(volume, "/missing", 0700), -ENOENT);
    EXPECT_EQ(uringfs_chmod(volume, NULL, 0700), -EINVAL);
    EXPECT_EQ(uringfs_chmod(NULL, "/d", 0700), -EINVAL);
    EXPECT_OK(uringfs_volume_close(volume));
}

int main(int argc, char **argv) {
    EXPECT_EQ(argc, 2);
    EXPECT(uringfs_version()[0] == '0');
    options_carry_their_size(argv[1]);
    a_volume_says_why_it_is_not_opened(argv[1]);
    statistics_fit_the_callers_struct();
    names_are_listed_renamed_and_removed();
    a_rename_replaces_exchanges_or_fails();
    links_lead_to_their_files();
    a_link_is_read_as_a_whole();
    permissions_are_set();
    return 0;
}
