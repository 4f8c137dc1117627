// Codes in registers as fp16, in units of their scale. fp16 holds each code exactly, and takes fewer instructions than bf16.

// Return (1024 + bits) * by + more for the bits in each half of a word, which become the lowest ones of a mantissa.
__device__ inline u32 two_of_bits(u32 bits, u32 by, u32 more) {
    return multiply_add_two_fp16(bits | 0x64006400u, by, more);
}

// Return two int8 codes. raised: four codes, plus 128. selector: of __byte_perm, which moves two of them to mantissas of 1024.
__device__ inline u32 two_of_int8_fp16(u32 raised, u32 selector) {
    return multiply_add_two_fp16(__byte_perm(raised, 0x64646464u, selector), 0x3C003C00u, 0xE480E480u);  // 1, -1152
}

// Return the halves of part `part`, of PACK, of a vector of codes. Of int4, halves of one word are 4 codes apart (`paired`).
__device__ inline uint4 fp16_of(const uint4& codes, int part) {
    const u32 low = part ? codes.z : codes.x, high = part ? codes.w : codes.y;
    if constexpr (WEIGHTS == FORMAT_FP8) {
        uint4 to;
        widen_four_fp8(to.x, to.y, low), widen_four_fp8(to.z, to.w, high);
        return to;
    } else if constexpr (WEIGHTS == FORMAT_INT8) {
        const u32 first = low ^ 0x80808080u, second = high ^ 0x80808080u;
        return {two_of_int8_fp16(first, 0x4140u), two_of_int8_fp16(first, 0x4342u), two_of_int8_fp16(second, 0x4140u),
                two_of_int8_fp16(second, 0x4342u)};
    } else {
        // The second and the fourth code of a half are 16 times too large. Each code is 8 too large.
        const u32 word = part == 0 ? codes.x : part == 1 ? codes.y : part == 2 ? codes.z : codes.w, upper = word >> 8;
        return {two_of_bits(word & 0x000F000Fu, 0x3C003C00u, 0xE408E408u),  // 1, -1032
                two_of_bits(word & 0x00F000F0u, 0x2C002C00u, 0xD480D480u),  // 1 / 16, -72
                two_of_bits(upper & 0x000F000Fu, 0x3C003C00u, 0xE408E408u),
                two_of_bits(upper & 0x00F000F0u, 0x2C002C00u, 0xD480D480u)};
    }
}
