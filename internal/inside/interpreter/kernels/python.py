# The Python kernel: a shell (IPython's where it is installed, else one of our own), driven by lines of JSON.
#
# Descriptor 3 gives what is to be run, 4 takes events. What programs print goes to 1
# and 2, as that of their children does; a mark there ends each run's output.
import base64
import builtins
import datetime
import getpass
import json
import math
import os
import random
import signal
import site
import sys

REQUESTS, EVENTS = 3, 4
MARK = "@MARK@"
# The largest one representation of a result, and all of them together, in bytes of JSON.
LARGEST, LARGEST_ALL = 8 << 20, 24 << 20
# How many cells of a table are given as data.
MOST_CELLS = 200_000

for fd in (REQUESTS, EVENTS):
    os.set_inheritable(fd, False)
# The marks come through even when a program has sent its output elsewhere.
MARKED = [os.dup(1), os.dup(2)]
OWN_PID = os.getpid()
# Lines come as a whole, whatever PYTHONUNBUFFERED says.
for stream in (sys.stdout, sys.stderr):
    stream.reconfigure(line_buffering=True, write_through=False, errors="backslashreplace")
# No terminal is spoken to.
os.environ.setdefault("TERM", "dumb")


def write_all(fd, data):
    while data:
        data = data[os.write(fd, data) :]


def emit(kind, **fields):
    if os.getpid() == OWN_PID:  # a child of a program has nothing to tell
        write_all(EVENTS, json.dumps({"type": kind, **fields}, allow_nan=False).encode() + b"\n")


def plain(value):
    """What JSON can carry of a value: anything else becomes text."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, (datetime.date, datetime.time)):  # and pandas' times
        return None if value != value else value.isoformat()
    if hasattr(value, "tolist"):  # numpy's values and arrays
        inner = value.tolist()
        return plain(inner) if type(inner) is not type(value) else str(value)
    return str(value)


def emit_result(data, main):
    bundle, room = {}, LARGEST_ALL
    for mime, value in data.items():
        value = plain(value)
        size = len(json.dumps(value))
        if size > min(LARGEST, room):
            print(f"{mime} of {size} bytes left out: a result may have {LARGEST}", file=sys.stderr)
            continue
        room -= size
        bundle[str(mime)] = value
    text = bundle.get("text/plain")
    if isinstance(text, str) and len(text) > 1 and text[0] == text[-1] == "'":
        bundle["text/plain"] = text[1:-1]  # of a string, the text itself
    emit("result", main=main, data=bundle)


def refuse_input(prompt="", *args, **kwargs):
    raise RuntimeError("input is not supported here, because no person can answer")


def reseed():
    """Copies of a sandbox must not draw the same numbers."""
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


class Environment:
    """Environment variables that hold for one run."""

    def __init__(self, values):
        self.values = values

    def __enter__(self):
        self.before = {name: os.environ.get(name) for name in self.values}
        os.environ.update(self.values)

    def __exit__(self, *args):
        for name, value in self.before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class Interrupts:
    """SIGINT ends a run, and is nothing between runs."""

    running = False

    def handle(self, signum, frame):
        if self.running:
            raise KeyboardInterrupt


def load_shell():
    """Define new_shell."""
    for source in (IPYTHON, PLAIN):
        try:
            exec(compile(source, "<kernel>", "exec"), globals())
            return
        except ImportError:
            if source is PLAIN:
                raise


def add_packages():
    """The directory of the user's own packages comes with the first that is installed."""
    if site.ENABLE_USER_SITE:
        own = site.getusersitepackages()
        if own not in sys.path and os.path.isdir(own):
            site.addsitedir(own)


def serve():
    load_shell()
    shell = new_shell()
    builtins.input = getpass.getpass = refuse_input
    # A script has its directory first in the path of modules; a kernel the one it works in.
    sys.path[:] = ["", *(p for p in sys.path if p)]
    sys.argv[:] = [""]
    interrupts = Interrupts()
    signal.signal(signal.SIGINT, interrupts.handle)
    emit("ready")
    with open(REQUESTS, "rb", closefd=False) as requests:
        for line in requests:
            run(shell, interrupts, json.loads(line))
            if shell.leaving:
                return


def run(shell, interrupts, request):
    emit("count", count=shell.execution_count)
    if request.get("reseed"):
        reseed()
    os.environ.update(request.get("global") or {})
    add_packages()
    shell.prepare()
    with Environment(request.get("env") or {}):
        try:
            interrupts.running = True
            result = shell.run_cell(request["code"], store_history=True)
            interrupts.running = False
            shell.report(result)
        except KeyboardInterrupt:
            emit("error", name="KeyboardInterrupt", value="", traceback="KeyboardInterrupt")
        finally:
            interrupts.running = False
    if os.getpid() != OWN_PID:
        os._exit(0)
    for stream, fd in zip((sys.stdout, sys.stderr), MARKED):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass  # closed by the program
        write_all(fd, MARK.encode())
    emit("done", id=request["id"], last=shell.leaving)
