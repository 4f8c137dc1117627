"""Time a decode step of a Llama-like model in PyTorch as an expert writes it: what a user would run instead.

    python scripts/peer_torch.py --models llama_3_2_1b,qwen3_0_6b --requests 1,16
    python scripts/peer_torch.py --ways graph,compiled_graph --kernels
    python scripts/peer_torch.py --requests 1 --output peer       and peer/peer_torch.json, with a manifest

Weights are random, in bf16; dimensions come from conf/model/*.yaml. Models of Qwen3 also normalize q and k. Each way of
running the step (peer_torch_step.py) prints one line of JSON with the us per step:

    eager           one operator at a time
    graph           these operators, captured in a CUDA graph
    compiled_graph  the step compiled as a whole (fullgraph, coordinate descent), then captured in a CUDA graph
    cudagraph_tree  mode="reduce-overhead": the compiler captures the graphs itself

A time is the median over repeats of the wall time of `--steps` steps, divided by their number. `wall_s` is the time of
all of it, mostly to compile. `--kernels` adds the kernels of one step: name, number, and total us, by torch.profiler.
A way that fails prints its error instead. Exit code: 1 if no way has a time, 2 if an option is wrong.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from launchopt.distribution import install_command, missing
from launchopt.files import JsonObject, save_json
from launchopt.recording.environment import environment
from launchopt.recording.manifest import write_manifest
from runner.ending import end
from runner.reading import CommandParser, exit_code, whole_number

RESULT = "peer_torch.json"  # {"results": [{"way", "model", "requests", "us", ...}, ...]}
WAYS = ("eager", "graph", "compiled_graph", "cudagraph_tree")
MODELS = Path(__file__).resolve().parents[1] / "conf" / "model"


def _parser() -> CommandParser:
    parser = CommandParser("peer_torch", __doc__)
    parser.add_argument("--models", default="llama_3_2_1b", help="names of conf/model, with commas between them")
    parser.add_argument("--requests", default="1,16", help="numbers of requests, with commas (default 1,16)")
    parser.add_argument("--ways", default=",".join(WAYS), help="with commas; default: all")
    parser.add_argument("--context", type=whole_number(1), default=256, metavar="N", help="tokens of the KV cache")
    parser.add_argument("--steps", type=whole_number(1), default=100, metavar="N", help="steps of a repeat (100)")
    parser.add_argument(
        "--attention",
        choices=("gqa", "cudnn", "efficient", "math"),
        default="gqa",
        help="enable_gqa and PyTorch's choice of a kernel, or the kernel to use",
    )
    parser.add_argument(
        "--autotune",
        choices=("one", "all", "none"),
        default="one",
        help="for which numbers of requests to compile with max-autotune; one (default): for 1",
    )
    parser.add_argument("--kernels", action="store_true", help="list the kernels of a captured step")
    parser.add_argument("--output", type=Path, metavar="DIR", help="save the results here, too")
    return parser


def save(folder: Path, results: Sequence[JsonObject], started: str) -> int:
    """Write the results, and a manifest that says where they are from; return the exit code."""
    save_json(folder / RESULT, {"results": [*results]})
    device = {"kind": "cuda", "name": results[0]["gpu"]}
    about = {"started_utc": started, "device": device, "status": "ok", "environment": environment()}
    write_manifest(folder, about)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Measure each way for each model and number of requests; return the exit code."""
    parser = _parser()
    options = parser.parsed(argv, needs_words=False)
    names, ways = options.models.split(","), options.ways.split(",")
    if unknown := [name for name in names if not (MODELS / f"{name}.yaml").is_file()]:
        parser.error(f"--models={unknown[0]}: not in conf/model")
    if unknown := [way for way in ways if way not in WAYS]:
        parser.error(f"--ways={unknown[0]}: allowed are {', '.join(WAYS)}")
    if not all(number.isdecimal() and int(number) for number in options.requests.split(",")):
        parser.error(f"--requests={options.requests}: whole numbers from 1, with commas between them")
    if options.context < options.steps:
        parser.error(f"--context={options.context}: needs a token for each step: at least --steps={options.steps}")
    if missing("torch"):
        parser.error(f"needs torch: {install_command('torch')}")
    from scripts import peer_torch_step as peer

    if not peer.torch.cuda.is_available():
        parser.error("needs a GPU, and PyTorch sees none")
    if options.output:
        try:
            options.output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            parser.error(f"--output={options.output}: cannot be made ({error.strerror})")
    started, results = datetime.now(UTC).isoformat(timespec="seconds"), list[JsonObject]()
    for name in names:
        for requests in map(int, options.requests.split(",")):
            autotunes = options.autotune == "all" or (options.autotune == "one" and requests == 1)
            what = {"model": name, "requests": requests, "attention": options.attention, "context": options.context}
            shape = peer.shape_of(MODELS / f"{name}.yaml")
            given = shape, requests, options.context, options.attention, ways, options.steps, autotunes
            for found in peer.results(*given):
                if not options.kernels:
                    found.pop("kernels", None)
                results.append(peer.about() | what | found)
                print(json.dumps(results[-1]), flush=True)
    code = 0 if options.output is None else exit_code(lambda: save(options.output, results, started))
    return code or (0 if any("us" in found for found in results) else 1)


if __name__ == "__main__":
    end(main)
