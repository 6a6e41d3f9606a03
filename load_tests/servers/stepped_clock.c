/* Preloaded into a process, adds to the clock of the day what a file says: a step of the machine's clock, as
 * far as that process can tell. Clocks that only count (CLOCK_MONOTONIC and others) go on as they are.
 *
 * STEPPED_CLOCK_FILE names the file: eight bytes, a signed number of nanoseconds. Waits until a time of the day
 * end when that time has come by the clock as it is then, like the kernel's own: they are cut into slices, and
 * between two of them the caller is told of a wake-up without reason, which every such call may be told.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL
#define SLICE (SECOND / 20)

static const volatile int64_t none = 0;
static const volatile int64_t *added = &none;

static int (*real_clock_gettime)(clockid_t, struct timespec *);
static long (*real_syscall)(long, ...);
static int (*real_cond_timedwait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
static int (*real_cond_clockwait)(pthread_cond_t *, pthread_mutex_t *, clockid_t, const struct timespec *);
static int (*real_sem_timedwait)(sem_t *, const struct timespec *);
static int (*real_sem_clockwait)(sem_t *, clockid_t, const struct timespec *);
static int (*real_clock_nanosleep)(clockid_t, int, const struct timespec *, struct timespec *);

/* Two versions of the first two exist in glibc; dlsym would give the one of old programs. */
static void *newest(const char *name, const char *version) {
    void *found = dlvsym(RTLD_NEXT, name, version);
    return found ? found : dlsym(RTLD_NEXT, name);
}

__attribute__((constructor)) static void begin(void) {
    if (real_clock_gettime)
        return;
    real_syscall = dlsym(RTLD_NEXT, "syscall");
    real_cond_timedwait = newest("pthread_cond_timedwait", "GLIBC_2.3.2");
    real_cond_clockwait = dlsym(RTLD_NEXT, "pthread_cond_clockwait");
    real_sem_timedwait = dlsym(RTLD_NEXT, "sem_timedwait");
    real_sem_clockwait = dlsym(RTLD_NEXT, "sem_clockwait");
    real_clock_nanosleep = newest("clock_nanosleep", "GLIBC_2.17");
    real_clock_gettime = newest("clock_gettime", "GLIBC_2.17");
    const char *path = getenv("STEPPED_CLOCK_FILE");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *mapped = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (mapped != MAP_FAILED)
        added = mapped;
}

static int is_of_the_day(clockid_t clock) { return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE; }

static int64_t ns_of(const struct timespec *t) { return t->tv_sec * SECOND + t->tv_nsec; }

static struct timespec timespec_of(int64_t ns) {
    struct timespec t = {ns / SECOND, ns % SECOND};
    return t;
}

static int64_t true_ns(void) {
    struct timespec now;
    begin();
    real_clock_gettime(CLOCK_REALTIME, &now);
    return ns_of(&now);
}

int clock_gettime(clockid_t clock, struct timespec *told) {
    begin();
    int failed = real_clock_gettime(clock, told);
    if (!failed && is_of_the_day(clock))
        *told = timespec_of(ns_of(told) + *added);
    return failed;
}

int gettimeofday(struct timeval *restrict told, void *restrict zone) {
    (void)zone;
    int64_t ns = true_ns() + *added;
    told->tv_sec = ns / SECOND;
    told->tv_usec = ns % SECOND / 1000;
    return 0;
}

time_t time(time_t *told) {
    time_t now = (true_ns() + *added) / SECOND;
    if (told)
        *told = now;
    return now;
}

int timespec_get(struct timespec *told, int base) {
    *told = timespec_of(true_ns() + *added);
    return base;
}

/* When, by the true clock, the next slice of a wait until `until` ends. */
static struct timespec slice_end(const struct timespec *until) {
    int64_t now = true_ns(), end = ns_of(until) - *added;
    return timespec_of(end < now + SLICE ? end : now + SLICE);
}

static int is_past(const struct timespec *until) { return true_ns() + *added >= ns_of(until); }

/* A condition variable may be of either clock; times of the day are larger than any uptime. */
static int is_time_of_day(const struct timespec *until) { return until->tv_sec > SECOND; }

int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
    begin();
    if (!is_time_of_day(until))
        return real_cond_timedwait(cond, mutex, until);
    struct timespec end = slice_end(until);
    int failed = real_cond_timedwait(cond, mutex, &end);
    return failed == ETIMEDOUT && !is_past(until) ? 0 : failed;
}

int pthread_cond_clockwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex, clockid_t clock,
                           const struct timespec *restrict until) {
    begin();
    if (!is_of_the_day(clock))
        return real_cond_clockwait(cond, mutex, clock, until);
    struct timespec end = slice_end(until);
    int failed = real_cond_clockwait(cond, mutex, clock, &end);
    return failed == ETIMEDOUT && !is_past(until) ? 0 : failed;
}

int sem_timedwait(sem_t *restrict sem, const struct timespec *restrict until) {
    begin();
    for (;;) {
        struct timespec end = slice_end(until);
        int failed = real_sem_timedwait(sem, &end);
        if (!failed || errno != ETIMEDOUT || is_past(until))
            return failed;
    }
}

int sem_clockwait(sem_t *restrict sem, clockid_t clock, const struct timespec *restrict until) {
    begin();
    return is_of_the_day(clock) ? sem_timedwait(sem, until) : real_sem_clockwait(sem, clock, until);
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *left) {
    begin();
    if (!is_of_the_day(clock) || !(flags & TIMER_ABSTIME))
        return real_clock_nanosleep(clock, flags, until, left);
    while (!is_past(until)) {
        struct timespec end = slice_end(until);
        int failed = real_clock_nanosleep(clock, flags, &end, left);
        if (failed)
            return failed;
    }
    return 0;
}

/* Some libraries wait by futexes of their own. */
long syscall(long number, ...) {
    va_list given;
    long a[6];
    begin();
    va_start(given, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(given, long);
    va_end(given);
    const struct timespec *until = number == SYS_futex ? (const struct timespec *)a[3] : NULL;
    int waits = until && (a[1] & FUTEX_CLOCK_REALTIME) && (a[1] & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET;
    if (!waits)
        return real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    struct timespec end = slice_end(until);
    long failed = real_syscall(number, a[0], a[1], a[2], &end, a[4], a[5]);
    if (failed && errno == ETIMEDOUT && !is_past(until))
        errno = EINTR;
    return failed;
}
