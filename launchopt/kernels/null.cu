// Kernels for measuring the cost of a launch. `null_kernel` does nothing; `hold` keeps the GPU busy while launches are queued.
//
// Both have the parameters of all planned launches: three addresses and a number.

extern "C" __global__ void null_kernel(char*, char*, char*, long long) {}

// Spin in each thread for `nanoseconds` of the GPU's timer.
extern "C" __global__ void hold(char*, char*, char*, long long nanoseconds) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - start < (unsigned long long)nanoseconds);
}
