// Files: their sizes and their content before a job, and opening, closing and removing them.
//
// fio prepares files of the kernel by itself. For other engines it expects that they have the sizes that a job asks for
// when the engine has set it up.

#include <stdlib.h>

#include "engine.h"

enum { LAYOUT_BYTES = 1 << 20 };

// The path of a file in its volume.
struct path {
    char text[PATH_MAX + 1];
};

static struct path path_of(const struct fio_file *f) {
    struct path path;
    snprintf(path.text, sizeof path.text, "%s%s", f->file_name[0] == '/' ? "" : "/", f->file_name);
    return path;
}

// Ends the job with the error that a call of the library has returned for this file.
static int failed(struct thread_data *td, const struct fio_file *f, int64_t result) {
    return fail_job(td, -result, "file %s: %s", f->file_name, uringfs_error_text());
}

// The size that a file needs for its job: the rule is fio's own for files of the kernel.
static uint64_t size_for_job(struct thread_data *td, struct fio_file *f, unsigned int index) {
    const struct thread_options *o = &td->o;
    uint64_t offset = get_start_offset(td, f);
    if (o->file_size_low) {
        if (f->real_file_size >= o->file_size_low && f->real_file_size <= o->file_size_high) {
            return f->real_file_size;
        }
        if (o->file_size_low == o->file_size_high) {
            return o->file_size_low;
        }
        uint64_t size = rand_between(&td->file_size_state, o->file_size_low, o->file_size_high);
        size -= size % td_min_bs(td);
        return size < o->file_size_low ? o->file_size_low : size;
    }
    uint64_t share = o->size / o->nr_files, rest = (o->size - share * o->nr_files) / td_min_bs(td);
    share += index < rest ? td_min_bs(td) : 0;
    return share ? offset + share : f->real_file_size;
}

