"""launchopt: what GEMM launches cost an LLM worker, and what each remedy saves. Imports nothing from `runner`."""
