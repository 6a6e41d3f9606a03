/* The matrix units of a processor (AMX): tiles of up to 16 rows of 64 bytes. Included once by each file that has kernels for them, where
 * the compiler's target knows them. */
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TILE_ROWS 16

#ifdef EMULATED_TILES /* In their place what this header has, in plain C: for tests on a processor without. */
#include EMULATED_TILES
#else
#define TILE_DATA 18
#define REQUEST_PERMISSION 0x1023

typedef struct {
    uint8_t palette, start, zeros[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} TileShapes;

/* ``rows`` of the eight tiles. */
static inline void shape_tiles(const int rows[8]) {
    TileShapes shapes = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        shapes.row_bytes[i] = 64;
        shapes.rows[i] = (uint8_t)rows[i];
    }
    __asm__ volatile("" : : "r"(&shapes) : "memory"); /* GCC takes no more than the first bytes as read. */
    _tile_loadconfig(&shapes);
}

/* Linux gives the units' registers to a process that asks for them, and to its threads. */
static inline int may_use_matrix_units(void) {
    uint32_t a, b, c, features;
    return __get_cpuid_count(7, 0, &a, &b, &c, &features) && features >> 22 & 1 && features >> 24 & 1
           && !syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA);
}
#endif
