// Reads blocks of 4 KiB at random, as reads.rs beside it does in Rust. scripts/bench/c compares the two.
//
//     cc -O2 reads.c $(pkg-config --cflags --libs liburingfs) -o reads && ./reads null:1g 32 1000000

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <uringfs.h>

enum { BLOCK = 4096, BATCH = 128 };

static int64_t check(int64_t result, const char *doing) {
    if (result < 0) {
        fprintf(stderr, "reads: %s: %s\n", doing, uringfs_error_text());
        exit(1);
    }
    return result;
}

// A xorshift generator.
static uint64_t next(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: reads TARGET DEPTH READS\n");
        return 2;
    }
    uint64_t depth = strtoull(argv[2], NULL, 10), reads = strtoull(argv[3], NULL, 10);
    struct uringfs_file *file;
    struct uringfs_reactor *reactor;
    struct uringfs_pool *pool;
    check(uringfs_file_open_target(argv[1], URINGFS_OPEN_READ, &file), "opening the target");
    check(uringfs_reactor_create(NULL, &reactor), "creating a reactor");
    check(uringfs_pool_create(BLOCK, depth, &pool), "making buffers");
    uint64_t blocks = (uint64_t)check(uringfs_file_size(file), "asking for the size") / BLOCK;
    void **buffers = calloc(depth, sizeof *buffers);
    uint64_t state = UINT64_C(0x2545f4914f6cdd1d);

    double begin = seconds();
    for (uint64_t slot = 0; slot < depth; slot++) {
        buffers[slot] = uringfs_pool_get(pool);
        uint64_t offset = next(&state) % blocks * BLOCK;
        check(uringfs_queue_read_pooled(reactor, file, pool, buffers[slot], BLOCK, offset, slot), "queueing a read");
    }
    uint64_t begun = depth, ended = 0;
    while (ended < reads) {
        struct uringfs_completion completions[BATCH];
        int count = (int)check(uringfs_reactor_reap(reactor, completions, 1, BATCH, -1), "reaping");
        for (int i = 0; i < count; i++) {
            if (completions[i].result != BLOCK) {
                fprintf(stderr, "reads: a result of %" PRId64 "\n", completions[i].result);
                return 1;
            }
            ended++;
            if (begun < reads) {
                uint64_t slot = completions[i].user_data, offset = next(&state) % blocks * BLOCK;
                check(uringfs_queue_read_pooled(reactor, file, pool, buffers[slot], BLOCK, offset, slot),
                      "queueing a read");
                begun++;
            }
        }
    }
    printf("%.0f\n", (double)reads / (seconds() - begin));

    for (uint64_t slot = 0; slot < depth; slot++) {
        uringfs_pool_put(pool, buffers[slot]);
    }
    free(buffers);
    check(uringfs_reactor_close(reactor), "closing the reactor");
    check(uringfs_pool_close(pool), "closing the pool");
    uringfs_file_close(file);
    return 0;
}
