// The memory of a job's requests: a pool, which the reactor registers with the kernel, where its buffers lie as fio
// expects them; else memory of its own.

#include <assert.h>
#include <sys/mman.h>

#include "engine.h"

enum { PAGE = 4096 };

// Takes all buffers of a new pool, as many as it has. Returns their beginning.
static char *take_all(struct uringfs_pool *pool, unsigned int count) {
    char *begin = NULL;
    for (unsigned int i = 0; i < count; i++) {
        char *buffer = uringfs_pool_get(pool);
        assert(buffer);
        if (!begin || buffer < begin) {
            begin = buffer;
        }
    }
    return begin;
}

int engine_iomem_alloc(struct thread_data *td, size_t bytes) {
    struct job *job = td->io_ops_data;
    size_t length = td_max_bs(td);
    // Buffers of a pool begin at pages, and fio's one behind the other.
    if (length % PAGE == 0 && td->o.mem_align == 0) {
        int result = uringfs_pool_create(length, td->o.iodepth, &job->pool);
        if (result < 0) {
            return fail_job(td, -result, "%s", uringfs_error_text());
        }
        job->buffer_bytes = length;
        td->orig_buffer = take_all(job->pool, td->o.iodepth);
        return 0;
    }
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        td_verror(td, errno, "mmap");
        return 1;
    }
    job->memory_bytes = bytes;
    td->orig_buffer = memory;
    return 0;
}

// Also in the middle of a job: fio makes the buffers anew when a trace that it reads by parts has a longer request.
void engine_iomem_free(struct thread_data *td) {
    struct job *job = td->io_ops_data;
    if (!job || !td->orig_buffer) {
        return;
    }
    await_in_flight(job);
    if (job->is_lost) {
        // It stays, with its pool.
    } else if (job->pool) {
        char *begin = td->orig_buffer;
        for (unsigned int i = 0; i < td->o.iodepth; i++) {
            uringfs_pool_put(job->pool, begin + i * job->buffer_bytes);
        }
        if (uringfs_pool_close(job->pool) < 0) {
            log_err("uringfs: %s\n", uringfs_error_text());
        }
        job->pool = NULL;
    } else {
        munmap(td->orig_buffer, job->memory_bytes);
    }
    td->orig_buffer = NULL;
}
