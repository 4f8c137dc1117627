// What is to be known of rows that are fed back (tokens/next_inputs.cuh), in the words of devices/feedback_source.py.
enum { ROW_WORDS = 5 };  // addresses of source, target, history (or 0) and id, and the number that is drawn

struct Feedback {
    const u64* arguments;  // [ROW_WORDS, pitch], in pinned memory of the host
    u64 rows;              // how many of them a whole step feeds back at its end; a kernel of its own has a block each
    u64 pitch, hidden, vocab, embedding, row_bytes, start;
    double inverse_temperature;
    u64 k;
    double p;
    u64* ns;               // to which a whole step adds what sampling took
    u64* found;            // by each block of a whole step, [rows, blocks]: see tokens/step_end.cuh; 0 between launches
};
