// Files: the calls that block.

#include "check.h"

static void bytes_are_moved_at_any_offset(uint32_t further_flags) {
    struct uringfs_volume *volume = new_volume();
    struct uringfs_file *file = new_file(volume, "/file", further_flags);
    char bytes[10000], read[10000];
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] = (char)(i * 31);
    }
    EXPECT_EQ(uringfs_file_write(file, bytes, sizeof bytes, 100, 0), sizeof bytes);
    EXPECT_EQ(uringfs_file_size(file), 10100);
    EXPECT_EQ(uringfs_file_read(file, read, sizeof read, 100), sizeof read);
    EXPECT_OK(memcmp(bytes, read, sizeof read));
    EXPECT_EQ(uringfs_file_read(file, read, sizeof read, 10000), 100);
    EXPECT_EQ(uringfs_file_read(file, read, sizeof read, 20000), 0);
    EXPECT_EQ(uringfs_file_read(file, NULL, 0, 0), 0);
    // Memory that may only be read can be written from.
    EXPECT_EQ(uringfs_file_write(file, "constant", 8, 50, URINGFS_WRITE_DURABLE), 8);
    EXPECT_EQ(uringfs_file_read(file, read, 8, 50), 8);
    EXPECT_OK(memcmp(read, "constant", 8));
    EXPECT_EQ(uringfs_file_append(file, "end", 3, 0), 10100);
    EXPECT_EQ(uringfs_file_append(file, "end", 3, URINGFS_WRITE_DURABLE), 10103);
    EXPECT_EQ(uringfs_file_write(file, bytes, 8192, 4096, URINGFS_WRITE_ATOMIC), 8192);
    EXPECT_OK(uringfs_file_flush(file, 0));
    EXPECT_OK(uringfs_file_flush(file, URINGFS_FLUSH_DATA));
    EXPECT_OK(uringfs_file_discard(file, 0, 4096));
    EXPECT_EQ(uringfs_file_read(file, read, 8, 50), 8);
    EXPECT_OK(memcmp(read, "\0\0\0\0\0\0\0\0", 8));
    EXPECT_OK(uringfs_file_truncate(file, 70));
    EXPECT_EQ(uringfs_file_size(file), 70);
    EXPECT_OK(uringfs_file_allocate(file, 0, 8192));
    EXPECT_EQ(uringfs_file_size(file), 8192);
    EXPECT_EQ(uringfs_file_read(file, read, 8, 8184), 8);
    EXPECT_OK(memcmp(read, "\0\0\0\0\0\0\0\0", 8));
    EXPECT_EQ(uringfs_file_allocate(file, 0, 0), -EINVAL);
    EXPECT_EQ(uringfs_file_allocate(file, 0, 1 << 30), -ENOSPC);
    EXPECT_TEXT("cannot allocate space");
    EXPECT_OK(uringfs_file_close(file));
    EXPECT_OK(uringfs_volume_close(volume));
}

