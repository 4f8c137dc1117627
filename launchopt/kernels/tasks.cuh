// A list of instructions as the host gives it (devices/instruction_words.py, megakernel_tasks.py, megakernel_program.py).
enum { MOST_WAITS = 4, JOIN = -1, LISTED = 4 };
enum { BEGAN, READY, DONE, STAMPS_EACH };  // of an instruction
enum { CYCLES, NS };                       // and behind all of them: of the whole
enum { OP_GEMM, OP_BIAS, OP_RELU, OP_SCALE, OP_NORM, OP_SLOT_MAP, OP_ROPE, OP_KV_WRITE, OP_QK, OP_SOFTMAX, OP_AV, OP_ADD,
       OP_SILU_MUL };

struct Instruction {  // the columns of devices/instruction_words.py, in their order
    i64 op, m, n, k, requests, first_request;
    u64 a, b, c;
    i64 stride_a, stride_b, stride_c, lda, ldb, ldc;
    i64 q_heads, kv_heads, head_dim, ctx, page_tokens, pages;
    u64 positions, table;
    i64 all_requests;
    double theta;
    i64 grid_x, grid_y, grid_z;
    i64 waits, wait[MOST_WAITS], mail, level, fused, row;
};

struct Task {  // of devices/megakernel_tasks.py: an instruction, or some that are done as one, and how this grid goes about it
    Instruction in;
    i64 share;                   // blocks that have a share: the first ones
    i64 enough[MOST_WAITS];      // what a launch adds to the counters it waits for
    i64 counted;                 // whether anybody waits for its own
    i64 streamed;                // whether its weights are in the list of these; then also
    i64 tiles_each, tiles_more, split;  // as in Weights
    i64 row_used_bytes, round_bytes;  // of k, and how much of it at once, in whole pieces
    i64 input_row_bytes;         // from a row of the inputs to the next, in shared memory (tiles.cuh)
    i64 mailed;                  // whether inputs come by mail
    i64 from_bytes;              // from one column of them to the next
    u64 from, box;               // inputs, or the first box that has them; the first box for results, or 0
    // Results: what the last of the instructions that are done as one gives, of so many features.
    i64 result_m;
    u64 result;
    i64 result_stride;
    u64 gain, normed;            // of the norm before a GEMM, or 0: its gain, and where its outputs go
    i64 normed_stride;
    i64 then;                    // the op after a GEMM, or 0
    u64 added;                   // to what a GEMM gives, by OP_ADD
    i64 added_stride;
    i64 added_mailed;            // whether that comes by mail: this thread has not stored it
    i64 pair_rows;               // as in Weights: of OP_SILU_MUL
    i64 attends;                 // whether it is attention (attend.cuh), whose words `in` has, in.c being the rotated rows
    u64 cache, slots;
    i64 slots_stride;
    u64 scores;
    i64 scores_stride;
    u64 probabilities;
    i64 probabilities_stride;
};

struct Program {  // of devices/megakernel_program.py
    const Task* tasks;
    u32* counters;  // one an instruction
    const Weights* weights;
    u64 count;
    u64 box_bytes;  // from the first boxes to the second
    u64* stamps;    // clock of the multiprocessor, [blocks, instructions + 1, STAMPS_EACH]
};
