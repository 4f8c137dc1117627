"""Runs for a Python program: each runs in a process of its own, so that nothing of the program is changed or run again.

`words` makes the words of a command line, `caller` starts the process and waits for it, `child` is what it runs.
"""
