// Reactors and pools: every operation that is queued completes once, with its number, and every misuse is an error.
//
//     reactors QUEUE IMAGE

#include <poll.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { BLOCK = 4096, BLOCKS = 64 };

static struct uringfs_reactor *new_reactor(uint32_t queue, uint32_t depth) {
    struct uringfs_reactor_options options = {.size = sizeof options, .queue = queue, .depth = depth};
    struct uringfs_reactor *reactor;
    EXPECT_OK(uringfs_reactor_create(&options, &reactor));
    return reactor;
}

// The result of the only operation in flight.
static int64_t complete(struct uringfs_reactor *reactor, uint64_t user_data) {
    struct uringfs_completion completion;
    EXPECT_EQ(uringfs_reactor_reap(reactor, &completion, 1, 1, -1), 1);
    EXPECT_EQ(completion.user_data, user_data);
    EXPECT_EQ(completion.reserved, 0);
    EXPECT_EQ(completion.result < 0, completion.effect != URINGFS_EFFECT_DONE);
    return completion.result;
}

static void every_operation_completes(struct uringfs_volume *volume, uint32_t queue, uint32_t flags) {
    struct uringfs_reactor *reactor = new_reactor(queue, 0);
    struct uringfs_file *file = new_file(volume, "/operations", flags);
    char bytes[2 * BLOCK], read[2 * BLOCK] = {0};
    memset(bytes, 7, sizeof bytes);
    EXPECT_OK(uringfs_queue_write(reactor, file, bytes, sizeof bytes, 0, 0, 1));
    EXPECT_EQ(complete(reactor, 1), sizeof bytes);
    EXPECT_OK(uringfs_queue_write(reactor, file, "text", 4, 5, URINGFS_WRITE_DURABLE, 2));
    EXPECT_EQ(complete(reactor, 2), 4);
    EXPECT_OK(uringfs_queue_write(reactor, file, bytes, BLOCK, BLOCK, URINGFS_WRITE_ATOMIC, 3));
    EXPECT_EQ(complete(reactor, 3), BLOCK);
    EXPECT_OK(uringfs_queue_append(reactor, file, "appended", 8, 0, 4));
    EXPECT_EQ(complete(reactor, 4), sizeof bytes);
    EXPECT_OK(uringfs_queue_append(reactor, file, "durably", 7, URINGFS_WRITE_DURABLE, 5));
    EXPECT_EQ(complete(reactor, 5), sizeof bytes + 8);
    EXPECT_OK(uringfs_queue_flush(reactor, file, 0, 6));
    EXPECT_EQ(complete(reactor, 6), 0);
    EXPECT_OK(uringfs_queue_flush(reactor, file, URINGFS_FLUSH_DATA, 7));
    EXPECT_EQ(complete(reactor, 7), 0);
    EXPECT_OK(uringfs_queue_read(reactor, file, read, 15, sizeof bytes, 8));
    EXPECT_EQ(complete(reactor, 8), 15);
    EXPECT_OK(memcmp(read, "appendeddurably", 15));
    EXPECT_OK(uringfs_queue_discard(reactor, file, 0, BLOCK, 9));
    EXPECT_EQ(complete(reactor, 9), BLOCK);
    EXPECT_OK(uringfs_queue_read(reactor, file, read, 10, 0, INT64_MAX));
    EXPECT_EQ(complete(reactor, INT64_MAX), 10);
    EXPECT_OK(memcmp(read, "\0\0\0\0\0\0\0\0\0\0", 10));
    // The end of the file.
    EXPECT_OK(uringfs_queue_read(reactor, file, read, BLOCK, sizeof bytes + 5, 10));
    EXPECT_EQ(complete(reactor, 10), 10);
    // Calls that block go on beside it.
    EXPECT_EQ(uringfs_file_read(file, read, 1, sizeof bytes), 1);
    EXPECT_OK(uringfs_reactor_close(reactor));
    EXPECT_OK(uringfs_file_close(file));
    EXPECT_OK(uringfs_unlink(volume, "/operations"));
}

