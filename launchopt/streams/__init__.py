"""Streams: what a workload is made of, from a model's dimensions to the records of its commands in order.

They know no clock, no GPU and no workload by name.
"""
