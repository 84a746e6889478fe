// Errors of a job: a line for the user, and fio's own record of it, without which fio would exit with 0.

#include <stdarg.h>

#include "engine.h"

int fail_job(struct thread_data *td, int error, const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    log_err("uringfs: job %s: %s\n", td->o.name, text);
    // The first error stays.
    if (!td->error) {
        td_verror(td, error, "uringfs");
    }
    return 1;
}
