"""Runs on a Ray cluster: a laptop, a Slurm allocation or many machines.

Use:

    executor = RayExecutor(address="auto", runs_per_gpu=2)       # None: a cluster of its own
    for outcome in executor.run(jobs):
        ...

A run is a Ray task with as many CPUs as it has threads, or its share of a GPU. The sweep's folder
has to be on a disk that all nodes see: when a node is lost, Ray gives its runs to another, which
goes on from the last checkpoint.
"""

import os
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from patchbench.common import UserError
from patchbench.sweeping.job import RETRIES, Job, Outcome, pinned
from patchbench.sweeping.local import check_counts

if TYPE_CHECKING:
    import ray  # pyright: ignore[reportMissingImports]

# Told to every worker before it imports anything.
_CALM = {"TRANSFORMERS_VERBOSITY": "error", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}


def attempt_text(text: str) -> str:
    """Do a job on whatever node this is; jobs and outcomes are lines of JSON."""
    from patchbench.sweeping.job import attempt

    return attempt(Job.from_json(text)).to_json()


class RayExecutor:
    """Tasks of a Ray cluster.

    Args:
        address: of the cluster, as `ray.init` takes it; one is started on this machine, for this
            sweep alone, when None.
        workers: how many runs go on at a time; as many as there is room for when None.
        threads: of each.
        device: "auto" (GPUs, if the cluster has any) or "cpu".
        runs_per_gpu: how many share one GPU.

    Raises:
        UserError: Ray is not installed, or a number below 1.
    """

    def __init__(
        self,
        *,
        address: str | None = None,
        workers: int | None = None,
        threads: int = 1,
        device: str = "auto",
        runs_per_gpu: int = 1,
    ) -> None:
        check_counts(workers=workers, threads=threads, runs_per_gpu=runs_per_gpu)
        self._ray = _import_ray()
        self._address, self._workers, self._runs_per_gpu = address, workers, runs_per_gpu
        self.threads, self.device = threads, device

    @property
    def slots(self) -> int:
        """How many runs go on at a time; of an own cluster before it is started, one per core."""
        from patchbench.sweeping.local import cores

        if not self._ray.is_initialized():
            return self._workers or max(1, cores() // self.threads)
        return self._room()

    def run(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        """Yield what became of each job, as they end; what is at work ends with the iterator."""
        ray = self._ray
        own = not ray.is_initialized()
        if own:
            self._connect()
        try:
            # A function of this module is known to the workers by its name.
            task = ray.remote(
                max_retries=RETRIES,
                num_cpus=self.threads,
                num_gpus=self._gpu_share(),
                runtime_env={"env_vars": {**pinned(self.threads), **_CALM}},
            )(attempt_text)
            waiting, running = deque(jobs), {}
            try:
                while waiting or running:
                    # What waits in the cluster's queue begins at once when a node joins.
                    while waiting and len(running) < (self._workers or len(jobs)):
                        job = waiting.popleft()
                        running[task.remote(job.to_json())] = job
                    done, _ = ray.wait(list(running), num_returns=1)
                    yield self._outcome(done[0], running.pop(done[0]))
            finally:
                for reference in running:
                    ray.cancel(reference, force=True)
        finally:
            if own:
                ray.shutdown()

    def _connect(self) -> None:
        more: dict[str, Any] = {}
        if self._address is None:
            more = {"num_cpus": self.slots * self.threads, "include_dashboard": False}
        try:
            _knock(self._address)
            self._ray.init(
                address=self._address or "local",
                log_to_driver=False,
                logging_level="error",
                **more,
            )
        except (OSError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:160]
            raise UserError(
                f"no Ray cluster at {self._address!r} ({reason})",
                "start one with `ray start --head`, or leave --address out",
            ) from None

    def _gpu_share(self) -> float:
        gpus = self._ray.cluster_resources().get("GPU", 0)
        return 1 / self._runs_per_gpu if gpus and self.device != "cpu" else 0

    def _room(self) -> int:
        resources, share = self._ray.cluster_resources(), self._gpu_share()
        room = resources.get("CPU", 1) / self.threads
        if share:
            room = min(room, resources["GPU"] / share)
        return max(1, min(int(room), self._workers or int(room)))

    def _outcome(self, reference: "ray.ObjectRef", job: Job) -> Outcome:
        try:
            return Outcome.from_json(self._ray.get(reference))
        except self._ray.exceptions.RayError as error:
            reason = " ".join(str(error).split())[:200]
            return Outcome(name=job.run.name, error=f"its worker was lost: {reason}")


def _knock(address: str | None) -> None:
    """Raise `OSError` if nobody listens there, which Ray would try for minutes."""
    host, _, port = (address or "").rpartition("://")[2].rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=10).close()


def _import_ray() -> Any:
    # It asks nobody for permission to report its use.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UserError("Ray is not installed", 'pip install "patchbench[ray]"') from None
    return ray
