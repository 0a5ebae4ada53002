"""Facts about the claims of the paper: a verdict says which of them hold here, at which scale, and by how much."""

import pytest
from made_up import lines, store

from ammlib.report.claims import table_of, verdict
from ammlib.report.frame import compare


def with_errors(name, **errors):
    """The rows of a study at short scale, as if three seeds had given about these errors."""
    rows = compare(name, "short")
    known = rows.method.isin(errors)
    return rows.assign(ours=rows.method.map(errors), std=0.1, n=3 * known)


def test_a_claim_holds_where_every_mean_is_lower_than_the_next(results):
    rows = with_errors("table2", reference=2.0, no_high_order=1.5, amm=1.0, elsayed=1.2)
    text = verdict(rows, "error: amm < no_high_order < reference")
    assert text.startswith("reproduced: as in the paper are 2 of 2 at short scale")
    text = verdict(rows, "error: amm < no_high_order < elsayed")
    assert text.startswith("partly reproduced: as in the paper are 1 of 2 at short scale")
    text = verdict(rows, "error: reference < amm")
    assert text.startswith("not reproduced: as in the paper are 0 of 1 at short scale")
    found = verdict(rows, "error: reference > no_high_order > amm")
    assert found.startswith("reproduced: as in the paper are 2 of 2") and {"+33 %", "+50 %"} == {
        *found.details.frame["change"]
    }


def test_a_verdict_is_one_line_and_has_its_comparisons_as_details(results):
    found = verdict(with_errors("table2", reference=2.0, amm=1.0), "error: amm < reference")
    assert (
        "\n" not in found
        and repr(found) == str(found)
        and found._repr_html_().startswith("<b>Verdict: reproduced</b>: ")
    )
    (told,) = lines(found.details)[1:]
    assert told.startswith(
        "yes mlp error: AMM (MIN+EXP) < reference 1.00 ± 0.10 | 2.00 ± 0.10 3 | 3 short -50 % 0.90 ±"
    )


def test_what_cannot_be_told_is_counted_apart(results):
    rows = with_errors("table2", reference=2.0, amm=1.0)
    found = verdict(rows, "error: amm < no_high_order < reference", "error: amm < reference")
    assert found.startswith("reproduced so far: as in the paper are 1 of 1 at short scale; 2 not run here")
    assert verdict(compare("table2", "short"), "error: amm < reference") == "not run here"


def test_a_comparison_is_at_the_largest_scale_at_which_both_sides_have_run(results):
    store("table2", "short", reference=2.0, amm=1.0, no_high_order=1.5)
    store("table2", "full", reference=1.8, amm=0.9)
    found = table_of(compare("table2"), ["error: amm < no_high_order", "error: amm < reference"])
    assert list(found.scale) == ["short", "full"]
    text = verdict(compare("table2"), "error: amm < reference")
    assert text.details.notes == (
        "at short scale alone (-p scale short): reproduced: as in the paper are 1 of 1 at short scale",
    )


def test_a_claim_about_a_control_is_only_about_nets_that_have_one(results):
    found = table_of(compare("table4"), ["error: amm < control"])
    assert list(found.net) == ["resnet20", "resnet56"] and {*found.holds} == {"?"}


def test_a_difference_no_larger_than_both_deviations_is_called_so(results):
    (near,) = table_of(with_errors("table2", reference=2.0, amm=1.85), ["error: amm < reference"]).itertuples()
    (far,) = table_of(with_errors("table2", reference=2.0, amm=1.7), ["error: amm < reference"]).itertuples()
    assert (near.holds, near.close, far.holds, far.close) == ("yes", True, "yes", False)  # 0.1 + 0.1 on either side
    assert (near.change, far.change) == ("-7 %, within the spread", "-15 %")


def test_a_claim_is_about_every_condition_unless_its_terms_name_their_own(results):
    rows = with_errors("fig4", reference=2.0, amm=1.0)
    everywhere = table_of(rows, ["error: amm < reference"])
    assert list(everywhere.condition) == ["train=5000", "train=10000", "train=20000", "train=60000"]
    (once,) = table_of(rows, ["error: amm train=20000 < reference train=60000"]).itertuples()
    assert once.holds == "yes" and once.paper == "1.54 ± 0.04 | 1.81 ± 0.05"
    (limit,) = table_of(rows, ["error: 1.5 < reference train=5000"]).itertuples()
    assert limit.holds == "yes" and limit.n == "3"


@pytest.mark.parametrize("claim", ["error: amm < nobody", "error: amm", "speed: amm < reference", "amm < reference"])
def test_a_claim_about_nothing_is_an_error(results, claim):
    with pytest.raises(ValueError, match="nobody|a claim is like"):
        verdict(with_errors("table2", reference=2.0, amm=1.0), claim)
