// The macros that the test programs share: an expectation that fails ends the program.

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <uringfs.h>

static inline void expect_at(bool holds, const char *what, int line, long long left, long long right) {
    if (!holds) {
        fprintf(stderr, "line %d: %s: %lld, %lld; the last error: %s\n", line, what, left, right, uringfs_error_text());
        exit(1);
    }
}

// Both are evaluated once.
#define EXPECT_EQ(left, right)                                                                 \
    do {                                                                                       \
        long long left_ = (long long)(left), right_ = (long long)(right);                      \
        expect_at(left_ == right_, #left " == " #right, __LINE__, left_, right_);              \
    } while (0)
#define EXPECT(condition) expect_at((condition), #condition, __LINE__, 0, 1)
#define EXPECT_OK(call) EXPECT_EQ((call), 0)
// The last error has this text.
#define EXPECT_TEXT(part) EXPECT(strstr(uringfs_error_text(), (part)) != NULL)

// A new volume in memory, with nothing in it.
static inline struct uringfs_volume *new_volume(void) {
    struct uringfs_volume *volume;
    EXPECT_OK(uringfs_volume_create("memory:64m", NULL, &volume));
    return volume;
}

static inline struct uringfs_file *open_file(struct uringfs_volume *volume, const char *path, uint32_t flags) {
    struct uringfs_open_options options = {.size = sizeof options, .flags = flags};
    struct uringfs_file *file;
    EXPECT_OK(uringfs_file_open(volume, path, &options, &file));
    return file;
}

// A new file for reading and writing.
static inline struct uringfs_file *new_file(struct uringfs_volume *volume, const char *path, uint32_t further_flags) {
    return open_file(volume, path, URINGFS_OPEN_READ | URINGFS_OPEN_WRITE | URINGFS_OPEN_CREATE_NEW | further_flags);
}
