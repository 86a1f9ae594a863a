"""Verify that a dataset is what its header says, and repair what can be rebuilt."""

from __future__ import annotations

from kartothek_cube.io_components.verify.data_file_rules import (
    VerifyContext,
    VerifyResult,
    VerifyTask,
    run_verify,
)
from kartothek_cube.io_components.verify.dataset_rules import VerifyPlan, finish_verify, plan_verify
from kartothek_cube.io_components.verify.repair import repair
from kartothek_cube.io_components.verify.report import Problem, Report

__all__ = (
    "VerifyResult",
    "Problem",
    "Report",
    "VerifyContext",
    "VerifyPlan",
    "VerifyTask",
    "finish_verify",
    "plan_verify",
    "repair",
    "run_verify",
)
