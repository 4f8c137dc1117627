// Macros of megakernel.cu. The host compiles the kernel for one list of instructions (defines_of in
// devices/megakernel/tasks.py). The compiler drops code that the list does not need, so that the rest fits into registers.
//
// Required macros:
//   DTYPE        storage type of the operands: 0 fp32, 1 fp16, 2 bf16
//   SLOTS        number of slots in the ring of weights, in shared memory: 6 or more
//   COLUMNS      most columns that a product has at once, one per request: 1, or MOST_COLUMNS for lists of several requests
//   OPS          bit mask (1 << OP_...) of the ops that are tasks of their own, except streamed GEMMs
//   FUSED        bit mask of the fused ops: OP_ROPE stands for fused attention; OP_NORM, OP_ADD and OP_SILU_MUL stand for
//                themselves, fused with a GEMM
// Optional macros:
//   KIND         how the launch samples tokens: a name of sampling::Kind; undefined: the launch feeds nothing back
//   HEAD_DIM     elements of a head, if all attention of the list has the same shape; 0: shapes differ
//   GROUP        query heads of each kv head; 0 if HEAD_DIM is 0
//   PAGE_TOKENS  tokens of a page of the KV cache; 0 if HEAD_DIM is 0
//   QK_NORM      1: attention normalizes the heads of queries and keys; 0: it does not
//   LOGITS       1: the list ends with a streamed GEMM without fused ops, so its largest outputs can be found; 0: it does not
//   GROUPS       1: a task may have more requests than COLUMNS; 0: no task has
//   COUNTS       1: a task may wait for a counter; 0: no task does
//   ONE_STEP     1: each block's weights of a streamed GEMM fit into PASS_TILES slots, and its inputs into the memory for them;
//                0: a GEMM may need loops
//   SHORT        1: the list has only short GEMMs, and an additional warp stores outputs (gemm_short.cuh); 0: no such warp
//   PAIRS        1: the grid has clusters of two blocks, which share the tiles of some GEMMs (peer.cuh); 0: no clusters
//   STAMPS       1: each block writes clock stamps of each task (runner/bench/megakernel.py); 0: no stamps
//   WITHOUT      for measurements, with wrong outputs: NO_WEIGHTS (1): no weights are copied; NO_WAITS (2): no block waits;
//                0: the complete kernel
//   EACH_LANE    1: each lane waits and arrives at barriers, which NVIDIA's racecheck understands (mode.racecheck); 0: one lane
//                of a warp does
#ifndef HEAD_DIM
#define HEAD_DIM 0
#define GROUP 0
#define PAGE_TOKENS 0
#endif
#ifndef QK_NORM
#define QK_NORM 0
#endif
#ifndef LOGITS
#define LOGITS 0
#endif
#ifndef GROUPS
#define GROUPS 1
#endif
#ifndef COUNTS
#define COUNTS 1
#endif
#ifndef ONE_STEP
#define ONE_STEP 0
#endif
#ifndef SHORT
#define SHORT 0
#endif
#ifndef PAIRS
#define PAIRS 0
#endif
#ifndef STAMPS
#define STAMPS 0
#endif
#ifndef WITHOUT
#define WITHOUT 0
#endif
#ifndef EACH_LANE
#define EACH_LANE 0
#endif
enum { NO_WEIGHTS = 1, NO_WAITS = 2 };  // values of WITHOUT

// Macros that follow from those above, 0 or 1 each:
#define IN_REGISTERS (COLUMNS > 1 && DTYPE != 0)  // a warp keeps its inputs in registers (gemm_in_registers.cuh)
#define COLUMN_PAIRS (COLUMNS > 1 && DTYPE == 0)  // two columns of inputs share a row of shared memory (tiles.cuh)
#define PRELOADED (COLUMNS == 1 && !FUSED && !OPS)  // weights are in registers before the inputs are there (tiles.cuh)
#define TENSOR_CORES (DTYPE != 0 && !PRELOADED)  // tensor cores multiply
// With one column: slots of weights are released before the results are stored.
#define RELEASED_EARLY (DTYPE != 0 && (FUSED || OPS))
#ifdef KIND
#define FINDS_LARGEST (LOGITS && sampling::KIND == sampling::GREEDY)  // each block finds its largest logit of each column
#endif
