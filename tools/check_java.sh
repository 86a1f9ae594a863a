#!/bin/sh
# Check that Java 17 or newer is installed (JAVA_HOME, then PATH); otherwise print an installation hint.
set -eu

java=${JAVA_HOME:+$JAVA_HOME/bin/}java
version=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1) || version=
if [ "${version:-0}" -ge 17 ]; then
    exit 0
fi
echo "Spark needs Java 17 or newer, found ${version:-none}: install it (Debian, Ubuntu:" \
    "apt-get install openjdk-17-jre-headless) or set JAVA_HOME." >&2
exit 1
