/*
 * A library with the name of librbd, which records what a program writes to images, and lets the real one do it. See
 * scripts/power-cuts, which builds it and reads the record: entries as of QEMU's blklogwrites, without its first sector.
 *
 * The record has a write when it has ended, and a flush when it begins: all before it is durable once it has ended. With
 * URINGFS_RECORD_DURABLE=1, the image has no cache, and each write is a flush as well.
 *
 * After SIGUSR1 nothing is begun, and the program is killed as soon as nothing is under way and the image's cache is written
 * back: the cut of its power. A request under way at that moment would reach the image, or not, without being in the record;
 * and what is in the cache would be in the record alone.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

enum { SECTOR = 512, FLUSH = 1, DISCARD = 4 };

typedef void *image_t, *completion_t;
typedef void (*callback_t)(completion_t, void *);

/* A request, from the creation of its completion to its end. */
struct request {
    callback_t callback;
    void *context;
    /* A write's, which are the caller's until its end. Without segments, it is of zeros. */
    int writes, discards;
    struct iovec *segments;
    int count;
    uint64_t offset, length;
};

/* Recursive, for requests that end where they begin. */
static pthread_mutex_t mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static pthread_cond_t idle = PTHREAD_COND_INITIALIZER;
static volatile sig_atomic_t cut;
static int record = -1, durable, under_way;

static void *real(const char *name) {
    static void *library;
    if (!library)
        library = dlopen("librbd-real.so", RTLD_NOW);
    void *found = library ? dlsym(library, name) : NULL;
    if (!found) {
        fprintf(stderr, "rbd-recorder: %s: %s\n", name, dlerror());
        abort();
    }
    return found;
}

static void note_cut(int signal) {
    (void)signal;
    cut = 1;
}

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("URINGFS_RECORD");
    record = path ? open(path, O_WRONLY | O_APPEND | O_CLOEXEC) : -1;
    if (record < 0) {
        perror("rbd-recorder: URINGFS_RECORD");
        abort();
    }
    const char *mode = getenv("URINGFS_RECORD_DURABLE");
    durable = mode && *mode == '1';
    signal(SIGUSR1, note_cut);
}

/* Under the mutex. Entries are appended whole. */
static void append(uint64_t offset, uint64_t length, uint64_t flags, const struct iovec *segments, int count) {
    static char zeros[1 << 20];
    char sector[SECTOR] = {0};
    uint64_t entry[4] = {offset / SECTOR, length / SECTOR, flags, flags & DISCARD ? 0 : length};
    memcpy(sector, entry, sizeof entry);
    if (offset % SECTOR || length % SECTOR || write(record, sector, SECTOR) != SECTOR)
        abort();
    if (flags & DISCARD)
        return;
    for (uint64_t left = segments ? 0 : length; left > 0;) {
        ssize_t done = write(record, zeros, left < sizeof zeros ? left : sizeof zeros);
        if (done <= 0)
            abort();
        left -= done;
    }
    for (int number = 0; number < count; number++)
        if (write(record, segments[number].iov_base, segments[number].iov_len) != (ssize_t)segments[number].iov_len)
            abort();
}

static void ended(completion_t completion, void *argument) {
    struct request *request = argument;
    ssize_t (*result)(completion_t) = real("rbd_aio_get_return_value");
    pthread_mutex_lock(&mutex);
    if (request->writes && result(completion) >= 0)
        append(request->offset, request->length, durable ? FLUSH : 0, request->segments, request->count);
    if (request->discards && result(completion) >= 0)
        append(request->offset, request->length, DISCARD, NULL, 0);
    under_way--;
    pthread_cond_broadcast(&idle);
    pthread_mutex_unlock(&mutex);
    callback_t callback = request->callback;
    void *context = request->context;
    free(request->segments);
    free(request);
    callback(completion, context);
}

int rbd_aio_create_completion(void *context, callback_t callback, completion_t *completion) {
    int (*create)(void *, callback_t, completion_t *) = real("rbd_aio_create_completion");
    struct request *request = calloc(1, sizeof *request);
    request->callback = callback;
    request->context = context;
    return create(request, ended, completion);
}

static struct request *of(completion_t completion) {
    void *(*get)(completion_t) = real("rbd_aio_get_arg");
    return get(completion);
}

/* Counts a request in, with the mutex taken. After the cut it does not return. */
static void enter(image_t image) {
    int (*flush)(image_t) = real("rbd_flush");
    pthread_mutex_lock(&mutex);
    if (cut) {
        while (under_way > 0)
            pthread_cond_wait(&idle, &mutex);
        flush(image);
        kill(getpid(), SIGKILL);
    }
    under_way++;
}

static int leave(int result) {
    /* It has not begun, and does not end. */
    if (result < 0)
        under_way--;
    pthread_mutex_unlock(&mutex);
    return result;
}

int rbd_aio_writev(image_t image, const struct iovec *segments, int count, uint64_t offset, completion_t completion) {
    int (*writev)(image_t, const struct iovec *, int, uint64_t, completion_t) = real("rbd_aio_writev");
    struct request *request = of(completion);
    request->writes = 1;
    request->count = count;
    request->segments = memcpy(malloc(count * sizeof *segments), segments, count * sizeof *segments);
    request->offset = offset;
    for (int number = 0; number < count; number++)
        request->length += segments[number].iov_len;
    enter(image);
    return leave(writev(image, segments, count, offset, completion));
}

int rbd_aio_write_zeroes(image_t image, uint64_t offset, size_t length, completion_t completion, int flags, int op_flags) {
    int (*zero)(image_t, uint64_t, size_t, completion_t, int, int) = real("rbd_aio_write_zeroes");
    struct request *request = of(completion);
    request->writes = 1;
    request->offset = offset;
    request->length = length;
    enter(image);
    return leave(zero(image, offset, length, completion, flags, op_flags));
}

int rbd_aio_discard(image_t image, uint64_t offset, uint64_t length, completion_t completion) {
    int (*discard)(image_t, uint64_t, uint64_t, completion_t) = real("rbd_aio_discard");
    struct request *request = of(completion);
    request->discards = 1;
    request->offset = offset;
    request->length = length;
    enter(image);
    return leave(discard(image, offset, length, completion));
}

int rbd_aio_flush(image_t image, completion_t completion) {
    int (*flush)(image_t, completion_t) = real("rbd_aio_flush");
    enter(image);
    append(0, 0, FLUSH, NULL, 0);
    return leave(flush(image, completion));
}

int rbd_aio_readv(image_t image, const struct iovec *segments, int count, uint64_t offset, completion_t completion) {
    int (*readv)(image_t, const struct iovec *, int, uint64_t, completion_t) = real("rbd_aio_readv");
    enter(image);
    return leave(readv(image, segments, count, offset, completion));
}
