"""A Spark home for tests whose Python workers start quickly.

Spark puts the `pyspark.zip` and `py4j-*.zip` of its home first on the Python path of each process
it starts. Python compiles zipped sources anew every time: 1.15 s of CPU for what takes 0.36 s from
the files that pip has compiled, and every stream starts such a process. This home is the installed
one, by links, with directories in place of the zips. It is made once for a machine and user.
"""

import getpass
import tempfile
from contextlib import suppress
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from shutil import rmtree

import pyspark


def quick_home() -> str:
    """The directory to name as SPARK_HOME; made if it is not there yet."""
    installed = Path(pyspark.__file__).resolve().parent
    mark = blake2b(f"{installed} {pyspark.__version__}".encode(), digest_size=6).hexdigest()
    home = Path(tempfile.gettempdir()) / f"pumpline-spark-{getpass.getuser()}-{mark}"
    if not home.is_dir():
        draft = Path(tempfile.mkdtemp(prefix=f"{home.name}-", dir=home.parent))
        try:
            _fill(draft, installed)
            with suppress(OSError):  # another process was first
                draft.rename(home)
        finally:
            rmtree(draft, ignore_errors=True)
    return str(home)


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
