/* Decoder layers one behind the other in one call: what stands in front of attention, attention, what stands behind it (native_layer.py). */
#include "../backends/native.h"
#include "linear_kernels.h"

/* Of rows that all layers have, bfloat16, contiguous; behind these what the stages of adapters write. */
enum { HIDDEN, NORMED, JOINT, MIXED };

/* Levels: of kvquilt_linear_stages and of kvquilt_run. ``places``: of the stages; a layer reads and writes HIDDEN [rows, hidden size], and
 * attention reads JOINT [rows, heads of queries, keys and values, dim] and writes MIXED [rows, heads, dim]. */
void kvquilt_layers(int level, int attention_level, const Layer *layers, int num_layers, const Step *step, void *const *places,
                    const uint8_t *adapter_of) {
    const int64_t dim = step->head_dim, width = (step->num_heads + 2 * step->num_kv_heads) * dim;
    const uint16_t *joint = places[JOINT];
    const Rows q = {joint, dim, width}, k = {joint + step->num_heads * dim, dim, width};
    const Rows v = {joint + (step->num_heads + step->num_kv_heads) * dim, dim, width};
    for (const Layer *l = layers; l < layers + num_layers; l++) {
        kvquilt_linear_stages(level, l->in_front, l->num_in_front, places, step->num_rows, step->num_threads, adapter_of);
        kvquilt_run(attention_level, step, l->number, q, k, v, places[MIXED], l->scale);
        kvquilt_linear_stages(level, l->behind, l->num_behind, places, step->num_rows, step->num_threads, adapter_of);
    }
}
