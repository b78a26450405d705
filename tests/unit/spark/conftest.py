from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="the package pyspark is not installed")
