"""What is to be said where numbers differ from the paper's, by scale; `page.py` prints it.

Use:

    for remark in REMARKS["mini"]: ...
"""

from collections.abc import Mapping

REMARKS: Mapping[str, tuple[str, ...]] = {
    "mini": (
        "Three seeds know little of all: where they differ, as Based's convolutions do, the "
        "interval is wide.",
        "Mamba binds by its convolution with each seed, but not where the paper's does: in "
        "`L1.conv_output@value+2` (0.94, 0.93 and 0.93), not in `L0.conv_output@value+1`, and "
        "its layer 0 moves little. Four tokens wide, the convolution reaches back to the key "
        "from either token. What differs is the training: ours begins with few keys "
        "(`patchbench train --preset list`). With 2 pairs and then 4 first, and twice the "
        "rate, three seeds bound in three places, one of them the paper's, and reached 0.77 "
        "to 0.98. One layer alone solves the task as well. The paper shows one model, of "
        "width 256.",
        "DeltaNet does the same with each seed by the residual stream (1 at the query, 0 at "
        "the value), and gets two verdicts: its convolution brings the key to the value "
        "itself (seeds 0 and 1) or to the token after (seed 2). Only the second shows with "
        "the key corrupted that key and value are bound there; rows with the value corrupted "
        "would tell for both.",
        "Mamba without its convolution is on its way to treecall by induction, and 5,000 "
        "steps of the mini preset end before it is there: the dynamics show how Attrib moves "
        "from the key to the value (seed 2: from 0.00 to 0.65 at the value, seeds 0 and 1: to "
        "0.21 and 0.31) while accuracy still rises. The paper trains for 100,032.",
        "Based with a long convolution alone learns recall with one seed of three (0.99, by "
        "induction), and with its short one of width 4 two of three: what is hard is to leave "
        "the guess among the values in context, and 5,000 steps are a wager on that. With "
        "width 1, which cannot look back, none does.",
        "On treecall Based is as often right with each seed and binds at the value (seeds 0 "
        "and 2) or at the token after (seed 1); DeltaNet, direct on recall, binds by its "
        "convolution here, one or two tokens after the value. The mechanism is one of a model "
        "on a task.",
    ),
    "paper": (
        "Attention, one seed, the rate 1e-3: `patchbench sweep paper_ar --scale paper "
        "--widths 64 --arch attention --lrs 1e-3 --seeds 0`. Accuracy on dev is 0.03 at step "
        "8,750 of 50,016, 0.16 at 10,000, 0.97 at 12,500 and 0.99 at 15,000.",
    ),
}
