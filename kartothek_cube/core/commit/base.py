"""What a commit starts from: the newest state of a dataset and how it is stored."""

from __future__ import annotations

from typing import Any

import attrs

from kartothek_cube.core.commit.delta import CommitReceipt
from kartothek_cube.core.commit_record import CommitRecord, parse_record
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.dataset.load import HeaderBlob
from kartothek_cube.core.naming import schema_key

__all__ = ("BaseState",)


@attrs.frozen
class BaseState:
    """
    What a change is applied to: the newest state and how it is stored.

    Attributes
    ----------
    uuid, table
        The dataset.
    header_key, token
        Where the new header goes, and which version of it was there.
    old
        The header that is there; None if there is none.
    state
        Its state; None if there is none, or none that can be read.
    schema, schema_token
        Content and version of the schema file.
    """

    uuid: str
    table: str
    header_key: str
    token: Any
    old: HeaderBlob | None
    state: DatasetMetadata | None
    schema: bytes | None
    schema_token: Any

    @property
    def header(self) -> bytes | None:
        """The header that is there."""
        return None if self.old is None else self.old.content

    @property
    def schema_key(self) -> str:
        """Where the schema is."""
        return schema_key(self.uuid, self.table)

    @property
    def record(self) -> CommitRecord | None:
        """The commit record of the state; None if there is none."""
        return None if self.state is None else parse_record(self.state.extra)

    @property
    def is_confirmed(self) -> bool:
        """Whether tombstones of all collections that may meet this dataset are in its header."""
        return self.state is not None and (self.record is None or self.record.unconfirmed is None)

    def published(
        self, header: bytes, token: Any, schema: bytes | None, new: DatasetMetadata
    ) -> CommitReceipt:
        """What was put in place of this."""
        return CommitReceipt(
            self.uuid,
            self.header_key,
            header,
            token,
            self.header,
            self.schema_key,
            schema,
            self.schema,
            new,
            self.state,
        )
