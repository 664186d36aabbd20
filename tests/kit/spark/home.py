"""A Spark home whose workers import pyspark from its files, not from a zip.

Spark puts the `pyspark.zip` and `py4j-*.zip` of its home before everything else on the Python path
of each process it starts. Zipped sources are compiled anew every time: 1.15 s of CPU for what takes
0.36 s from the files that pip has compiled, and every stream starts such a process. So a session of
ours runs in a home that is the installed one, by links, but for directories in place of the zips.
It is made once and kept in the user's cache. Whatever stands in the way is no error: the installed
home works as well, later.
"""

import os
import tempfile
from contextlib import suppress
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from shutil import rmtree

from pyspark.find_spark_home import _find_spark_home
from pyspark.version import __version__


def quick_home() -> str | None:
    """Such a home, for SPARK_HOME; None if the user chose one, or it cannot be made."""
    if "SPARK_HOME" in os.environ:
        return None
    installed = Path(_find_spark_home()).resolve()
    try:
        return str(_made(installed, _cache()))
    except (OSError, RuntimeError):  # the latter of a user who has no home
        return None


def _cache() -> Path:
    given = os.environ.get("XDG_CACHE_HOME")
    return (Path(given) if given else Path.home() / ".cache") / "pumpline"


def _made(installed: Path, cache: Path) -> Path:
    digest = blake2b(str(installed).encode(), digest_size=6).hexdigest()
    home = cache / f"spark-{__version__}-{digest}"
    if not home.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".spark-", dir=cache))
        try:
            _fill(draft, installed)
            with suppress(OSError):  # another process was first
                draft.rename(home)
        finally:
            rmtree(draft, ignore_errors=True)
    return home


def _fill(home: Path, installed: Path) -> None:
    for entry in installed.iterdir():
        if entry.name != "python":
            (home / entry.name).symlink_to(entry)
    for archive in (installed / "python" / "lib").glob("*.zip"):
        name = archive.name.partition("-")[0].removesuffix(".zip")
        package = find_spec(name)
        if package is None or package.origin is None:
            raise FileNotFoundError(f"{archive} is not installed as files")
        directory = home / "python" / "lib" / archive.name
        directory.mkdir(parents=True)
        (directory / name).symlink_to(Path(package.origin).resolve().parent)
