"""Benchmarks for asv, with the same workload as the comparison of engines."""

import os
import sys
from pathlib import Path

# a reduced workload, unless the environment says otherwise: 200,000 rows
os.environ.setdefault("BENCH_P", "50")
os.environ.setdefault("BENCH_X", "80")
os.environ.setdefault("BENCH_Y", "50")

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
