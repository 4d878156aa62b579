"""Sweeps on Ray: two nodes of one machine, of which one is lost in mid-run."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from patchbench.common import UserError
from patchbench.sweeping import LocalExecutor, sweep
from patchbench.sweeping.on_ray import RayExecutor
from tests.core.sweep.tiny_sweep import checkpoints, content, run, sweep_of


def test_without_ray_one_line_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"Ray is not installed: pip install .patchbench\[ray\]"):
        RayExecutor()


def test_an_address_where_nobody_listens_is_told_at_once(tmp_path):
    pytest.importorskip("ray")
    with pytest.raises(UserError, match=r"no Ray cluster at '127\.0\.0\.1:9'"):
        sweep(sweep_of(run()), out=tmp_path, executor=RayExecutor(address="127.0.0.1:9"))


@pytest.mark.slow
def test_a_lost_node_costs_no_more_than_steps_and_changes_no_bit(tmp_path):
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster  # pyright: ignore[reportMissingImports]

    config = sweep_of(
        run("a-s0"),
        run("b-s1", seed=1, lr="auto", lr_grid=[1e-3, 1e-2]),
        run("long-s0", steps=600, log_every=5, train_n=512),
    )
    local = sweep(config, out=tmp_path / "local", executor=LocalExecutor(workers=1, device="cpu"))
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
    )
    # Before there are other nodes: what is lost must not be the one that this process is on.
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    node = cluster.add_node(num_cpus=1)
    try:
        # Nodes can be added by the main thread only.
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(
                sweep, config, out=tmp_path / "ray", executor=RayExecutor(device="cpu")
            )
            while not checkpoints(tmp_path / "ray"):
                assert not running.done()
                time.sleep(0.1)
            cluster.remove_node(node, allow_graceful=False)
            cluster.add_node(num_cpus=1)
            swept = running.result()
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert not swept.failed
    for each in config.runs:
        assert content(swept.folder.run(each.name)) == content(local.folder.run(each.name))
