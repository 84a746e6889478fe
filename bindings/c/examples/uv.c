// A reactor in a loop of libuv, beside its timers: a poll handle watches the reactor's descriptor, and a prepare handle
// submits what callbacks have queued before the loop sleeps.
//
//     cc uv.c $(pkg-config --cflags --libs liburingfs libuv) -o uv && ./uv

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <uringfs.h>
#include <uv.h>

enum { BLOCK = 4096, APPENDS = 64 };

struct loop {
    uv_poll_t poll;
    uv_prepare_t prepare;
    uv_timer_t timer;
    struct uringfs_reactor *reactor;
    struct uringfs_file *file;
    int begun, ended;
};

// An append, whose number the completion carries.
struct append {
    char memory[BLOCK];
    struct loop *loop;
};

static int64_t check(int64_t result, const char *doing) {
    if (result < 0) {
        fprintf(stderr, "uv: %s: %s\n", doing, uringfs_error_text());
        exit(1);
    }
    return result;
}

static void take_completions(struct loop *loop) {
    struct uringfs_completion completions[16];
    int count;
    do {
        count = (int)check(uringfs_reactor_reap(loop->reactor, completions, 0, 16, 0), "reaping");
        for (int i = 0; i < count; i++) {
            struct append *append = (struct append *)(uintptr_t)completions[i].user_data;
            if (completions[i].result < 0) {
                fprintf(stderr, "uv: appending: %s\n", strerror((int)-completions[i].result));
                exit(1);
            }
            append->loop->ended++;
            free(append);
        }
    } while (count == 16);
    if (loop->ended == APPENDS) {
        uv_close((uv_handle_t *)&loop->poll, NULL);
        uv_close((uv_handle_t *)&loop->prepare, NULL);
        // The loop ends: it has nothing more to watch.
        loop->ended++;
    }
}

static void on_readable(uv_poll_t *poll, int status, int events) {
    (void)status, (void)events;
    take_completions(poll->data);
}

static void before_sleep(uv_prepare_t *prepare) {
    take_completions(prepare->data);
}

// Queues some appends at each tick.
static void on_timer(uv_timer_t *timer) {
    struct loop *loop = timer->data;
    for (int i = 0; i < 8; i++, loop->begun++) {
        struct append *append = calloc(1, sizeof *append);
        append->loop = loop;
        memset(append->memory, loop->begun, BLOCK);
        check(uringfs_queue_append(loop->reactor, loop->file, append->memory, BLOCK, 0, (uintptr_t)append),
              "queueing an append");
    }
    if (loop->begun == APPENDS) {
        uv_close((uv_handle_t *)timer, NULL);
    }
}

int main(void) {
    struct uringfs_volume *volume;
    check(uringfs_volume_create("memory:64m", NULL, &volume), "creating the volume");
    struct uringfs_open_options options = {.size = sizeof options, .flags = URINGFS_OPEN_WRITE | URINGFS_OPEN_CREATE};
    struct loop loop = {.begun = 0};
    check(uringfs_file_open(volume, "/log", &options, &loop.file), "opening the log");
    check(uringfs_reactor_create(NULL, &loop.reactor), "creating a reactor");

    uv_loop_t *uv = uv_default_loop();
    loop.poll.data = loop.prepare.data = loop.timer.data = &loop;
    uv_poll_init(uv, &loop.poll, (int)check(uringfs_reactor_fd(loop.reactor), "watching the reactor"));
    uv_poll_start(&loop.poll, UV_READABLE, on_readable);
    uv_prepare_init(uv, &loop.prepare);
    uv_prepare_start(&loop.prepare, before_sleep);
    uv_timer_init(uv, &loop.timer);
    uv_timer_start(&loop.timer, on_timer, 0, 1);
    uv_run(uv, UV_RUN_DEFAULT);
    uv_loop_close(uv);

    check(uringfs_reactor_close(loop.reactor), "closing the reactor");
    printf("%d blocks\n", (int)(uringfs_file_size(loop.file) / BLOCK));
    uringfs_file_close(loop.file);
    check(uringfs_volume_close(volume), "closing the volume");
    return 0;
}
