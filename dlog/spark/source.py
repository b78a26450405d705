"""What Spark asks for when a program says `format("dlog")`."""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from dlog.errors import Unsupported
from dlog.spark.batch import BatchReader, NarrowedReader
from dlog.spark.columns import names_of, schema_of
from dlog.spark.options import shape, sink_options, source_options
from dlog.spark.sink import BatchWriter, StreamWriter
from dlog.spark.stream import StreamReader


class DefaultSource(DataSource):  # type: ignore[misc]  # pyspark's base has no types
    """Made on the driver, in a process of its own, and copied to others: it holds options alone."""

    @classmethod
    def name(cls) -> str:
        return "dlog"

    def schema(self) -> StructType:
        return schema_of(shape(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = source_options(self.options, "batch")
        kind = NarrowedReader if options.pushdown else BatchReader
        return kind(options, names_of(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return StreamReader(source_options(self.options, "stream"), names_of(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        refuse_overwriting(overwrite)
        return BatchWriter(schema, sink_options(self.options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        refuse_overwriting(overwrite)
        return StreamWriter(schema, sink_options(self.options))


def refuse_overwriting(overwrite: bool) -> None:
    if overwrite:
        raise Unsupported(
            "a log is appended to: mode append. Truncating one is another verb (dlog truncate)"
        )
