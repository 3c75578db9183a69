"""Run a command on some cores and print its seconds, peak memory and start: `python -I -S launch.py 0,1 LOG command …`.

A process of its own, because the peak memory that a system reports for a child begins with its parent's size.
"""

import os
import sys
import time

cores, log, *command = sys.argv[1:]
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
started, begun = time.time(), time.perf_counter()
child = os.posix_spawnp(command[0], command, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, out, fd) for fd in (1, 2)])
_, status, usage = os.wait4(child, 0)
print(time.perf_counter() - begun, usage.ru_maxrss, started, os.waitstatus_to_exitcode(status))
