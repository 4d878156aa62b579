"""A process that does one job after another for `LocalExecutor`.

Use:

    python -P -c "from patchbench.sweeping.worker import main; main()"

Jobs come as lines on stdin, outcomes go as lines to stdout. The end of stdin is the sign that the
sweep is over, was interrupted, or was killed in any way: no worker outlives it. A run that is
interrupted by that keeps its last checkpoint.
"""

import _thread
import os
import signal
import sys
import threading
import time
from queue import SimpleQueue

# Seconds that a run may take to clear up what is half-written.
GRACE = 10.0


def main() -> None:
    """Work until stdin ends."""
    # What libraries print must not mix with the outcomes.
    outcomes = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    jobs: SimpleQueue[str | None] = SimpleQueue()
    threading.Thread(target=_listen, args=(jobs,), daemon=True).start()
    try:
        from patchbench.cli_options import calm_libraries

        calm_libraries()
        from patchbench.sweeping.job import Job, attempt

        while (line := jobs.get()) is not None:
            print(attempt(Job.from_json(line)).to_json(), file=outcomes, flush=True)
    except (KeyboardInterrupt, BrokenPipeError):
        pass
    # Not by way of the interpreter's own end, which would wait for libraries' threads.
    os._exit(0)


def _listen(jobs: "SimpleQueue[str | None]") -> None:
    for line in sys.stdin:
        jobs.put(line)
    jobs.put(None)
    _thread.interrupt_main()
    time.sleep(GRACE)
    os._exit(1)