static void a_pools_buffers_are_moved_in_batches(struct uringfs_volume *volume, uint32_t queue) {
    struct uringfs_reactor *reactor = new_reactor(queue, 0);
    struct uringfs_file *file = new_file(volume, "/pooled", URINGFS_OPEN_DIRECT);
    struct uringfs_pool *pool;
    EXPECT_OK(uringfs_pool_create(BLOCK, BLOCKS, &pool));
    char *buffers[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        buffers[i] = uringfs_pool_get(pool);
        EXPECT(buffers[i] != NULL && (uintptr_t)buffers[i] % BLOCK == 0);
        memset(buffers[i], i, BLOCK);
        EXPECT_OK(uringfs_queue_write_pooled(reactor, file, pool, buffers[i], BLOCK, (uint64_t)i * BLOCK, 0, i));
    }
    EXPECT(uringfs_pool_get(pool) == NULL);
    struct uringfs_completion completions[BLOCKS];
    // At most so many at once.
    int ended = 0;
    while (ended < BLOCKS) {
        int count = uringfs_reactor_reap(reactor, completions, 1, 5, -1);
        EXPECT(count >= 1 && count <= 5);
        ended += count;
    }
    // Twice: the second time they are overwrites and reads of the fast path.
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < BLOCKS; i++) {
            memset(buffers[i], 0xff, BLOCK);
            EXPECT_OK(uringfs_queue_read_pooled(reactor, file, pool, buffers[i], BLOCK, (uint64_t)i * BLOCK, i));
        }
        char seen[BLOCKS] = {0};
        EXPECT_EQ(uringfs_reactor_reap(reactor, completions, BLOCKS, BLOCKS, -1), BLOCKS);
        for (int i = 0; i < BLOCKS; i++) {
            uint64_t block = completions[i].user_data;
            EXPECT(!seen[block]++);
            EXPECT_EQ(completions[i].result, BLOCK);
            EXPECT_EQ(buffers[block][0], (char)block);
            EXPECT_OK(memcmp(buffers[block], buffers[block] + 1, BLOCK - 1));
        }
    }
    // The first bytes of a buffer.
    EXPECT_OK(uringfs_queue_write_pooled(reactor, file, pool, buffers[0], 10, 3, URINGFS_WRITE_DURABLE, 1));
    EXPECT_EQ(complete(reactor, 1), 10);
    EXPECT_EQ(uringfs_queue_read_pooled(reactor, file, pool, buffers[0], BLOCK + 1, 0, 1), -EINVAL);
    EXPECT_EQ(uringfs_queue_read_pooled(reactor, file, pool, buffers[0] + 1, 1, 0, 1), -EINVAL);
    EXPECT_EQ(uringfs_queue_read_pooled(reactor, file, NULL, buffers[0], 1, 0, 1), -EINVAL);
    EXPECT_EQ(uringfs_queue_write_pooled(reactor, file, pool, buffers[0], 1, 0, 8, 1), -EINVAL);
    EXPECT_EQ(uringfs_pool_put(pool, buffers[0] + 1), -EINVAL);
    EXPECT_EQ(uringfs_pool_put(pool, NULL), -EINVAL);
    EXPECT_EQ(uringfs_pool_close(pool), -EBUSY);
    EXPECT_TEXT("return them first");
    // A reactor that closes with an operation in flight gives its buffer back to the pool.
    EXPECT_OK(uringfs_queue_read_pooled(reactor, file, pool, buffers[0], BLOCK, 0, 1));
    EXPECT_OK(uringfs_reactor_close(reactor));
    for (int i = 1; i < BLOCKS; i++) {
        EXPECT_OK(uringfs_pool_put(pool, buffers[i]));
    }
    EXPECT_OK(uringfs_pool_close(pool));
    EXPECT_EQ(uringfs_pool_create(0, 1, &pool), -EINVAL);
    EXPECT(uringfs_pool_get(NULL) == NULL);
    EXPECT_OK(uringfs_pool_close(NULL));
    EXPECT_OK(uringfs_file_close(file));
}

// The transfers of these blocks, with their numbers.
static void fill_transfers(struct uringfs_transfer *transfers, char **buffers, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        transfers[i] = (struct uringfs_transfer){
            .buffer = buffers[i], .length = BLOCK, .offset = (uint64_t)i * BLOCK, .user_data = i};
    }
}

