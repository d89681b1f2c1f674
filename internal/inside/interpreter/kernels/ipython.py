# The Python kernel's shell where IPython is installed.
import importlib.abc
import importlib.util

from IPython.core.display_functions import display
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.formatters import BaseFormatter, JSONFormatter
from IPython.core.interactiveshell import InteractiveShell
from traitlets import ObjectName, Type, Unicode


def show_figures():
    """Figures are results unless another way is named. Agg, which images often have, shows none."""
    if os.environ.get("MPLBACKEND", "").lower() in ("", "agg"):
        os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"


show_figures()


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

    def prepare(self):
        """Before each cell: the environment may be another one."""
        show_figures()

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


def add_formatters(shell):
    formatters = shell.display_formatter.formatters
    for kind in (DataFormatter, ChartFormatter, ListFormatter):
        formatter = kind(parent=shell.display_formatter)
        formatters[formatter.format_type] = formatter
    formatters["e2b/data"].for_type_by_name("pandas.core.frame", "DataFrame", table)


def new_shell():
    shell = Shell.instance(colors="NoColor")
    shell.separate_in = ""
    add_formatters(shell)
    sys.meta_path.insert(0, Pictures())
    return shell
