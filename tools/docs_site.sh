#!/usr/bin/env bash
# Build the site of the documentation into build/docs/site; a dead link or anchor is an error.
#
#   tools/docs_site.sh PYTHON
set -euo pipefail

python="$1"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

rm -rf build/docs
mkdir -p build/docs/pages
for each in README.md ARCHITECTURE.md CONTRIBUTING.md CHANGELOG.md LICENSE docs benchmarks config deploy; do
  ln -s "$PWD/$each" "build/docs/pages/$each"
done
# --quiet would hide warnings from --strict.
"$python" -m mkdocs build --strict --config-file tools/mkdocs.yml
echo "build/docs/site/index.html"
