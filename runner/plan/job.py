"""A job: everything that the children need for their runs, as picklable values."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from launchopt.command import ShapeKey
from launchopt.devices.peers.segment import Team
from launchopt.files import JsonObject
from launchopt.modes.base import Mode, Takes
from launchopt.modes.stack import label_of, stack_of
from launchopt.producing.production import Routing, Schedule
from launchopt.sampling import Sampling, SamplingKind
from launchopt.streams.chains.chain import Stream

NO_SAMPLING = Sampling(SamplingKind.none)


@dataclass(frozen=True, slots=True)
class Arm:
    """One mode with its batching settings. All arms of a job run the same workload stream on the same operands."""

    mode: str
    max_batch: int
    timeout_us: float
    idle_us: float | None
    options: JsonObject = field(default_factory=dict)  # the mode's settings
    ahead: bool = False  # the driver pushes all commands of a step but the last while the previous step runs
    together: int = 1  # most steps of a request that the driver issues together, for one launch

    @property
    def label(self) -> str:
        """Name of the arm in tables and files: the mode's, and how its stack differs from the preset's."""
        return label_of(self.mode, stack_of(self.mode, self.options))

    def limits(self, stream: Stream, takes: Takes) -> dict[ShapeKey, int]:
        """Return the maximum commands in a batch of each shape, in the order of the stream's shapes."""
        most = 1 if takes is Takes.commands else self.max_batch
        return {shape: min(most, stream.together(shape)) for shape in stream.shapes}

    def buckets(self, stream: Stream, mode: type[Mode] | Mode) -> list[int]:
        """Return the maximum commands in each bucket. A mode has one bucket per shape, or one for all shapes."""
        if commands := mode.whole_pass(stream):
            return [commands]
        limits = self.limits(stream, mode.takes_of(stream))
        return [min(self.max_batch, sum(limits.values()))] if mode.merges_shapes else list(limits.values())


@dataclass(frozen=True, slots=True)
class Job:
    """One workload stream, one device, and the arms that run the stream on it."""

    run_id: str
    folder: Path
    config: JsonObject  # the composed config, for the metadata of files
    stream: Stream
    arms: tuple[Arm, ...]
    device_kind: str
    device_index: int
    threads: int | None
    pin_cpu: int | None
    timing: str
    sample_every: int
    capacity: int
    spin_us: float
    sleep_us: float
    seed: int
    verify_columns: int
    verify_budget_s: float | None  # for checking a repeat; infinite: check all; None: its own time, at least 5 s
    residency: str | None  # reason why inputs may come from a cache; None if they cannot
    record_launches: bool
    record_commands: bool
    ring_name: str = ""
    tunes: bool = True  # the algorithms that cuBLASLt proposes are timed, for every mode
    open_loop: bool = False  # independent commands that arrive at times of their own
    first_part: int = 0  # of the tables: runs of the processes before
    is_last: bool = True  # the tables are complete after this process
    # Settings of a stream of requests.
    violated: bool = False  # batches break the order within requests on purpose
    on_stall: bool = True
    sampling: Sampling = NO_SAMPLING
    samples_on_host: bool = False
    schedule: Schedule = field(default_factory=Schedule)
    back_name: str = ""  # the ring that notifies the driver of complete steps
    # Several consumers: each has a job with rings of its own, the producer has the names of all rings.
    gpu: int | None = None  # of this consumer, an entry of device.gpus; None: there is one consumer
    consumer: int = 0  # number of this consumer
    consumers: int = 1
    routing: Routing = Routing.round_robin
    all_rings: tuple[tuple[str, str], ...] = ()  # ring and back ring of each consumer
    nccl: bool = False  # NCCL adds the parts of consumers that split the model
    team: Team | None = None  # the consumers that split the model; None: each consumer has the whole model

    @property
    def is_split(self) -> bool:
        """Whether several consumers split the model, and each executes its share of every command."""
        return self.stream.tensor > 1

    @property
    def writers(self) -> int:
        """Number of consumers that write to the tables of the folder."""
        return max(self.consumers, self.stream.tensor)

    @property
    def back_capacity(self) -> int:
        """Records in the back ring: a power of two, more than there are steps in flight."""
        return 1 << (self.stream.requests * max(arm.together for arm in self.arms)).bit_length()
