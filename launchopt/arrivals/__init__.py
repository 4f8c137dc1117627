"""When commands arrive."""
