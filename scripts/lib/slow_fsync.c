/* Delays each fsync and fdatasync by SLOW_FSYNC_US microseconds, like a network disk. scripts/bench preloads this
 * library into PostgreSQL. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <time.h>

static void wait_longer(void) {
    static long microseconds = -1;
    if (microseconds < 0) {
        const char *text = getenv("SLOW_FSYNC_US");
        microseconds = text ? atol(text) : 0;
    }
    struct timespec left = {microseconds / 1000000, microseconds % 1000000 * 1000};
    while (nanosleep(&left, &left) == -1 && errno == EINTR) {
    }
}

int fsync(int file) {
    static int (*real)(int);
    if (!real)
        real = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    wait_longer();
    return real(file);
}

int fdatasync(int file) {
    static int (*real)(int);
    if (!real)
        real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    wait_longer();
    return real(file);
}
