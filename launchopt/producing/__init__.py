"""The producer: it pushes blocks of independent commands, or issues the steps of requests (the driver)."""