static int make_folders(struct thread_data *td, struct uringfs_volume *volume, struct fio_file *f) {
    struct path path = path_of(f);
    for (char *slash = strchr(path.text + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        int result = uringfs_mkdir(volume, path.text, 0755);
        if (result < 0 && result != -EEXIST) {
            return failed(td, f, result);
        }
        *slash = '/';
    }
    return 0;
}

// Fills the end of a file with what the job would write.
static int fill(struct thread_data *td, const struct fio_file *f, struct uringfs_file *file, uint64_t end) {
    char *bytes = aligned_alloc(4096, LAYOUT_BYTES);
    if (!bytes) {
        return fail_job(td, ENOMEM, "there is no memory to fill file %s", f->file_name);
    }
    int64_t written = 0;
    for (uint64_t at = f->real_file_size; at < end && !td->terminate && written >= 0; at += written) {
        size_t length = end - at < LAYOUT_BYTES ? end - at : LAYOUT_BYTES;
        fill_io_buffer(td, bytes, LAYOUT_BYTES, LAYOUT_BYTES);
        written = uringfs_file_write(file, bytes, length, at, 0);
    }
    free(bytes);
    return written < 0 ? failed(td, f, written) : 0;
}

// Makes a file as large as its job needs it. A job that reads, or overwrites, finds written bytes; for one that only
// writes, the space is allocated, unless it says otherwise (fallocate=none).
static int lay_out(struct thread_data *td, struct uringfs_volume *volume, struct fio_file *f, uint64_t size) {
    struct path path = path_of(f);
    struct uringfs_open_options options = {
        .size = sizeof options,
        .flags = URINGFS_OPEN_READ | URINGFS_OPEN_WRITE | URINGFS_OPEN_CREATE | URINGFS_OPEN_DIRECT,
    };
    struct uringfs_file *file;
    if (make_folders(td, volume, f)) {
        return 1;
    }
    int result = uringfs_file_open(volume, path.text, &options, &file);
    if (result < 0) {
        return failed(td, f, result);
    }
    int64_t done = 0;
    int error = 0;
    if (td_read(td) || td->o.overwrite) {
        error = fill(td, f, file, size);
    } else if (td->o.fallocate_mode == FIO_FALLOCATE_NONE) {
        done = uringfs_file_truncate(file, size);
    } else {
        done = uringfs_file_allocate(file, f->real_file_size, size - f->real_file_size);
    }
    if (!error && done >= 0 && td->o.create_fsync) {
        done = uringfs_file_flush(file, 0);
    }
    if (done < 0) {
        error = failed(td, f, done);
    }
    uringfs_file_close(file);
    f->real_file_size = size;
    return error;
}

static int prepare_file(struct thread_data *td, struct uringfs_volume *volume, struct fio_file *f, unsigned int index) {
    struct path path = path_of(f);
    struct uringfs_attributes attributes = {.size = sizeof attributes};
    // Opening the file follows a symbolic link, too.
    int result = uringfs_stat_follow(volume, path.text, &attributes);
    if (result < 0 && result != -ENOENT) {
        return failed(td, f, result);
    }
    if (result == 0 && attributes.file_type != URINGFS_TYPE_FILE) {
        return fail_job(td, EINVAL, "%s is no regular file: name one with filename=, or a new one", f->file_name);
    }
    f->real_file_size = result < 0 ? 0 : attributes.bytes;
    uint64_t size = size_for_job(td, f, index);
    // These grow while the job runs.
    if (size <= f->real_file_size || td->o.file_append || td->o.create_on_open) {
        return 0;
    }
    return lay_out(td, volume, f, size);
}

static int prepare_target(struct thread_data *td, struct fio_file *f) {
    struct shared *target = share_target(td, f);
    if (!target) {
        return 1;
    }
    int64_t bytes = uringfs_file_size(target_of(target));
    if (bytes < 0) {
        failed(td, f, bytes);
        leave_shared(td, target);
        return 1;
    }
    f->real_file_size = bytes;
    uint64_t size = size_for_job(td, f, 0);
    int error = leave_shared(td, target);
    if (td->o.nr_files == 1 && size > f->real_file_size) {
        return fail_job(td, EINVAL, "%s has %llu bytes, and the job needs %llu: a target does not grow", f->file_name,
                        (unsigned long long)f->real_file_size, (unsigned long long)size);
    }
    return error;
}

int engine_setup(struct thread_data *td) {
    const struct engine_options *asked = td->eo;
    struct switches switches;
    if (check_options(td) || read_switches(td, &switches)) {
        return 1;
    }
    struct shared *volume = NULL;
    if (asked->volume && !(volume = share_volume(td))) {
        return 1;
    }
    struct fio_file *f;
    unsigned int i;
    int error = 0;
    for_each_file(td, f, i) {
        // fio has looked for the name among the files of the kernel.
        f->filetype = FIO_TYPE_FILE;
        error = volume ? prepare_file(td, volume_of(volume), f, i) : prepare_target(td, f);
        if (error) {
            break;
        }
        fio_file_set_size_known(f);
    }
    return leave_shared(td, volume) || error;
}

// Returns 0, or an errno that it has reported.
static int close_handle(struct thread_data *td, void *handle, const char *name) {
    struct job *job = td->io_ops_data;
    if (!job->volume) {
        return leave_shared(td, handle);
    }
    int result = uringfs_file_close(handle);
    if (result < 0) {
        fail_job(td, -result, "%s: %s", name, uringfs_error_text());
    }
    return -result;
}

// Returns 1 if there is no memory to note it; then it is closed.
static int note_opened(struct thread_data *td, struct fio_file *f, void *handle) {
    struct job *job = td->io_ops_data;
    struct opened *opened = malloc(sizeof *opened);
    if (!opened) {
        close_handle(td, handle, f->file_name);
        return fail_job(td, ENOMEM, "%s: there is no memory to open it", f->file_name);
    }
    *opened = (struct opened){.handle = handle, .next = job->opened};
    job->opened = opened;
    FILE_SET_ENG_DATA(f, handle);
    return 0;
}

static int close_noted(struct thread_data *td, struct opened **link, const char *name) {
    struct opened *opened = *link;
    void *handle = opened->handle;
    *link = opened->next;
    free(opened);
    return close_handle(td, handle, name);
}

void close_opened(struct thread_data *td) {
    struct job *job = td->io_ops_data;
    while (job->opened) {
        close_noted(td, &job->opened, "a file of the trace");
    }
}

int engine_open_file(struct thread_data *td, struct fio_file *f) {
    struct job *job = td->io_ops_data;
    if (!job->volume) {
        struct shared *target = share_target(td, f);
        return !target || note_opened(td, f, target);
    }
    struct path path = path_of(f);
    bool writes = td_write(td) || td_trim(td);
    struct uringfs_open_options options = {
        .size = sizeof options,
        .flags = URINGFS_OPEN_READ | (writes ? URINGFS_OPEN_WRITE | URINGFS_OPEN_CREATE : 0) |
                 (td->o.odirect ? URINGFS_OPEN_DIRECT : 0),
        .switches = job->switches.file,
    };
    struct uringfs_file *file;
    if (writes && td->o.create_on_open && make_folders(td, volume_of(job->volume), f)) {
        return 1;
    }
    int result = uringfs_file_open(volume_of(job->volume), path.text, &options, &file);
    if (result < 0) {
        return failed(td, f, result);
    }
    if (note_opened(td, f, file)) {
        return 1;
    }
    // The size covers all that the job may use, also where the file has yet to grow.
    if (f->real_file_size < f->file_offset + f->io_size) {
        f->real_file_size = f->file_offset + f->io_size;
    }
    // For files of the kernel fio does this by itself. Here its own call ignores a file that is not open yet.
    result = td->o.invalidate_cache ? engine_invalidate(td, f) : 0;
    if (result < 0) {
        failed(td, f, result);
        engine_close_file(td, f);
        return 1;
    }
    return 0;
}

int engine_close_file(struct thread_data *td, struct fio_file *f) {
    struct job *job = td->io_ops_data;
    struct opened **link = &job->opened;
    while (*link && (*link)->handle != FILE_ENG_DATA(f)) {
        link = &(*link)->next;
    }
    FILE_SET_ENG_DATA(f, NULL);
    return *link ? close_noted(td, link, f->file_name) : 0;
}

// Drops the job's part of a file from the page cache: when it is opened, and before fio verifies it.
int engine_invalidate(struct thread_data *td, struct fio_file *f) {
    const struct job *job = td->io_ops_data;
    struct uringfs_file *file = FILE_ENG_DATA(f);
    if (!job->volume || !file) {
        return 0;
    }
    // Bytes that the job itself has written leave the cache only once they are written back.
    int result = td_write(td) && !td->o.odirect ? uringfs_file_flush(file, URINGFS_FLUSH_DATA) : 0;
    return result < 0 ? result : uringfs_file_drop_cache(file, f->file_offset, f->io_size);
}

int engine_unlink_file(struct thread_data *td, struct fio_file *f) {
    struct job *job = td->io_ops_data;
    // A job that did not begin leaves its files, and targets are not the job's to remove.
    if (!job || !job->volume) {
        return 0;
    }
    struct path path = path_of(f);
    return -uringfs_unlink(volume_of(job->volume), path.text);
}
