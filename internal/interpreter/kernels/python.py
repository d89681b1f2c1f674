# The Python kernel: IPython's shell, driven by lines of JSON.
#
# Descriptor 3 gives what is to be run, 4 takes events. What programs print goes to 1
# and 2, as that of their children does; a mark there ends each run's output.
import base64
import builtins
import datetime
import getpass
import importlib.abc
import importlib.util
import json
import math
import os
import random
import signal
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


def show_figures():
    """Figures are results unless another way is named. Agg, which images often have, shows none."""
    if os.environ.get("MPLBACKEND", "").lower() in ("", "agg"):
        os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"


show_figures()
# No terminal is spoken to.
os.environ.setdefault("TERM", "dumb")

from IPython.core.display_functions import display
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.formatters import BaseFormatter, JSONFormatter
from IPython.core.interactiveshell import InteractiveShell
from traitlets import ObjectName, Type, Unicode


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


class Hook(DisplayHook):
    """The value of a cell's last expression."""

    def write_output_prompt(self):
        pass

    def write_format_data(self, format_dict, md_dict=None):
        emit_result(format_dict, True)

    def finish_displayhook(self):
        pass


class Publisher(DisplayPublisher):
    """What a program displays."""

    def publish(self, data, metadata=None, source=None, *, transient=None, update=False, **kwargs):
        if not update:  # there is no earlier output that could be replaced
            emit_result(data, False)

    def clear_output(self, wait=False):
        pass


class Shell(InteractiveShell):
    displayhook_class = Type(Hook)
    display_pub_class = Type(Publisher)
    failure = None
    leaving = False

    def init_hooks(self):
        super().init_hooks()
        self.system = self.system_raw  # output goes where ours goes, while it comes

    def enable_gui(self, gui=None):
        pass

    def ask_exit(self):
        self.leaving = True

    def _showtraceback(self, etype, evalue, stb):
        self.failure = (etype.__name__, str(evalue), "\n".join(stb))

    def report(self, result):
        """Tell how a cell failed, if it did."""
        error = result.error_before_exec or result.error_in_exec
        if self.failure is None and error is not None:
            name = type(error).__name__
            self.failure = (name, str(error), f"{name}: {error}")
        if self.failure is not None:
            name, value, traceback = (str(text)[: 1 << 20] for text in self.failure)
            emit("error", name=name, value=value, traceback=traceback)
            self.failure = None


class DataFormatter(BaseFormatter):
    format_type = Unicode("e2b/data")
    print_method = ObjectName("_repr_e2b_data_")
    _return_type = dict


class ChartFormatter(BaseFormatter):
    format_type = Unicode("e2b/chart")
    print_method = ObjectName("_repr_e2b_chart_")
    _return_type = dict

    # Not registered by type: who sets up matplotlib takes figures out of all formatters.
    def __call__(self, obj):
        figures = sys.modules.get("matplotlib.figure")
        return chart_of_figure(obj) if figures and isinstance(obj, figures.Figure) else None


class ListFormatter(JSONFormatter):
    """Lists and dictionaries are given as JSON, too, unless it has no word for something in them."""

    def __call__(self, obj):
        if type(obj) not in (list, dict):
            return super().__call__(obj)
        try:
            return plain(obj) if len(obj) <= MOST_CELLS and len(json.dumps(obj, default=in_json)) <= LARGEST else None
        except (TypeError, ValueError, RecursionError):
            return None


def in_json(value):
    if isinstance(value, (datetime.date, datetime.time)) or type(value).__module__ == "numpy":
        return str(value)
    raise TypeError(type(value))


def table(frame):
    """A pandas table as lists, one for each column."""
    if frame.size > MOST_CELLS:
        return None
    return {str(name): plain(column.tolist()) for name, column in frame.items()}


class Pictures(importlib.abc.MetaPathFinder):
    """Has pictures displayed that a program saves by name, once it imports what makes them."""

    def find_spec(self, name, path, target=None):
        if name != "PIL.Image":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None:
            load = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (load(module), show_saved(module.Image))
        return spec


def show_saved(image_class):
    save = image_class.save

    def save_and_show(image, fp, *args, **kwargs):
        save(image, fp, *args, **kwargs)
        if isinstance(fp, (str, os.PathLike)):  # what displays a picture saves it, too, into memory
            display(image)

    image_class.save = save_and_show


def refuse_input(prompt="", *args, **kwargs):
    raise RuntimeError("there is nobody to answer: input is not supported here")


def add_formatters(shell):
    formatters = shell.display_formatter.formatters
    for kind in (DataFormatter, ChartFormatter, ListFormatter):
        formatter = kind(parent=shell.display_formatter)
        formatters[formatter.format_type] = formatter
    formatters["e2b/data"].for_type_by_name("pandas.core.frame", "DataFrame", table)


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


def serve():
    shell = Shell.instance(colors="NoColor")
    shell.separate_in = ""
    add_formatters(shell)
    sys.meta_path.insert(0, Pictures())
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
    show_figures()
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
