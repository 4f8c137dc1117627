"""Analysis of profiles: nsys, ncu, CUPTI and traces of other tools."""
