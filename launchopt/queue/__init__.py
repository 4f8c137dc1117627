"""The shared-memory ring between producer and consumer, and how a process waits for it."""
