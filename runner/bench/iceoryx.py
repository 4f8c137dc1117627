"""Measures iceoryx2, a shared-memory publish-subscribe library, with the ring's 64-byte messages in two processes.

Needs the package `iceoryx2`. The import of this module fails without it, and the benchmark skips it.
"""

from __future__ import annotations

import ctypes
import secrets
import time
from typing import Any

import iceoryx2 as iox2

from runner.bench.peers import with_peer

BUFFER = 4096  # messages in the buffer; the ring has as many slots


class Message(ctypes.Structure):
    """64 bytes, like a command record."""

    _fields_ = (("words", ctypes.c_uint64 * 8),)


def _service(name: str) -> Any:
    node = iox2.NodeBuilder.new().create(iox2.ServiceType.Ipc)
    builder = node.service_builder(iox2.ServiceName.new(name)).publish_subscribe(Message)
    # A full buffer blocks the publisher and loses nothing, like the ring.
    return node, builder.subscriber_max_buffer_size(BUFFER).enable_safe_overflow(False).open_or_create()


def publish(name: str, messages: int) -> None:
    """Publish one message at a time (the other process); a full buffer blocks."""
    node, service = _service(name)
    publisher = service.publisher_builder().create()
    while service.dynamic_config.number_of_subscribers == 0:
        time.sleep(0.001)
    for i in range(messages):
        sample = publisher.loan_uninit()
        sample.write_payload(Message((ctypes.c_uint64 * 8)(i))).send()
    time.sleep(1)  # the segment ends with this process; before that the subscriber receives the last messages
    del node


def rate(messages: int) -> float:
    """Return messages per second, from the first one received to the last."""
    name = f"launchopt-bench-{secrets.token_hex(4)}"
    node, service = _service(name)
    subscriber = service.subscriber_builder().buffer_size(BUFFER).create()

    def work() -> float:
        received, start_ns = 0, 0
        while received < messages:
            if subscriber.receive() is not None:
                start_ns = start_ns or time.perf_counter_ns()
                received += 1
        return (messages - 1) / (time.perf_counter_ns() - start_ns) * 1e9

    result = with_peer(publish, (name, messages), work)
    del node
    return result
