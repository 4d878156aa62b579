"""Inside a Mamba: its short convolution binds key and value, and its state takes over behind.

Nothing at the named tokens of the residual stream tells; the inner sites do, one by one.

    python examples/inside_mamba.py
"""

import patchbench as pb

SITES = [
    "L1.block_input@value",
    "L1.conv_output@value+0..3",
    "L1.conv_state@value+0..3",
    "L1.ssm_state@value+0..3",
]


def main(n: int = 128) -> dict[str, float]:
    """Return Attrib by site, and print it."""
    result = pb.evaluate("patchbench/ar-mamba", "ar/mini", n=n, sites=SITES)
    frame = result.to_pandas().set_index("site")
    for site, line in frame.iterrows():
        print(f"{site:24} {line.attrib:6.2f}  [{line.attrib_low:5.2f}, {line.attrib_high:5.2f}]")
    return frame["attrib"].to_dict()


if __name__ == "__main__":
    main()
