"""All methods: to add one, write its class and its row here."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from ammlib.margin.amm import AMM
from ammlib.margin.baselines import Elsayed, Refined
from ammlib.methods.bayes import BayesByBackprop
from ammlib.methods.jacobian import Jacobian, Sokolic
from ammlib.methods.method import Method, Regularised
from ammlib.methods.mma import MMA
from ammlib.methods.noise import DisturbLabel, DropConnect
from ammlib.methods.softmax import EMSoftmax, LSoftmax
from ammlib.methods.svm import CRN, DLSVM


@dataclass(frozen=True)
class Row:
    """How a method is made, what it is called and how it is drawn."""

    make: Callable[..., Method]
    label: str  # in tables and figures
    colour: str
    strength: dict[str, Any] = field(default_factory=dict)  # the arguments of `make`, which a recipe can change
    source: str = ""  # where they come from; empty: recipes.toml adds the `lam`, `c` and `d` of the data set
    set: dict[str, Any] = field(default_factory=dict)  # what it replaces of a recipe's schedule
    dashed: bool = False  # its lines in figures


def regularised(regulariser: Callable[..., nn.Module]) -> Callable[..., Regularised]:
    """Training with a regulariser, made by the regulariser's arguments."""
    return lambda **strength: Regularised(regulariser(**strength))


amm = regularised(AMM)


def form(aggregation: str, shrinkage: str, **changes: Any) -> dict[str, Any]:
    """The arguments of AMM in one of its forms: all are stored under the `name` amm."""
    numbers = dict(steps=6, overshoot=0.02, num_rivals=10, clip=50.0)  # section 4.2, and as in the authors' code
    switches = dict(relative=False, high_order=True, screen="auto")
    return {**numbers, **switches, "name": "amm", "aggregation": aggregation, "shrinkage": shrinkage, **changes}


METHODS: dict[str, Row] = {  # colours: Okabe and Ito; AVG as MIN of the same shrinkage, dashed
    "reference": Row(
        Method,
        "reference",
        "#000000",
        source="assumed: from scratch with the row's schedule, also where AMM is fine-tuned from it",
        set={"start": "scratch"},
    ),
    "control": Row(  # what AMM is compared with where it is fine-tuned
        Method, "control, no AMM", "#999999", source="trained exactly as with AMM, but without it"
    ),
    "amm": Row(amm, "AMM (MIN+EXP)", "#0072B2", form("min", "exp")),
    "avg_lin": Row(amm, "AVG+LIN", "#CC79A7", form("avg", "lin"), dashed=True),
    "avg_inv": Row(amm, "AVG+INV", "#009E73", form("avg", "inv"), dashed=True),
    "avg_exp": Row(amm, "AVG+EXP", "#0072B2", form("avg", "exp"), dashed=True),
    "min_lin": Row(amm, "MIN+LIN", "#CC79A7", form("min", "lin")),
    "min_inv": Row(amm, "MIN+INV", "#009E73", form("min", "inv")),
    "no_high_order": Row(amm, "AMM, ∇f constant", "#56B4E9", form("min", "exp", high_order=False)),  # section 4.3.1
    "elsayed": Row(  # as sketched in section 4.3.1: one linear step, a hinge at gamma
        regularised(Elsayed),
        "Elsayed et al.",
        "#E69F00",
        dict(lam=64.0, gamma=0.5, overshoot=0.02, num_rivals=10),
        "tuned here (study grid_elsayed): of the best, equal within the noise, the one inside the grid",
    ),
    "refined": Row(  # notebook 09: AMM with the tight margin in place of DeepFool's
        regularised(Refined), "AMM, tight margin", "#882255", dict(aggregation="min", shrinkage="exp", steps=6)
    ),
    "deep_defense": Row(  # Yan et al. 2018: eq. 5
        amm,
        "Deep Defense",
        "#D55E00",
        form("avg", "exp", relative=True, steps=5, lam=15.0, c=25.0, d=5.0),
        "defaults of the authors' Deep Defense code, its 5 epochs and lr included",
        set={"start": "reference", "epochs": 5, "lr": 5e-4, "decay": [], "weight_decay": 5e-4},
    ),
    # The other systems of Tables 3 to 6, then two later ones. What could not be found out is searched (search_systems).
    "dlsvm": Row(DLSVM, "DLSVM", "#332288", dict(C=10.0, noise=0.0), "C: tuned here (study search_systems)"),
    "dlsvm_noise": Row(
        DLSVM,
        "DLSVM, noisy inputs",
        "#332288",
        dict(name="dlsvm", C=10.0, noise=0.1),
        "noise: tuned here (study search_systems), at DLSVM's C; published is noise 1 on 70 principal components",
        dashed=True,
    ),
    "crn": Row(CRN, "CRN-style", "#88CCEE", dict(C=30.0, iterations=2), "C: tuned here (study search_systems)"),
    "disturblabel": Row(DisturbLabel, "DisturbLabel", "#44AA99", dict(alpha=0.2), "Xie et al. 2016"),
    "dropconnect": Row(
        DropConnect,
        "DropConnect",
        "#117733",
        dict(keep=0.5, mask="gaussian"),
        "keep: Wan et al. 2013; masks by the Gaussian of its inference",
    ),
    "bayes_by_backprop": Row(
        BayesByBackprop,
        "Bayes by Backprop",
        "#DDCC77",
        dict(rho=-6.0, pi=0.5, minus_log_s1=0.0, minus_log_s2=6.0, kl=1.0),
        "rho, and the prior out of Blundell et al.'s grid: tuned here (study search_systems)",
    ),
    "l_softmax": Row(
        LSoftmax,
        "L-Softmax",
        "#CC6677",
        dict(m=4, lam=1000.0, gamma=2.5e-5, power=35.0, lam_min=0.0),
        "the authors' settings for MNIST",
    ),
    "em_softmax": Row(
        EMSoftmax,
        "EM-Softmax",
        "#AA4499",
        dict(m=5.0, lam=0.1, heads=2, members=1),
        "m and lam: tuned here (study search_systems)",
    ),
    "sokolic": Row(
        regularised(Sokolic),
        "Sokolić et al., layer-wise",
        "#661100",
        dict(alpha=0.1),
        "alpha: tuned here (study search_systems)",
    ),
    "mma": Row(
        MMA,
        "MMA",
        "#6699CC",
        dict(d_max=4.0, steps=10, clean=1 / 3),
        "the authors' code, with 10 steps of the attack in place of 40",
    ),
    "jacobian": Row(
        regularised(Jacobian),
        "Hoffman et al.",
        "#AA4466",
        dict(lam=0.003, projections=1),
        "tuned here (study search_systems); Hoffman et al. 2019: 0.01 to 0.1",
    ),
    "boundary": Row(  # DyART's idea: the first-order margin of all samples at their points of the boundary
        regularised(Refined),
        "margin at the boundary",
        "#4477AA",
        dict(aggregation="avg", shrinkage="exp", steps=6, lam=2.0, c=2.0, d=1.0),
        "after DyART (2023); lam, c and d: guesses",
    ),
}
