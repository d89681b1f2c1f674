# What a matplotlib figure shows, as data.
import re


def chart_of_figure(figure):
    axes = figure.get_axes()
    if not axes:
        return None
    if len(axes) == 1:
        return chart_of(axes[0])
    title = getattr(figure, "_suptitle", None)
    return {
        "type": "superchart",
        "title": title.get_text() if title else None,
        "elements": [chart_of(ax) for ax in axes],
    }


def chart_of(ax):
    try:
        return known(ax)
    except Exception:  # what programs make of a figure is theirs; the picture is there anyway
        return unknown(ax)


def known(ax):
    from matplotlib.collections import PathCollection
    from matplotlib.container import BarContainer
    from matplotlib.patches import PathPatch, Rectangle, Wedge

    lines, dots, patches = list(ax.lines), list(ax.collections), list(ax.patches)
    others = list(ax.images) + list(ax.tables) + [a for a in ax.artists]

    def only(found, kind, *rest):
        return found and all(isinstance(o, kind) for o in found) and not any(rest) and not others

    if only(patches, Wedge, lines, dots):
        return pie(ax)
    if only(patches, Rectangle, dots) and any(isinstance(c, BarContainer) for c in ax.containers):
        return bars(ax)
    if only(patches, PathPatch, dots) and lines:
        return boxes(ax) or unknown(ax)
    if only(dots, PathCollection, lines, patches):
        return scatter(ax)
    if not (dots or patches or others):
        return curves(ax)
    return unknown(ax)


def unknown(ax):
    return {"type": "unknown", "title": ax.get_title() or None, "elements": []}


def flat(ax, kind):
    chart = {"type": kind, "title": ax.get_title() or None}
    for axis, label in (("x", ax.get_xlabel()), ("y", ax.get_ylabel())):
        unit = re.search(r"\s\((.*?)\)|\[(.*?)\]", label)
        chart[axis + "_label"] = label or None
        chart[axis + "_unit"] = (unit.group(1) or unit.group(2)) if unit else None
    return chart


def exchanged(chart):
    """A chart whose values go along x, told as one whose values go along y."""
    for what in ("label", "unit"):
        x, y = "x_" + what, "y_" + what
        chart[x], chart[y] = chart[y], chart[x]
    return chart


def converter_of(axis):
    return axis.get_converter() if hasattr(axis, "get_converter") else axis.converter


def points_chart(ax, kind):
    import matplotlib.dates

    chart = flat(ax, kind)
    for name, axis, scale in (("x", ax.xaxis, ax.get_xscale()), ("y", ax.yaxis, ax.get_yscale())):
        converter = type(converter_of(axis)).__name__
        ticks = [float(t) for t in axis.get_ticklocs()]
        if "Date" in converter:
            scale = "datetime"
            ticks = [matplotlib.dates.num2date(t).isoformat() for t in ticks]
        elif "StrCategory" in converter:
            scale = "categorical"
        chart[name + "_ticks"] = ticks
        chart[name + "_tick_labels"] = [label.get_text() for label in axis.get_ticklabels()]
        chart[name + "_scale"] = scale
    return chart


def coordinate(value):
    if type(value).__module__ == "numpy" and getattr(value.dtype, "kind", "") == "M":
        return str(value.astype("datetime64[s]"))
    return plain(value)


def curves(ax):
    chart = points_chart(ax, "line")
    chart["elements"] = [
        {
            "label": named(line.get_label(), "_child", "Line"),
            "points": [[coordinate(x), coordinate(y)] for x, y in zip(line.get_xdata(), line.get_ydata())],
        }
        for line in ax.lines
    ]
    return chart


def scatter(ax):
    chart = points_chart(ax, "scatter")
    chart["elements"] = [
        {"label": str(dots.get_label()), "points": [[coordinate(x), coordinate(y)] for x, y in dots.get_offsets()]}
        for dots in ax.collections
    ]
    return chart


def named(label, prefix, name):
    """The label that somebody gave; matplotlib's own ones are numbers behind a prefix."""
    label = str(label)
    return f"{name} {label[len(prefix):]}" if label.startswith(prefix) else label


def tick_label(axis, position):
    """The label of the tick that is nearest to a position."""
    ticks = [(abs(at - position), label.get_text()) for at, label in zip(axis.get_ticklocs(), axis.get_ticklabels())]
    return min(ticks)[1] if ticks else str(position)


def bars(ax):
    chart, elements = flat(ax, "bar"), []
    lying = False
    for container in ax.containers:
        lying = getattr(container, "orientation", None) == "horizontal"
        group = named(container.get_label(), "_container", "Group")
        for bar in getattr(container, "patches", ()):
            if lying:
                at, value, axis = bar.get_y() + bar.get_height() / 2, bar.get_width(), ax.yaxis
            else:
                at, value, axis = bar.get_x() + bar.get_width() / 2, bar.get_height(), ax.xaxis
            elements.append({"label": tick_label(axis, at), "group": group, "value": plain(value)})
    chart["elements"] = elements
    return exchanged(chart) if lying else chart


def pie(ax):
    return {
        "type": "pie",
        "title": ax.get_title() or None,
        "elements": [
            {"label": str(w.get_label()), "angle": abs(round(float(w.theta2 - w.theta1), 4)), "radius": plain(w.r)}
            for w in ax.patches
        ],
    }


def boxes(ax):
    chart = flat(ax, "box_and_whisker")
    for lying in (False, True):
        found = [box(ax, patch, lying) for patch in ax.patches]
        if all(found):
            chart["elements"] = found
            return exchanged(chart) if lying else chart
    return None


def box(ax, patch, lying):
    """One box, seen with its values along y, or None if it does not lie so."""
    turn = (lambda x, y: (y, x)) if lying else (lambda x, y: (x, y))
    across, along = turn(*patch.get_path().vertices.T)
    left, right, first, third = min(across), max(across), min(along), max(along)
    median, low, high, outliers = None, first, third, []
    for line in ax.lines:
        at, values = turn(line.get_xdata(), line.get_ydata())
        if len(at) == 0 or min(at) < left or max(at) > right:
            continue
        if line.get_linestyle() in ("None", "none", "", " "):
            outliers += [plain(v) for v in values]
        elif len(at) == 2 and at[0] == at[1]:
            if max(values) == first:
                low = min(values)
            elif min(values) == third:
                high = max(values)
        elif len(at) == 2 and min(at) == left and max(at) == right and first <= values[0] == values[1] <= third:
            median = values[0]
    if median is None:
        return None
    label = tick_label(ax.yaxis if lying else ax.xaxis, (left + right) / 2)
    numbers = {"min": low, "first_quartile": first, "median": median, "third_quartile": third, "max": high}
    return {"label": label, **{k: plain(v) for k, v in numbers.items()}, "outliers": outliers}
