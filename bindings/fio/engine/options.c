// The options of a job, and what this engine refuses.
//
// Of those of fio's io_uring it has the ones that it can honour, so that fio refuses a job with another one.

#include "engine.h"

struct fio_option engine_option_table[] = {
    {
        .name = "volume",
        .lname = "Volume of the files",
        .type = FIO_OPT_STR_STORE,
        .off1 = offsetof(struct engine_options, volume),
        .help = "The file, block device or NBD export with the volume that holds the files. Without it, each file "
                "name is a target by itself: an image or a block device",
        .category = FIO_OPT_C_ENGINE,
        .group = FIO_OPT_G_INVALID,
    },
    {
        .name = "cache",
        .lname = "Page cache of the volume",
        .type = FIO_OPT_STR_VAL,
        .off1 = offsetof(struct engine_options, cache_bytes),
        .help = "Bytes of the volume's page cache, which direct=0 uses. 0: as many as the library takes by itself",
        .def = "0",
        .category = FIO_OPT_C_ENGINE,
        .group = FIO_OPT_G_INVALID,
    },
    {
        .name = "set",
        .lname = "Switches",
        .type = FIO_OPT_STR_STORE,
        .off1 = offsetof(struct engine_options, set),
        .help = "Switches of uringfs, with commas between them: device.queue=aio,direct.simple_read=off",
        .category = FIO_OPT_C_ENGINE,
        .group = FIO_OPT_G_INVALID,
    },
    {
        .name = "fixedbufs",
        .lname = "Register the memory",
        .type = FIO_OPT_STR_SET,
        .off1 = offsetof(struct engine_options, fixed_buffers),
        .help = "Registers the memory of requests with the kernel (ring.fixed_buffers)",
        .def = "1",
        .no_warn_def = 1,
        .category = FIO_OPT_C_ENGINE,
        .group = FIO_OPT_G_INVALID,
    },
    {
        .name = "registerfiles",
        .lname = "Register the files",
        .type = FIO_OPT_STR_SET,
        .off1 = offsetof(struct engine_options, fixed_files),
        .help = "Registers files and devices with the kernel (ring.fixed_files)",
        .def = "1",
        .no_warn_def = 1,
        .category = FIO_OPT_C_ENGINE,
        .group = FIO_OPT_G_INVALID,
    },
    {
        .name = "hipri",
        .lname = "Poll for completions",
        .type = FIO_OPT_STR_SET,
        .off1 = offsetof(struct engine_options, polled),
        .help = "Polls for completions, on devices that support it (ring.polled)",
        .category = FIO_OPT_C_ENGINE,
        .group = FIO_OPT_G_INVALID,
    },
    {
        .name = NULL,
    },
};

// Appends to a list of switches.
static bool append(char list[static 1024], const char *item, size_t length) {
    size_t used = strlen(list);
    if (used + length + 2 > 1024) {
        return false;
    }
    snprintf(list + used, 1024 - used, "%s%.*s", used ? "," : "", (int)length, item);
    return true;
}

int read_switches(struct thread_data *td, struct switches *switches) {
    const struct engine_options *asked = td->eo;
    switches->file[0] = '\0';
    snprintf(switches->reactor, sizeof switches->reactor, "ring.fixed_buffers=%s,ring.fixed_files=%s,ring.polled=%s",
             asked->fixed_buffers ? "on" : "off", asked->fixed_files ? "on" : "off", asked->polled ? "on" : "off");
    for (const char *item = asked->set; item && *item;) {
        size_t length = strcspn(item, ",");
        bool is_of_file = strncmp(item, "direct.", 7) == 0 || strncmp(item, "buffered.", 9) == 0;
        if (is_of_file && !asked->volume) {
            return fail_job(td, EINVAL, "set=%.*s is for files of a volume: name one with volume=", (int)length, item);
        }
        if (!append(is_of_file ? switches->file : switches->reactor, item, length)) {
            return fail_job(td, EINVAL, "set= is too long");
        }
        item += length + (item[length] == ',');
    }
    return 0;
}

int check_options(struct thread_data *td) {
    const struct thread_options *o = &td->o;
    const struct engine_options *asked = td->eo;
    if (!o->use_thread) {
        return fail_job(td, EINVAL,
                        "set thread=1: fio would fork the job, and all jobs of a volume are in one process");
    }
    if (!asked->volume && !o->odirect) {
        return fail_job(td, EINVAL,
                        "set direct=1, or name a volume with volume=: a target by itself has no page cache");
    }
    if (o->io_submit_mode == IO_MODE_OFFLOAD) {
        // Its workers load the engine by a name that is freed (fio 3.33).
        return fail_job(td, EINVAL, "fio cannot run an external engine with io_submit_mode=offload: leave it out");
    }
    // fio does these by itself, with calls for files of the kernel.
    const struct {
        const char *name, *instead;
        bool is_set;
    } refused[] = {
        {"pre_read", "read the files by a job before", o->pre_read},
        {"fsync_on_close", "set end_fsync=1", o->fsync_on_close},
        {"fill_device", "set size=", o->fill_device},
    };
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        if (refused[i].is_set) {
            return fail_job(td, EINVAL, "%s is for files of the kernel: %s", refused[i].name, refused[i].instead);
        }
    }
    return 0;
}
