"""What the producer does: blocks of commands, the closed loop of requests, prepared steps, continuous batching."""
