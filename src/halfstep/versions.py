"""The version of halfstep, and of the packages that it uses, for results and bug reports.

halfstep's own version is written here and not read from the metadata of an installation: a source
tree may have none, or those of another release that is installed beside it.
"""

from __future__ import annotations

HALFSTEP = "0.3.0"


def version(package: str, unknown: str = "unknown") -> str:
    """Return the version of a package; `unknown` if the package has no metadata.

    Args:
        package: Name of the distribution, such as "torch".
        unknown: The result for a package that is not installed, or installed without metadata.
    """
    if package == "halfstep":
        return HALFSTEP
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return unknown
