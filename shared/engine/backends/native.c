/* A layer's attention over all segments of a step, on a CPU: append, attend, merge. The tables are those of backends/tables.py, the
 * numbers those of the Triton kernels: products in the model's type with float32 sums, logarithms to base 2, results rounded once.
 *
 * Plain C behind a C interface, so that the library fits every torch and Python. The kernels are compiled for several processors
 * (native_kernels.h) and chosen when the library is asked which one serves.
 */
#include <stdint.h>
#include <string.h>

#include "../threads.h"
#include "native.h"

#define BLOCK_KEYS 64 /* as in tables.py */
#define MAX_HEAD_DIM 512 /* as in native.py */
#define MAX_ABOVE 8.0f   /* weights of at most 2^8: as exact as smaller ones, and a row's base is raised once or twice */

enum { FLOAT32, BFLOAT16, FLOAT16 };

typedef struct {
    void (*append)(const Step *, int layer, Rows k, Rows v, int row, int kv_head);
    void (*attend)(const Step *, int layer, Rows q, float scale, int item, int kv_head, char *workspace);
    void (*merge)(const Step *, void *merged, int row, int head);
    int64_t (*workspace)(int block_rows, int head_dim);
} Kernels;

#if defined(__x86_64__)
#include <immintrin.h>

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#define NAME(name) name##_avx2
#define LANES 8
#define COLUMNS 2 /* vectors side by side, and … */
#define STACK 6   /* … rows one above the other that a product keeps in registers */
#define PAIRS 0
#define TILES 0
#include "native_kernels.h"
#undef NAME
#undef LANES
#undef COLUMNS
#undef STACK
#undef PAIRS
#undef TILES
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")
#define NAME(name) name##_avx512
#define LANES 16
#define COLUMNS 4
#define STACK 6
#define PAIRS 1 /* products of bfloat16 take two numbers of each row at a time */
#define TILES 0
#include "native_kernels.h"
#undef NAME
#undef STACK
#undef TILES
#pragma GCC pop_options

#if defined(__linux__) && __GNUC__ > 10 /* Others know no tiles, or ask for them otherwise. */
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,amx-tile,amx-bf16")
#include "../matrix_units.h"
#define NAME(name) name##_amx
#define STACK TILE_ROWS
#define TILES 1 /* products of bfloat16 by matrix units */
#include "native_kernels.h"
#pragma GCC pop_options
#else
static const Kernels kernels_amx;
static int may_use_matrix_units(void) { return 0; }
#endif

static const Kernels *const KERNELS[] = {0, &kernels_avx2, &kernels_avx512, &kernels_amx};
#else
static const Kernels *const KERNELS[] = {0, 0, 0, 0};
#endif

/* Of this library's Step: a caller that was compiled from other sources has another one. */
int64_t kvquilt_step_bytes(void) { return sizeof(Step); }

/* The best kernels that this processor runs: 3 AMX as well, 2 AVX-512 with bfloat16, 1 AVX2, 0 none. */
int kvquilt_level(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")
        && __builtin_cpu_supports("avx512dq"))
        return may_use_matrix_units() ? 3 : 2;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))
        return 1;
#endif
    return 0;
}

int64_t kvquilt_workspace_bytes(int level, int block_rows, int head_dim) { return KERNELS[level]->workspace(block_rows, head_dim); }

/* One call of kvquilt_run. */
typedef struct {
    const Kernels *kernels;
    const Step *step;
    int layer;
    Rows q, k, v;
    void *merged;
    float scale;
} Run;

static void append_some(void *context, int64_t first, int64_t end, int thread) {
    const Run *r = context;
    const int num_heads = r->step->num_kv_heads;
    for (int64_t i = first; i < end; i++) r->kernels->append(r->step, r->layer, r->k, r->v, i / num_heads, i % num_heads);
}

static void attend_some(void *context, int64_t first, int64_t end, int thread) {
    const Run *r = context;
    const int num_heads = r->step->num_kv_heads;
    char *workspace = r->step->workspace + r->step->workspace_bytes * thread;
    for (int64_t i = first; i < end; i++)
        r->kernels->attend(r->step, r->layer, r->q, r->scale, i / num_heads, i % num_heads, workspace);
}

static void merge_some(void *context, int64_t first, int64_t end, int thread) {
    const Run *r = context;
    const int num_heads = r->step->num_heads;
    for (int64_t i = first; i < end; i++) r->kernels->merge(r->step, r->merged, i / num_heads, i % num_heads);
}

#define HEADS_AT_ONCE 32 /* of rows that are appended or merged: fewer are done before others have begun */

void kvquilt_run(int level, const Step *s, int layer, Rows q, Rows k, Rows v, void *merged, float scale) {
    Run run = {KERNELS[level], s, layer, q, k, v, merged, scale};
    kvquilt_share(s->num_threads, (int64_t)s->num_rows * s->num_kv_heads, HEADS_AT_ONCE, append_some, &run);
    kvquilt_share(s->num_threads, (int64_t)s->num_items * s->num_kv_heads, 1, attend_some, &run);
    kvquilt_share(s->num_threads, (int64_t)s->num_rows * s->num_heads, HEADS_AT_ONCE, merge_some, &run);
}
