"""The decode step in PyTorch alone computes what a plain evaluation of the model gives, here on the CPU."""

from __future__ import annotations

import importlib
import json
import math
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from support.modes.torch_runs import needs_torch
from support.paths import ROOT

from runner.provenance.origins import origin
from runner.report.step_goals import PEER_FILE

if TYPE_CHECKING:
    from torch import Tensor

CONTEXT, REQUESTS, STEPS = 16, 3, 5
CARDS = ROOT / "conf" / "model"


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = importlib.import_module("scripts.peer_torch_step")
    monkeypatch.setattr(module, "DEVICE", "cpu")
    return module


def plain(model, tokens: list[int]):  # type: ignore[no-untyped-def]
    """Return the logits behind the last of `tokens` in float64, with no cache and no merged weights."""
    import torch

    s, d = model.shape, model.shape.head_dim
    positions = torch.arange(len(tokens)).double()
    angles = torch.outer(positions, 500_000.0 ** -(torch.arange(0, d, 2).double() / d))
    cosine, sine = angles.cos()[:, None], angles.sin()[:, None]

    def norm(x, gain):  # type: ignore[no-untyped-def]
        return x / ((x**2).mean(-1, keepdim=True) + s.norm_epsilon).sqrt() * gain.double()

    def turn(x):  # type: ignore[no-untyped-def]
        a, b = x[..., : d // 2], x[..., d // 2 :]
        return torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1)

    x = model.embedding.double()[tokens]
    for layer in model.layers:
        y = norm(x, layer.norm1) @ layer.qkv.double().T
        q, k, v = (part.unflatten(1, (-1, d)) for part in y.split((s.q_heads * d, s.kv_heads * d, s.kv_heads * d), 1))
        if s.normalizes_heads:
            q, k = norm(q, layer.q_norm), norm(k, layer.k_norm)
        k, v = (part.repeat_interleave(s.q_heads // s.kv_heads, 1) for part in (turn(k), v))
        scores = torch.einsum("qhd,khd->hqk", turn(q), k) / math.sqrt(d)
        scores += torch.full((len(tokens),) * 2, -math.inf).triu(1)
        attended = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).flatten(1)
        x = x + attended @ layer.o.double().T
        gate, up = (norm(x, layer.norm2) @ layer.gate_up.double().T).chunk(2, 1)
        x = x + (gate / (1 + (-gate).exp()) * up) @ layer.down.double().T
    return (norm(x, model.gain) @ model.embedding.double().T)[-1]


@needs_torch
@pytest.mark.parametrize("attention", ["gqa", "math"])
@pytest.mark.parametrize("normalizes_heads", [False, True])
def test_each_token_is_the_largest_logit_of_a_plain_evaluation(
    peer: ModuleType, attention: str, normalizes_heads: bool
) -> None:
    import torch

    torch.manual_seed(1)
    shape = peer.shape_of(CARDS / "tiny.yaml")._replace(normalizes_heads=normalizes_heads, norm_epsilon=0.1)
    model = peer.Model(shape, REQUESTS, CONTEXT, attention)
    token, position, seen = torch.zeros(REQUESTS, dtype=torch.long), torch.zeros(1, dtype=torch.long), [0]
    with torch.inference_mode():
        for _ in range(STEPS):
            token = model.step(token, position)
            logits = plain(model, seen)
            assert token.unique().numel() == 1, "all requests are alike"
            assert logits[token[0]] > logits.max() - 0.05, "but for rounding, the largest"
            seen.append(int(token[0]))
            position += 1


@needs_torch
def test_models_of_qwen_normalize_heads_and_sizes_are_those_of_their_card(peer: ModuleType) -> None:
    assert peer.shape_of(CARDS / "qwen3_0_6b.yaml") == (1024, 28, 16, 8, 128, 3072, 151936, True, 1e-6)
    assert peer.shape_of(CARDS / "llama_3_2_1b.yaml")[-2:] == (False, 1e-5)


@pytest.mark.parametrize(
    "words", [["--models=nothing"], ["--ways=fast"], ["--requests=0"], ["--requests=1,x"], ["--context=99"]]
)
def test_a_mistake_is_named(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        importlib.import_module("scripts.peer_torch").main(words)
    assert ended.value.code == 2
    assert words[0] in capsys.readouterr().err


def script_with(monkeypatch: pytest.MonkeyPatch, *found: dict[str, object]) -> ModuleType:
    """Return the script, for which a step has these results."""

    class Peer:
        torch = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: True))
        about = staticmethod(lambda: {"gpu": "NVIDIA H200"})
        shape_of = staticmethod(lambda card: card.stem)
        results = staticmethod(lambda *given: [dict(each) for each in found])

    script = importlib.import_module("scripts.peer_torch")
    monkeypatch.setitem(sys.modules, "scripts.peer_torch_step", Peer)
    monkeypatch.setattr(sys.modules["scripts"], "peer_torch_step", Peer, raising=False)
    monkeypatch.setattr(script, "missing", lambda *names: [])
    return script


def test_without_a_time_the_results_are_saved_and_the_exit_code_is_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = script_with(monkeypatch, {"way": "graph", "failed": "no memory"})
    assert script.main(["--requests", "1", "--output", str(tmp_path)]) == 1
    assert script.main(["--requests", "1"]) == 1
    assert "no memory" in (tmp_path / script.RESULT).read_text()


@needs_torch
def test_no_way_takes_more_steps_than_were_asked_for(peer: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer.torch.cuda, "synchronize", lambda: None)
    seen = set[int]()

    def step(token: Tensor, position: Tensor) -> Tensor:
        seen.add(int(position))
        return token

    assert "us" in peer.measured("eager", SimpleNamespace(requests=1, step=step), 5, False)
    assert seen == {*range(5)}


def test_results_are_saved_with_a_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"way": "graph", "us": 900.0, "kernels": []}, {"failed": "no memory"}
    script = script_with(monkeypatch, *found)
    folder = tmp_path / "new" / "peer"
    assert script.main(["--requests", "1", "--output", str(folder)]) == 0
    first, second = json.loads((folder / script.RESULT).read_text())["results"]
    assert (first["us"], first["requests"], second["failed"]) == (900.0, 1, "no memory")
    assert (origin(folder / "manifest.json").machine, script.RESULT) == ("NVIDIA H200", PEER_FILE)
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit):
        script.main(["--output", str(tmp_path / "file" / "x")])
