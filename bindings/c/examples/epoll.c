// A reactor in a loop of epoll, beside a socket: a server of blocks. A request is a block's number of eight bytes; the
// reply is the number, and the sum of the block's bytes.
//
//     cc epoll.c $(pkg-config --cflags --libs liburingfs) -pthread -o epoll && ./epoll

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <uringfs.h>

enum { BLOCK = 4096, BLOCKS = 256 };

static int64_t check(int64_t result, const char *doing) {
    if (result < 0) {
        fprintf(stderr, "epoll: %s: %s\n", doing, uringfs_error_text());
        exit(1);
    }
    return result;
}

static void require(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "epoll: %s\n", what);
        exit(1);
    }
}

// Blocks that are being read, each with the memory of its read.
static char blocks[BLOCKS][BLOCK];

static void reply(int client, const struct uringfs_completion *completion) {
    uint64_t message[2] = {completion->user_data, 0};
    require(completion->result == BLOCK, "a block cannot be read");
    for (int i = 0; i < BLOCK; i++) {
        message[1] += (unsigned char)blocks[message[0]][i];
    }
    require(write(client, message, sizeof message) == sizeof message, "a reply cannot be sent");
}

static void serve(struct uringfs_file *file, int client) {
    struct uringfs_reactor *reactor;
    check(uringfs_reactor_create(NULL, &reactor), "creating a reactor");
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event of_client = {.events = EPOLLIN, .data.fd = client};
    int reactor_fd = (int)check(uringfs_reactor_fd(reactor), "watching the reactor");
    struct epoll_event of_reactor = {.events = EPOLLIN, .data.fd = reactor_fd};
    require(epoll_ctl(epoll, EPOLL_CTL_ADD, client, &of_client) == 0, "the client cannot be watched");
    require(epoll_ctl(epoll, EPOLL_CTL_ADD, reactor_fd, &of_reactor) == 0, "the reactor cannot be watched");
    int is_open = 1, in_flight = 0;
    while (is_open || in_flight > 0) {
        // Before the loop sleeps: submits what was queued, and takes what has completed. The descriptor is readable
        // when there is more.
        struct uringfs_completion completions[32];
        int count;
        do {
            count = (int)check(uringfs_reactor_reap(reactor, completions, 0, 32, 0), "reaping");
            for (int i = 0; i < count; i++) {
                reply(client, &completions[i]);
            }
            in_flight -= count;
        } while (count == 32);
        if (!is_open && in_flight == 0) {
            break;
        }
        struct epoll_event events[2];
        int ready = epoll_wait(epoll, events, 2, -1);
        for (int i = 0; i < ready; i++) {
            if (events[i].data.fd != client) {
                continue;
            }
            uint64_t requests[32];
            ssize_t length = read(client, requests, sizeof requests);
            if (length <= 0) {
                is_open = 0;
                epoll_ctl(epoll, EPOLL_CTL_DEL, client, NULL);
            }
            // The client sends whole numbers, and a local socket does not split them here.
            for (ssize_t at = 0; at < length / 8; at++) {
                uint64_t block = requests[at];
                require(block < BLOCKS, "there is no such block");
                check(uringfs_queue_read(reactor, file, blocks[block], BLOCK, block * BLOCK, block), "queueing a read");
                in_flight++;
            }
        }
    }
    close(epoll);
    check(uringfs_reactor_close(reactor), "closing the reactor");
}

// Requests each block once. Returns the number of right replies.
static void *request_blocks(void *argument) {
    int server = *(int *)argument;
    uintptr_t right = 0;
    for (uint64_t block = 0; block < BLOCKS; block++) {
        require(write(server, &block, 8) == 8, "a request cannot be sent");
    }
    shutdown(server, SHUT_WR);
    uint64_t message[2];
    while (recv(server, message, sizeof message, MSG_WAITALL) == sizeof message) {
        right += message[1] == message[0] * BLOCK;
    }
    return (void *)right;
}

int main(void) {
    // A disk in memory; a path of an image works as well. Each block holds its own number.
    struct uringfs_file *file;
    check(uringfs_file_open_target("memory:1m", URINGFS_OPEN_READ | URINGFS_OPEN_WRITE, &file), "opening the disk");
    for (int block = 0; block < BLOCKS; block++) {
        char bytes[BLOCK];
        memset(bytes, block, BLOCK);
        check(uringfs_file_write(file, bytes, BLOCK, (uint64_t)block * BLOCK, 0), "filling the disk");
    }
    int sockets[2];
    require(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0, "there are no sockets");
    pthread_t client;
    require(pthread_create(&client, NULL, request_blocks, &sockets[1]) == 0, "there is no thread");
    serve(file, sockets[0]);
    close(sockets[0]);
    void *right;
    pthread_join(client, &right);
    close(sockets[1]);
    uringfs_file_close(file);
    printf("%d replies\n", (int)(uintptr_t)right);
    return 0;
}
