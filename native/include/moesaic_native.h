/* Moesaic's CPU experts for callers without Python: a pool of worker threads, and runners that compute one
 * layer's experts on it. Plain C, no exceptions. Functions that can fail return 0 on success; otherwise
 * moesaic_last_error() returns a message, for the calling thread. */
#ifndef MOESAIC_NATIVE_H
#define MOESAIC_NATIVE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MOESAIC_EXPORT __attribute__((visibility("default")))

typedef struct moesaic_pool moesaic_pool;
typedef struct moesaic_runner moesaic_runner;

enum { MOESAIC_BF16 = 0, MOESAIC_INT8 = 1, MOESAIC_INT4 = 2 };           /* dtype of stored weights */
enum { MOESAIC_FLOAT32 = 0, MOESAIC_BFLOAT16 = 1, MOESAIC_FLOAT16 = 2 }; /* type of hidden states */
enum { MOESAIC_SILU = 0, MOESAIC_GELU = 1, MOESAIC_GELU_TANH = 2 };      /* activation */
enum { /* isa */
  MOESAIC_BEST = 0,
  MOESAIC_AMX = 1,
  MOESAIC_AVX512 = 2, /* with bf16 and byte dot products */
  MOESAIC_AVX2 = 3,
  MOESAIC_AVX512_VNNI = 5, /* without those of bf16 */
  MOESAIC_AVX512_BASE = 6, /* without dot products */
  MOESAIC_AVX2_VNNI = 7
};

/* Arguments of moesaic_submit: one layer. Memory must stay valid until the wait returns, except ids,
 * weights, experts and blocks, which are read by submit. */
typedef struct {
  const void* hidden; /* [tokens, hidden] */
  int32_t hidden_type;
  size_t hidden_stride; /* values from row to row */
  int32_t tokens, top_k, experts_total;
  const int64_t* ids;           /* [tokens, top_k]; experts that are not listed are skipped */
  const float* weights;         /* [tokens, top_k] */
  int32_t count;                /* of listed experts */
  const int32_t* experts;       /* the experts to compute */
  const uint8_t* const* blocks; /* of the listed experts, each aligned to 64 bytes */
  void* out;                    /* [tokens, hidden], contiguous */
  int32_t out_type;
  int32_t add; /* 1: add to an fp32 out; 0: overwrite */
  /* May be null. The worker that ends the layer notes the time in done_ns (of the steady clock), then sets
   * done_flag to done_value: a thread that watches the flag need not wait for the one that waits. */
  uint32_t* done_flag;
  uint32_t done_value;
  int64_t* done_ns;
  int32_t any_weights; /* 1: compute with routing weights that are not finite, too; 0: refuse them */
} moesaic_layer;

MOESAIC_EXPORT const char* moesaic_last_error(void);
MOESAIC_EXPORT int moesaic_best_isa(void); /* -1: none is supported */

/* One worker thread per entry of cores, pinned to it (-1: not pinned), which spins for spin_us after the last
 * job before it sleeps. */
MOESAIC_EXPORT moesaic_pool* moesaic_pool_create(const int32_t* cores, int32_t count, double spin_us);
MOESAIC_EXPORT void moesaic_pool_destroy(moesaic_pool*);

/* tiles_from: tokens of an expert from which on matrix tiles are used instead of vectors or, where there are none,
 * shorter codes beside int4 weights; 0: never. */
MOESAIC_EXPORT moesaic_runner* moesaic_runner_create(moesaic_pool*, int32_t dtype, int32_t hidden,
                                                     int32_t intermediate, int32_t activation, int32_t isa,
                                                     int32_t tiles_from);
MOESAIC_EXPORT void moesaic_runner_destroy(moesaic_runner*);
MOESAIC_EXPORT size_t moesaic_block_bytes(const moesaic_runner*); /* 0 without a runner */

/* Packs one expert: gate and up [intermediate, hidden], down [hidden, intermediate], all of one type. */
MOESAIC_EXPORT int moesaic_pack(moesaic_runner*, const void* gate, const void* up, const void* down,
                                int32_t type, uint8_t* block);

/* A runner has one layer in flight at a time: a second submit waits for the first, whichever threads call.
 * A wait returns when the last submitted layer is done, and so all before it. */
MOESAIC_EXPORT int moesaic_submit(moesaic_runner*, const moesaic_layer*);
MOESAIC_EXPORT int moesaic_done(const moesaic_runner*);
MOESAIC_EXPORT int moesaic_wait(moesaic_runner*, int32_t help); /* help: the caller computes, too */

/* Blocks of experts that the next layer may have, the likeliest first: until one is submitted, workers that have
 * nothing to do bring them into their caches. The thread that submits and helps may do the same with its own part, a few
 * lines at a time: 0 when nothing is left. */
MOESAIC_EXPORT int moesaic_read_ahead(moesaic_runner*, const uint8_t* const* blocks, int32_t count);
MOESAIC_EXPORT int moesaic_read_some(moesaic_runner*);

#ifdef __cplusplus
}
#endif
#endif
