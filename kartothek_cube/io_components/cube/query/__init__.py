"""The query engine: intention -> partitions -> alignment -> groups -> joins (see "Query System" in the specification)."""

from __future__ import annotations

from kartothek_cube.io_components.cube.query.plan import QueryContext, QueryPlan, Task, plan_query
from kartothek_cube.io_components.cube.query.run import run_task

__all__ = ("QueryContext", "QueryPlan", "Task", "plan_query", "run_task")
