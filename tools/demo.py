"""Runs the demo in an environment of its own, which holds only what it needs. `make demo` calls this.

It needs Python and Java, and no package beside Python's own: the others come from the lock files, checked by hash.
What is missing is one line, with what to do, before anything is downloaded.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OURS = ROOT / ".venv-demo"
READY = "ready"
LOCKS = [ROOT / "requirements" / name for name in ("build.txt", "demo.txt")]
NEEDED_BYTES = 2_000_000_000  # PySpark alone takes 500 MB, and its source as much again while it is unpacked

WRONG_SYSTEM, NO_ROOM, NO_NETWORK = 2, 1, 3
"""Exit codes, as those of the command line: configuration, failed, unreachable."""

_NETWORK = re.compile(
    r"(?i)connection (?:broken|refused|reset|aborted)|ProxyError|NewConnectionError|ConnectTimeout|Read timed out"
    r"|name resolution|Could not find a version|No matching distribution"
)
_CAUSE = re.compile(r"broken by '(\w+)\((?:.*?: )?(?P<cause>[^:]*?)'?\)+'?:")


def main() -> int:
    """Prepare the environment, unless it is there, and run the demo; the exit code."""
    if sys.version_info < (3, 11):
        return told(f"the demo needs Python 3.11, and {sys.executable} is {platform.python_version()}", WRONG_SYSTEM)
    if (wrong := java_is_wrong()) is not None:
        return told(wrong, WRONG_SYSTEM)
    if (ROOT / ".venv" / ".ready").exists():  # made by `make setup`, with all that the tests need
        return run(ROOT / ".venv")
    if not is_ready() and (code := prepare()) != 0:
        return code
    return run(OURS)


def told(line: str, code: int) -> int:
    """Print the line, and return the code."""
    sys.stderr.write(f"demo: {line}\n")
    return code


def java_is_wrong() -> str | None:
    """Say what is wrong with Java, with the command that installs it; ``None`` if nothing is."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    if java is None:
        where = f"in JAVA_HOME, which is {home}" if home else "on PATH"
        return f"Kafka and Spark need Java 17 or newer, and there is no java {where}; {advice('java')}"
    said = subprocess.run([java, "-version"], capture_output=True, text=True, errors="replace", check=False)
    version = re.search(r'version "(?:1\.)?(\d+)', said.stderr + said.stdout)
    if version is None:
        return f"Kafka and Spark need Java 17 or newer, and {java} does not say its version; {advice('java')}"
    if int(version[1]) < 17:
        return f"Kafka and Spark need Java 17 or newer, and {java} is Java {version[1]}; {advice('java')}"
    return None


_PACKAGES = {
    "debian": {"java": "sudo apt-get install openjdk-17-jre-headless", "venv": "sudo apt-get install python3-venv"},
    "ubuntu": {"java": "sudo apt-get install openjdk-17-jre-headless", "venv": "sudo apt-get install python3-venv"},
    "fedora": {"java": "sudo dnf install java-21-openjdk-headless", "venv": "sudo dnf install python3"},
    "rhel": {"java": "sudo dnf install java-21-openjdk-headless", "venv": "sudo dnf install python3"},
    "suse": {"java": "sudo zypper install java-21-openjdk-headless", "venv": "sudo zypper install python3"},
    "arch": {"java": "sudo pacman -S jre21-openjdk-headless", "venv": "sudo pacman -S python"},
    "alpine": {"java": "sudo apk add openjdk21-jre-headless", "venv": "sudo apk add python3"},
    "macos": {"java": "brew install openjdk@17", "venv": "brew install python@3.13"},
}


def advice(part: str) -> str:
    """Return the command of this system that installs a part."""
    for name in systems():
        if name in _PACKAGES:
            return f"run: {_PACKAGES[name][part]}"
    return f"install {'a Java runtime, version 17' if part == 'java' else 'the venv module of Python'}, and try again"


