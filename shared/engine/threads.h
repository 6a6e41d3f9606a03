/* The threads that the kernels of a call share. */
#include <stdint.h>

/* Units [first, end) of a call. ``thread``: a number below the call's threads, of no other thread meanwhile. */
typedef void (*Work)(void *context, int64_t first, int64_t end, int thread);

/* Does ``work`` for all units below ``num_units``, ``at_once`` at a time, in any order: by the calling thread and by num_threads - 1
 * others, which wait between the calls of this thread. Returns when all units are done. Nobody waits for a thread that the system does
 * not run, unless it has begun a unit: the others take what is left. */
void kvquilt_share(int num_threads, int64_t num_units, int64_t at_once, Work work, void *context);
