// Macros of megakernel.cu. The host compiles the kernel for one list of instructions (defines_of in
// devices/megakernel/tasks.py). The compiler drops what the list does not need, so that the rest stays in registers.
//
// Required macros:
//   DTYPE        storage type of the operands: 0 fp32, 1 fp16, 2 bf16
//   SLOTS        number of slots in the ring of weights, in shared memory: 6 or more
//   COLUMNS      columns that a product has, one per request: 1, or MOST_COLUMNS for lists of several requests
//   OPS          bit mask of the ops (1 << OP_...) that are instructions of their own; streamed GEMMs do not count
//   FUSED        bit mask of the ops that are fused: OP_ROPE stands for attention, OP_NORM, OP_ADD, OP_SILU_MUL for a GEMM's
// Optional macros:
//   KIND         how the launch samples tokens: a name of sampling::Kind; undefined: the launch feeds nothing back
//   HEAD_DIM     elements of a head, the same in all attention of the list; 0: heads differ
//   GROUP        query heads of each kv head; 0 where HEAD_DIM is 0
//   PAGE_TOKENS  tokens of a page of the KV cache; 0 where HEAD_DIM is 0
//   LOGITS       1: the list ends with a streamed GEMM that is not fused, whose largest outputs can be found; 0: not
//   GROUPS       1: an instruction may have more requests than COLUMNS; 0: none has
//   COUNTS       1: an instruction may wait for a counter; 0: none does
//   ONE_STEP     1: each block has at most PASS_TILES slots of a streamed GEMM, and its inputs fit at once; 0: it needs loops
//   SHORT        1: an additional warp stores the outputs (gemm_short.cuh), for lists of short GEMMs only; 0: not
//   PAIRS        1: blocks come in clusters of two, which share the tiles of some GEMMs (peer.cuh); 0: they do not
//   STAMPS       1: each block writes clock stamps of each instruction (runner/bench/megakernel.py); 0: not
//   WITHOUT      for measurements, with wrong outputs: NO_WEIGHTS (1) fetches no weights, NO_WAITS (2) never waits; 0: whole
//   EACH_LANE    1: each lane waits and arrives at barriers itself, which racecheck understands (mode.racecheck); 0: one does
#ifndef HEAD_DIM
#define HEAD_DIM 0
#define GROUP 0
#define PAGE_TOKENS 0
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

// What follows from the macros above, 0 or 1 each:
#define IN_REGISTERS (COLUMNS > 1 && DTYPE != 0)  // a warp keeps its inputs in registers (gemm_in_registers.cuh)
#define COLUMN_PAIRS (COLUMNS > 1 && DTYPE == 0)  // two columns of inputs share a row of shared memory (tiles.cuh)
#define PRELOADED (COLUMNS == 1 && !FUSED && !OPS)  // weights are in registers before the inputs are there (tiles.cuh)
#define TENSOR_CORES (DTYPE != 0 && !PRELOADED)  // products are made by tensor cores
#define RELEASED_EARLY (DTYPE != 0 && (FUSED || OPS))  // of one column, slots are released before the results are stored
#ifdef KIND
#define FINDS_LARGEST (LOGITS && sampling::KIND == sampling::GREEDY)  // each block finds the largest logit of each column
#endif
