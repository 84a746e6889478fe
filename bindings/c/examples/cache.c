// A cache of values of 4 KiB, in one file. Values that were used lately are in the page cache of the volume; many
// look-ups at once are queued together, and their reads of the device overlap.
//
//     cc cache.c $(pkg-config --cflags --libs liburingfs) -o cache && ./cache cache.img

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <uringfs.h>

enum { VALUE_BYTES = 4096, VALUES = 1024, LOOKUPS = 64 };

struct cache {
    struct uringfs_volume *volume;
    struct uringfs_file *file;
    struct uringfs_reactor *reactor;
    struct uringfs_pool *pool;
};

static int64_t check(int64_t result, const char *doing) {
    if (result < 0) {
        fprintf(stderr, "cache: %s: %s\n", doing, uringfs_error_text());
        exit(1);
    }
    return result;
}

static void open_cache(struct cache *cache, const char *image) {
    // 8 MiB of page cache: part of the values are read from the device again.
    struct uringfs_format_options format = {.size = sizeof format, .bytes = 64 << 20};
    check(uringfs_volume_create(image, &format, &cache->volume), "creating the volume");
    check(uringfs_volume_close(cache->volume), "closing the volume");
    struct uringfs_volume_options options = {.size = sizeof options, .page_cache_bytes = 8 << 20};
    check(uringfs_volume_open(image, &options, &cache->volume), "opening the volume");
    struct uringfs_open_options open = {
        .size = sizeof open,
        .flags = URINGFS_OPEN_READ | URINGFS_OPEN_WRITE | URINGFS_OPEN_CREATE,
    };
    check(uringfs_file_open(cache->volume, "/values", &open, &cache->file), "opening the values");
    check(uringfs_reactor_create(NULL, &cache->reactor), "creating a reactor");
    check(uringfs_pool_create(VALUE_BYTES, LOOKUPS, &cache->pool), "making buffers");
}

static void close_cache(struct cache *cache) {
    check(uringfs_reactor_close(cache->reactor), "closing the reactor");
    check(uringfs_pool_close(cache->pool), "closing the buffers");
    uringfs_file_close(cache->file);
    check(uringfs_volume_close(cache->volume), "closing the volume");
}

// Stores a value. It is in memory, and goes to the device in the background.
static void put(struct cache *cache, uint64_t key, const void *value) {
    check(uringfs_file_write(cache->file, value, VALUE_BYTES, key * VALUE_BYTES, 0), "storing a value");
}

// Looks up many values at once, and passes each to `use` when it is there.
static void get_many(struct cache *cache, const uint64_t *keys, int count,
                     void (*use)(uint64_t key, const char *value)) {
    struct uringfs_transfer reads[LOOKUPS];
    for (int i = 0; i < count; i++) {
        reads[i] = (struct uringfs_transfer){
            .buffer = uringfs_pool_get(cache->pool),
            .length = VALUE_BYTES,
            .offset = keys[i] * VALUE_BYTES,
            .user_data = (uint64_t)i,
        };
    }
    // The reactor has room for all of them.
    int queued = uringfs_queue_reads(cache->reactor, cache->file, cache->pool, reads, (uint32_t)count);
    check(queued < count ? -1 : 0, "queueing look-ups");
    for (int ended = 0; ended < count;) {
        struct uringfs_completion completions[LOOKUPS];
        int reaped = (int)check(uringfs_reactor_reap(cache->reactor, completions, 1, LOOKUPS, -1), "reaping");
        for (int i = 0; i < reaped; i++) {
            int lookup = (int)completions[i].user_data;
            if (completions[i].result != VALUE_BYTES) {
                fprintf(stderr, "cache: value %" PRIu64 ": result %" PRId64 "\n", keys[lookup], completions[i].result);
                exit(1);
            }
            use(keys[lookup], reads[lookup].buffer);
            uringfs_pool_put(cache->pool, reads[lookup].buffer);
        }
        ended += reaped;
    }
}

static int right;

static void compare(uint64_t key, const char *value) {
    char expected[32];
    snprintf(expected, sizeof expected, "value %" PRIu64, key);
    right += strcmp(expected, value) == 0;
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: cache IMAGE\n");
        return 2;
    }
    struct cache cache;
    open_cache(&cache, argv[1]);
    for (uint64_t key = 0; key < VALUES; key++) {
        char value[VALUE_BYTES] = {0};
        snprintf(value, sizeof value, "value %" PRIu64, key);
        put(&cache, key, value);
    }
    uint64_t state = 1;
    for (int round = 0; round < 32; round++) {
        uint64_t keys[LOOKUPS];
        for (int i = 0; i < LOOKUPS; i++) {
            state = state * UINT64_C(6364136223846793005) + 1442695040888963407;
            keys[i] = (state >> 33) % VALUES;
        }
        get_many(&cache, keys, LOOKUPS, compare);
    }
    close_cache(&cache);
    printf("%d values\n", right);
    return 0;
}
