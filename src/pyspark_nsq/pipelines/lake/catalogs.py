"""Where Iceberg tables are: in a directory with a catalog of its own, or in the user's catalog.

    TABLE/_catalog.db    a SQLite catalog with this table only, named archive.TABLE
    TABLE/metadata/      Iceberg's own
    TABLE/data/          the files of batches

Iceberg's remove_orphan_files deletes what the table does not name, but not what begins with `_`.

With --catalog NAME, `--table` is the table's name in a catalog that pyiceberg knows by its own
configuration (.pyiceberg.yaml, PYICEBERG_CATALOG__…).
"""

from pathlib import Path

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

from pyspark_nsq.errors import BadOption, NsqError
from pyspark_nsq.pipelines.lake.files import url
from pyspark_nsq.pipelines.table.storage import Storage

CATALOG_FILE = "_catalog.db"
NAMESPACE = "archive"


def named(catalog: str, table: str) -> tuple[Catalog, tuple[str, ...]]:
    """A catalog of the user's, and the table's name in it."""
    identifier = tuple(table.split("."))
    if len(identifier) < 2 or not all(identifier):
        raise BadOption(f"--table: in a catalog, a table is named like db.orders, not '{table}'")
    try:
        return load_catalog(catalog), identifier
    except ValueError as error:
        raise BadOption(f"--catalog {catalog}: {error}") from None


def own(spark: SparkSession, path: str) -> tuple[Catalog, tuple[str, ...]]:
    """The catalog in a table's directory."""
    root = Storage(spark, path).root
    if not root.startswith("file:"):
        raise NsqError(
            f"{path}: a catalog of SQLite needs a directory of this machine; name one by --catalog"
        )
    directory = Path("/" + root.removeprefix("file:").lstrip("/"))
    directory.mkdir(parents=True, exist_ok=True)
    catalog = SqlCatalog(
        NAMESPACE, uri=f"sqlite:///{directory / CATALOG_FILE}", warehouse=url(root)
    )
    return catalog, (NAMESPACE, directory.name)
