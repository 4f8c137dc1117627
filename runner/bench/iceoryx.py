"""iceoryx2, a shared-memory publish-subscribe library, on the ring's job: 64-byte messages between two processes.

Needs the package `iceoryx2`; importing this module fails without it, and the benchmark then leaves it out.
"""

from __future__ import annotations

import ctypes
import secrets
import time
from collections.abc import Callable
from typing import Any

import iceoryx2 as iox2

BUFFER = 4096  # messages, as many as the ring holds


class Message(ctypes.Structure):
    """64 bytes, as a command record."""

    _fields_ = (("words", ctypes.c_uint64 * 8),)


def _service(name: str) -> Any:
    node = iox2.NodeBuilder.new().create(iox2.ServiceType.Ipc)
    builder = node.service_builder(iox2.ServiceName.new(name)).publish_subscribe(Message)
    # Back-pressure instead of loss, as the ring has it.
    return node, builder.subscriber_max_buffer_size(BUFFER).enable_safe_overflow(False).open_or_create()


def publish(name: str, messages: int) -> None:
    """Peer: one message at a time, waiting for room."""
    node, service = _service(name)
    publisher = service.publisher_builder().create()
    while service.dynamic_config.number_of_subscribers == 0:
        time.sleep(0.001)
    for i in range(messages):
        sample = publisher.loan_uninit()
        sample.write_payload(Message((ctypes.c_uint64 * 8)(i))).send()
    time.sleep(1)  # the segment goes with this process: let the last messages be taken
    del node


def rate(messages: int, with_peer: Callable[[Any, tuple[Any, ...], Callable[[], float]], float]) -> float:
    """Messages a second from the first one received to the last."""
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
