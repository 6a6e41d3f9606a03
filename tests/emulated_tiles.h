/* Tiles in plain C, one instruction after the other as a processor with matrix units executes them; products by its AVX-512. */
#include <stdint.h>
#include <string.h>

typedef struct {
    char lines[TILE_ROWS][64];
    int rows;
} Tile;
static __thread Tile tiles[8];

/* Registers hold nothing of use after a change of shapes: whoever counts on it gets NaN. */
static inline void shape_tiles(const int rows[8]) {
    memset(tiles, 0xff, sizeof tiles);
    for (int i = 0; i < 8; i++) tiles[i].rows = rows[i];
}
static inline int may_use_matrix_units(void) { return 1; }

static inline void load_tile(Tile *to, const void *from, int64_t stride) {
    for (int row = 0; row < to->rows; row++) memcpy(to->lines[row], (const char *)from + row * stride, 64);
}
static inline void store_tile(const Tile *from, void *to, int64_t stride) {
    for (int row = 0; row < from->rows; row++) memcpy((char *)to + row * stride, from->lines[row], 64);
}
static inline void multiply_tiles(Tile *c, const Tile *a, const Tile *b) {
    for (int row = 0; row < c->rows; row++) {
        __m512 sums = _mm512_loadu_ps(c->lines[row]);
        for (int pair = 0; pair < b->rows; pair++) {
            int32_t down;
            memcpy(&down, a->lines[row] + 4 * pair, 4);
            sums = _mm512_dpbf16_ps(sums, (__m512bh)_mm512_set1_epi32(down), (__m512bh)_mm512_loadu_si512(b->lines[pair]));
        }
        _mm512_storeu_ps(c->lines[row], sums);
    }
}

#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_release
#define _tile_zero(tile) memset(tiles[tile].lines, 0, sizeof tiles[tile].lines)
#define _tile_loadd(tile, from, stride) load_tile(&tiles[tile], from, stride)
#define _tile_stored(tile, to, stride) store_tile(&tiles[tile], to, stride)
#define _tile_dpbf16ps(c, a, b) multiply_tiles(&tiles[c], &tiles[a], &tiles[b])
#define _tile_release() memset(tiles, 0xff, sizeof tiles)
