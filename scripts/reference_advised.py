"""The parts of the reference results that check `launchopt advise`: an advice, and a run of all stacks after it.

A part is one call of scripts/advised.py. The dimensions of the models are those of their config.json on Hugging Face.
Llama 3 8B has 8 of its 32 layers, so that all stacks run in two minutes; each layer costs the same.
"""

from __future__ import annotations

from scripts.reference_part import Part

ADVISED, GPU, CPU = "advised", "gpu", "cpu2"  # the folders of the parts
MODELS = {
    GPU: ("llama_3_2_1b", "qwen3_0_6b", "llama_3_8b_8_layers"),
    CPU: ("smollm2_135m", "smollm2_360m", "qwen3_0_6b"),
}
REQUESTS = (1, 16, 64, 4)  # the most wanted first
# Device, options, and most minutes. The budgets are those of launchopt advise.
LIMITS = {GPU: ("cuda", "--budget-s 120 --repeats-s 20", 8.0), CPU: ("cpu", "--budget-s 60 --repeats-s 40", 6.0)}
SECONDS = {GPU: {1: 200, 4: 200, 16: 260, 64: 400}, CPU: dict.fromkeys(REQUESTS, 120)}  # estimates


def _part(machine: str, model: str, requests: int) -> Part:
    device, options, minutes = LIMITS[machine]
    work = f"scripts/advised_models/{model}.json --requests {requests} --device {device}"
    command = f"python -m scripts.advised {work} {options} --output {{folder}}"
    folder, seconds = f"{ADVISED}/{machine}/{model}_{requests}", SECONDS[machine][requests]
    return Part(folder, device, minutes, (command,), seconds=seconds)


ADVISED_PARTS = tuple(
    _part(machine, model, requests) for machine in LIMITS for requests in REQUESTS for model in MODELS[machine]
)
