/* Every thread that calls has helpers of its own, as many as its last call named. A call is a ticket: its number and how many turns of
 * it nobody has taken. Who takes a turn counts the ticket down; only then does it look at the call, which does not end before the turn
 * is done. So a helper that comes late finds nothing to take, and is not waited for.
 *
 * Who has nothing to do spins for a while, since the next call or the end of the last turn is near, then sleeps and leaves its processor to
 * other work.
 */
#define _GNU_SOURCE
#include "threads.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define SPIN_NS 100000
#define TURNS 0xffffffffu /* of a ticket: those that nobody has taken; above them the call's number */

typedef struct Team Team;
typedef struct {
    Team *team;
    pthread_t thread;
    int number;
} Helper;

struct Team {
    _Alignas(64) _Atomic uint64_t ticket;
    _Alignas(64) _Atomic uint32_t unfinished; /* turns of the call */
    _Alignas(64) Work work;
    void *context;
    int64_t num_units, num_turns, at_once;
    _Atomic int sleeping, caller_sleeps, over;
    pthread_mutex_t mutex;
    pthread_cond_t called, finished;
    pid_t process; /* of which its helpers are threads */
    int num_threads, num_helpers;
    Helper helpers[];
};

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void rest(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* What the ticket says when nobody takes a turn any more. */
static uint64_t take_turns(Team *team, int thread) {
    uint64_t ticket = atomic_load(&team->ticket);
    while (ticket & TURNS) {
        if (!atomic_compare_exchange_weak(&team->ticket, &ticket, ticket - 1)) continue;
        const int64_t first = (team->num_turns - (int64_t)(ticket & TURNS)) * team->at_once, end = first + team->at_once;
        team->work(team->context, first, end < team->num_units ? end : team->num_units, thread);
        if (atomic_fetch_sub(&team->unfinished, 1) == 1 && atomic_load(&team->caller_sleeps)) {
            pthread_mutex_lock(&team->mutex);
            pthread_cond_signal(&team->finished);
            pthread_mutex_unlock(&team->mutex);
        }
        ticket = atomic_load(&team->ticket);
    }
    return ticket;
}

static void *help(void *of) {
    Helper *helper = of;
    Team *team = helper->team;
    pthread_setname_np(pthread_self(), "kvquilt-kernels");
    while (!atomic_load(&team->over)) {
        const uint64_t ticket = take_turns(team, helper->number);
        for (const int64_t until = now_ns() + SPIN_NS; atomic_load(&team->ticket) == ticket && now_ns() < until;) rest();
        if (atomic_load(&team->ticket) != ticket) continue;
        pthread_mutex_lock(&team->mutex);
        atomic_fetch_add(&team->sleeping, 1);
        while (atomic_load(&team->ticket) == ticket && !atomic_load(&team->over)) pthread_cond_wait(&team->called, &team->mutex);
        atomic_fetch_sub(&team->sleeping, 1);
        pthread_mutex_unlock(&team->mutex);
    }
    return 0;
}

static void wake(Team *team) {
    pthread_mutex_lock(&team->mutex);
    pthread_cond_broadcast(&team->called);
    pthread_mutex_unlock(&team->mutex);
}

static void dismiss(void *of) {
    Team *team = of;
    if (team->process == getpid()) { /* Else its helpers are another process's, and it may have left the mutex as it was. */
        atomic_store(&team->over, 1);
        wake(team);
        for (int i = 0; i < team->num_helpers; i++) pthread_join(team->helpers[i].thread, 0);
    }
    free(team);
}

static pthread_key_t of_this_thread;
__attribute__((constructor)) static void begin(void) { pthread_key_create(&of_this_thread, dismiss); }

/* Of this thread and so many more; fewer, if the system gives no more. 0: no memory. */
static Team *team_of(int num_threads) {
    Team *team = pthread_getspecific(of_this_thread);
    if (team && team->num_threads == num_threads && team->process == getpid()) return team;
    if (team) dismiss(team);
    const size_t bytes = sizeof(Team) + sizeof(Helper) * (num_threads - 1);
    team = aligned_alloc(64, (bytes + 63) / 64 * 64);
    pthread_setspecific(of_this_thread, team);
    if (!team) return 0;
    *team = (Team){.process = getpid(), .num_threads = num_threads};
    pthread_mutex_init(&team->mutex, 0);
    pthread_cond_init(&team->called, 0);
    pthread_cond_init(&team->finished, 0);
    for (; team->num_helpers < num_threads - 1; team->num_helpers++) {
        Helper *helper = &team->helpers[team->num_helpers];
        *helper = (Helper){.team = team, .number = team->num_helpers + 1};
        if (pthread_create(&helper->thread, 0, help, helper)) break;
    }
    return team;
}

static void wait_for_the_last(Team *team) {
    for (const int64_t until = now_ns() + SPIN_NS; atomic_load(&team->unfinished) && now_ns() < until;) rest();
    if (!atomic_load(&team->unfinished)) return;
    pthread_mutex_lock(&team->mutex);
    atomic_store(&team->caller_sleeps, 1);
    while (atomic_load(&team->unfinished)) pthread_cond_wait(&team->finished, &team->mutex);
    atomic_store(&team->caller_sleeps, 0);
    pthread_mutex_unlock(&team->mutex);
}

void kvquilt_share(int num_threads, int64_t num_units, int64_t at_once, Work work, void *context) {
    const int64_t num_turns = (num_units + at_once - 1) / at_once;
    Team *team = num_turns > 1 && num_threads > 1 ? team_of(num_threads) : 0;
    if (!team) {
        if (num_units > 0) work(context, 0, num_units, 0);
        return;
    }
    team->work = work, team->context = context;
    team->num_units = num_units, team->num_turns = num_turns, team->at_once = at_once;
    atomic_store(&team->unfinished, (uint32_t)num_turns);
    atomic_store(&team->ticket, ((atomic_load(&team->ticket) >> 32) + 1) << 32 | (uint32_t)num_turns);
    if (atomic_load(&team->sleeping)) wake(team);
    take_turns(team, 0);
    wait_for_the_last(team);
}
