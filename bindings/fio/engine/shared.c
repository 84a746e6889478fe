// Volumes and targets that are open. One process has a volume open once, so its jobs share it.

#include <pthread.h>
#include <stdlib.h>

#include "engine.h"

struct shared {
    struct shared *next;
    char *name;
    // One of both.
    struct uringfs_volume *volume;
    struct uringfs_file *target;
    // The cache of a volume, or the flags of a target.
    uint64_t kind;
    unsigned int users;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct shared *first;

struct uringfs_volume *volume_of(const struct shared *shared) {
    return shared->volume;
}

struct uringfs_file *target_of(const struct shared *shared) {
    return shared->target;
}

// With the mutex.
static struct shared *find(const char *name, bool is_volume) {
    struct shared *shared = first;
    while (shared && (!shared->volume == is_volume || strcmp(shared->name, name) != 0)) {
        shared = shared->next;
    }
    return shared;
}

// With the mutex. The caller opens it.
static struct shared *add(struct thread_data *td, const char *name, uint64_t kind) {
    struct shared *shared = calloc(1, sizeof *shared);
    char *copy = strdup(name);
    if (!shared || !copy) {
        free(shared);
        free(copy);
        fail_job(td, ENOMEM, "there is no memory to open %s", name);
        return NULL;
    }
    *shared = (struct shared){.next = first, .name = copy, .kind = kind, .users = 1};
    first = shared;
    return shared;
}

// With the mutex.
static void remove_shared(struct shared *shared) {
    struct shared **link = &first;
    while (*link != shared) {
        link = &(*link)->next;
    }
    *link = shared->next;
    free(shared->name);
    free(shared);
}

struct shared *share_volume(struct thread_data *td) {
    const struct engine_options *asked = td->eo;
    pthread_mutex_lock(&mutex);
    struct shared *shared = find(asked->volume, true);
    if (shared && shared->kind != asked->cache_bytes) {
        fail_job(td, EINVAL,
                 "cache=%llu, but a job beside it has the volume open with cache=%llu: give all jobs the same",
                 asked->cache_bytes, (unsigned long long)shared->kind);
        shared = NULL;
    } else if (shared) {
        shared->users++;
    } else if ((shared = add(td, asked->volume, asked->cache_bytes))) {
        struct uringfs_volume_options options = {
            .size = sizeof options,
            .flags = read_only ? URINGFS_VOLUME_READ_ONLY : 0,
            .page_cache_bytes = asked->cache_bytes,
        };
        int result = uringfs_volume_open(asked->volume, &options, &shared->volume);
        if (result < 0) {
            fail_job(td, -result, "%s", uringfs_error_text());
            remove_shared(shared);
            shared = NULL;
        }
    }
    pthread_mutex_unlock(&mutex);
    return shared;
}

struct shared *share_target(struct thread_data *td, const struct fio_file *f) {
    uint32_t flags = URINGFS_OPEN_READ | (td_write(td) || td_trim(td) ? URINGFS_OPEN_WRITE : 0);
    pthread_mutex_lock(&mutex);
    struct shared *shared = find(f->file_name, false);
    if (shared && shared->kind != flags) {
        fail_job(td, EINVAL, "%s is open for reading, or for writing, and now for the other: run one job after the other "
                 "(stonewall), or both with rw=rw", f->file_name);
        shared = NULL;
    } else if (shared) {
        shared->users++;
    } else if ((shared = add(td, f->file_name, flags))) {
        int result = uringfs_file_open_target(f->file_name, flags, &shared->target);
        if (result < 0) {
            fail_job(td, -result, "%s", uringfs_error_text());
            remove_shared(shared);
            shared = NULL;
        }
    }
    pthread_mutex_unlock(&mutex);
    return shared;
}

int leave_shared(struct thread_data *td, struct shared *shared) {
    int error = 0;
    if (!shared) {
        return 0;
    }
    pthread_mutex_lock(&mutex);
    if (--shared->users == 0) {
        int result = shared->volume ? uringfs_volume_close(shared->volume) : uringfs_file_close(shared->target);
        if (result < 0) {
            error = -result;
            fail_job(td, error, "%s: %s", shared->name, uringfs_error_text());
        }
        remove_shared(shared);
    }
    pthread_mutex_unlock(&mutex);
    return error;
}
