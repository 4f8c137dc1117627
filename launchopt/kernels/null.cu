// Kernels that measure the cost of a launch: one does nothing, the other one keeps the queue busy meanwhile.
//
// Both have the parameters of every plan: three addresses and a number.

extern "C" __global__ void null_kernel(char*, char*, char*, long long) {}

// Spin in one thread for `nanoseconds` of the GPU's timer.
extern "C" __global__ void hold(char*, char*, char*, long long nanoseconds) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - start < (unsigned long long)nanoseconds);
}
