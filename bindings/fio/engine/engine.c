// The engine: the table that fio looks for, and the beginning and the end of a job.

#include <stdlib.h>

#include "engine.h"

static int engine_init(struct thread_data *td) {
    unsigned int depth = td->o.iodepth;
    struct job *job = calloc(1, sizeof *job);
    struct uringfs_completion *completions = calloc(depth, sizeof *completions);
    struct io_u **unsubmitted = calloc(depth, sizeof *unsubmitted);
    if (!job || !completions || !unsubmitted) {
        fail_job(td, ENOMEM, "there is no memory for a depth of %u", depth);
        goto fail;
    }
    job->completions = completions;
    job->unsubmitted = unsubmitted;
    if (read_switches(td, &job->switches)) {
        goto fail;
    }
    job->write_flags = td->o.sync_io ? URINGFS_WRITE_DURABLE : 0;
    // Fewer would be too few for requests that are split.
    struct uringfs_reactor_options options = {
        .size = sizeof options,
        .depth = depth < 64 ? 64 : depth,
        .switches = job->switches.reactor,
    };
    int result = uringfs_reactor_create(&options, &job->reactor);
    if (result < 0) {
        fail_job(td, -result, "%s", uringfs_error_text());
        goto fail;
    }
    const struct engine_options *asked = td->eo;
    if (asked->volume) {
        job->volume = share_volume(td);
        if (!job->volume) {
            goto fail;
        }
    }
    td->io_ops_data = job;
    return 0;

fail:
    if (job) {
        uringfs_reactor_close(job->reactor);
    }
    free(unsubmitted);
    free(completions);
    free(job);
    return 1;
}

static void engine_cleanup(struct thread_data *td) {
    struct job *job = td->io_ops_data;
    if (!job) {
        return;
    }
    await_in_flight(job);
    uringfs_reactor_close(job->reactor);
    close_opened(td);
    leave_shared(td, job->volume);
    free(job->unsubmitted);
    free(job->completions);
    free(job);
}

void await_in_flight(struct job *job) {
    while (job->in_flight > 0) {
        struct uringfs_completion completions[64];
        unsigned int most = job->in_flight < 64 ? job->in_flight : 64;
        int count = uringfs_reactor_reap(job->reactor, completions, most, most, -1);
        if (count <= 0) {
            log_err("uringfs: %u requests are lost: %s\n", job->in_flight, uringfs_error_text());
            job->is_lost = true;
            job->in_flight = 0;
            break;
        }
        job->in_flight -= count;
    }
}

// External engines are found by this name.
struct ioengine_ops ioengine = {
    .name = "uringfs",
    .version = FIO_IOOPS_VERSION,
    // Files are no files of the kernel: fio must neither make nor stat them.
    .flags = FIO_DISKLESSIO | FIO_NODISKUTIL | FIO_ASYNCIO_SETS_ISSUE_TIME,
    .setup = engine_setup,
    .init = engine_init,
    .cleanup = engine_cleanup,
    .queue = engine_queue,
    .commit = engine_commit,
    .getevents = engine_getevents,
    .event = engine_event,
    .open_file = engine_open_file,
    .close_file = engine_close_file,
    .invalidate = engine_invalidate,
    .unlink_file = engine_unlink_file,
    .iomem_alloc = engine_iomem_alloc,
    .iomem_free = engine_iomem_free,
    .options = engine_option_table,
    .option_struct_size = sizeof(struct engine_options),
};

// fio refuses an engine whose version of the interface is another one. Structs also change without it, so the release
// must be the same.
__attribute__((constructor)) static void check_release(void) {
    if (strcmp(fio_version_string, BUILT_FOR) != 0) {
        log_err("uringfs: this engine is built for %s, and this is %s: build it again with bindings/fio/build\n",
                BUILT_FOR, fio_version_string);
        ioengine.version = 0;
    }
}
