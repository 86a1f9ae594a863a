#!/bin/sh
# Create a virtual environment with the first Python >= 3.11 of: $PYTHON, python3, python3.13, ... usage: make_venv.sh DIR
set -eu

usable() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python}; do
    if usable "$candidate"; then
        echo "Creating the virtual environment $1 with $("$candidate" --version)."
        if "$candidate" -m venv --clear "$1"; then
            exit 0
        fi
        rm -rf "$1"
        echo "$candidate cannot create virtual environments; on Debian and Ubuntu: apt-get install python3-venv" >&2
        exit 1
    fi
done

found=$(${PYTHON:-python3} --version 2>/dev/null) || found="no ${PYTHON:-python3}"
echo "kartothek_cube needs Python 3.11 or newer; found $found." \
    "Install it, or pass its path: make PYTHON=/path/to/python3.12 demo" >&2
exit 1
