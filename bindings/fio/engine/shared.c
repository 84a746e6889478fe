// Volumes and targets that are open. One process has a volume open once, so its jobs share it.

#include <pthread.h>
#include <stdlib.h>

#include "engine.h"

struct shared {
    struct shared *next;
    char *name;
    // One of the two.
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

// Opens what was added. Returns 0, or a negative errno.
static int open_shared(struct shared *shared, bool is_volume) {
    if (!is_volume) {
        return uringfs_file_open_target(shared->name, shared->kind, &shared->target);
    }
    struct uringfs_volume_options options = {
        .size = sizeof options,
        .flags = read_only ? URINGFS_VOLUME_READ_ONLY : 0,
        .page_cache_bytes = shared->kind,
    };
    return uringfs_volume_open(shared->name, &options, &shared->volume);
}

// Opens it, or joins those that use it. A job that uses it as another kind has the error `other_kind`.
static struct shared *share(struct thread_data *td, const char *name, bool is_volume, uint64_t kind, const char *other_kind) {
    char path[PATH_MAX];
    // One file may have several names. A target that is no path, as null:1g, has one.
    name = realpath(name, path) ? path : name;
    pthread_mutex_lock(&mutex);
    struct shared *shared = find(name, is_volume);
    if (shared && shared->kind != kind) {
        fail_job(td, EINVAL, "%s: %s", name, other_kind);
        shared = NULL;
    } else if (shared) {
        shared->users++;
    } else if ((shared = add(td, name, kind))) {
        int result = open_shared(shared, is_volume);
        if (result < 0) {
            fail_job(td, -result, "%s", uringfs_error_text());
            remove_shared(shared);
            shared = NULL;
        }
    }
    pthread_mutex_unlock(&mutex);
    return shared;
}

struct shared *share_volume(struct thread_data *td) {
    const struct engine_options *asked = td->eo;
    return share(td, asked->volume, true, asked->cache_bytes,
                 "a job beside it has the volume open with another cache=: give all jobs the same");
}

struct shared *share_target(struct thread_data *td, const struct fio_file *f) {
    uint32_t flags = URINGFS_OPEN_READ | (td_write(td) || td_trim(td) ? URINGFS_OPEN_WRITE : 0);
    return share(td, f->file_name, false, flags,
                 "it is open for reading, or for writing, and now for the other: run one job after the other (stonewall), or "
                 "both with rw=rw");
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
