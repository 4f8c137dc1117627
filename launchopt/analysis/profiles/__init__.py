"""What profilers recorded: nsys, ncu, CUPTI and traces."""
