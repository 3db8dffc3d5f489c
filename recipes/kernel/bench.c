/* Fills x and y with numbers drawn from a seed, calls the kernel once, and writes what it put out: ./bench SEED FILE */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernel.h"

static uint64_t state;

static T drawn(void) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (T)((double)(int64_t)(state % (2 * RANGE + 1) - RANGE) / SCALE);
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    state = strtoull(argv[1], 0, 10) * 2654435761u + 88172645463325252u;
    T *x = malloc(sizeof(T) * SIZE), *y = malloc(sizeof(T) * SIZE), *out = calloc(OUTS, sizeof(T));
    if (!x || !y || !out) return 3;
    for (long i = 0; i < SIZE; i++) x[i] = drawn(), y[i] = drawn();
    kernel(x, y, out, N, K);
    FILE *file = fopen(argv[2], "wb");
    return !file || fwrite(out, sizeof(T), OUTS, file) != OUTS || fclose(file);
}
