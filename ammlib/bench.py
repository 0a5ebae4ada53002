"""What the method costs: a training step against plain cross-entropy, and DeepFool against foolbox.

One process, one thread; the variants take turns on the same batches, so that whatever else the machine does hits them
alike; CPU time, medians. Memory is the peak of the bytes that torch allocates during a step, from its profiler.
"""

import json
import platform
import time
from collections.abc import Callable
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm.auto import tqdm

from ammlib.amm import AMM
from ammlib.data import load_data
from ammlib.data.datasets import data_root
from ammlib.deepfool import Walk, deepfool
from ammlib.device import keep_freed_memory
from ammlib.models import make_model
from ammlib.recipes import make_recipe
from ammlib.train import make_regulariser, set_mode, trained_parameters

BATCH = 100
VARIANTS = {  # what each changes of the recipe's MIN + EXP; None: no regulariser
    "plain": None,
    "MIN + EXP, screened": {},
    "MIN + EXP, exact": {"screen": None},
    "AVG + EXP": {"aggregation": "avg"},
}
CASES = {"mlp": ("mnist", 600), "lenet": ("mnist", 600), "resnet20": ("cifar10", 150)}  # data, steps of warming up
TARGETS = {  # the ratios to plain that were aimed at
    "mlp": {"MIN + EXP, screened": 2.5, "MIN + EXP, exact": 6.5, "AVG + EXP": 8.0, "memory": 1.5},
    "lenet": {"MIN + EXP, screened": 3.5, "MIN + EXP, exact": 15.0, "memory": 1.5},
    "resnet20": {"MIN + EXP, screened": 4.0, "memory": 1.5},
}


def images(dataset: str) -> tuple[Tensor, Tensor, str]:
    """The data set if it is at hand, otherwise scikit-learn's digits enlarged to its size."""
    if (data_root() / f"{dataset}.npz").exists():
        return *load_data(dataset).train, dataset
    x, y = load_data("digits" if dataset == "mnist" else "digits32").train
    return F.interpolate(x, size=28 if dataset == "mnist" else 32, mode="bilinear"), y, "digits, enlarged"


class Trainer:
    """One model with its optimiser that can take a step with or without a regulariser."""

    def __init__(self, arch: str, seed: int = 0) -> None:
        torch.manual_seed(seed)
        dataset, _ = CASES[arch]
        self.recipe = make_recipe(dataset, arch, "amm")
        self.model = make_model(dataset, arch)
        self.parameters = list(self.model.parameters())
        self.optimizer = torch.optim.SGD(self.parameters, lr=self.recipe.lr, momentum=0.9, weight_decay=1e-4)
        self.x, self.y, self.source = images(dataset)
        self.generator = torch.Generator().manual_seed(seed)

    def regulariser(self, variant: str) -> AMM | None:
        changes = VARIANTS[variant]
        return None if changes is None else make_regulariser(self.recipe.with_(**changes))

    def batch(self) -> tuple[Tensor, Tensor]:
        rows = torch.randint(len(self.x), (BATCH,), generator=self.generator)
        return self.x[rows], self.y[rows]

    def step(self, x: Tensor, y: Tensor, amm: AMM | None) -> None:
        logits = self.model(x)
        loss = F.cross_entropy(logits, y)
        if amm is not None:
            loss = loss + amm(self.model, x, y, logits=logits)
        self.optimizer.zero_grad()
        loss.backward()
        self.update()

    def update(self) -> None:
        nn.utils.clip_grad_norm_(self.parameters, 10)
        self.optimizer.step()

    def warm_up(self, plain: int, screened: int) -> None:
        """Train for a while, so that many samples are classified correctly, as during most of a run.

        Nets that are fine-tuned with frozen batch norm get it frozen in between.
        """
        amm = self.regulariser("MIN + EXP, screened")
        for i in tqdm(range(plain + screened), "partly training", leave=False):
            if i == plain:
                self.parameters = trained_parameters(self.model, self.recipe.freeze_bn)
                set_mode(self.model, self.recipe.freeze_bn)
            self.step(*self.batch(), None if i < plain else amm)


def cpu_seconds(action: Callable[[], object]) -> float:
    start = time.process_time()
    action()
    return time.process_time() - start


