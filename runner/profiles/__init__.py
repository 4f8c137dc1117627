"""Commands that read profiles: nsys, ncu and traces."""