// Reaps so many transfers of whole blocks, each of which completes once.
static void complete_all(struct uringfs_reactor *reactor, uint32_t count) {
    struct uringfs_completion completions[BLOCKS];
    char seen[BLOCKS] = {0};
    EXPECT_EQ(uringfs_reactor_reap(reactor, completions, count, BLOCKS, -1), count);
    for (uint32_t i = 0; i < count; i++) {
        EXPECT_EQ(completions[i].result, BLOCK);
        EXPECT(!seen[completions[i].user_data]++);
    }
}

// Writes and reads all blocks by arrays, of a pool or without one, and expects what was written.
static void move_in_arrays(struct uringfs_reactor *reactor, struct uringfs_file *file, struct uringfs_pool *pool,
                           char **buffers, uint32_t flags, char round) {
    struct uringfs_transfer transfers[BLOCKS];
    fill_transfers(transfers, buffers, BLOCKS);
    for (int i = 0; i < BLOCKS; i++) {
        memset(buffers[i], i ^ round, BLOCK);
    }
    EXPECT_EQ(uringfs_queue_writes(reactor, file, pool, transfers, BLOCKS, flags), BLOCKS);
    complete_all(reactor, BLOCKS);
    for (int i = 0; i < BLOCKS; i++) {
        memset(buffers[i], 0xff, BLOCK);
    }
    EXPECT_EQ(uringfs_queue_reads(reactor, file, pool, transfers, BLOCKS), BLOCKS);
    complete_all(reactor, BLOCKS);
    for (int i = 0; i < BLOCKS; i++) {
        EXPECT_EQ(buffers[i][0], (char)(i ^ round));
        EXPECT_OK(memcmp(buffers[i], buffers[i] + 1, BLOCK - 1));
    }
}

static void transfers_are_queued_in_arrays(struct uringfs_volume *volume, uint32_t queue) {
    struct uringfs_reactor *reactor = new_reactor(queue, 0);
    struct uringfs_file *file = new_file(volume, "/arrays", URINGFS_OPEN_DIRECT);
    struct uringfs_pool *pool;
    EXPECT_OK(uringfs_pool_create(BLOCK, BLOCKS, &pool));
    static _Alignas(4096) char memory[BLOCKS][BLOCK];
    char *pooled[BLOCKS], *own[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        pooled[i] = uringfs_pool_get(pool);
        own[i] = memory[i];
    }
    move_in_arrays(reactor, file, pool, pooled, 0, 1);
    move_in_arrays(reactor, file, NULL, own, 0, 2);
    move_in_arrays(reactor, file, pool, pooled, URINGFS_WRITE_DURABLE, 3);
    move_in_arrays(reactor, file, NULL, own, URINGFS_WRITE_ATOMIC, 4);

    struct uringfs_transfer transfers[BLOCKS];
    fill_transfers(transfers, pooled, BLOCKS);
    EXPECT_EQ(uringfs_queue_reads(reactor, file, pool, transfers, 0), 0);
    EXPECT_EQ(uringfs_queue_reads(reactor, file, pool, NULL, 0), 0);
    EXPECT_EQ(uringfs_queue_reads(reactor, file, pool, NULL, 1), -EINVAL);
    EXPECT_EQ(uringfs_queue_reads(reactor, NULL, pool, transfers, 1), -EINVAL);
    EXPECT_EQ(uringfs_queue_writes(reactor, file, pool, transfers, 1, 8), -EINVAL);
    // Those before the first that is refused are queued.
    transfers[3].user_data = UINT64_C(1) << 63;
    EXPECT_EQ(uringfs_queue_reads(reactor, file, pool, transfers, BLOCKS), 3);
    EXPECT_TEXT("user_data");
    complete_all(reactor, 3);
    EXPECT_EQ(uringfs_queue_reads(reactor, file, pool, transfers + 3, 1), -EINVAL);
    transfers[2].length = BLOCK + 1;
    EXPECT_EQ(uringfs_queue_writes(reactor, file, pool, transfers, BLOCKS, 0), 2);
    EXPECT_TEXT("the length is over");
    complete_all(reactor, 2);
    transfers[1].buffer = memory;
    EXPECT_EQ(uringfs_queue_reads(reactor, file, pool, transfers, BLOCKS), 1);
    EXPECT_TEXT("no buffer of the pool");
    complete_all(reactor, 1);
    fill_transfers(transfers, own, BLOCKS);
    transfers[1].length = SIZE_MAX;
    EXPECT_EQ(uringfs_queue_reads(reactor, file, NULL, transfers, BLOCKS), 1);
    EXPECT_TEXT("1 GiB");
    complete_all(reactor, 1);
    EXPECT_OK(uringfs_reactor_close(reactor));

    // As much as the depth allows, and the rest after a reap. Reads of unaligned memory are counted.
    reactor = new_reactor(queue, 4);
    fill_transfers(transfers, own, BLOCKS);
    for (int i = 0; i < BLOCKS; i++) {
        transfers[i].buffer = own[i] + 1;
        transfers[i].length = 8;
    }
    int queued = 0;
    while (queued < BLOCKS) {
        int more = uringfs_queue_reads(reactor, file, NULL, transfers + queued, BLOCKS - queued);
        EXPECT(more >= 1 && more < BLOCKS);
        queued += more;
        if (queued < BLOCKS) {
            EXPECT_TEXT("reap completions first");
        }
        struct uringfs_completion completions[BLOCKS];
        EXPECT_EQ(uringfs_reactor_reap(reactor, completions, more, BLOCKS, -1), more);
        for (int i = 0; i < more; i++) {
            EXPECT_EQ(completions[i].result, 8);
        }
    }
    EXPECT_OK(uringfs_reactor_close(reactor));
    for (int i = 0; i < BLOCKS; i++) {
        EXPECT_OK(uringfs_pool_put(pool, pooled[i]));
    }
    EXPECT_OK(uringfs_pool_close(pool));
    EXPECT_OK(uringfs_file_close(file));
}

