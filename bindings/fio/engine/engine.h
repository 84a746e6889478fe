// The declarations that the files of the engine share: its options, the state of a job, and the functions that fio calls.
//
// engine.c has the table of these functions, and begins and ends jobs; options.c has the options; files.c sizes, lays
// out, opens and removes files; shared.c opens volumes and targets, which the jobs of the process share; io.c has
// requests and completions; memory.c has the memory of requests; errors.c reports errors.

#ifndef URINGFS_FIO_ENGINE_H
#define URINGFS_FIO_ENGINE_H

#include <fio.h>
#include <optgroup.h>
#include <stdbool.h>
#include <uringfs.h>

// The options of a job. fio sets the first field.
struct engine_options {
    struct thread_data *td;
    char *volume;
    unsigned long long cache_bytes;
    char *set;
    unsigned int fixed_buffers;
    unsigned int fixed_files;
    unsigned int polled;
};

extern struct fio_option engine_option_table[];

// The switches that a job sets, apart: those of its reactor, and those of its files. Each is a list as the C interface
// takes it, and may be empty.
struct switches {
    char reactor[1024];
    char file[1024];
};

// Ends a job with an error: prints a line, and sets the error that fio reports, with which it exits with 1. Returns 1.
__attribute__((format(printf, 3, 4))) int fail_job(struct thread_data *td, int error, const char *format, ...);

// Returns 0, or 1 after fail_job.
int read_switches(struct thread_data *td, struct switches *switches);

// Refuses a job that this engine cannot run. Returns 0, or 1 after fail_job.
int check_options(struct thread_data *td);

// A volume, or a target that is one file by itself. All jobs that name it share it. The last one closes it.
struct shared;

// Opens the volume of a job, or joins those that use it. Returns NULL after fail_job.
struct shared *share_volume(struct thread_data *td);

// The same for the target that a file of a job without a volume names.
struct shared *share_target(struct thread_data *td, const struct fio_file *f);

// Leaves it. NULL is allowed. Returns 0, or an errno after fail_job, when the last one could not close it.
int leave_shared(struct thread_data *td, struct shared *shared);

struct uringfs_volume *volume_of(const struct shared *shared);
struct uringfs_file *target_of(const struct shared *shared);

// A file of a volume, or a target, that a job has open.
struct opened {
    void *handle;
    struct opened *next;
};

// The state of a job while it runs, in its thread.
struct job {
    struct uringfs_reactor *reactor;
    // fio leaves the files of a trace that it replays open.
    struct opened *opened;
    // The job's volume; NULL when its files are targets.
    struct shared *volume;
    struct switches switches;
    // Flags of its writes.
    uint32_t write_flags;
    // Requests since the last submission, and those whose completions fio does not have.
    unsigned int queued, in_flight;
    // The queued ones. As many as the depth.
    struct io_u **unsubmitted;
    // As many as the depth.
    struct uringfs_completion *completions;
    // Of a job whose memory is registered. Buffers have this length.
    struct uringfs_pool *pool;
    size_t buffer_bytes;
    // Of a job without a pool.
    size_t memory_bytes;
    // The reactor has failed with requests in flight: the kernel may use the job's memory until the process ends.
    bool is_lost;
};

// Waits for all that is in flight: then the kernel uses none of the job's memory, unless the job is lost.
void await_in_flight(struct job *job);

int engine_setup(struct thread_data *td);
int engine_open_file(struct thread_data *td, struct fio_file *f);
int engine_close_file(struct thread_data *td, struct fio_file *f);
// Closes what fio has left open.
void close_opened(struct thread_data *td);
int engine_invalidate(struct thread_data *td, struct fio_file *f);
int engine_unlink_file(struct thread_data *td, struct fio_file *f);

enum fio_q_status engine_queue(struct thread_data *td, struct io_u *io_u);
int engine_commit(struct thread_data *td);
int engine_getevents(struct thread_data *td, unsigned int min, unsigned int max, const struct timespec *timeout);
struct io_u *engine_event(struct thread_data *td, int event);

int engine_iomem_alloc(struct thread_data *td, size_t bytes);
void engine_iomem_free(struct thread_data *td);

#endif
