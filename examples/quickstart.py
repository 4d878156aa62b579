"""From a model to a verdict in a dozen lines: a bundled model, its task, two places, one picture.

python examples/quickstart.py
"""

import patchbench as pb


def main(model: str = "patchbench/ar-based", n: int = 64, out: str | None = None) -> pb.Result:
    """Evaluate a model and say what was found; with `out`, keep the Result and its report there."""
    result = pb.evaluate(model, "ar/mini", n=n, components=["block_input", "mixer_output"])
    print("accuracy", result.accuracy)
    for site in ("L0.block_input@key", "L1.block_input@value", "L1.mixer_output@query"):
        print(f"{site:24}", result.attrib(site))
    print(result.verdict)
    if out is not None:
        result.save(out, report=True)
    return result


if __name__ == "__main__":
    main()
