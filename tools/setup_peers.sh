#!/usr/bin/env bash
# Install the clients that `make peers` plays beside those that the tests install anyway:
# Node with @grpc/grpc-js into build/peers, Java with gRPC from Debian.
#
#   tools/setup_peers.sh
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly FOLDER=build/peers
wanted=()

command -v node >/dev/null || wanted+=(nodejs)
command -v npm >/dev/null || wanted+=(npm)
command -v javac >/dev/null || wanted+=(default-jdk-headless)
[ -e /usr/share/java/grpc-netty.jar ] || wanted+=(libgrpc-java)
[ -e /usr/share/java/netty-handler.jar ] || wanted+=(libnetty-java)
[ -e /usr/share/java/perfmark-api.jar ] || wanted+=(libperfmark-java)
[ -e /usr/share/java/netty-tcnative.jar ] || wanted+=(libnetty-tcnative-java)
[ -e /usr/share/java/guava.jar ] || wanted+=(libguava-java)
if [ ${#wanted[@]} -gt 0 ]; then
  tools/setup_debian.sh "${wanted[@]}"
fi

lock=tests/peers/node/package-lock.json
if ! cmp -s "$lock" "$FOLDER/package-lock.json"; then
  rm -rf "$FOLDER"
  mkdir -p "$FOLDER"
  cp tests/peers/node/package.json "$FOLDER"
  # No package's own scripts: none of them is needed. The lock comes last, as the mark of success.
  cp "$lock" "$FOLDER/npm-shrinkwrap.json"
  npm ci --prefix "$FOLDER" --ignore-scripts --no-audit --no-fund --silent
  cp "$lock" "$FOLDER"
fi
