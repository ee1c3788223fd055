// SPDX-License-Identifier: Apache-2.0
//
// linattn's ABI: plain C. Everything else (linattn.h for C++, the Python package) is a layer over
// this file.
//
// Every struct begins with its size and grows at its end only; a field that is zero means "absent"
// or the default that its comment names. So an old caller runs with a new library, and a new caller
// with an old library as long as it leaves the fields that are new at zero.
//
// Shapes use T tokens, N sequences, H query/key heads, HV value heads (a multiple of H; value head
// i uses query/key head i / (HV / H)), K key dim, V value dim. Strides count elements; the
// innermost axis is contiguous.
#ifndef LINATTN_C_H_
#define LINATTN_C_H_

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define LINATTN_API
#else
#define LINATTN_API __attribute__((visibility("default")))
#endif

// One definition serves C and C++: C++ gives the members their defaults, C callers zero the struct
// and set size.
#ifdef __cplusplus
#define LINATTN_DEFAULT(value) = value
extern "C" {
#else
#define LINATTN_DEFAULT(value)
#endif

#define LINATTN_VERSION_MAJOR 0
#define LINATTN_VERSION_MINOR 1
#define LINATTN_VERSION_PATCH 0

// ---- enumerations: int32_t in every struct, 0 is unset ----

typedef int32_t linattn_status;
enum {
  LINATTN_OK = 0,
  LINATTN_INVALID_ARGUMENT = 1,  // the caller's mistake; linattn_last_error names the argument
  LINATTN_UNSUPPORTED = 2,       // no implementation takes it; linattn_last_error lists why
  LINATTN_CUDA_ERROR = 3,        // a CUDA call failed
  LINATTN_INTERNAL_ERROR = 4     // anything else, such as no memory for a plan
};

enum {
  LINATTN_BFLOAT16 = 1,
  LINATTN_FLOAT16 = 2,
  LINATTN_FLOAT32 = 3,
  LINATTN_INT32 = 4,
  LINATTN_INT64 = 5
};

enum { LINATTN_CPU = 1, LINATTN_CUDA = 2 };

enum { LINATTN_FORWARD = 1, LINATTN_BACKWARD = 2, LINATTN_STEP = 3 };

// The decay of the state. HEAD_CONSTANT: g is [HV]; HEAD: [T, HV]; CHANNEL: [T, HV, K].
enum {
  LINATTN_GATE_NONE = 1,
  LINATTN_GATE_HEAD_CONSTANT = 2,
  LINATTN_GATE_HEAD = 3,
  LINATTN_GATE_CHANNEL = 4
};

// What is written. ADD: v. DELTA: beta (v - S^T k). ERASE_WRITE: write * v - S^T (erase * k).
enum { LINATTN_UPDATE_ADD = 1, LINATTN_UPDATE_DELTA = 2, LINATTN_UPDATE_ERASE_WRITE = 3 };

// How g becomes the log decay a (natural logarithm). x = g + dt_bias.
//   LOG_DECAY: a = g.   DECAY: a = log(g).   SOFTPLUS: a = -exp(A_log) softplus(x).
//   BOUNDED: a = lower_bound sigmoid(exp(A_log) x).
enum {
  LINATTN_INPUT_LOG_DECAY = 1,
  LINATTN_INPUT_DECAY = 2,
  LINATTN_INPUT_SOFTPLUS = 3,
  LINATTN_INPUT_BOUNDED = 4
};

// How beta (erase and write too) becomes a strength. ONE: no tensor, 1. TWICE_LOGIT: 2 sigmoid(x),
// which allows negative eigenvalues.
enum {
  LINATTN_BETA_ONE = 1,
  LINATTN_BETA_VALUE = 2,
  LINATTN_BETA_LOGIT = 3,
  LINATTN_BETA_TWICE_LOGIT = 4
};

// The last two axes of a state: [K, V] (FLA's default) or [V, K] (the serving norm; FLA's
// state_v_first).
enum { LINATTN_STATE_KEY_VALUE = 1, LINATTN_STATE_VALUE_KEY = 2 };

// What a fused step's convolution ends with, and how z gates its norm.
enum {
  LINATTN_ACTIVATION_IDENTITY = 1,
  LINATTN_ACTIVATION_SILU = 2,    // x sigmoid(x)
  LINATTN_ACTIVATION_SIGMOID = 3  // of a norm's gate only
};

// ---- problem: all that selects a kernel, known once per layer ----

typedef struct linattn_problem {
  size_t size LINATTN_DEFAULT(sizeof(linattn_problem));
  int64_t max_tokens LINATTN_DEFAULT(0);     // bound of T over all calls
  int64_t max_sequences LINATTN_DEFAULT(0);  // bound of N over all calls
  int32_t gate LINATTN_DEFAULT(0);
  int32_t update LINATTN_DEFAULT(0);
  int32_t heads LINATTN_DEFAULT(0);
  int32_t value_heads LINATTN_DEFAULT(0);  // 0: heads
  int32_t key_dim LINATTN_DEFAULT(0);
  int32_t value_dim LINATTN_DEFAULT(0);
  int32_t dtype LINATTN_DEFAULT(0);         // q, k, v, out and their gradients; 0: bf16
  int32_t gate_input LINATTN_DEFAULT(0);    // required with a gate
  int32_t gate_dtype LINATTN_DEFAULT(0);    // g and dg; 0: fp32
  int32_t beta_input LINATTN_DEFAULT(0);    // required with a delta or erase/write update
  int32_t beta_dtype LINATTN_DEFAULT(0);    // beta, erase, write and their gradients; 0: fp32
  int32_t qk_l2norm LINATTN_DEFAULT(0);     // x / sqrt(sum x^2 + 1e-6) over K, q and k
  int32_t state_layout LINATTN_DEFAULT(0);  // required: with K = V it cannot be told from shapes
  int32_t state_dtype LINATTN_DEFAULT(0);   // initial and final states, their gradients; 0: fp32
  int32_t checkpoint_dtype LINATTN_DEFAULT(0);     // 0: state_dtype
  int32_t checkpoint_interval LINATTN_DEFAULT(0);  // every position is a multiple of it; 0: 64
  int32_t save_for_backward LINATTN_DEFAULT(0);    // forward fills `saved`
  int32_t batch_invariant LINATTN_DEFAULT(0);      // no result depends on the rest of the batch
  int32_t sm_limit LINATTN_DEFAULT(0);             // multiprocessors a kernel may occupy; 0: all
  int32_t reserved LINATTN_DEFAULT(0);             // ignored: older callers have padding here
  // Fused steps: of StepArgs only. IDENTITY of norm_gate: a norm without z.
  int32_t conv_width LINATTN_DEFAULT(0);        // taps, 2 to 4; 0: no convolution
  int32_t conv_activation LINATTN_DEFAULT(0);   // IDENTITY or SILU; required with a convolution
  int32_t conv_dtype LINATTN_DEFAULT(0);        // weights and biases; 0: dtype
  int32_t conv_state_dtype LINATTN_DEFAULT(0);  // 0: dtype
  int32_t norm_gate LINATTN_DEFAULT(0);         // an activation; 0: no norm
  int32_t norm_dtype LINATTN_DEFAULT(0);        // norm_weight; 0: dtype
} linattn_problem;

typedef struct linattn_device {
  int32_t type LINATTN_DEFAULT(0);  // LINATTN_CPU, LINATTN_CUDA
  int32_t index LINATTN_DEFAULT(0);
} linattn_device;

// ---- tensors ----

// [T, heads, dim], or [N, T / N, heads, dim] when the call has no cu_seqlens (then sequence_stride
// applies).
typedef struct linattn_tensor {
  void* data LINATTN_DEFAULT(nullptr);  // null: absent
  int64_t sequence_stride LINATTN_DEFAULT(0);
  int64_t token_stride LINATTN_DEFAULT(0);
  int64_t head_stride LINATTN_DEFAULT(0);
} linattn_tensor;

// [slots, HV, K, V] or [slots, HV, V, K]; one head's matrix is dense, slots and heads are strided.
typedef struct linattn_state {
  void* data LINATTN_DEFAULT(nullptr);  // null: absent
  int64_t slots LINATTN_DEFAULT(0);  // matrices per head that exist; no other slot is ever touched
  int64_t slot_stride LINATTN_DEFAULT(0);
  int64_t head_stride LINATTN_DEFAULT(0);
} linattn_state;

// The causal depthwise convolution of q, k or v, whose channels are heads x dim, in that order:
//   y[t] = activation(bias + sum_i weight[i] x[t - (width - 1) + i])
// in fp32, and y stays so. The x before the call's first token are in the sequence's row of the
// pool, in the order of time. Each channel's entries are read and written in place.
typedef struct linattn_conv {
  const void* weight LINATTN_DEFAULT(nullptr);  // [channels, width]
  int64_t weight_channel_stride LINATTN_DEFAULT(0);
  int64_t weight_tap_stride LINATTN_DEFAULT(0);
  const void* bias LINATTN_DEFAULT(nullptr);  // [channels], dense; null: 0
  void* state LINATTN_DEFAULT(nullptr);       // [slots, channels, entries]; null: 0, not stored
  int64_t slots LINATTN_DEFAULT(0);
  int64_t slot_stride LINATTN_DEFAULT(0);
  int64_t channel_stride LINATTN_DEFAULT(0);
  int64_t entry_stride LINATTN_DEFAULT(0);
} linattn_conv;

typedef struct linattn_workspace {
  void* data LINATTN_DEFAULT(nullptr);  // 256-byte aligned; content undefined before and after
  size_t bytes LINATTN_DEFAULT(0);
} linattn_workspace;

// ---- arguments ----
// All pointers live on the plan's device. Inputs are never written.

// What every pass reads. Frozen: new inputs go to the end of the structs that have them.
// cu_seqlens: first 0, rising, last at most T; output rows past the last offset are written zero.
// read_slots: the slot each sequence starts from; a null id starts from zero.
#define LINATTN_INPUTS                                                                            \
  int64_t tokens LINATTN_DEFAULT(0);               /* T: rows present, over all sequences */      \
  int64_t sequences LINATTN_DEFAULT(0);            /* N */                                        \
  const void* cu_seqlens LINATTN_DEFAULT(nullptr); /* [N + 1]; null: T / N tokens each */         \
  int32_t cu_seqlens_dtype LINATTN_DEFAULT(0);     /* int32 or int64; 0: int32 */                 \
  float scale LINATTN_DEFAULT(0);                  /* on q; 0: K^-1/2 */                          \
  float lower_bound LINATTN_DEFAULT(0);            /* < 0, for BOUNDED */                         \
  int32_t first_slot LINATTN_DEFAULT(0);       /* slot ids below it are null (0: negative ids) */ \
  linattn_tensor q LINATTN_DEFAULT({});        /* [T, H, K] */                                    \
  linattn_tensor k LINATTN_DEFAULT({});        /* [T, H, K] */                                    \
  linattn_tensor v LINATTN_DEFAULT({});        /* [T, HV, V] */                                   \
  linattn_tensor g LINATTN_DEFAULT({});        /* [HV], [T, HV] or [T, HV, K], by the gate */     \
  linattn_tensor beta LINATTN_DEFAULT({});     /* [T, HV], for DELTA */                           \
  linattn_tensor erase LINATTN_DEFAULT({});    /* [T, HV, K], for ERASE_WRITE */                  \
  linattn_tensor write LINATTN_DEFAULT({});    /* [T, HV, V], for ERASE_WRITE */                  \
  const float* a_log LINATTN_DEFAULT(nullptr); /* [HV], for SOFTPLUS; for BOUNDED null is 0 */    \
  const float* dt_bias LINATTN_DEFAULT(nullptr);      /* [HV] or, CHANNEL, [HV, K]; null: 0 */    \
  linattn_state initial_state LINATTN_DEFAULT({});    /* absent: zero */                          \
  const int32_t* read_slots LINATTN_DEFAULT(nullptr); /* [N]; null: n */                          \
  const uint8_t* has_initial_state LINATTN_DEFAULT(nullptr); /* [N], 0: start from zero */

// Where states go. A null write slot stores nothing; null read and write slots together mark a pad:
// nothing is computed and its output rows are zero. No slot may be written twice in a call, nor be
// another sequence's read slot.
#define LINATTN_STATE_OUTPUTS                                                                   \
  linattn_tensor out LINATTN_DEFAULT({});        /* [T, HV, V] */                               \
  linattn_state final_state LINATTN_DEFAULT({}); /* may be initial_state; absent: not stored */ \
  const int32_t* write_slots LINATTN_DEFAULT(nullptr); /* [N], null: n */

typedef struct linattn_forward_args {
  size_t size LINATTN_DEFAULT(sizeof(linattn_forward_args));
  LINATTN_INPUTS
  LINATTN_STATE_OUTPUTS
  // Checkpoints: the state after `position` tokens goes to checkpoints[slot]. Entries offsets[n] ..
  // offsets[n + 1] belong to sequence n, positions rise. With start_positions, positions count from
  // the first token of the whole sequence, of which this call holds `length` from
  // start_positions[n] on. A position is written if start <= position <= start + length (at the
  // start it is the initial state), otherwise its slot stays as it is.
  const int32_t* start_positions LINATTN_DEFAULT(nullptr);  // [N], null: 0
  linattn_state checkpoints LINATTN_DEFAULT({});
  const int32_t* checkpoint_offsets LINATTN_DEFAULT(nullptr);    // [N + 1]
  const int32_t* checkpoint_positions LINATTN_DEFAULT(nullptr);  // [offsets[N]]
  const int32_t* checkpoint_slots LINATTN_DEFAULT(nullptr);  // [offsets[N]], null ids: not written
  // Each sequence's state transition M, fp32 [N, HV, K, K], whatever the state layout: final state
  // = M initial state + state from zero. The identity for pads and empty sequences.
  linattn_state transition LINATTN_DEFAULT({});
  // With save_for_backward: as many bytes as linattn_saved_bytes says, 256-byte aligned.
  void* saved LINATTN_DEFAULT(nullptr);
} linattn_forward_args;

// Gradients: each has its input's shape and dtype (fp32 for a_log, dt_bias); null: not wanted. dq
// and dk are summed over the value heads of a group. Rows past the last offset get 0.
typedef struct linattn_backward_args {
  size_t size LINATTN_DEFAULT(sizeof(linattn_backward_args));
  LINATTN_INPUTS
  linattn_tensor dout LINATTN_DEFAULT({});         // absent: 0
  linattn_state dfinal_state LINATTN_DEFAULT({});  // [N, HV, ...]; absent: 0
  const void* saved LINATTN_DEFAULT(nullptr);      // what the forward plan's run filled
  linattn_tensor dq LINATTN_DEFAULT({});
  linattn_tensor dk LINATTN_DEFAULT({});
  linattn_tensor dv LINATTN_DEFAULT({});
  linattn_tensor dg LINATTN_DEFAULT({});
  linattn_tensor dbeta LINATTN_DEFAULT({});
  linattn_tensor derase LINATTN_DEFAULT({});
  linattn_tensor dwrite LINATTN_DEFAULT({});
  float* da_log LINATTN_DEFAULT(nullptr);            // [HV]
  float* ddt_bias LINATTN_DEFAULT(nullptr);          // as dt_bias
  linattn_state dinitial_state LINATTN_DEFAULT({});  // [N, HV, ...]; 0 where no state was read
} linattn_backward_args;

#define LINATTN_FUSED_TOKENS 8

// Decode and draft verification: a few tokens per sequence, the recurrence token by token.
typedef struct linattn_step_args {
  size_t size LINATTN_DEFAULT(sizeof(linattn_step_args));
  LINATTN_INPUTS
  LINATTN_STATE_OUTPUTS
  // read_slots as [N, read_slot_stride], of which sequence n starts from column accepted[n] - 1. A
  // count outside 1 .. read_slot_stride makes the sequence a pad. 0: read_slots is [N] and accepted
  // is absent.
  int64_t read_slot_stride LINATTN_DEFAULT(0);
  const int32_t* accepted LINATTN_DEFAULT(nullptr);  // [N]
  // write_slots as [N, write_slot_stride]: the state after the sequence's token t goes to column t.
  // 0: write_slots is [N], and the state after the last token is stored.
  int64_t write_slot_stride LINATTN_DEFAULT(0);
  // [T] draft tree: the token in the same sequence whose state a token continues, -1: the initial
  // state; a parent comes before its children. null: a chain.
  const int32_t* parents LINATTN_DEFAULT(nullptr);
  // A record of the call, fp32, dense: the keys as they were used, [T, H, K]; behind them what each
  // token wrote along its key, [T, HV, V]; then the log decays, [T, HV, K] or [T, HV] by the gate
  // (none without one). They are k, v and g of a step of op {gate, ADD} that goes the same way: a
  // commit (linattn_commit_problem). Such a step has neither q nor out, which may be absent
  // together.
  float* replay LINATTN_DEFAULT(nullptr);
  // Of sequence n only the first counts[n] tokens are taken, 0 .. its length (clamped); the output
  // rows of the others are zero, and nothing is recorded of them. null: all.
  const int32_t* counts LINATTN_DEFAULT(nullptr);  // [N]
  // The i-th of them is token picks[n, i] of the sequence, each at most once: the accepted path of
  // a tree. null: i.
  const int32_t* picks LINATTN_DEFAULT(nullptr);  // [N, picks_stride]
  int64_t picks_stride LINATTN_DEFAULT(0);
  // Commits of many layers in one call: layer l reads k, v and g at l layer_stride elements further
  // on, and its states are in pools[l], which is like initial_state and final_state, and as well
  // aligned.
  int64_t layers LINATTN_DEFAULT(0);  // 0: one, without pools
  int64_t layer_stride LINATTN_DEFAULT(0);
  void* const* pools LINATTN_DEFAULT(nullptr);  // [layers]
  // Fused steps, at most LINATTN_FUSED_TOKENS tokens a sequence, without parents, picks and layers.
  // conv_width: q, k and v are convolved before all else. A row of a pool has conv_entries entries,
  // of which a sequence reads width - 1, and is left with the last width - 1 of (those, its
  // tokens) in entries 0 on. Slots are chosen as those of the states, of one row for all of q, k
  // and v; a sequence of null read and write rows is a pad, as is one that the states' slots make.
  linattn_conv conv_q LINATTN_DEFAULT({});
  linattn_conv conv_k LINATTN_DEFAULT({});
  linattn_conv conv_v LINATTN_DEFAULT({});
  int64_t conv_entries LINATTN_DEFAULT(0);                   // 0: width - 1
  const int32_t* conv_read_slots LINATTN_DEFAULT(nullptr);   // [N], null: n
  const int32_t* conv_write_slots LINATTN_DEFAULT(nullptr);  // [N], null: n
  // Drafts: what is read begins at entry conv_accepted[n] - 1 (a count that leaves fewer than width
  // - 1 entries, or is under 1, makes the sequence a pad), and of (those, its tokens) all but the
  // first are left: entries t on are those after token t. Needs width - 2 + tokens entries.
  const int32_t* conv_accepted LINATTN_DEFAULT(nullptr);  // [N]
  // norm_gate: out = norm_weight o / sqrt(mean o^2 + norm_epsilon) activation(z), in fp32.
  linattn_tensor z LINATTN_DEFAULT({});              // [T, HV, V] of dtype; absent with IDENTITY
  const void* norm_weight LINATTN_DEFAULT(nullptr);  // [V], dense; null: 1
  float norm_epsilon LINATTN_DEFAULT(0);             // 0: 1e-6
} linattn_step_args;

// ---- functions ----

typedef struct linattn_plan linattn_plan;  // immutable; shared by threads

// The text of the last failure on this thread, "" if there was none; valid until the next call on
// this thread.
LINATTN_API const char* linattn_last_error(void);
LINATTN_API const char* linattn_version(void);

// Chooses. implementation pins a row by name (null: any, best first). The plan of a backward pass
// is made from the forward plan, so that the two agree on `saved`.
LINATTN_API linattn_status linattn_plan_create(const linattn_problem* problem,
                                               linattn_device device, int32_t pass,
                                               const char* implementation, linattn_plan** plan);
LINATTN_API linattn_status linattn_plan_create_backward(const linattn_plan* forward,
                                                        const char* implementation,
                                                        linattn_plan** plan);
LINATTN_API void linattn_plan_retain(linattn_plan* plan);
LINATTN_API void linattn_plan_release(linattn_plan* plan);
// The best row's name.
LINATTN_API const char* linattn_plan_implementation(const linattn_plan* plan);

// Workspace for one call of at most so many tokens and sequences, enough for every row the plan may
// take.
LINATTN_API linattn_status linattn_workspace_bytes(const linattn_plan* plan, int64_t tokens,
                                                   int64_t sequences, size_t* bytes);
// Bytes of `saved`: coefficients[0] tokens + coefficients[1] sequences + coefficients[2].
LINATTN_API linattn_status linattn_saved_bytes(const linattn_plan* plan, int64_t coefficients[3]);

// Enqueue, and nothing more (CPU rows compute and return). stream is a cudaStream_t, null on the
// CPU.
LINATTN_API linattn_status linattn_forward(const linattn_plan* plan,
                                           const linattn_forward_args* args,
                                           linattn_workspace workspace, void* stream);
LINATTN_API linattn_status linattn_backward(const linattn_plan* plan,
                                            const linattn_backward_args* args,
                                            linattn_workspace workspace, void* stream);
LINATTN_API linattn_status linattn_step(const linattn_plan* plan, const linattn_step_args* args,
                                        linattn_workspace workspace, void* stream);

// A line per implementation: that it takes the problem, or why not. The text is valid until this
// thread's next call.
LINATTN_API linattn_status linattn_explain(const linattn_problem* problem, linattn_device device,
                                           int32_t pass, const char** text);
// The same for one call of a plan, args being the struct of the plan's pass: which row runs, and
// why not the others.
LINATTN_API linattn_status linattn_plan_explain(const linattn_plan* plan, const void* args,
                                                const char** text);

// The problem of the steps that commit what the replay records of another problem's steps hold.
LINATTN_API linattn_status linattn_commit_problem(const linattn_problem* problem,
                                                  linattn_problem* commit);

// Names of a pass's implementations, best first; null past the end.
LINATTN_API const char* linattn_implementation_name(int32_t pass, int32_t index);

// Threads of the CPU rows, for the process; 0: one per core. Takes effect at the next run.
LINATTN_API linattn_status linattn_set_threads(int32_t threads);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // LINATTN_C_H_