def systems() -> list[str]:
    """The names of this system, the most particular first; newer Debians carry Java 21 only, and 17 is older."""
    if sys.platform == "darwin":
        return ["macos"]
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return []
    return [release.get("ID", ""), *release.get("ID_LIKE", "").split()]


def made_of() -> str:
    """What the environment is made of: another Python or another lock file makes it anew."""
    digest = hashlib.sha256(sys.version.encode())
    for lock in LOCKS:
        digest.update(lock.read_bytes())
    return digest.hexdigest()


def is_ready() -> bool:
    """Return whether the environment is complete and fits."""
    mark = OURS / READY
    return mark.exists() and mark.read_text() == made_of()


def prepare() -> int:
    """Make the environment; the exit code."""
    if (free := shutil.disk_usage(ROOT).free) < NEEDED_BYTES:
        return told(no_room(free), NO_ROOM)
    say("making .venv-demo, once: Python packages of about 600 MB, of which PySpark is the largest")
    try:
        made = subprocess.run(
            [sys.executable, "-m", "venv", "--clear", str(OURS)], capture_output=True, text=True, check=False
        )
        if made.returncode != 0:
            return told(f"Python cannot make a virtual environment: {advice('venv')}", WRONG_SYSTEM)
        # Sdists are built by the locked build tools, never by what build isolation would fetch unpinned.
        locked = ("--require-hashes", "--no-build-isolation", "--use-pep517", "-r")
        own = ("--no-build-isolation", "--no-deps", "--editable", str(ROOT))
        for arguments in ((*locked, str(LOCKS[0])), (*locked, str(LOCKS[1])), own):
            if (code := pip(*arguments)) != 0:
                return code
        (OURS / READY).write_text(made_of())
    except OSError as error:
        return told(f"{OURS} cannot be written: {error.strerror}", NO_ROOM)
    return 0


def pip(*arguments: str) -> int:
    """Install packages: on a terminal with pip's own bars, elsewhere with a line for each download; the exit code."""
    command = [str(OURS / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--retries", "2", "install"]
    is_live = sys.stdout.isatty()
    with subprocess.Popen(
        [*command, *arguments],
        stdout=None if is_live else subprocess.PIPE,
        stderr=subprocess.PIPE if is_live else subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        lines = []
        for line in (process.stderr if is_live else process.stdout) or ():
            lines.append(line)
            if not is_live and line.lstrip().startswith(("Downloading", "Using cached", "Building wheel")):
                say(line.strip())
    if process.returncode == 0:
        return 0
    output = "".join(lines)
    if "No space left on device" in output:
        return told(no_room(shutil.disk_usage(ROOT).free), NO_ROOM)
    if _NETWORK.search(output):
        cause = _CAUSE.search(output)
        because = f" ({cause['cause'].strip()})" if cause else ""
        return told(
            f"the package index cannot be reached{because}: the first run downloads Python packages; check the "
            "network, or the proxy and the index that pip is configured with",
            NO_NETWORK,
        )
    told_by_pip = [line.strip() for line in lines if line.startswith("ERROR: ")] or [f"exit code {process.returncode}"]
    return told(f"pip failed: {told_by_pip[0].removeprefix('ERROR: ')}", NO_ROOM)


def no_room(free: int) -> str:
    """Say that there is too little space."""
    return (
        f"too little disk space: {free // 1_000_000:,} MB are free in {ROOT}, and the demo needs "
        f"{NEEDED_BYTES // 1_000_000:,} MB"
    )


def say(line: str) -> None:
    """Print a line of progress."""
    sys.stdout.write(f"demo: {line}\n")
    sys.stdout.flush()


def run(environment: Path) -> int:
    """Run the demo with the Python of an environment; its exit code."""
    command = [str(environment / "bin" / "python"), "-m", "demo", *sys.argv[1:]]
    try:
        return subprocess.run(command, cwd=ROOT, check=False).returncode
    except KeyboardInterrupt:  # the demo got it too, and has ended what it started
        return 130


if __name__ == "__main__":
    sys.exit(main())
