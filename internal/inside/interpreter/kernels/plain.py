# The Python kernel's shell where there is no IPython: what plain Python can do, with the standard library alone.
import ast
import asyncio
import inspect
import io
import linecache
import textwrap
import traceback
import types

os.environ.setdefault("MPLBACKEND", "agg")

# How values show themselves, by the names that IPython has given the methods.
METHODS = {
    "text/html": "_repr_html_",
    "text/markdown": "_repr_markdown_",
    "text/latex": "_repr_latex_",
    "image/svg+xml": "_repr_svg_",
    "image/png": "_repr_png_",
    "image/jpeg": "_repr_jpeg_",
    "application/json": "_repr_json_",
}


def bundle_of(value):
    bundle = {"text/plain": repr(value)}
    for mime, name in METHODS.items():
        method = None if isinstance(value, type) else getattr(value, name, None)
        shown = method() if callable(method) else None
        if shown is not None:
            bundle[mime] = shown[0] if isinstance(shown, tuple) else shown
    return bundle


def display(*values):
    for value in values:
        emit_result(bundle_of(value), False)


def show_figures():
    """Show and close what matplotlib has drawn."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    for number in pyplot.get_fignums() if pyplot else ():
        figure, picture = pyplot.figure(number), io.BytesIO()
        figure.savefig(picture, format="png", bbox_inches="tight")
        pyplot.close(figure)
        data = {"text/plain": repr(figure), "image/png": picture.getvalue(), "e2b/chart": chart_of_figure(figure)}
        emit_result({mime: value for mime, value in data.items() if value is not None}, False)


class Shell:
    execution_count = 1
    leaving = False

    def __init__(self):
        self.main = types.ModuleType("__main__")
        self.main.__builtins__ = builtins
        sys.modules["__main__"] = self.main
        self.loop = asyncio.new_event_loop()
        builtins.display = display
        builtins.exit = builtins.quit = self.ask_exit

    def ask_exit(self, code=None):
        self.leaving = True

    def prepare(self):
        pass

    def run_cell(self, code, store_history=True):
        """Run a cell, and return what it has raised."""
        name = f"<cell {self.execution_count}>"
        self.execution_count += 1
        linecache.cache[name] = (len(code), None, (code + "\n").splitlines(True), name)
        try:
            value = self.run(code, name)
            if value is not None:
                self.main._ = value
                emit_result(bundle_of(value), True)
            show_figures()
        except BaseException as error:
            return error

    def run(self, code, name):
        """Run a cell, and return the value of an expression that it ends in."""
        try:
            tree = ast.parse(code, name)
        except IndentationError:
            tree = ast.parse(textwrap.dedent(code), name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        self.evaluate(tree, name, "exec")
        if last is not None:
            return self.evaluate(ast.Expression(last.value), name, "eval")

    def evaluate(self, tree, name, mode):
        code = compile(tree, name, mode, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        value = eval(code, self.main.__dict__)
        if code.co_flags & inspect.CO_COROUTINE:
            return self.loop.run_until_complete(value)
        return value

    def report(self, error):
        """Tell how a cell failed, if it did."""
        if error is None:
            return
        own = error.__traceback__
        while own is not None and own.tb_frame.f_code.co_filename == "<kernel>":
            own = own.tb_next
        lines = traceback.format_exception(type(error), error, own)
        name, value, text = (str(part)[: 1 << 20] for part in (type(error).__name__, error, "".join(lines)))
        emit("error", name=name, value=value, traceback=text)


new_shell = Shell
