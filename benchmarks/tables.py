"""What the benchmark pages share: the machine in words, and sections of a page that a script writes anew."""

import os
import platform
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def machine() -> str:
    """Return processor, cores and system."""
    cpuinfo = Path("/proc/cpuinfo")
    models = [line.partition(":")[2].strip() for line in lines_of(cpuinfo) if line.startswith("model name")]
    processor = models[0] if models else platform.processor() or platform.machine()
    return f"{processor}, {os.cpu_count()} cores, {platform.system()}"


def lines_of(path: Path) -> list[str]:
    """Return a file's lines, none where there is no such file."""
    return path.read_text().splitlines() if path.is_file() else []


def versions(*packages: str) -> str:
    """Return Python's version and those of the packages that are installed."""
    found = [f"Python {platform.python_version()}"]
    for package in packages:
        try:
            found.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            continue
    return ", ".join(found)


def replace_section(path: Path, begin: str, end: str, text: str) -> None:
    """Put a text between two markers of a page; the rest of the page stays."""
    page = path.read_text() if path.is_file() else "# Benchmarks\n"
    if begin not in page or end not in page:
        page = f"{page.rstrip()}\n\n{begin}\n{end}\n"
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    path.write_text(f"{before}{begin}\n{text}\n{end}{after}")
