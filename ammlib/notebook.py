"""What every notebook begins with: parameters that are checked before any work."""

from collections.abc import Collection, MutableMapping
from typing import Any

PLAIN = (str, int, float, list, tuple, dict, type(None))  # what papermill can inject
NAMES_OF_IPYTHON = ("In", "Out")
CHECKED = "_parameters_checked"  # set in the notebook


def check_parameters(namespace: MutableMapping[str, Any], **allowed: type | Collection) -> None:
    """Reject unknown names and values in `namespace`, a notebook's `globals()`, just after its parameters.

    `allowed` gives for each parameter its choices or its type. papermill only warns of an unknown name and runs the
    default; here it is every plain value of the notebook that is not a parameter. In a notebook that has passed once,
    as when its cells are run again with another value, the new names are its own.
    """
    valid = "; ".join(f"{name}: {_describe(values)}" for name, values in allowed.items())
    given = {name for name, value in namespace.items() if isinstance(value, PLAIN) and not name.startswith("_")}
    unknown = sorted(given - set(allowed) - set(NAMES_OF_IPYTHON))
    if unknown and CHECKED not in namespace:
        raise ValueError(f"unknown parameter {', '.join(map(repr, unknown))}; valid are {valid}")
    for name, values in allowed.items():
        if not _fits(namespace[name], values):
            raise ValueError(f"{name} must be {_describe(values)}, got {namespace[name]!r}")
    namespace[CHECKED] = True


def _fits(value: Any, allowed: type | Collection) -> bool:
    if not isinstance(allowed, type):
        return any(value == choice and _fits(value, type(choice)) for choice in allowed)
    if isinstance(value, bool):
        return allowed is bool
    return isinstance(value, int | float if allowed is float else allowed)


def _describe(allowed: type | Collection) -> str:
    if isinstance(allowed, type):
        names = {str: "a word", int: "an integer", float: "a number", bool: "True or False"}
        return names.get(allowed, f"a {allowed.__name__}")
    if isinstance(allowed, range):
        return f"an integer from {allowed[0]} to {allowed[-1]}"
    return f"one of {', '.join(map(str, allowed))}"