// The descriptor says when there is something to reap.
static void a_loop_of_the_caller_is_told(struct uringfs_volume *volume, uint32_t queue) {
    struct uringfs_reactor *reactor = new_reactor(queue, 0);
    struct uringfs_file *file = open_file(volume, "/pooled", URINGFS_OPEN_READ | URINGFS_OPEN_DIRECT);
    static char buffers[BLOCKS][BLOCK];
    struct pollfd watched = {.fd = uringfs_reactor_fd(reactor), .events = POLLIN};
    EXPECT(watched.fd >= 0);
    EXPECT_EQ(uringfs_reactor_fd(reactor), watched.fd);
    for (int i = 0; i < BLOCKS; i++) {
        EXPECT_OK(uringfs_queue_read(reactor, file, buffers[i], BLOCK, (uint64_t)i * BLOCK, i));
    }
    struct uringfs_completion completions[7];
    for (int ended = 0;;) {
        int count;
        while ((count = uringfs_reactor_reap(reactor, completions, 0, 7, 0)) > 0) {
            ended += count;
        }
        EXPECT_EQ(count, 0);
        if (ended == BLOCKS) {
            break;
        }
        EXPECT_EQ(poll(&watched, 1, 60000), 1);
    }
    EXPECT_OK(uringfs_reactor_close(reactor));
    EXPECT_OK(uringfs_file_close(file));
}

static void *use_in_another_thread(void *reactor) {
    struct uringfs_completion completion;
    EXPECT_EQ(uringfs_reactor_reap(reactor, &completion, 1, 1, -1), -EPERM);
    EXPECT_EQ(uringfs_reactor_submit(reactor), -EPERM);
    EXPECT_TEXT("thread");
    EXPECT_EQ(uringfs_queue_reads(reactor, NULL, NULL, NULL, 0), -EPERM);
    EXPECT_EQ(uringfs_reactor_close(reactor), -EPERM);
    return NULL;
}

