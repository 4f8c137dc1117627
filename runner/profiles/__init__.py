"""Commands for profilers: nsys, ncu and traces."""