static void data_and_holes_are_found(uint32_t further_flags) {
    struct uringfs_volume *volume = new_volume();
    struct uringfs_file *file = new_file(volume, "/file", further_flags);
    EXPECT_EQ(uringfs_file_seek_data(file, 0), -ENXIO);
    EXPECT_EQ(uringfs_file_seek_hole(file, 0), -ENXIO);
    static _Alignas(4096) char block[4096] = {1};
    EXPECT_EQ(uringfs_file_write(file, block, sizeof block, 1 << 20, 0), sizeof block);
    EXPECT_OK(uringfs_file_truncate(file, 2 << 20));
    EXPECT_EQ(uringfs_file_seek_data(file, 0), 1 << 20);
    EXPECT_EQ(uringfs_file_seek_data(file, (1 << 20) + 7), (1 << 20) + 7);
    EXPECT_EQ(uringfs_file_seek_hole(file, 7), 7);
    EXPECT_EQ(uringfs_file_seek_hole(file, 1 << 20), (1 << 20) + 4096);
    EXPECT_EQ(uringfs_file_seek_data(file, (1 << 20) + 4096), -ENXIO);
    EXPECT_TEXT("no data follows");
    EXPECT_EQ(uringfs_file_seek_hole(file, (2 << 20) - 1), (2 << 20) - 1);
    EXPECT_EQ(uringfs_file_seek_hole(file, 2 << 20), -ENXIO);
    EXPECT_TEXT("the end of the file");
    EXPECT_EQ(uringfs_file_seek_data(file, UINT64_MAX), -ENXIO);
    // Allocated space is a hole until it is written, and again when it is discarded.
    EXPECT_OK(uringfs_file_allocate(file, 0, 2 << 20));
    EXPECT_EQ(uringfs_file_seek_data(file, 0), 1 << 20);
    EXPECT_OK(uringfs_file_discard(file, 1 << 20, sizeof block));
    EXPECT_EQ(uringfs_file_seek_data(file, 0), -ENXIO);
    // Data that ends with the file.
    EXPECT_OK(uringfs_file_truncate(file, 0));
    EXPECT_EQ(uringfs_file_write(file, "hello", 5, 0, 0), 5);
    EXPECT_EQ(uringfs_file_seek_hole(file, 0), 5);
    EXPECT_EQ(uringfs_file_seek_data(NULL, 0), -EINVAL);
    EXPECT_EQ(uringfs_file_seek_hole(NULL, 0), -EINVAL);
    EXPECT_OK(uringfs_file_close(file));
    EXPECT_OK(uringfs_volume_close(volume));
}

static void what_is_wrong_is_refused(void) {
    struct uringfs_volume *volume = new_volume();
    struct uringfs_file *file = (void *)1;
    EXPECT_EQ(uringfs_file_open(volume, "/missing", NULL, &file), -ENOENT);
    EXPECT(file == NULL);
    file = new_file(volume, "/file", 0);
    char bytes[8] = {0};
    EXPECT_EQ(uringfs_file_write(file, bytes, 8, 0, 4), -EINVAL);
    EXPECT_EQ(uringfs_file_append(file, bytes, 8, URINGFS_WRITE_ATOMIC), -EINVAL);
    EXPECT_EQ(uringfs_file_flush(file, 2), -EINVAL);
    EXPECT_EQ(uringfs_file_write(file, bytes, 8, 1, URINGFS_WRITE_ATOMIC), -EINVAL);
    EXPECT_EQ(uringfs_file_read(file, NULL, 8, 0), -EINVAL);
    EXPECT_EQ(uringfs_file_read(file, bytes, ((size_t)1 << 30) + 1, 0), -EINVAL);
    EXPECT_TEXT("1 GiB");
    EXPECT_EQ(uringfs_file_write(file, bytes, 8, UINT64_MAX - 8, 0), -EFBIG);
    EXPECT_EQ(uringfs_file_read(NULL, bytes, 8, 0), -EINVAL);
    EXPECT_EQ(uringfs_file_size(NULL), -EINVAL);
    EXPECT_OK(uringfs_file_close(NULL));
    struct uringfs_file *reader;
    EXPECT_OK(uringfs_file_open(volume, "/file", NULL, &reader));
    EXPECT_EQ(uringfs_file_write(reader, bytes, 8, 0, 0), -EBADF);
    EXPECT_TEXT("cannot write");
    EXPECT_TEXT("open the file with URINGFS_OPEN_READ to read, URINGFS_OPEN_WRITE to write");
    EXPECT_OK(uringfs_file_close(reader));
    EXPECT_OK(uringfs_file_close(file));
    struct uringfs_open_options options = {.size = sizeof options, .flags = 64 | URINGFS_OPEN_READ};
    EXPECT_EQ(uringfs_file_open(volume, "/file", &options, &file), -EINVAL);
    options.flags = 0;
    EXPECT_EQ(uringfs_file_open(volume, "/file", &options, &file), -EINVAL);
    EXPECT_TEXT("opened with URINGFS_OPEN_READ, URINGFS_OPEN_WRITE or both");
    options.flags = URINGFS_OPEN_READ | URINGFS_OPEN_TRUNCATE;
    EXPECT_EQ(uringfs_file_open(volume, "/file", &options, &file), -EINVAL);
    EXPECT_TEXT("only if it is opened with URINGFS_OPEN_WRITE");
    options.flags = URINGFS_OPEN_READ;
    options.switches = "direct.write_lock=exclusive,buffered.readahead=0";
    EXPECT_OK(uringfs_file_open(volume, "/file", &options, &file));
    EXPECT_OK(uringfs_file_close(file));
    options.switches = "reactor.depth=1";
    EXPECT_EQ(uringfs_file_open(volume, "/file", &options, &file), -EINVAL);
    EXPECT_TEXT("those are direct.simple_read");
    EXPECT_OK(uringfs_volume_close(volume));
}

