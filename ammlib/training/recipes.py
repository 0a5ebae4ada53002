"""A recipe is everything that, with a seed, determines a run; the numbers and their sources are in recipes.toml."""

import hashlib
import json
import math
import tomllib
from collections.abc import Callable
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ammlib.margin.classifier import choose
from ammlib.methods.losses import LOSSES
from ammlib.methods.registry import METHODS
from ammlib.training.device import best_device

TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
BY_DATASET = TABLES["dataset"]  # what the recipes of a data set have in common
FAMILIES: dict[str, str] = TABLES["family"]
ALIASES: dict[str, str] = TABLES["alias"]
COLUMNS = ("batch", "epochs", "lr", "decay", "start")
SCHEDULES: dict[str, dict[str, dict[str, Any]]] = {dataset: {} for dataset in BY_DATASET}  # data set -> arch -> row
for _table in TABLES["schedule"]:
    for _dataset, _arch, *_row in _table["rows"]:
        SCHEDULES[_dataset][_arch] = {"set": dict(zip(COLUMNS, _row, strict=True)), "source": _table["source"]}

IDENTITY = ("dataset", "family", "arch", "method", "scale", "weights", "source")  # not for `with_` to change
DATA = ("crop", "flip", "train_size", "noisy", "data_seed", "validation", "half", "margin_size")
LEAST = {"batch": 1, "train_size": 1, "margin_size": 1}  # 0 for every other number
MOST = 1e30  # for every number that is not an integer: float32 ends at 3e38
VALUES: dict[str, tuple[Any, ...]] = {
    "scale": ("full", "short", "tuned"),
    "start": ("scratch", "reference", "pretrained"),
    "crop": (None, "resize36", "pad4"),
    "loss": tuple(LOSSES),
    "weights": (None, "akamaster", "chenyaofo"),
    "half": (None, "search", "report"),
}
Cuts = tuple[tuple[int, float], ...]  # of the learning rate: (epoch, multiplier of the initial one)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Plain values that survive JSON; two recipes are equal if they train alike, whatever their `source` says."""

    dataset: str
    family: str  # of the models that fit the images
    arch: str
    method: str
    scale: str  # "full": the paper's protocol; "short": a stated reduction; "tuned": from converged references
    epochs: int
    batch: int
    lr: float
    decay: Cuts
    momentum: float
    weight_decay: float
    clip_grad: float  # the largest norm of the gradient
    start: str  # "scratch"; "reference": the weights of `reference_of(recipe)`; "pretrained": the community's
    freeze_bn: bool
    crop: str | None
    flip: bool
    train_size: int | None  # a random subset of the training images; None: all
    noisy: int  # so many of these get a random label
    data_seed: int  # of validation split, subset and noise
    validation: bool  # hold out 5,000 training images and evaluate on them instead of the test images
    margin_size: int | None  # measure the margin of a random subset of the test images; None: all
    loss: str  # "none": the regulariser alone
    # The row that makes the method, as `name`, and its arguments; None: plain training.
    regulariser: dict | None  # type: ignore[type-arg]  # isinstance takes no dict[str, Any]
    # What came later has a default, with which it is left out of digest and JSON: what was stored before stays valid.
    weights: str | None = None  # who published those that `start` leads to; their net may have shortcuts of option B
    half: str | None = None  # evaluate on this half of the test images: "search", to choose settings, or "report"
    source: str = field(compare=False)  # where the numbers come from

    def __post_init__(self) -> None:
        for f in fields(self):
            object.__setattr__(self, f.name, _typed(f.name, getattr(self, f.name), f.type))
        if self.train_size == BY_DATASET.get(self.dataset, {}).get("images"):
            object.__setattr__(self, "train_size", None)  # so that "all" has one form
        _check(self)

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def key(self) -> str:
        """What the run is called in tables and folders, such as mnist/mlp/amm."""
        return f"{self.dataset}/{self.arch}/{self.method}"

    @property
    def arguments(self) -> dict[str, Any]:
        """Those of the method, if it has any."""
        return {name: value for name, value in (self.regulariser or {}).items() if name != "name"}

    @property
    def digest(self) -> str:
        """Ten hexadecimal digits that tell unequal recipes apart."""
        values = {**self.to_dict(), "source": None}
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:10]

    def to_dict(self) -> dict[str, Any]:
        """The recipe exactly as JSON gives it back."""
        values = {name: value for name, value in asdict(self).items() if value != DEFAULTS.get(name, MISSING)}
        plain: dict[str, Any] = json.loads(json.dumps(values))
        return plain

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Recipe":
        """The recipe that `to_dict` wrote."""
        if not isinstance(values, dict):
            raise ValueError(f"a recipe is a dict, got {values!r:.40}")
        if wrong := {f.name for f in fields(cls)} ^ (DEFAULTS.keys() | values.keys()):
            raise ValueError(f"not a recipe of this version; unknown or missing: {', '.join(sorted(wrong))}")
        return cls(**values)

    def with_(self, **overrides: Any) -> "Recipe":
        """A changed copy; takes the method's arguments too (lam=4.0), and new `epochs` move the cuts along."""
        arguments = self.arguments
        for name in overrides:
            choose("setting", name, dict.fromkeys([*SETTINGS, *arguments]))
        changes = {name: value for name, value in overrides.items() if name in SETTINGS}
        if "epochs" in changes and "decay" not in changes:
            changes["decay"] = scale_cuts(self.decay, self.epochs, _typed("epochs", changes["epochs"], int))
        kinds = {name: type(value) for name, value in arguments.items()} | {"screen": str | None}
        inner = {name: _typed(name, value, kinds[name]) for name, value in overrides.items() if name in arguments}
        if inner:
            changes["regulariser"] = {**(changes.get("regulariser") or self.regulariser or {}), **inner}
        changed = replace(self, **changes)
        return self if changed == self else replace(changed, source=f"{self.source}; changed: {', '.join(overrides)}")


