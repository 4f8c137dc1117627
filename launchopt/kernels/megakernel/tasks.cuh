// A list of instructions as the host gives it (devices/megakernel_words.py, megakernel_program.py).
enum { MOST_WAITS = 4, JOIN = -1, LISTED = 4 };
enum { BEGAN, READY, DONE, STAMPS_EACH };  // of an instruction
enum { CYCLES, NS };                       // and behind all of them: of the whole
enum { OP_GEMM, OP_BIAS, OP_RELU, OP_SCALE, OP_NORM, OP_SLOT_MAP, OP_ROPE, OP_KV_WRITE, OP_QK, OP_SOFTMAX, OP_AV, OP_ADD,
       OP_SILU_MUL };

struct Instruction {  // the columns of devices/instruction_words.py, in their order, up to those that say whom it waits for
    i64 op, m, n, k, requests, first_request;
    u64 a, b, c;
    i64 stride_a, stride_b, stride_c, lda, ldb, ldc;
    i64 q_heads, kv_heads, head_dim, ctx, page_tokens, pages;
    u64 positions, table;
    i64 all_requests;
    double theta;
    i64 grid_x, grid_y, grid_z;
};

// What a task is, a bit each. SPLIT: two blocks share its tiles, and each has half of k (megakernel/peer.cuh).
enum {
    SPLIT = 1,
    STREAMED = 2,       // its weights are in the list of these
    MAILED = 4,         // its inputs come by mail
    COUNTED = 8,        // somebody waits for its counter
    WAITS = 16,         // it waits for those of others
    ATTENDS = 32,       // it is attention (attention/fused_attention.cuh), whose words `in` has, in.c being the rotated rows
    NORMED = 64,        // of a GEMM: a norm is done before it,
    ADDS = 128,         // or OP_ADD behind it,
    ADDED_MAILED = 256, // of something that comes by mail, since this thread has not stored it;
    GATED = 512,        // or OP_SILU_MUL
    NORMED_ODD = 1024   // of GEMMs with a norm every other one in the list
};

// An instruction, or some that are done as one, and how this grid goes about it. What a GEMM wants first comes first, so that
// it is there in a few loads.
struct alignas(16) Task {
    u32 flags, share;            // share: how many blocks have one, the first ones
    u32 tiles_each, tiles_more;  // these and the next two: see Cut in megakernel/weights.cuh
    u32 bytes, other_bytes;
    u32 round_bytes;             // of k, how much at once, in whole pieces, where inputs pass shared memory
    u32 input_row_bytes;         // from a row of the inputs to the next, in shared memory (megakernel/tiles.cuh)
    u64 from;                    // inputs, or the first box that has them
    u32 from_bytes, requests;    // from_bytes: from one column of them to the next
    u64 box, c;                  // the first box for results, or 0; outputs of the GEMM
    i64 stride_c;
    u32 result_m, pair_rows;     // results: what the last of the instructions that are done as one gives, of so many features
    u64 result;
    i64 result_stride;
    u64 gain;                    // of the norm before a GEMM
    u64 added;                   // to what a GEMM gives
    i64 added_stride;
    u64 cache, slots;
    i64 slots_stride;
    u64 scores;
    i64 scores_stride;
    u64 probabilities;
    i64 probabilities_stride;
    u32 wait[MOST_WAITS], enough[MOST_WAITS];  // counters, and what a launch adds to them: 0 of none
    Instruction in;
};

struct Program {  // of devices/megakernel_program.py
    const Task* tasks;
    u32* counters;  // one an instruction
    const Weights* weights;
    u64 count;
    u64 box_bytes;  // from the first boxes to the second
    u64* stamps;    // clock of the multiprocessor, [blocks, instructions + 1, STAMPS_EACH]
};
