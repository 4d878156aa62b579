"""The bundled Mamba hands its association from one memory to the other, as the README says."""

import pytest

import patchbench as pb

# (component, position) → Attrib of layer 1, as the README has it for 256 examples.
WRITTEN = {
    ("conv_state", "value"): 0.75,
    ("conv_state", "value+1"): 0.76,
    ("conv_state", "value+2"): 0.01,
    ("ssm_state", "value"): 0.00,
    ("ssm_state", "value+1"): 0.00,
    ("ssm_state", "value+2"): 0.76,
}


def test_the_convolution_carries_it_first_and_the_state_after_that():
    result = pb.evaluate(
        pb.load_model("patchbench/ar-mamba", device="cpu"),
        pb.load_task("ar/mini"),
        n=128,
        layers=[1],
        components=["conv_state", "ssm_state"],
        positions=["value", "value+1", "value+2"],
        resamples=200,
    )
    for (component, position), value in WRITTEN.items():
        estimate = result.attrib(f"L1.{component}@{position}")
        assert estimate.value == pytest.approx(value, abs=0.08), (component, position)
