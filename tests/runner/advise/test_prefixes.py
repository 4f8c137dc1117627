"""What prefix caching would save of a trace of requests."""

from __future__ import annotations

from pathlib import Path

from support.results.advices import CHAT

from runner.advise.prefixes import has_requests, prefixes_line


def test_a_trace_of_requests_says_what_prefix_caching_saves(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_text(CHAT)
    assert has_requests(path)
    line = prefixes_line(path)
    assert "has 21.3% of 2,400 prompt tokens (25.0% of full blocks of 512)" in line, "512 of 2,400; 1 of 4"
    assert not has_requests(Path("tests/corpus/kineto.json.gz"))
    assert not has_requests(tmp_path)
