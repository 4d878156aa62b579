"""The smallest training there is, for the tests of training."""

from patchbench.training import ModelSpec

TASK = {"num_pairs": 2, "num_keys": 4, "num_values": 4}
QUICK = {"steps": 8, "dev_n": 16, "test_n": 8, "train_n": 256, "batch_size": 8, "device": "cpu"}
SPEC = ModelSpec(arch="delta_net", width=16)
