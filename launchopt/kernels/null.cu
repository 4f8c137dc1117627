// Kernels for measuring what a launch costs: one that does nothing, and one that holds the queue up meanwhile.
//
// Both take what every kernel here takes: three addresses and a number.

extern "C" __global__ void null_kernel(char*, char*, char*, long long) {}

// One thread that spins for so many ns of the GPU's own clock.
extern "C" __global__ void hold(char*, char*, char*, long long nanoseconds) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - start < (unsigned long long)nanoseconds);
}
