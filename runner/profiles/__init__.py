"""Commands that read profiles (nsys, ncu and traces), and `record`, which profiles a program."""