static void misuse_is_refused(struct uringfs_volume *volume, uint32_t queue) {
    struct uringfs_reactor *reactor = new_reactor(queue, 4);
    struct uringfs_file *file = open_file(volume, "/pooled", URINGFS_OPEN_READ | URINGFS_OPEN_DIRECT);
    static char buffers[16][BLOCK];
    struct uringfs_completion completions[16];
    EXPECT_EQ(uringfs_reactor_reap(reactor, completions, 2, 1, -1), -EINVAL);
    EXPECT_EQ(uringfs_reactor_reap(reactor, NULL, 0, 1, -1), -EINVAL);
    // Nothing is in flight, so there is nothing to wait for.
    EXPECT_EQ(uringfs_reactor_reap(reactor, completions, 1, 16, -1), 0);
    EXPECT_EQ(uringfs_reactor_reap(reactor, completions, 1, 16, 1000), 0);
    EXPECT_EQ(uringfs_queue_read(reactor, file, buffers[0], BLOCK, 0, UINT64_C(1) << 63), -EINVAL);
    EXPECT_EQ(uringfs_queue_read(reactor, NULL, buffers[0], BLOCK, 0, 1), -EINVAL);
    EXPECT_EQ(uringfs_queue_read(NULL, file, buffers[0], BLOCK, 0, 1), -EINVAL);
    EXPECT_EQ(uringfs_queue_read(reactor, file, NULL, BLOCK, 0, 1), -EINVAL);
    EXPECT_EQ(uringfs_queue_write(reactor, file, buffers[0], BLOCK, 0, 16, 1), -EINVAL);
    EXPECT_EQ(uringfs_queue_append(reactor, file, buffers[0], BLOCK, 16, 1), -EINVAL);
    EXPECT_EQ(uringfs_queue_flush(reactor, file, 16, 1), -EINVAL);
    // The file may not be written.
    EXPECT_OK(uringfs_queue_write(reactor, file, buffers[0], BLOCK, 0, 0, 1));
    EXPECT_EQ(complete(reactor, 1), -EBADF);
    int begun = 0, result = 0;
    while (begun < 16 && (result = uringfs_queue_read(reactor, file, buffers[begun], BLOCK, 0, begun)) == 0) {
        begun++;
    }
    EXPECT_EQ(result, -EAGAIN);
    EXPECT_TEXT("reap completions first");
    EXPECT(begun >= 4);
    EXPECT_OK(uringfs_reactor_submit(reactor));
    EXPECT_OK(uringfs_reactor_cancel(reactor, 0));
    EXPECT_EQ(uringfs_reactor_cancel(reactor, UINT64_MAX), -EINVAL);
    EXPECT_EQ(uringfs_reactor_reap(reactor, completions, begun, 16, -1), begun);
    for (int i = 0; i < begun; i++) {
        bool is_cancelled = completions[i].user_data == 0 && completions[i].result == -ECANCELED;
        EXPECT(is_cancelled || completions[i].result == BLOCK);
    }
    pthread_t thread;
    EXPECT_OK(pthread_create(&thread, NULL, use_in_another_thread, reactor));
    EXPECT_OK(pthread_join(thread, NULL));
    EXPECT_OK(uringfs_reactor_close(reactor));
    EXPECT_OK(uringfs_reactor_close(NULL));

    struct uringfs_reactor_options options = {.size = sizeof options, .queue = 9};
    EXPECT_EQ(uringfs_reactor_create(&options, &reactor), -EINVAL);
    options = (struct uringfs_reactor_options){.size = sizeof options, .depth = 1 << 20};
    EXPECT_EQ(uringfs_reactor_create(&options, &reactor), -EINVAL);
    options = (struct uringfs_reactor_options){.size = sizeof options, .switches = "ring.fixed_files=off,completion=worker"};
    EXPECT_OK(uringfs_reactor_create(&options, &reactor));
    EXPECT_OK(uringfs_reactor_close(reactor));
    options.switches = "direct.simple_read=off";
    EXPECT_EQ(uringfs_reactor_create(&options, &reactor), -EINVAL);
    EXPECT_TEXT("those are device.queue, completion");
    options.switches = "completion=never";
    EXPECT_EQ(uringfs_reactor_create(&options, &reactor), -EINVAL);
    EXPECT_TEXT("inline or worker");
    EXPECT_OK(uringfs_file_close(file));
}

static void *create_in_a_thread(void *queue) {
    return new_reactor(*(uint32_t *)queue, 0);
}

// The later thread has the memory of the one that has created the reactor, and the same address of its control block.
static void a_later_thread_is_not_the_one_that_has_ended(uint32_t queue) {
    static _Alignas(4096) char stack[8 << 20];
    pthread_attr_t attributes;
    pthread_t thread;
    void *reactor;
    EXPECT_OK(pthread_attr_init(&attributes));
    EXPECT_OK(pthread_attr_setstack(&attributes, stack, sizeof stack));
    EXPECT_OK(pthread_create(&thread, &attributes, create_in_a_thread, &queue));
    pthread_t creator = thread;
    EXPECT_OK(pthread_join(thread, &reactor));
    EXPECT_OK(pthread_create(&thread, &attributes, use_in_another_thread, reactor));
    EXPECT(pthread_equal(thread, creator));
    EXPECT_OK(pthread_join(thread, NULL));
    EXPECT_OK(pthread_attr_destroy(&attributes));
}

