// Halves of the host's compiler.
#pragma once
typedef _Float16 __half;
inline __half __float2half(float value) { return (__half)value; }
inline float __half2float(__half value) { return (float)value; }
