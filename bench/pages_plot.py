"""Plots as SVG: lines over two logarithmic axes, and bars. The same bytes from the same numbers.

Both stand on white of their own, so that they can be read on light and dark pages."""
import math

WIDTH, HEIGHT = 880, 440
LEFT, RIGHT, TOP, BOTTOM = 64, 560, 44, 388
COLORS = ("#c1121f", "#f77f00", "#222222", "#3a6ea5", "#2a9d8f", "#8e7dbe", "#b08968", "#7a7a7a")
STYLE = "font-family='system-ui, sans-serif' font-size='12' fill='#222'"


def ticks(low, high):
    """1, 2 and 5 times powers of ten within the range."""
    return [digit * 10**power for power in range(int(math.log10(low)), int(math.log10(high)) + 1)
            for digit in (1, 2, 5) if low <= digit * 10**power <= high]


def scale(value, low, high, start, end):
    return start + (math.log(value) - math.log(low)) / (math.log(high) - math.log(low)) * (
        end - start)


def drawing(title, x_label, y_label, lines):
    """lines: [(label, [(x, y), ...])]. Labels stand beside the plot, in the order of the lines."""
    xs = sorted({x for _, points in lines for x, _ in points})
    ys = [y for _, points in lines for _, y in points]
    y_low, y_high = 0.8 * min(ys), 1.25 * max(ys)

    def at(x, y):
        return (scale(x, xs[0], xs[-1], LEFT + 12, RIGHT - 12),
                scale(y, y_low, y_high, BOTTOM, TOP))

    out = [f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' "
           f"width='{WIDTH}' height='{HEIGHT}' role='img' aria-label='{title}'>",
           f"<rect width='{WIDTH}' height='{HEIGHT}' fill='white'/>",
           f"<text x='{LEFT}' y='24' {STYLE} font-weight='bold'>{title}</text>"]
    for y in ticks(y_low, y_high):
        high = at(xs[0], y)[1]
        out.append(f"<path d='M{LEFT} {high:.1f}H{RIGHT}' stroke='#ddd'/>"
                   f"<text x='{LEFT - 8}' y='{high + 4:.1f}' text-anchor='end' {STYLE}>{y}</text>")
    for x in (1, 4, 16, 64, 256, 1024, 4096):
        right = at(x, y_low)[0]
        out.append(f"<path d='M{right:.1f} {TOP}V{BOTTOM}' stroke='#eee'/><text x='{right:.1f}' "
                   f"y='{BOTTOM + 18}' text-anchor='middle' {STYLE}>{x}</text>")
    out.append(f"<text x='{(LEFT + RIGHT) // 2}' y='{BOTTOM + 40}' text-anchor='middle' {STYLE}>"
               f"{x_label}</text><text x='16' y='{TOP - 4}' {STYLE}>{y_label}</text>")
    for i, (label, points) in enumerate(lines):
        color = COLORS[i % len(COLORS)]
        wide = "3" if label.startswith("qk") else "1.5"
        places = [at(x, y) for x, y in points]
        out.append(f"<polyline fill='none' stroke='{color}' stroke-width='{wide}' points='" +
                   " ".join(f"{x:.1f},{y:.1f}" for x, y in places) + "'/>")
        out += [f"<circle cx='{x:.1f}' cy='{y:.1f}' r='2.5' fill='{color}'/>" for x, y in places]
        row = TOP + 16 + 22 * i
        out.append(f"<path d='M{RIGHT + 24} {row - 4}h28' stroke='{color}' stroke-width='{wide}'/>"
                   f"<text x='{RIGHT + 60}' y='{row}' {STYLE}>{label}</text>")
    return "\n".join([*out, "</svg>", ""])


BAR, BAR_HEIGHT, NAMES, LONGEST = 26, 18, 180, 180  # rows, bars, names in front, the longest bar


def bars(panels):
    """panels: [(title, what a bar shows, [(name, length, text), ...])], side by side."""
    height = 82 + BAR * max(len(rows) for _, _, rows in panels)
    out = [f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' "
           f"width='{WIDTH}' height='{height}' role='img' "
           f"aria-label='{'; '.join(title for title, _, _ in panels)}'>",
           f"<rect width='{WIDTH}' height='{height}' rx='8' fill='white'/>"]
    for i, (title, shows, rows) in enumerate(panels):
        left = 16 + i * WIDTH // len(panels)
        start = left + NAMES
        out.append(f"<text x='{left}' y='28' {STYLE} font-weight='bold'>{title}"
                   f"</text><text x='{left}' y='48' {STYLE}>{shows}</text>")
        longest = max(length for _, length, _ in rows)
        for j, (name, length, text) in enumerate(rows):
            top = 64 + BAR * j
            ours = name.startswith("qk")
            weight = " font-weight='bold'" if ours else ""
            out.append(f"<text x='{start - 8}' y='{top + 13}' text-anchor='end' {STYLE}{weight}>"
                       f"{name}</text><rect x='{start}' y='{top}' height='{BAR_HEIGHT}' "
                       f"width='{LONGEST * length / longest:.1f}' "
                       f"fill='{COLORS[0] if ours else '#8fa3b8'}'/>"
                       f"<text x='{start + LONGEST * length / longest + 6:.1f}' y='{top + 13}' "
                       f"{STYLE}{weight}>{text}</text>")
    return "\n".join([*out, "</svg>", ""])
