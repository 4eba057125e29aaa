"""Tables of answers as pandas data frames."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from meshwright.app.base.errors import MissingExtraError
from meshwright.app.requests.plan_documents import flat

if TYPE_CHECKING:
    import pandas as pd


def frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Return rows as a data frame; fields of fields are columns with dotted names.

    Raises MissingExtraError where pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError:
        raise MissingExtraError("data frames", package="pandas", extra="pandas") from None
    return pd.DataFrame.from_records([flat(row) for row in rows])