SETTINGS = [f.name for f in fields(Recipe) if f.name not in IDENTITY]
DEFAULTS = {f.name: f.default for f in fields(Recipe) if f.default is not MISSING}


def _typed(name: str, value: Any, kind: Any) -> Any:
    """The value as `kind`; integers pass for floats and lists for tuples, anything else is an error."""
    if kind is Cuts:
        try:
            return tuple((_typed("epoch", at, int), _typed("multiplier", by, float)) for at, by in value)
        except (TypeError, ValueError):
            raise ValueError(f"{name} must be pairs (epoch, multiplier), got {value!r}") from None
    value = float(value) if kind is float and type(value) is int else value
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{name} must be {getattr(kind, '__name__', kind)}, got {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value}")
    return dict(value) if isinstance(value, dict) else value


def _check(recipe: Recipe) -> None:
    """Reject values that no run could use."""
    for name, value in vars(recipe).items():
        if name in VALUES and value not in VALUES[name]:
            raise ValueError(f"{name} must be one of {', '.join(map(repr, VALUES[name]))}, got {value!r}")
        if isinstance(value, int | float) and value < LEAST.get(name, 0):
            raise ValueError(f"{name} must be at least {LEAST.get(name, 0)}, got {value}")
        if isinstance(value, float) and value > MOST:
            raise ValueError(f"{name} must be at most {MOST:g}, got {value}")
    if recipe.momentum >= 1:
        raise ValueError(f"momentum must be less than 1, or steps only grow; got {recipe.momentum}")
    if recipe.clip_grad == 0:
        raise ValueError("clip_grad is the largest norm of the gradient: 0 trains nothing, a large number clips none")
    if not all(0 <= multiplier <= MOST for _, multiplier in recipe.decay):
        raise ValueError(f"multipliers of the rate lie in 0 ... {MOST:g}, got decay={recipe.decay}")
    cuts = [0, *(epoch for epoch, _ in recipe.decay), max(1, recipe.epochs)]
    if cuts != sorted(set(cuts)):
        raise ValueError(f"cuts must lie in order within the {recipe.epochs} epochs, got decay={recipe.decay}")
    if recipe.noisy > (recipe.train_size or math.inf):
        raise ValueError(f"noisy is {recipe.noisy}, more than the {recipe.train_size} training images")
    if recipe.half is not None and recipe.validation:
        raise ValueError(f"half is {recipe.half!r} of the test images, but validation looks at none of them")
    if recipe.regulariser is not None:
        choose("method", recipe.regulariser.get("name", ""), METHODS)
    elif recipe.loss == "none":
        raise ValueError(f"{recipe.key} has neither a loss nor a regulariser: there is nothing to train")


