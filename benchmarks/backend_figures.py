"""The figures of `benchmarks.backend`: what each side measured, as ratios and shares."""

from __future__ import annotations

from typing import Any

from benchmarks.backend_sides.job import Job, ModelSize, Work
from benchmarks.output import show
from training.backends.torch.settings import TorchSettings

DECODING = 16
"""Sequences that are continued at the same time."""
DECODE_PROMPT = 128
GOALS = {"trl": 3.0, "static": 2.5, "continuous": 1.0, "training": 0.5, "llama": 0.6}
LORA_RANK = TorchSettings().lora_rank


def rollout_figures(
    job: Job,
    size: ModelSize,
    work: Work,
    ours: dict[str, float],
    others: dict[str, dict[str, Any] | str],
    gflops: float,
    limits: dict[str, float],
    bytes_per_number: int,
) -> dict[str, Any]:
    arithmetic = size.forward_flops(work) / 1e9 / gflops
    # The conversation with the most sampled tokens needs one step per token, and each step reads all weights.
    steps = max(c.reply_tokens for c in job.conversations)
    reading = steps * size.weights * bytes_per_number / 1e9 / limits["memory_gb_per_second"]
    figures: dict[str, Any] = {"least_seconds": {"arithmetic": round(arithmetic, 2), "memory": round(reading, 2)}}
    rows = []
    for name, side in {"ours": ours, **others}.items():
        if isinstance(side, str):
            figures[name] = side
            rows.append((name, "not compared", None, None, None, None))
            continue
        figures[name] = {
            "seconds": round(side["seconds"], 2),
            "sampled_tokens_per_second": round(side["sampled_tokens"] / side["seconds"], 1),
            "times_ours": round(side["seconds"] / ours["seconds"], 2),
            "share_of_arithmetic": round(arithmetic / side["seconds"], 3),
            "share_of_memory": round(reading / side["seconds"], 3),
        }
        rows.append((name, *figures[name].values()))
    figures["ours"]["computed_tokens"] = ours["computed_tokens"]
    show(
        f"Rollouts of {len(job.conversations)} conversations, {ours['sampled_tokens']} tokens each side "
        f"(goals: {GOALS['static']} times ours and {GOALS['continuous']})",
        ("", "seconds", "tokens/s", "times ours", "of arithmetic", "of memory"),
        rows,
    )
    return figures


def decode_figures(
    job: Job,
    size: ModelSize,
    ours: dict[str, float],
    llama: dict[str, Any] | str,
    gflops: float,
    limits: dict[str, float],
    bytes_per_number: int,
) -> dict[str, Any]:
    sequences = len(job.decode_prompts)
    contexts = range(DECODE_PROMPT, DECODE_PROMPT + job.decode_tokens)
    work = Work.of_positions(contexts, job.decode_tokens)
    arithmetic = sequences * size.forward_flops(work) / 1e9 / gflops
    cached = 4 if bytes_per_number == 4 else 2
    read = (
        job.decode_tokens * size.weights * bytes_per_number + sequences * sum(contexts) * size.cached_numbers * cached
    )
    reading = read / 1e9 / limits["memory_gb_per_second"]
    figures: dict[str, Any] = {}
    rows = []
    for name, side in (("ours", ours), ("llama.cpp", llama)):
        if isinstance(side, str):
            figures[name] = side
            rows.append((name, "not compared", None, None, None))
            continue
        figures[name] = {
            "tokens_per_second": round(side["sampled_tokens"] / side["seconds"], 1),
            "share_of_ours": round(ours["seconds"] / side["seconds"], 3),
            "share_of_arithmetic": round(arithmetic / side["seconds"], 3),
            "share_of_memory": round(reading / side["seconds"], 3),
        }
        rows.append((name, *figures[name].values()))
    if not isinstance(llama, str):
        figures["share_of_llama"] = round(llama["seconds"] / ours["seconds"], 3)
        rows.append(("ours / llama.cpp", figures["share_of_llama"], None, None, None))
    show(
        f"{sequences} sequences decoded at once, prompts in the cache (goal: ours {GOALS['llama']} of llama.cpp)",
        ("", "tokens/s", "of ours", "of arithmetic", "of memory"),
        rows,
    )
    return figures


def training_figures(ours: dict[str, dict[str, float]], limits: dict[str, float]) -> dict[str, Any]:
    """Return the throughput of the unavoidable arithmetic and of all arithmetic, compared with both matrix products."""
    figures = {}
    rows = []
    products = [dtype for dtype in ("float32", "bfloat16") if f"gemm_{dtype}_gflops" in limits]
    for name, update in ours.items():
        least, executed = update["least_gflop"] / update["seconds"], update["executed_gflop"] / update["seconds"]
        figures[name] = {
            "seconds": round(update["seconds"], 2),
            "tokens": int(update["tokens"]),
            "unique_tokens": int(update["unique_tokens"]),
            "least_gflops": round(least, 1),
            "executed_gflops": round(executed, 1),
            "least_of_float32_product": round(least / limits["gemm_float32_gflops"], 3),
            **{
                f"executed_of_{dtype}_product": round(executed / limits[f"gemm_{dtype}_gflops"], 3)
                for dtype in products
            },
        }
    names = list(figures["sft"])
    rows = [(name.replace("_", " "), *(figures[update][name] for update in figures)) for name in names]
    show(
        f"Updates, LoRA of rank {LORA_RANK} in all layers (goal: {GOALS['training']} of the float32 product)",
        ("", *(name.upper() for name in figures)),
        rows,
    )
    return figures


def step_figures(ours: dict[str, Any], trl: dict[str, Any] | str) -> dict[str, Any]:
    """Time rollouts plus GRPO update, without HTTP, ART's tokenization and the checkpoint, which TRL's step does not include
    either.
    """
    rollouts, update = ours["rollouts"], ours["training"]["grpo"]
    seconds = rollouts["seconds"] + update["seconds"]
    figures: dict[str, Any] = {"ours": {"seconds": round(seconds, 2), "sampled_tokens": rollouts["sampled_tokens"]}}
    rows: list[tuple[Any, ...]] = [("ours", *figures["ours"].values(), 1.0)]
    if isinstance(trl, str):
        figures["trl"] = trl
        rows.append(("TRL", "not compared", None, None))
    else:
        figures["trl"] = {
            "seconds": round(trl["seconds"], 2),
            "sampled_tokens": trl["sampled_tokens"],
            "times_ours": round(trl["seconds"] / seconds, 2),
            "batch": trl["batch"],
        }
        rows.append((f"TRL, batches of {trl['batch']}", *list(figures["trl"].values())[:3]))
    show(f"A whole GRPO step (goal: {GOALS['trl']} times ours)", ("", "seconds", "sampled tokens", "times ours"), rows)
    return figures
