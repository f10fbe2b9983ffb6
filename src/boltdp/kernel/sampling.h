/*
 * sampling.h: which rows an update sees, where a proof asks for random samples. The words are those of ChaCha20 with a
 * key that nobody else may know: the key and the positions stay secret.
 */
#ifndef BOLTDP_SAMPLING_H
#define BOLTDP_SAMPLING_H

#include <stddef.h>
#include <stdint.h>

/*
 * `count` batches of a pass, one after the other into out: each is uniform among the sets of its size, whatever the
 * others are. The sizes are those of a permutation's batches (sgd.h), and `carry` is (j*m) mod n of the first one.
 * `seen` has `slots` numbers, a power of two that is more than any size. Returns how many positions were written.
 */
size_t sampling_fixed(const void *key, uint64_t nonce, uint64_t rows, uint64_t batches, uint64_t carry, size_t count,
                   int64_t *seen, size_t slots, int64_t *out);

/*
 * Batches of a pass that each row is in with probability 1/n, whatever else is: ascending positions, and -1 where a
 * batch ends. `gap` is -1/ln(1 - 1/n), or 0 for n = 1. `progress` has the batch and the next row that is to be decided
 * of: zeros before the first call, and n batches after the last. Each call has a nonce of its own and writes at most
 * `room` numbers, SAMPLING_LEAST_ROOM or more. Returns how many.
 */
#define SAMPLING_LEAST_ROOM 64
size_t sampling_poisson(const void *key, uint64_t nonce, uint64_t rows, uint64_t batches, double gap, uint64_t progress[2],
                     int64_t *out, size_t room);

#endif
