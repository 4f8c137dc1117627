"""Small nsys exports with the table layouts of nsys, for tests of their readers."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from launchopt.analysis.profiles.nsys import Profile, read_profile

PID, OTHER_PID = 7 << 24, 8 << 24
TID, TID_2 = PID | 70, PID | 71

SPAN = 'start INTEGER NOT NULL, "end" INTEGER NOT NULL'
LAYOUT = {
    "StringIds": "id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL",
    "NVTX_EVENTS": 'start INTEGER NOT NULL, "end" INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, '
    "category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, "
    "domainId INTEGER, uint64Value INTEGER, int64Value INTEGER",
    "CUPTI_ACTIVITY_KIND_RUNTIME": f"{SPAN}, eventClass INTEGER NOT NULL, "
    "globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL",
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{SPAN}, deviceId INTEGER NOT NULL, "
    "streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, shortName INTEGER NOT NULL",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": f"{SPAN}, correlationId INTEGER, globalPid INTEGER, graphId INTEGER",
}


class Export:
    """An nsys export under construction; tables appear with their first row, as nsys writes them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.database = sqlite3.connect(path)
        self.strings: dict[str, int] = {}

    def add(self, table: str, **values: object) -> None:
        self.database.execute(f"CREATE TABLE IF NOT EXISTS {table} ({LAYOUT[table]})")
        names = ", ".join(f'"{name}"' for name in values)
        marks = ", ".join("?" * len(values))
        self.database.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", list(values.values()))

    def text(self, value: str) -> int:
        if value not in self.strings:
            self.strings[value] = len(self.strings) + 100
            self.add("StringIds", id=self.strings[value], value=value)
        return self.strings[value]

    def domain(self, name: str, start: int = 0, domain: int = 1, tid: int = TID) -> None:
        self.add("NVTX_EVENTS", start=start, eventType=75, text=name, globalTid=tid, domainId=domain)

    def span(self, name: str, start: int, end: int | None, tid: int = TID, domain: int = 1, kind: int = 59) -> None:
        self.add(
            "NVTX_EVENTS",
            start=start,
            end=end,
            eventType=kind,
            textId=self.text(name),
            globalTid=tid,
            domainId=domain,
        )

    def call(self, start: int, correlation: int, name: str = "cudaLaunchKernel_v7000", tid: int = TID) -> None:
        self.add(
            "CUPTI_ACTIVITY_KIND_RUNTIME", start=start, end=start + 4, eventClass=0, globalTid=tid,
            correlationId=correlation, nameId=self.text(name), returnValue=0,
        )  # fmt: skip

    def kernel(self, start: int, end: int, correlation: int | None, pid: int = PID) -> None:
        self.add(
            "CUPTI_ACTIVITY_KIND_KERNEL", start=start, end=end, deviceId=0, streamId=7,
            correlationId=correlation, globalPid=pid, shortName=1,
        )  # fmt: skip

    def close(self) -> Path:
        self.database.commit()
        self.database.close()
        return self.path

    def read(self, mode: str | None = None) -> Profile:
        return read_profile(self.close(), mode)
