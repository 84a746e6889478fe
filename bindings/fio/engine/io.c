// Requests and completions: fio's ->queue, ->commit, ->getevents and ->event.
//
// A request's number is the address of its io_u. Completions stay in the job's table until fio has asked for each.

#include "engine.h"

static inline struct uringfs_file *file_of(const struct job *job, const struct io_u *io_u) {
    void *opened = FILE_ENG_DATA(io_u->file);
    return job->volume ? opened : target_of(opened);
}

// fio's buffers are those of the pool, one after the other. The rest of a short transfer begins inside one.
static inline bool is_pooled(const struct job *job, const struct io_u *io_u) {
    return job->pool && io_u->xfer_buf == io_u->buf;
}

static int begin(const struct job *job, const struct io_u *io_u) {
    struct uringfs_file *file = file_of(job, io_u);
    uint64_t number = (uintptr_t)io_u;
    void *memory = io_u->xfer_buf;
    size_t length = io_u->xfer_buflen;
    switch (io_u->ddir) {
    case DDIR_READ:
        if (is_pooled(job, io_u)) {
            return uringfs_queue_read_pooled(job->reactor, file, job->pool, memory, length, io_u->offset, number);
        }
        return uringfs_queue_read(job->reactor, file, memory, length, io_u->offset, number);
    case DDIR_WRITE:
        if (is_pooled(job, io_u)) {
            return uringfs_queue_write_pooled(job->reactor, file, job->pool, memory, length, io_u->offset,
                                              job->write_flags, number);
        }
        return uringfs_queue_write(job->reactor, file, memory, length, io_u->offset, job->write_flags, number);
    case DDIR_TRIM:
        return uringfs_queue_discard(job->reactor, file, io_u->offset, length, number);
    case DDIR_SYNC:
        return uringfs_queue_flush(job->reactor, file, 0, number);
    case DDIR_DATASYNC:
    // More than was asked for: all of the file, with its size.
    case DDIR_SYNC_FILE_RANGE:
        return uringfs_queue_flush(job->reactor, file, URINGFS_FLUSH_DATA, number);
    default:
        return -EOPNOTSUPP;
    }
}

enum fio_q_status engine_queue(struct thread_data *td, struct io_u *io_u) {
    struct job *job = td->io_ops_data;
    fio_ro_check(td, io_u);
    int result = begin(job, io_u);
    if (result == 0) {
        job->unsubmitted[job->queued++] = io_u;
        job->in_flight++;
        return FIO_Q_QUEUED;
    }
    if (result == -EAGAIN) {
        return FIO_Q_BUSY;
    }
    io_u->error = -result;
    td_verror(td, io_u->error, "queue");
    return FIO_Q_COMPLETED;
}

// The times of submission, of which fio makes the latencies.
static void note_times(struct thread_data *td, const struct job *job) {
    struct timespec now;
    fio_gettime(&now, NULL);
    for (unsigned int i = 0; i < job->queued; i++) {
        job->unsubmitted[i]->issue_time = now;
        io_u_queued(td, job->unsubmitted[i]);
    }
    if (td->o.read_iolog_file) {
        td->last_issue = now;
    }
}

// For fio's statistics of batches and latencies. A job that measures none (gtod_reduce=1) asks for no time.
static inline void note_submission(struct thread_data *td, struct job *job) {
    if (job->queued > 0) {
        if (fio_fill_issue_time(td)) {
            note_times(td, job);
        }
        io_u_mark_submit(td, job->queued);
        job->queued = 0;
    }
}

int engine_commit(struct thread_data *td) {
    struct job *job = td->io_ops_data;
    // A job at its depth reaps next, which submits in the same system call.
    if (job->queued == 0 || td->cur_depth >= td->o.iodepth) {
        return 0;
    }
    int result = uringfs_reactor_submit(job->reactor);
    note_submission(td, job);
    return result;
}

int engine_getevents(struct thread_data *td, unsigned int min, unsigned int max, const struct timespec *timeout) {
    struct job *job = td->io_ops_data;
    int64_t timeout_ns = timeout ? timeout->tv_sec * INT64_C(1000000000) + timeout->tv_nsec : -1;
    // Before the call that submits them, which also waits.
    note_submission(td, job);
    int count = uringfs_reactor_reap(job->reactor, job->completions, min, max, timeout_ns);
    if (count > 0) {
        job->in_flight -= count;
    }
    return count;
}

struct io_u *engine_event(struct thread_data *td, int event) {
    const struct job *job = td->io_ops_data;
    const struct uringfs_completion *completion = &job->completions[event];
    struct io_u *io_u = (struct io_u *)(uintptr_t)completion->user_data;
    // fio has set the error and the rest to 0.
    if (completion->result < 0) {
        io_u->error = -completion->result;
    } else if (io_u->ddir == DDIR_READ || io_u->ddir == DDIR_WRITE) {
        io_u->resid = io_u->xfer_buflen - completion->result;
    }
    return io_u;
}
