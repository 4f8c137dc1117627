// Weights of step_gemm.cu in registers: a vector of codes as PACK vectors of halves, in units of their scale.

// Return two fp8 codes as halves. selector: of __byte_perm, which moves each code to the upper byte of a half.
__device__ inline u32 two_of_fp8(u32 codes, u32 selector) {
    // The sign, exponent and mantissa of e4m3 are those of a half whose exponent has another bias.
    const u32 raised = __byte_perm(codes, 0, selector), sign = raised & 0x80008000u;
#if DTYPE == 1
    return multiply_two(sign | raised >> 1 & 0x3F803F80u, 0x5C005C00u);  // 2**8
#else
    return multiply_two(sign | raised >> 4 & 0x07F007F0u, 0x7B807B80u);  // 2**120
#endif
}

// Return the codes of int4 at bits 0 and 16 of a word, which are 8 too large, as halves: they become the lowest bits of the
// mantissa of 1024 (fp16) or 128 (bf16).
__device__ inline u32 two_of_int4(u32 codes) {
    const u32 magic = DTYPE == 1 ? 0x64006400u : 0x43004300u;
    return subtract_two(codes & 0x000F000Fu | magic, magic + 0x00080008u);
}

// Return the halves of part `part`, of PACK, of a vector of codes. Of int4, halves of one word are 4 codes apart (`paired`).
__device__ inline uint4 halves_of(const uint4& codes, int part) {
    const u32 low = part ? codes.z : codes.x, high = part ? codes.w : codes.y;
    if constexpr (WEIGHTS == FORMAT_NONE) {
        return codes;
    } else if constexpr (WEIGHTS == FORMAT_FP8) {
        return {two_of_fp8(low, 0x1404u), two_of_fp8(low, 0x3424u), two_of_fp8(high, 0x1404u), two_of_fp8(high, 0x3424u)};
    } else if constexpr (WEIGHTS == FORMAT_INT8) {
        float of[8];
        unpack_int8(of, low), unpack_int8(of + 4, high);
        return {narrow_two(of[0], of[1]), narrow_two(of[2], of[3]), narrow_two(of[4], of[5]), narrow_two(of[6], of[7])};
    } else {
        const u32 word = part == 0 ? codes.x : part == 1 ? codes.y : part == 2 ? codes.z : codes.w;
        return {two_of_int4(word), two_of_int4(word >> 4), two_of_int4(word >> 8), two_of_int4(word >> 12)};
    }
}

// Return 8 inputs in the order of the halves that they are multiplied by.
__device__ inline uint4 paired(const uint4& x) {
    if (!IS_INT4) return x;
    return {__byte_perm(x.x, x.z, 0x5410u), __byte_perm(x.x, x.z, 0x7632u), __byte_perm(x.y, x.w, 0x5410u),
            __byte_perm(x.y, x.w, 0x7632u)};
}
