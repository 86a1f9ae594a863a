"""Query engine ("Query System" in the specification): logical plan, physical plan, scans, joins, output."""

from __future__ import annotations

from kartothek_cube.io_components.query.executor import run_task
from kartothek_cube.io_components.query.frame_conversion import run_frames
from kartothek_cube.io_components.query.physical_plan import PhysicalPlan, ScanContext, ScanTask
from kartothek_cube.io_components.query.planner import plan_query

__all__ = ("ScanContext", "PhysicalPlan", "ScanTask", "plan_query", "run_frames", "run_task")
