"""Bodies and queries of several routes."""

from __future__ import annotations

from typing import Annotated

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field


class Query(BaseModel):
    """The parameters of a query. Unknown ones are refused."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Body(BaseModel):
    """The members of a body. Unknown ones are refused, and no value is converted."""

    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)


Instant = Annotated[AwareDatetime, Field(strict=False)]
Line = Annotated[str, Field(min_length=1, max_length=500)]
