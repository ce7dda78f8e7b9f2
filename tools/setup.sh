#!/usr/bin/env bash
# Makes .venv and everything the tests need. `make setup` runs it; running it again is safe.
#
#   PYTHON=/path/to/python3 tools/setup.sh    to choose the interpreter
#
# Python packages come from the lock files only, checked by hash. System packages are installed where the
# user may do that (root or passwordless sudo, apt-get); elsewhere the script says what is missing and stops.
set -euo pipefail
cd "$(dirname "$0")/.."

# Distributions keep server programs in places that an ordinary user's PATH leaves out; tidegate.sandbox looks there too.
has() {
    local directory
    if command -v "$1" >/dev/null 2>&1; then return; fi
    for directory in /usr/local/sbin /usr/sbin /sbin /usr/lib/postgresql/*/bin; do
        if [ -x "$directory/$1" ]; then return; fi
    done
    return 1
}

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python}; do
        if new_enough "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    echo "setup: Python 3.11 or newer is needed, and none of these is: ${PYTHON:-python3 python3.13 python3.12 python3.11 python}." >&2
    echo "       Install one, or name it: PYTHON=/path/to/python3 make setup" >&2
    return 1
}

has_venv() { new_enough .venv/bin/python || "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; }

# Spark and the broker prefer JAVA_HOME to PATH, so that is the Java to judge.
has_java() {
    local java=${JAVA_HOME:+$JAVA_HOME/bin/java} major
    if [ ! -x "$java" ]; then java=java; fi
    major=$("$java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1) || return 1
    [ "${major:-0}" -ge 17 ]
}

has_mariadb() { has mariadbd && has mariadb-install-db; }
has_postgresql() { has initdb && has postgres; }
has_pgbouncer() { has pgbouncer; }
has_redis() { has redis-server; }
has_chromium() { has chromium || has chromium-browser || has google-chrome; }
has_npm() { has npm; }

missing_parts() {
    local part
    for part in venv java mariadb postgresql pgbouncer redis chromium npm; do
        if ! "has_$part"; then echo "$part"; fi
    done
}

describe() {
    case $1 in
        venv) echo "Python's venv module for $python" ;;
        java) echo "Java 17 or newer (java${JAVA_HOME:+, looked for in JAVA_HOME=$JAVA_HOME})" ;;
        mariadb) echo "MariaDB server (mariadbd, mariadb-install-db)" ;;
        postgresql) echo "PostgreSQL server (initdb, postgres)" ;;
        pgbouncer) echo "PgBouncer (pgbouncer)" ;;
        redis) echo "Redis server (redis-server)" ;;
        chromium) echo "Chromium (chromium), for the tests of the dashboard" ;;
        npm) echo "npm, which fetches axe-core for the tests of the dashboard" ;;
    esac
}

knows_package() { [ -n "$(apt-cache madison "$1" 2>/dev/null)" ]; }

apt_package() {
    case $1 in
        venv) "$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])' ;;
        java)
            # Newer releases carry 21 only; Spark runs on both.
            if knows_package openjdk-21-jre-headless && ! knows_package openjdk-17-jre-headless; then
                echo openjdk-21-jre-headless
            else
                echo openjdk-17-jre-headless
            fi
            ;;
        mariadb) echo mariadb-server ;;
        postgresql) echo postgresql ;;
        pgbouncer) echo pgbouncer ;;
        redis) echo redis-server ;;
        chromium) echo chromium ;;
        npm) echo npm ;;
    esac
}

dnf_package() {
    case $1 in
        venv) echo python3 ;;
        java) echo java-21-openjdk-headless ;;
        mariadb) echo mariadb-server ;;
        postgresql) echo postgresql-server ;;
        pgbouncer) echo pgbouncer ;;
        redis) echo redis ;;
        chromium) echo chromium ;;
        npm) echo npm ;;
    esac
}

brew_package() {
    case $1 in
        venv) echo python@3.13 ;;
        java) echo openjdk@17 ;;
        mariadb) echo mariadb ;;
        postgresql) echo postgresql@17 ;;
        pgbouncer) echo pgbouncer ;;
        redis) echo redis ;;
        chromium) echo chromium ;;
        npm) echo node ;;
    esac
}

packages() {
    local part
    for part in $missing; do "$1_package" "$part"; done | paste -s -d ' ' -
}

may_install() { has apt-get && { [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null; }; }

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

# Installing a server must not start it: the tests run their own, on their own ports.
forbid_autostart() {
    if [ ! -e /usr/sbin/policy-rc.d ]; then
        trap 'as_root rm -f /usr/sbin/policy-rc.d' EXIT
        printf '#!/bin/sh\nexit 101\n' | as_root tee /usr/sbin/policy-rc.d >/dev/null
        as_root chmod 755 /usr/sbin/policy-rc.d
    fi
}

apt() { as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 "$@"; }

install_missing() {
    apt update
    forbid_autostart
    echo "setup: installing $(packages apt)"
    # shellcheck disable=SC2046  # one word for each package
    apt install --no-install-recommends $(packages apt)
}

explain_missing() {
    local part
    {
        echo "setup: these are missing, and the tests need them:"
        for part in $missing; do echo "  - $(describe "$part")"; done
        echo "Install them, then run \`make setup\` again:"
        echo "  Debian, Ubuntu   sudo apt-get install $(packages apt)"
        echo "  Fedora           sudo dnf install $(packages dnf)"
        echo "  macOS            brew install $(packages brew)"
    } >&2
}

pip_install() { .venv/bin/python -m pip install --quiet --disable-pip-version-check "$@"; }

python=$(find_python)

missing=$(missing_parts)
if [ -n "$missing" ] && may_install; then
    install_missing || echo "setup: apt-get failed, see above" >&2
    missing=$(missing_parts)
fi
if [ -n "$missing" ]; then
    explain_missing
    exit 1
fi

if ! new_enough .venv/bin/python; then
    echo "setup: making .venv with $("$python" --version)"
    "$python" -m venv --clear .venv
fi

echo "setup: installing the locked Python packages (PySpark alone is 400 MB: the first time takes minutes)"
# Sdists are built by the locked build tools, never by what build isolation would fetch unpinned.
pip_install --require-hashes -r requirements/build.txt
pip_install --require-hashes --no-build-isolation --use-pep517 -r requirements/dev.txt
pip_install --no-build-isolation --no-deps --editable .
.venv/bin/python -c 'from tidegate.sandbox.jars import kafka_jars; print("setup: the jars of Kafka are in", kafka_jars())'
.venv/bin/python -c 'from tests.model.tlc import tlc_jars; print("setup: TLC, which checks the model, is in", tlc_jars())'
.venv/bin/python - <<'PYTHON'
import sys

from tidegate.sandbox import SandboxError
from tidegate.sandbox.mysql import mysqld

try:
    print("setup: MySQL is", mysqld().command[-1])
except SandboxError as error:
    sys.exit(f"setup: {error}")
PYTHON
