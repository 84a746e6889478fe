// Reads blocks of 4 KiB at random, as reads.rs beside it does in Rust. scripts/bench/c compares the two.
//
//     cc -O2 reads.c $(pkg-config --cflags --libs liburingfs) -o reads && ./reads null:1g 32 1000000 pool array
//
// The memory is a pool's (pool) or the program's own (own). Reads are queued by a call each (each), or by one call for
// all that follow a reap (array).

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

// The state that all reads share.
struct run {
    struct uringfs_file *file;
    struct uringfs_reactor *reactor;
    // NULL for memory of the program's own.
    struct uringfs_pool *pool;
    uint64_t blocks;
    uint64_t state;
};

// The read of a random block into this memory.
static struct uringfs_transfer random_read(struct run *run, void *buffer, uint64_t slot) {
    uint64_t offset = next(&run->state) % run->blocks * BLOCK;
    return (struct uringfs_transfer){.buffer = buffer, .length = BLOCK, .offset = offset, .user_data = slot};
}

static void queue_one(struct run *run, struct uringfs_transfer read) {
    int64_t queued =
        run->pool ? uringfs_queue_read_pooled(run->reactor, run->file, run->pool, read.buffer, read.length, read.offset,
                                              read.user_data)
                  : uringfs_queue_read(run->reactor, run->file, read.buffer, read.length, read.offset, read.user_data);
    check(queued, "queueing a read");
}

static void queue_array(struct run *run, const struct uringfs_transfer *reads, uint32_t count) {
    int64_t queued = check(uringfs_queue_reads(run->reactor, run->file, run->pool, reads, count), "queueing reads");
    if (queued < count) {
        fprintf(stderr, "reads: only %" PRId64 " of %" PRIu32 " are queued: %s\n", queued, count, uringfs_error_text());
        exit(1);
    }
}

int main(int argc, char **argv) {
    bool is_pooled = argc == 6 && !strcmp(argv[4], "pool"), is_array = argc == 6 && !strcmp(argv[5], "array");
    if (argc != 6 || (!is_pooled && strcmp(argv[4], "own")) || (!is_array && strcmp(argv[5], "each"))) {
        fprintf(stderr, "usage: reads TARGET DEPTH READS pool|own each|array\n");
        return 2;
    }
    uint64_t depth = strtoull(argv[2], NULL, 10), reads = strtoull(argv[3], NULL, 10);
    struct run run = {.state = UINT64_C(0x2545f4914f6cdd1d)};
    check(uringfs_file_open_target(argv[1], URINGFS_OPEN_READ, &run.file), "opening the target");
    check(uringfs_reactor_create(NULL, &run.reactor), "creating a reactor");
    if (is_pooled) {
        check(uringfs_pool_create(BLOCK, depth, &run.pool), "making buffers");
    }
    run.blocks = (uint64_t)check(uringfs_file_size(run.file), "asking for the size") / BLOCK;
    void **buffers = calloc(depth, sizeof *buffers);
    struct uringfs_transfer *transfers = calloc(depth, sizeof *transfers);
    for (uint64_t slot = 0; slot < depth; slot++) {
        buffers[slot] = is_pooled ? uringfs_pool_get(run.pool) : aligned_alloc(BLOCK, BLOCK);
    }

    double begin = seconds();
    for (uint64_t slot = 0; slot < depth; slot++) {
        transfers[slot] = random_read(&run, buffers[slot], slot);
    }
    queue_array(&run, transfers, (uint32_t)depth);
    uint64_t begun = depth, ended = 0;
    while (ended < reads) {
        struct uringfs_completion completions[BATCH];
        int count = (int)check(uringfs_reactor_reap(run.reactor, completions, 1, BATCH, -1), "reaping");
        uint32_t next_count = 0;
        for (int i = 0; i < count; i++) {
            if (completions[i].result != BLOCK) {
                fprintf(stderr, "reads: a result of %" PRId64 "\n", completions[i].result);
                return 1;
            }
            ended++;
            if (begun < reads) {
                uint64_t slot = completions[i].user_data;
                struct uringfs_transfer read = random_read(&run, buffers[slot], slot);
                begun++;
                if (is_array) {
                    transfers[next_count++] = read;
                } else {
                    queue_one(&run, read);
                }
            }
        }
        if (next_count > 0) {
            queue_array(&run, transfers, next_count);
        }
    }
    printf("%.0f\n", (double)reads / (seconds() - begin));

    for (uint64_t slot = 0; slot < depth; slot++) {
        if (is_pooled) {
            uringfs_pool_put(run.pool, buffers[slot]);
        } else {
            free(buffers[slot]);
        }
    }
    free(transfers);
    free(buffers);
    check(uringfs_reactor_close(run.reactor), "closing the reactor");
    check(uringfs_pool_close(run.pool), "closing the pool");
    uringfs_file_close(run.file);
    return 0;
}
