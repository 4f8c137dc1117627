"""What a configuration means on this machine: the job, its streams, its memory."""
