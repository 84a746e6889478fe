"""Charts as SVG: bars of instructions, and a forest plot of ratios with their intervals."""

import math
from html import escape

# Colours that are readable on GitHub's two backgrounds.
THEMES = {
    "light": {"back": "#ffffff", "text": "#1f2328", "faint": "#59636e", "line": "#d1d9e0", "base": "#afb8c1", "own": "#0969da", "other": "#bc4c00"},
    "dark": {"back": "#0d1117", "text": "#f0f6fc", "faint": "#9198a1", "line": "#3d444d", "base": "#656c76", "own": "#4493f8", "other": "#db6d28"},
}
WIDTH = 760


def bars(what, sides, source, colours):
    """Bars of instructions per I/O, of a list of (label, instructions) whose first is the base. The cost of a side
    above the base is in its own colour."""
    base = sides[0][1]
    sides = sorted(sides, key=lambda side: side[1])
    left, right, top, pitch, height = 190, 150, 62, 34, 20
    scale = (WIDTH - left - right) / sides[-1][1]
    bottom = top + pitch * len(sides)
    title = f"Instructions per 4 KiB random {what}"
    parts = heading(title, "kernel and program together; fewer is faster", bottom + 34, colours)
    parts.append(line(left, left, top - 6, bottom, colours["line"]))
    for index, (label, value) in enumerate(sides):
        y = top + pitch * index
        colour = colours["own" if label.startswith("uringfs") else "other"]
        parts.append(text(left - 10, y + 15, label, colours["text"], 'text-anchor="end"'))
        parts.append(bar(left, y, min(base, value) * scale, height, colours["base"]))
        parts.append(bar(left + base * scale, y, max(value - base, 0) * scale, height, colour))
        above = f"{value:,.0f}" + (f"  (+{value - base:,.0f})" if value > base else "")
        parts.append(text(left + value * scale + 8, y + 15, above, colours["text"]))
    parts += [text(16, bottom + 20, source, colours["faint"], 'font-size="11"'), "</svg>"]
    return "\n".join(parts) + "\n"


def forest(title, groups, source, colours):
    """A forest plot: for each (heading, rows) the rows' labels, and their (median, low, high) on a logarithmic axis."""
    left, right, top, pitch = 370, 130, 66, 19
    rows = [row for _, group in groups for row in group]
    # Beyond these an interval is cut; its numbers stand beside it.
    low, high = 1 / 8, 12
    scale = (WIDTH - left - right) / math.log(high / low)

    def x_of(ratio):
        return left + math.log(min(max(ratio, low), high) / low) * scale

    bottom = top + pitch * (len(rows) + len(groups)) + 8
    parts = heading(title, "ratio of rates, median and 95 % interval; right of 1 uringfs is faster", bottom + 46, colours)
    for tick in (0.125, 0.25, 0.5, 1, 2, 4, 8):
        parts.append(line(x_of(tick), x_of(tick), top - 6, bottom, colours["text" if tick == 1 else "line"]))
        parts.append(text(x_of(tick), bottom + 15, f"{tick:g}", colours["faint"], 'text-anchor="middle" font-size="11"'))
    y = top
    for words, group in groups:
        parts.append(text(16, y + 12, f"compared with {words}", colours["text"], 'font-weight="600"'))
        y += pitch
        for label, (median, least, most) in group:
            colour = colours["other" if most < 1 else "own" if least > 1 else "faint"]
            parts.append(text(left - 12, y + 12, label, colours["text"], 'text-anchor="end" font-size="12"'))
            parts.append(line(x_of(least), x_of(most), y + 8, y + 8, colour, 'stroke-width="3"'))
            parts.append(f'<circle cx="{x_of(median):.1f}" cy="{y + 8}" r="5" fill="{colour}"/>')
            shown = f"{median:.2f} [{least:.2f}, {most:.2f}]"
            parts.append(text(WIDTH - right + 10, y + 12, shown, colours["text"], 'font-size="12"'))
            y += pitch
    parts += [text(16, bottom + 34, source, colours["faint"], 'font-size="11"'), "</svg>"]
    return "\n".join(parts) + "\n"


def heading(title, subtitle, height, colours):
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" role="img" font-family="system-ui, sans-serif" font-size="13">',
        f"<title>{escape(title)}; {escape(subtitle)}</title>",
        # A page may have its own switch for dark, beside the reader's preference.
        f'<rect width="{WIDTH}" height="{height}" fill="{colours["back"]}"/>',
        text(16, 24, title, colours["text"], 'font-size="16" font-weight="600"'),
        text(16, 44, subtitle, colours["faint"]),
    ]


def line(x1, x2, y1, y2, colour, more=""):
    return f'<line x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1}" y2="{y2}" stroke="{colour}" {more}/>'


def bar(x, y, width, height, colour):
    return f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{height}" fill="{colour}"/>'


def text(x, y, words, colour, more=""):
    return f'<text x="{x:.1f}" y="{y}" fill="{colour}" {more}>{escape(words)}</text>'
