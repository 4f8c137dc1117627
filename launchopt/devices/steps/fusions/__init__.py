"""Make the fused stages of steps: which rows of a step one launch computes, and the kernel that computes them."""
