"""How many hostile inputs the tests have tried, by kind; the end of a run says so."""

from __future__ import annotations

from collections import Counter

tried: Counter[str] = Counter()