// In the child of a fork all calls fail, but those that close: they return at once, and the parent goes on.
static void the_child_of_a_fork_is_refused(struct uringfs_volume *volume, uint32_t queue) {
    struct uringfs_reactor *reactor = new_reactor(queue, 0);
    struct uringfs_file *file = open_file(volume, "/pooled", URINGFS_OPEN_READ | URINGFS_OPEN_DIRECT);
    struct uringfs_file *cached = new_file(volume, "/cached", 0);
    struct uringfs_directory *directory;
    struct uringfs_pool *pool;
    static char buffer[BLOCK];
    EXPECT_EQ(uringfs_file_write(cached, "hello", 5, 0, 0), 5);
    EXPECT_OK(uringfs_directory_open(volume, "/", &directory));
    EXPECT_OK(uringfs_pool_create(BLOCK, 1, &pool));
    EXPECT_OK(uringfs_queue_read(reactor, file, buffer, BLOCK, 0, 1));
    pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        struct uringfs_completion completion;
        struct uringfs_entry entry = {.size = sizeof entry};
        struct uringfs_file *none = (void *)1;
        char bytes[5];
        EXPECT_EQ(uringfs_reactor_reap(reactor, &completion, 1, 1, -1), -ECHILD);
        EXPECT_TEXT("after the fork");
        EXPECT_EQ(uringfs_mkdir(volume, "/child", 0755), -ECHILD);
        EXPECT_EQ(uringfs_file_open(volume, "/pooled", NULL, &none), -ECHILD);
        EXPECT(none == NULL);
        EXPECT_EQ(uringfs_file_read(cached, bytes, 5, 0), -ECHILD);
        EXPECT_EQ(uringfs_file_size(cached), -ECHILD);
        EXPECT_EQ(uringfs_directory_next(directory, &entry), -ECHILD);
        EXPECT(uringfs_pool_get(pool) == NULL);
        struct uringfs_reactor *own = new_reactor(queue, 0);
        EXPECT_EQ(uringfs_queue_read(own, file, bytes, 5, 0, 1), -ECHILD);
        EXPECT_OK(uringfs_reactor_close(own));
        EXPECT_OK(uringfs_volume_close(volume));
        EXPECT_OK(uringfs_directory_close(directory));
        EXPECT_OK(uringfs_file_close(cached));
        EXPECT_OK(uringfs_file_close(file));
        EXPECT_OK(uringfs_pool_close(pool));
        EXPECT_OK(uringfs_reactor_close(reactor));
        _exit(0);
    }
    EXPECT_EQ(complete(reactor, 1), BLOCK);
    int status;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    char bytes[5];
    EXPECT_EQ(uringfs_file_read(cached, bytes, 5, 0), 5);
    EXPECT_OK(memcmp(bytes, "hello", 5));
    EXPECT_OK(uringfs_pool_close(pool));
    EXPECT_OK(uringfs_directory_close(directory));
    EXPECT_OK(uringfs_file_close(cached));
    EXPECT_OK(uringfs_file_close(file));
    EXPECT_OK(uringfs_reactor_close(reactor));
}

int main(int argc, char **argv) {
    EXPECT_EQ(argc, 3);
    uint32_t queue = (uint32_t)atoi(argv[1]);
    struct uringfs_format_options format = {.size = sizeof format, .bytes = 64 << 20};
    struct uringfs_volume *volume;
    EXPECT_OK(uringfs_volume_create(argv[2], &format, &volume));
    every_operation_completes(volume, queue, 0);
    every_operation_completes(volume, queue, URINGFS_OPEN_DIRECT);
    a_pools_buffers_are_moved_in_batches(volume, queue);
    transfers_are_queued_in_arrays(volume, queue);
    a_loop_of_the_caller_is_told(volume, queue);
    misuse_is_refused(volume, queue);
    a_later_thread_is_not_the_one_that_has_ended(queue);
    the_child_of_a_fork_is_refused(volume, queue);
    EXPECT_OK(uringfs_volume_close(volume));
    return 0;
}
