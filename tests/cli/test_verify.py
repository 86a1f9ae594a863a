"""verify: report, exit code, repair."""

from __future__ import annotations

import json


def test_verify(ok):
    assert ok("cube", "verify").startswith("no problems in 2 datasets, 4 files, ")
    assert json.loads(ok("cube", "verify", "--json", "--quick"))["ok"] is True


def test_verify_finds_damage(call, ok, tmp_path):
    (index,) = (tmp_path / "store" / "cube++enrich" / "indices" / "i1").iterdir()
    index.unlink()
    result = call("cube", "verify")
    assert result.exit_code == 3
    assert "cube++enrich: missing-index" in result.stdout
    assert result.stderr == ""
    assert call("cube", "verify", "--json").exit_code == 3
    ok("cube", "verify", "--include", "seed")
    assert "repaired: cube++enrich" in ok("cube", "verify", "--repair")
    ok("cube", "verify")


def test_verify_of_a_cube_that_cannot_be_loaded(call, error, tmp_path):
    (tmp_path / "store" / "cube++seed.by-dataset-metadata.json").unlink()
    result = call("cube", "verify")
    assert result.exit_code == 3
    assert "seed" in result.stdout
    assert "Cube nope not found" in error("nope", "verify")
