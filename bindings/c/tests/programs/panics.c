// A panic in the library ends no program: the call fails, and the handle can only be closed.

#include "check.h"

int32_t uringfs_planted_panic_of_volume(struct uringfs_volume *volume);
int32_t uringfs_planted_panic_of_reactor(struct uringfs_reactor *reactor);

int main(void) {
    struct uringfs_volume *volume = new_volume();
    struct uringfs_file *file = new_file(volume, "/file", 0);
    EXPECT_EQ(uringfs_planted_panic_of_volume(volume), -ENOTRECOVERABLE);
    EXPECT_TEXT("planted in a call with a volume");
    EXPECT_EQ(uringfs_volume_sync(volume), -ENOTRECOVERABLE);
    EXPECT_TEXT("close it");
    EXPECT_EQ(uringfs_mkdir(volume, "/directory", 0755), -ENOTRECOVERABLE);
    // Other handles go on.
    EXPECT_EQ(uringfs_file_write(file, "hello", 5, 0, 0), 5);
    EXPECT_OK(uringfs_file_flush(file, 0));

    struct uringfs_reactor *reactor;
    EXPECT_OK(uringfs_reactor_create(NULL, &reactor));
    char bytes[5];
    EXPECT_OK(uringfs_queue_read(reactor, file, bytes, 5, 0, 1));
    EXPECT_EQ(uringfs_planted_panic_of_reactor(reactor), -ENOTRECOVERABLE);
    EXPECT_TEXT("gives no reason");
    struct uringfs_completion completion;
    EXPECT_EQ(uringfs_reactor_reap(reactor, &completion, 1, 1, -1), -ENOTRECOVERABLE);
    EXPECT_EQ(uringfs_queue_read(reactor, file, bytes, 5, 0, 1), -ENOTRECOVERABLE);
    struct uringfs_transfer transfer = {.buffer = bytes, .length = 5, .user_data = 1};
    EXPECT_EQ(uringfs_queue_reads(reactor, file, NULL, &transfer, 1), -ENOTRECOVERABLE);
    EXPECT_EQ(uringfs_queue_writes(reactor, file, NULL, &transfer, 1, 0), -ENOTRECOVERABLE);
    EXPECT_OK(uringfs_reactor_close(reactor));

    EXPECT_OK(uringfs_file_close(file));
    EXPECT_OK(uringfs_volume_close(volume));
    puts("alive");
    return 0;
}
