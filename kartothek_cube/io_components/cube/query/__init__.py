"""The query engine ("Query System" in the specification): intention, partitions, alignment, groups, joins."""

from __future__ import annotations

from kartothek_cube.io_components.cube.query.frames import run_frames
from kartothek_cube.io_components.cube.query.layout import PhysicalPlan, ScanContext, ScanTask
from kartothek_cube.io_components.cube.query.plan import plan_query
from kartothek_cube.io_components.cube.query.run import run_task

__all__ = ("ScanContext", "PhysicalPlan", "ScanTask", "plan_query", "run_frames", "run_task")