def scale_cuts(decay: Cuts, epochs: int, new: int) -> Cuts:
    """The cuts of a schedule of `epochs` in one of `new`, rounded down; one that meets the previous moves on."""
    cuts = [(0, 1.0)]
    for epoch, multiplier in decay:
        cuts.append((max(epoch * new // epochs, cuts[-1][0] + 1), multiplier))
    return tuple(cut for cut in cuts[1:] if cut[0] < new)


def resolve_scale(scale: str, cuda_available: bool) -> str:
    """Turn "auto" into "full" on CUDA and "short" on the CPU."""
    known: dict[str, str] = {name: name for name in VALUES["scale"]}
    return choose("scale", scale, known | {"auto": "full" if cuda_available else "short"})


def scale_of(like: str, scale: str) -> str:
    """The scale that is meant on this machine; some data sets know better what "auto" stands for."""
    scale = BY_DATASET[like].get("auto", scale) if scale == "auto" else scale
    return resolve_scale(scale, best_device().type == "cuda")


def stands_for(dataset: str, family: str | None) -> str:
    """The data set whose rows apply: itself or, for a user's own data, the one that stands for the family."""
    if dataset in BY_DATASET:
        if family not in (None, BY_DATASET[dataset]["family"]):
            raise ValueError(f"{dataset} has its own recipes; a family, here {family!r}, is for your own data")
        return dataset
    if family is None:
        own = f"or, for your own data, name its family: {', '.join(FAMILIES)}"
        raise ValueError(f"unknown data set {dataset!r}; choose from {', '.join(BY_DATASET)}; {own}")
    return choose("family", family, FAMILIES)


def _short(like: str, arch: str, schedule: dict[str, Any]) -> dict[str, Any]:
    """The reductions of the short scale."""
    rows = TABLES["short"].get(like) or TABLES["short"][BY_DATASET[like]["family"]]
    reduction = rows.get(arch) or rows["any"]
    return {**reduction, "decay": scale_cuts(schedule["decay"], schedule["epochs"], reduction["epochs"])}


def _tuned(dataset: str, arch: str) -> dict[str, Any]:
    """The schedule of the tuned scale, which not every net has."""
    table = choose("data set at the tuned scale", dataset, TABLES["tuned"])
    return {**table["set"], **choose(f"arch for {dataset} at the tuned scale", arch, table["archs"])}


def _plan(like: str, method: str, own: bool, scale: str) -> dict[str, Any]:
    """What a method adds on a data set: `set`, `regulariser` with all its arguments, and their `source`."""
    row = choose("method", method, METHODS)
    table = TABLES["tuned"][like] if scale == "tuned" else BY_DATASET[like]
    plan: dict[str, Any] = {"set": row.set, "source": row.source}
    if not row.strength:
        plan = table.get(method, plan)
        plan = plan.get("own", plan) if own else plan
        return plan
    by_data = table.get("strength") or TABLES["strength"][like]
    strength = by_data.get(method, {} if row.source else by_data["amm"])
    source = by_data["source"] if strength else row.source
    return {**plan, "regulariser": {"name": method, **row.strength, **strength}, "source": source}


def make_recipe(
    dataset: str, arch: str, method: str, scale: str = "auto", family: str | None = None, **overrides: Any
) -> Recipe:
    """The recipe of a method on a data set; `family` (mnist, cifar, digits, imagenet) is for a user's own data."""
    like, method = stands_for(dataset, family), ALIASES.get(method, method)
    scale, family = scale_of(like, scale), BY_DATASET[like]["family"]
    row = choose(f"arch for {dataset}", arch, SCHEDULES[like])
    reduction: dict[str, Callable[[], dict[str, Any]]] = {
        "full": dict,
        "short": lambda: _short(like, arch, row["set"]),
        "tuned": lambda: _tuned(dataset, arch),
    }
    changes = reduction[scale]()
    plan = _plan(like, method, dataset != like, scale)
    settings: dict[str, Any] = dict.fromkeys(f.name for f in fields(Recipe))
    settings |= {"dataset": dataset, "family": family, "arch": arch, "method": method, "scale": scale}
    settings |= TABLES["protocol"] | BY_DATASET[like].get("set", {}) | row["set"]
    settings |= changes
    settings |= plan.get("set", {}) | {"regulariser": plan.get("regulariser")}
    if dataset != like:  # of unknown size, and mirrored it may show something else
        settings |= {"train_size": None, "flip": False}
    settings["freeze_bn"] = settings["start"] == "reference" and arch in TABLES["freeze_bn"]["archs"]
    short = "; short scale: ours" if scale == "short" else ""
    schedule = TABLES["tuned"][like]["source"] if scale == "tuned" else row["source"]
    settings["source"] = f"schedule: {schedule}; {method}: {plan['source']}{short}"
    return Recipe(**settings).with_(**overrides)


def label(method: str) -> str:
    """What tables and figures call a method."""
    return METHODS[method].label


def reference_of(recipe: Recipe) -> Recipe:
    """The reference that a recipe starts from or is compared with: same data, architecture and scale."""
    data = {name: getattr(recipe, name) for name in DATA}
    return make_recipe(recipe.dataset, recipe.arch, "reference", recipe.scale, recipe.family, **data)
