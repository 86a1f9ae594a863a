"""Names that users of kartothek import from here."""

from __future__ import annotations

from kartothek_cube.core.errors import MultiTableCommitAborted

__all__ = ("MultiTableCommitAborted",)
