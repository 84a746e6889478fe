// A write-ahead log: records are appended, durable when their completions arrive, and read back after a restart. Many
// appends in flight share the flushes of the device.
//
//     cc log.c $(pkg-config --cflags --libs liburingfs) -o log && ./log log.img

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <uringfs.h>

enum { RECORDS = 256, RECORD_BYTES = 64, IN_FLIGHT = 32 };

// Ends the program when a call has failed.
static int64_t check(int64_t result, const char *doing) {
    if (result < 0) {
        fprintf(stderr, "log: %s: %s\n", doing, uringfs_error_text());
        exit(1);
    }
    return result;
}

// Appends all records, up to IN_FLIGHT at a time. A record's memory is its own until its completion is reaped.
static void append_records(struct uringfs_file *file) {
    static char records[RECORDS][RECORD_BYTES];
    struct uringfs_reactor *reactor;
    check(uringfs_reactor_create(NULL, &reactor), "creating a reactor");
    uint64_t begun = 0, ended = 0;
    while (ended < RECORDS) {
        while (begun < RECORDS && begun - ended < IN_FLIGHT) {
            snprintf(records[begun], RECORD_BYTES, "record %" PRIu64, begun);
            check(uringfs_queue_append(reactor, file, records[begun], RECORD_BYTES, URINGFS_WRITE_DURABLE, begun),
                  "queueing an append");
            begun++;
        }
        struct uringfs_completion completions[IN_FLIGHT];
        int64_t count = check(uringfs_reactor_reap(reactor, completions, 1, IN_FLIGHT, -1), "reaping");
        for (int64_t i = 0; i < count; i++) {
            if (completions[i].result < 0) {
                fprintf(stderr, "log: record %" PRIu64 ": %s\n", completions[i].user_data,
                        strerror((int)-completions[i].result));
                exit(1);
            }
        }
        ended += (uint64_t)count;
    }
    check(uringfs_reactor_close(reactor), "closing the reactor");
}

// Reads the log from its beginning. Returns the number of its records, each of which is there once.
static int read_records(struct uringfs_file *file) {
    char seen[RECORDS] = {0}, record[RECORD_BYTES];
    int count = 0;
    uint64_t offset = 0;
    while (check(uringfs_file_read(file, record, sizeof record, offset), "reading") == RECORD_BYTES) {
        uint64_t number;
        if (sscanf(record, "record %" SCNu64, &number) != 1 || number >= RECORDS || seen[number]++) {
            fprintf(stderr, "log: a wrong record at %" PRIu64 "\n", offset);
            exit(1);
        }
        offset += sizeof record;
        count++;
    }
    return count;
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: log IMAGE\n");
        return 2;
    }
    struct uringfs_format_options format = {.size = sizeof format, .bytes = 64 << 20, .label = "log"};
    struct uringfs_volume *volume;
    check(uringfs_volume_create(argv[1], &format, &volume), "creating the volume");
    struct uringfs_open_options options = {
        .size = sizeof options,
        .flags = URINGFS_OPEN_WRITE | URINGFS_OPEN_CREATE_NEW | URINGFS_OPEN_DIRECT,
    };
    struct uringfs_file *file;
    check(uringfs_file_open(volume, "/log", &options, &file), "creating the log");
    append_records(file);
    uringfs_file_close(file);
    check(uringfs_volume_close(volume), "closing the volume");

    check(uringfs_volume_open(argv[1], NULL, &volume), "opening the volume");
    check(uringfs_file_open(volume, "/log", NULL, &file), "opening the log");
    printf("%d records\n", read_records(file));
    uringfs_file_close(file);
    check(uringfs_volume_close(volume), "closing the volume");
    return 0;
}
