#!/bin/sh
# Check the page's JavaScript: style and imports with oxlint, types with TypeScript (tsconfig.json). Needs no network but
# for npm, which installs the pinned TypeScript into node_modules once.
set -u
cd "$(dirname "$0")/.."
failed=0

.venv/bin/oxlint --deny-warnings src/truenorm/page tests/page || failed=1

if ! command -v npm >/dev/null 2>&1; then
    echo "lint_page: npm is not installed, so the types of the page's JavaScript are not checked."
    exit $failed
fi
# node_modules/.package-lock.json is as new as the last installation.
if [ ! -f node_modules/.package-lock.json ] || [ package-lock.json -nt node_modules/.package-lock.json ]; then
    npm ci --silent --no-audit --no-fund || { echo "lint_page: npm could not install TypeScript." >&2; exit 1; }
    touch node_modules/.package-lock.json
fi
node_modules/.bin/tsc --project . || failed=1
exit $failed
