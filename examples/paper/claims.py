"""The claims of the paper (arXiv 2505.15105) as tests on pooled runs, with the paper's own numbers.

Use:

    for claim in claims("mini"):
        for measure in claim.measures:
            print(claim.text, measure.name, measure.limit, measure.judge(pools))

The limits are those of accuracy at width 256 in the paper; where a model is said to fail, the limit
is raised at scale "mini" by what guessing among the values in context gains there: 1/8 for 1/16.
"""

from measures import (
    Claim,
    Measure,
    accuracy,
    accuracy_beyond_heuristics,
    attrib,
    difference,
)

STREAM, CONV = "L1.block_input", "L0.conv_output"
AR, AR_CONV, AR_LAYERS, ATR = "paper_ar", "paper_ar_conv", "paper_ar_layers", "paper_atr_noconv"
GUESS = {"mini": 1 / 8, "paper": 1 / 16}


def claims(scale: str) -> tuple[Claim, ...]:
    """Return the claims, with the limits of a scale ("mini" or "paper")."""
    more = GUESS[scale] - GUESS["paper"]
    return (
        Claim(
            text="Attention, Based and Mamba solve associative recall",
            measures=(
                _accuracy(AR, "attention", at_least=0.99, paper="1.00"),
                _accuracy(AR, "based", at_least=0.97, paper="0.99"),
                _accuracy(AR, "mamba", at_least=0.85, paper="0.91"),
            ),
        ),
        Claim(
            text="H3 and Hyena fail it",
            measures=(
                _accuracy(AR, "h3", at_most=0.05 + more, paper="0.02"),
                _accuracy(AR, "hyena", at_most=0.40 + more, paper="0.30"),
            ),
        ),
        Claim(
            text="DeltaNet is close behind",
            measures=(_accuracy(AR, "delta_net", at_least=0.85),),
        ),
        Claim(
            text="Attention and Based recall by induction: the pair is stored at the value",
            measures=tuple(
                measure
                for variant in ("attention", "based")
                for measure in (
                    _attrib(AR, variant, STREAM, "value", at_least=0.95, paper="1.00 ± 0.03"),
                    _attrib(AR, variant, STREAM, "query", at_most=0.05, paper="0"),
                    _attrib(AR, variant, STREAM, "key", at_most=0.05, paper="0"),
                )
            ),
        ),
        Claim(
            text="Mamba and DeltaNet do not store it at the value",
            measures=(
                _attrib(AR, "mamba", STREAM, "value", at_most=0.05, paper="0 ± 0.03"),
                _attrib(AR, "mamba", STREAM, "query", "key", at_least=0.9, paper="1"),
                _attrib(AR, "delta_net", STREAM, "value", at_most=0.05),
                _attrib(AR, "delta_net", STREAM, "query", "key", at_least=0.9),
            ),
        ),
        Claim(
            text="Mamba needs its short convolution",
            measures=(
                _accuracy(AR_CONV, "mamba-conv0", at_most=0.10 + more, paper="0.06"),
                _accuracy(AR_CONV, "mamba-conv1", at_most=0.10 + more, paper="0.03"),
                _accuracy(AR_CONV, "mamba-conv2", at_least=0.85, paper="0.94"),
                _accuracy(AR_CONV, "mamba-conv3", at_least=0.85, paper="0.92"),
                _accuracy(AR_CONV, "mamba-conv4", at_least=0.85, paper="0.91"),
            ),
        ),
        Claim(
            text="The convolution of layer 0 binds key and value, at the token after the value",
            measures=(
                _attrib(AR, "mamba", CONV, "value+1", at_least=0.9, paper="0.99"),
                _attrib(AR, "mamba", CONV, "key", at_most=0.05, paper="0"),
                _attrib(AR, "mamba", CONV, "value", at_most=0.05, paper="0"),
            ),
        ),
        Claim(
            text="Based needs a short convolution; a long one does not do",
            measures=(
                _accuracy(AR_CONV, "based-convlong", at_most=0.15 + more, paper="0.09"),
                _accuracy(AR_CONV, "based-conv3", at_least=0.97, paper="0.99"),
            ),
        ),
        Claim(
            text="Without its convolution Mamba solves treecall as well, by induction",
            measures=(
                _behind("accuracy", accuracy),
                _behind("accuracy beyond heuristics", accuracy_beyond_heuristics),
                _attrib(ATR, "mamba_noconv", STREAM, "value", at_least=0.5),
            ),
        ),
        Claim(
            text="Accuracy alone misleads: equally good by different mechanisms",
            measures=(
                Measure(
                    name="accuracy, attention − delta_net",
                    of=difference(accuracy(AR, "attention"), accuracy(AR, "delta_net")),
                    at_most=0.1,
                    needs=((AR, "attention"), (AR, "delta_net")),
                ),
                Measure(
                    name=f"{STREAM}@value, attention − delta_net",
                    of=difference(
                        attrib(AR, "attention", f"{STREAM}@value"),
                        attrib(AR, "delta_net", f"{STREAM}@value"),
                    ),
                    at_least=0.8,
                    needs=((AR, "attention"), (AR, "delta_net")),
                ),
            ),
        ),
        Claim(
            text="One layer is enough for Mamba, not for attention",
            measures=(
                _accuracy(AR_LAYERS, "mamba-l1", at_least=0.9, paper="0.96"),
                _accuracy(AR_LAYERS, "attention-l1", at_most=0.12 + more, paper="0.09"),
            ),
        ),
    )


def _accuracy(
    recipe: str,
    variant: str,
    *,
    paper: str = "no number",
    at_least: float | None = None,
    at_most: float | None = None,
) -> Measure:
    return Measure(
        name=f"accuracy, {variant}",
        of=accuracy(recipe, variant),
        needs=((recipe, variant),),
        at_least=at_least,
        at_most=at_most,
        paper=paper,
    )


def _attrib(
    recipe: str,
    variant: str,
    component: str,
    *positions: str,
    paper: str = "no number",
    at_least: float | None = None,
    at_most: float | None = None,
) -> Measure:
    return Measure(
        name=f"{component}@{' + '.join(positions)}, {variant}",
        of=attrib(recipe, variant, *(f"{component}@{position}" for position in positions)),
        needs=((recipe, variant),),
        at_least=at_least,
        at_most=at_most,
        paper=paper,
    )


def _behind(name: str, quantity) -> Measure:
    return Measure(
        name=f"{name}, mamba − mamba_noconv",
        of=difference(quantity(ATR, "mamba"), quantity(ATR, "mamba_noconv")),
        needs=((ATR, "mamba"), (ATR, "mamba_noconv")),
        at_most=0.05,
    )
