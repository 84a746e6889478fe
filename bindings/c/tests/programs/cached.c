// Data in the page cache: what is dropped is read again.
//
//   cached IMAGE
//
// The test changes the image behind the volume's back, so the bytes that a read returns tell where it found them.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"

enum { BYTES = 8192 };

// Replaces the bytes of the file wherever they are in the image.
static void replace_in(const char *image, const char *bytes, char by) {
    int fd = open(image, O_RDWR);
    struct stat attributes;
    EXPECT(fd >= 0);
    EXPECT_OK(fstat(fd, &attributes));
    char *mapped = mmap(NULL, attributes.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    EXPECT(mapped != MAP_FAILED);
    char *found = memmem(mapped, attributes.st_size, bytes, BYTES);
    EXPECT(found != NULL);
    memset(found, by, BYTES);
    EXPECT_OK(msync(mapped, attributes.st_size, MS_SYNC));
    EXPECT_OK(munmap(mapped, attributes.st_size));
    EXPECT_OK(close(fd));
}

static char first_byte(const struct uringfs_file *file, uint64_t offset) {
    char byte;
    EXPECT_EQ(uringfs_file_read(file, &byte, 1, offset), 1);
    return byte;
}

int main(int count, char **arguments) {
    EXPECT_EQ(count, 2);
    const char *image = arguments[1];
    struct uringfs_format_options format = {.size = sizeof format, .bytes = 64 << 20};
    struct uringfs_volume *volume;
    EXPECT_OK(uringfs_volume_create(image, &format, &volume));
    struct uringfs_open_options options = {
        .size = sizeof options,
        .flags = URINGFS_OPEN_READ | URINGFS_OPEN_WRITE | URINGFS_OPEN_CREATE,
    };
    struct uringfs_file *file;
    EXPECT_OK(uringfs_file_open(volume, "/file", &options, &file));
    char bytes[BYTES];
    for (size_t i = 0; i < BYTES; i++) {
        bytes[i] = (char)(i * 31 + i / 256 + 1);
    }
    EXPECT_EQ(uringfs_file_write(file, bytes, BYTES, 0, 0), BYTES);

    // Bytes that are not written back stay.
    EXPECT_OK(uringfs_file_drop_cache(file, 0, UINT64_MAX));
    EXPECT_EQ(first_byte(file, 0), bytes[0]);
    EXPECT_OK(uringfs_file_flush(file, 0));
    replace_in(image, bytes, 'x');
    EXPECT_EQ(first_byte(file, 0), bytes[0]);
    EXPECT_OK(uringfs_file_drop_cache(file, 0, 4096));
    EXPECT_EQ(first_byte(file, 0), 'x');
    EXPECT_EQ(first_byte(file, 4096), bytes[4096]);
    EXPECT_OK(uringfs_file_drop_cache(file, 0, UINT64_MAX));
    EXPECT_EQ(first_byte(file, 4096), 'x');
    EXPECT_EQ(uringfs_file_drop_cache(NULL, 0, 1), -EINVAL);
    EXPECT_OK(uringfs_file_close(file));
    EXPECT_OK(uringfs_volume_close(volume));
    return 0;
}
