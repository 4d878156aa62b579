"""What is to be said where numbers differ from the paper's, by scale; `page.py` prints it.

Use:

    for remark in REMARKS["mini"]: ...
"""

from collections.abc import Mapping

REMARKS: Mapping[str, tuple[str, ...]] = {
    "mini": (
        "Three seeds know little of all: where they differ, as Mamba's do, the interval is wide.",
        "Mamba binds by its convolution in each seed, but each time elsewhere: seed 0 in "
        "`L1.conv_output@value+2` (0.94), seed 1 in `L0.conv_output@value+1` (0.96), seed 2 in "
        "`L0.conv_output@value+2` (1.00). Four tokens wide, it reaches back to the key from either "
        "token. The paper shows one model, of width 256.",
        "DeltaNet does the same with each seed by the residual stream (1 at the query, 0 at the "
        "value), and gets two verdicts: its convolution brings the key to the value itself (seeds "
        "0 and 1) or to the token after (seed 2). Only the second shows with the key corrupted "
        "that key and value are bound there; rows with the value corrupted would tell for both.",
        "Mamba without its convolution is on its way to treecall by induction, and 5,000 steps of "
        "the mini preset end before it is there: the dynamics show how Attrib moves from the key "
        "to the value (seed 2: from 0.00 to 0.65 at the value, seeds 0 and 1: to 0.21 and 0.31) "
        "while accuracy still rises. The paper trains for 100,032.",
        "Based with a long convolution alone learns recall with one seed of three (0.99, by "
        "induction), and with its short one of width 4 two of three: what is hard is to leave the "
        "guess among the values in context, and 5,000 steps are a wager on that. With "
        "width 1, which cannot look back, none does.",
    ),
}