// Every failure stores NULL, which may be closed.
static void a_failed_opening_stores_null(void) {
    struct uringfs_volume *volume = new_volume();
    struct uringfs_open_options unknown_flag = {.size = sizeof unknown_flag, .flags = 64};
    struct uringfs_open_options unknown_switch = {.size = sizeof unknown_switch, .switches = "unknown=1"};
    struct uringfs_open_options no_size = {.flags = URINGFS_OPEN_READ};
    struct {
        struct uringfs_volume *volume;
        const char *path;
        struct uringfs_open_options *options;
    } openings[] = {
        {volume, "/file", &unknown_flag}, {volume, "/file", &unknown_switch}, {volume, "/file", &no_size},
        {volume, NULL, NULL},             {NULL, "/file", NULL},
    };
    for (size_t i = 0; i < sizeof openings / sizeof *openings; i++) {
        struct uringfs_file *file = (void *)1;
        EXPECT_EQ(uringfs_file_open(openings[i].volume, openings[i].path, openings[i].options, &file), -EINVAL);
        EXPECT(file == NULL);
        EXPECT_OK(uringfs_file_close(file));
    }
    struct uringfs_directory *directory = (void *)1;
    EXPECT_EQ(uringfs_directory_open(volume, NULL, &directory), -EINVAL);
    EXPECT(directory == NULL);
    directory = (void *)1;
    EXPECT_EQ(uringfs_directory_open(NULL, "/", &directory), -EINVAL);
    EXPECT(directory == NULL);
    EXPECT_EQ(uringfs_directory_open(volume, "/", NULL), -EINVAL);
    EXPECT_OK(uringfs_volume_close(volume));
}

static void a_target_is_one_file(void) {
    struct uringfs_file *file;
    EXPECT_EQ(uringfs_file_open_target("memory:1m", URINGFS_OPEN_WRITE, &file), -EINVAL);
    EXPECT_OK(uringfs_file_open_target("memory:1m", URINGFS_OPEN_READ | URINGFS_OPEN_WRITE, &file));
    EXPECT_EQ(uringfs_file_size(file), 1 << 20);
    EXPECT_EQ(uringfs_file_write(file, "hello", 5, 4095, 0), 5);
    char read[5];
    EXPECT_EQ(uringfs_file_read(file, read, 5, 4095), 5);
    EXPECT_OK(memcmp(read, "hello", 5));
    EXPECT_EQ(uringfs_file_append(file, "end", 3, 0), -EOPNOTSUPP);
    EXPECT_EQ(uringfs_file_allocate(file, 0, 4096), -EOPNOTSUPP);
    EXPECT_EQ(uringfs_file_seek_data(file, 8192), 8192);
    EXPECT_EQ(uringfs_file_seek_hole(file, 8192), 1 << 20);
    EXPECT_OK(uringfs_file_close(file));
}

int main(void) {
    bytes_are_moved_at_any_offset(0);
    bytes_are_moved_at_any_offset(URINGFS_OPEN_DIRECT);
    data_and_holes_are_found(0);
    data_and_holes_are_found(URINGFS_OPEN_DIRECT);
    what_is_wrong_is_refused();
    a_failed_opening_stores_null();
    a_target_is_one_file();
    return 0;
}
