"""Draw in docs/_static/growth.svg how the cost of reading a cube grows with its size.

Each point is a process of its own: seconds of CPU time (the best of seven), peak memory beyond that of an
idle process, and requests to an object store.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs/_static/growth.svg"
FACTORS = (1, 2, 4, 7, 10)
#: rows are those of a file of one dataset; columns are payload of one dataset; datasets include the seed
BASE = {"rows": 100_000, "files": 6, "columns": 4, "datasets": 2}
MEASURES = {"time": "#1f6f8b", "memory": "#c8553d", "requests": "#5b8c5a"}
SIDE, GAP, LEFT, TOP = 210, 40, 50, 40


def measure(rows, files, columns, datasets):
    """Cost of a query of all columns."""
    import numpy as np
    import pandas as pd

    sys.path.insert(0, str(ROOT))
    from kartothek_cube.core.cube.cube import Cube
    from kartothek_cube.io.eager_cube import build_cube, query_cube
    from tests.support.object_server import running

    cube = Cube(uuid_prefix="growth", dimension_columns=["x"], partition_columns=["p"])
    x = np.arange(rows * files)
    random = np.random.default_rng(0)

    def parts():
        for number in range(datasets):
            name = f"d{number}" if number else "seed"
            payload = {f"{name}v{column}": random.random(len(x)) for column in range(columns)}
            yield {name: pd.DataFrame({"x": x, "p": x // rows, **payload})}

    with tempfile.TemporaryDirectory() as directory, running() as server:
        stores = f"hfs://{directory}", server.url()
        for store in stores:
            build_cube({name: df for part in parts() for name, df in part.items()}, cube, store)
        server.requests.clear()
        query_cube(cube, stores[1])
        requests = len(server.requests)
        seconds = []
        for _ in range(7):
            start = time.process_time()
            query_cube(cube, stores[0])
            seconds.append(time.process_time() - start)
        peak = _peak_of_query(cube, stores[0])
    return {"time": min(seconds), "memory": peak, "requests": requests}


def _peak_of_query(cube, store):
    """Megabytes that a process needs for a query beyond its imports."""
    # not `ru_maxrss`, which a process takes over from its parent
    code = (
        "import pickle, re, sys\n"
        "from kartothek_cube.io.eager_cube import query_cube\n"
        "cube, store = pickle.load(sys.stdin.buffer)\n"
        "peak = lambda: int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])\n"
        "before = peak(); query_cube(cube, store); print(peak() - before)"
    )
    command, given = [sys.executable, "-c", code], pickle.dumps((cube, store))
    done = subprocess.run(command, input=given, check=True, capture_output=True, cwd=ROOT)
    return int(done.stdout) / 1024


def measure_all():
    """Costs by what grows: one list of points for each."""
    points = {}
    for grows in BASE:
        points[grows] = []
        for factor in FACTORS:
            size = BASE | {grows: BASE[grows] * factor}
            command = [sys.executable, __file__, json.dumps(size)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            points[grows].append({"size": size[grows], **json.loads(done.stdout)})
            print(f"{factor} x {grows}: {points[grows][-1]}", file=sys.stderr, flush=True)
    return points


def draw(points):
    """The chart: costs relative to those of the smallest cube."""
    width, height = LEFT + len(points) * (SIDE + GAP), TOP + SIDE + 70
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12" fill="#333">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for number, (grows, costs) in enumerate(points.items()):
        lines += _draw_panel(LEFT + number * (SIDE + GAP), grows, costs)
    for number, (name, colour) in enumerate([*MEASURES.items(), ("in proportion", "#bbb")]):
        x, y = LEFT + number * 130, height - 14
        dash = ' stroke-dasharray="4 3"' if name not in MEASURES else ""
        lines += [
            f'<path d="M{x} {y - 4}h24" stroke="{colour}" stroke-width="2"{dash}/>',
            f'<text x="{x + 30}" y="{y}">{name}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])


def _draw_panel(left, grows, costs):
    first = costs[0]

    def place(factor, value):
        scale = SIDE / (max(FACTORS) + 0.5)
        return f"{left + factor * scale:.1f} {TOP + SIDE - min(value, 10.5) * scale:.1f}"

    lines = [
        f'<text x="{left}" y="{TOP - 14}" font-weight="bold">{first["size"]:,} to {costs[-1]["size"]:,} '
        f"{grows}</text>",
        f'<path d="M{left} {TOP}V{TOP + SIDE}H{left + SIDE}" fill="none" stroke="#999"/>',
        f'<path d="M{place(0, 0)}L{place(10, 10)}" stroke="#bbb" stroke-dasharray="4 3"/>',
    ]
    for factor in (1, 5, 10):
        x, y = place(factor, 0).split()
        lines.append(f'<text x="{x}" y="{float(y) + 16}" text-anchor="middle">{factor} x</text>')
        x, y = place(0, factor).split()
        lines.append(f'<text x="{float(x) - 6}" y="{float(y) + 4}" text-anchor="end">{factor} x</text>')
    for name, colour in MEASURES.items():
        path = "L".join(
            place(factor, cost[name] / first[name]) for factor, cost in zip(FACTORS, costs, strict=True)
        )
        lines.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
    return lines


def main():
    """Measure and draw; or with a size, measure that."""
    if len(sys.argv) > 1:
        print(json.dumps(measure(**json.loads(sys.argv[1]))))
        return
    points = measure_all()
    PICTURE.write_text(draw(points))
    for grows, costs in points.items():
        first, last = costs[0], costs[-1]
        ratios = ", ".join(f"{name} {last[name] / first[name]:.1f} x" for name in MEASURES)
        print(f"10 x {grows}: {ratios}")


if __name__ == "__main__":
    main()