def step_times(arch: str, repeats: int = 30, warm_up: tuple[int, int] | None = None) -> dict:
    """Median CPU time of a training step of each variant, in turns on the same batches."""
    trainer = Trainer(arch)
    warm_up = warm_up or (CASES[arch][1], CASES[arch][1] // 6)
    trainer.warm_up(*warm_up)
    regularisers = {name: trainer.regulariser(name) for name in VARIANTS}
    times: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for _ in tqdm(range(repeats), f"steps of {arch}", leave=False):
        x, y = trainer.batch()
        for name, amm in regularisers.items():
            times[name].append(cpu_seconds(partial(trainer.step, x, y, amm)))
    peak = {name: peak_bytes(trainer, regularisers[name]) for name in VARIANTS}
    plain = median(times["plain"])
    last = {name: amm.last.__dict__ for name, amm in regularisers.items() if amm is not None}
    return {
        "arch": arch,
        "images": trainer.source,
        "warm_up_steps": warm_up,
        "repeats": repeats,
        "milliseconds": {name: 1e3 * median(t) for name, t in times.items()},
        "ratio": {name: median(t) / plain for name, t in times.items()},
        "parts_of_screened_step": where_time_goes(trainer, repeats),
        "peak_bytes": peak,
        "peak_ratio": {name: bytes_ / peak["plain"] for name, bytes_ in peak.items()},
        "last_call": last,
    }


class Timed(AMM):
    """MIN + EXP that notes how long it follows trajectories."""

    seconds = 0.0

    def follow(self, *args: object) -> Walk:
        start = time.process_time()
        path = super().follow(*args)
        self.seconds = time.process_time() - start
        return path


def where_time_goes(trainer: Trainer, repeats: int) -> dict[str, float]:
    """Milliseconds of the parts of a screened MIN + EXP step, medians."""
    options = {name: value for name, value in trainer.recipe.regulariser.items() if name != "name"}
    amm, parts = Timed(**options), []
    for _ in range(repeats):
        x, y = trainer.batch()
        marks = [time.process_time()]
        logits = trainer.model(x)
        loss = F.cross_entropy(logits, y)
        marks.append(time.process_time())
        loss = loss + amm(trainer.model, x, y, logits=logits)
        marks.append(time.process_time())
        trainer.optimizer.zero_grad()
        loss.backward()
        marks.append(time.process_time())
        trainer.update()
        marks.append(time.process_time())
        forward, term, backward, update = (b - a for a, b in pairwise(marks))
        parts.append((forward, amm.seconds, term - amm.seconds, backward, update))
    names = ("cross-entropy, forward", "trajectories", "margins, with graph", "backward of both", "clip and SGD")
    return {name: 1e3 * median(times) for name, times in zip(names, zip(*parts, strict=True), strict=True)}


def peak_bytes(trainer: Trainer, amm: AMM | None) -> int:
    """Bytes that torch has allocated at the peak of one training step, beyond those held before it."""
    x, y = trainer.batch()
    trainer.step(x, y, amm)
    trainer.optimizer.zero_grad()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        trainer.step(x, y, amm)
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return max(accumulate(event.nbytes() for event in events))


def against_foolbox(arch: str, samples: int = 500, repeats: int = 3) -> dict | None:
    """CPU time and norms of `deepfool` and of foolbox's L2 DeepFool on the same images; None without foolbox."""
    try:
        import foolbox
    except ImportError:
        return None
    trainer = Trainer(arch)
    trainer.warm_up(600, 0)
    model = trainer.model.eval()
    x, _ = trainer.x[:samples], trainer.y[:samples]
    y = model(x).argmax(1)
    attack = foolbox.attacks.L2DeepFoolAttack(steps=50)
    wrapped = foolbox.PyTorchModel(model, bounds=(-100, 100), device="cpu")
    found: dict[str, Tensor] = {}

    def ours() -> None:
        found["ours"] = deepfool(model, x, steps=50).norm

    def theirs() -> None:
        found["foolbox"] = (attack.run(wrapped, x, y) - x).flatten(1).norm(dim=1)

    times: dict[str, list[float]] = {"ours": [], "foolbox": []}
    for _ in tqdm(range(repeats), f"DeepFool on {arch}", leave=False):
        times["ours"].append(cpu_seconds(ours))
        times["foolbox"].append(cpu_seconds(theirs))
    seconds = {name: median(t) for name, t in times.items()}
    return {
        "samples": samples,
        "seconds": seconds,
        "speed_up": seconds["foolbox"] / seconds["ours"],
        "mean_norm": {name: float(norm.mean()) for name, norm in found.items()},
        "median_norm": {name: float(norm.median()) for name, norm in found.items()},
    }


def table(results: list[dict]) -> str:
    """The measurements as text, each with its target where there is one."""
    lines = [f"{'':30}" + "".join(f"{r['arch']:>22}" for r in results)]

    def row(name: str, cells: list[str]) -> None:
        lines.append(f"{name:30}" + "".join(f"{cell:>22}" for cell in cells))

    def aim(r: dict, name: str) -> str:
        target = TARGETS[r["arch"]].get(name)
        return "" if target is None else f" (aim {target:g})"

    row("plain step, ms", [f"{r['milliseconds']['plain']:.1f}" for r in results])
    for name in list(VARIANTS)[1:]:
        row(f"{name}, x", [f"{r['ratio'][name]:.2f}{aim(r, name)}" for r in results])
    for name in results[0]["parts_of_screened_step"]:
        row(f"  {name}, ms", [f"{r['parts_of_screened_step'][name]:.1f}" for r in results])
    row("peak memory, x", [f"{r['peak_ratio']['MIN + EXP, screened']:.2f}{aim(r, 'memory')}" for r in results])
    compared = [r["foolbox"] for r in results]
    if any(compared):
        row("foolbox / deepfool, x", [f"{r['speed_up']:.1f} (aim 5)" if r else "" for r in compared])
        row("mean norm, foolbox", [f"{r['mean_norm']['foolbox']:.4f}" if r else "" for r in compared])
        row("mean norm, deepfool", [f"{r['mean_norm']['ours']:.4f}" if r else "" for r in compared])
    else:
        lines.append("foolbox is not installed: pip install foolbox==3.3.4 to compare")
    return "\n".join(lines)


def bench(archs: list[str], output: Path, repeats: int = 30) -> None:
    """Measure, print the table, write everything as JSON."""
    torch.set_num_threads(1)
    keep_freed_memory()
    results = []
    for arch in archs:
        mnist = CASES[arch][0] == "mnist"  # on a larger net foolbox would take minutes
        results.append({**step_times(arch, repeats), "foolbox": against_foolbox(arch) if mnist else None})
    print(table(results))
    about = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "batch": BATCH,
        "method": " ".join((__doc__ or "").split()),
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps({**about, "results": results}, indent=1) + "\n")
    print(f"written to {output}")
