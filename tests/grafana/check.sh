#!/usr/bin/env bash
# Checks the chart's dashboard against Grafana's schema, which consists of TypeScript types. The check fails if a field
# does not exist or has another type.
#   check.sh CACHE        installs the schema and the compiler in CACHE once; needs Node.js
set -euo pipefail
cd "$(dirname "$0")"
command -v npm >/dev/null || { echo "npm is missing: install Node.js (Debian: apt-get install npm)" >&2; exit 1; }
dashboard=../../charts/stagecoach/files/dashboard.json
installed=$1/grafana-$(sha256sum package.json | cut -c1-12)
if [ ! -d "$installed" ]; then
    echo "installing Grafana's schema (once, into $installed)" >&2
    rm -rf "$installed.new"
    mkdir -p "$installed.new"
    cp package.json "$installed.new"
    npm install --prefix "$installed.new" --silent --no-audit --no-fund
    mv "$installed.new" "$installed"
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
ln -s "$installed/node_modules" "$folder/node_modules"

# Whether standard input is a dashboard.
is_dashboard() {
    { echo "import type { Dashboard } from '@grafana/schema';"; printf 'export const dashboard: Dashboard = '; cat; } > "$folder/check.ts"
    "$installed/node_modules/.bin/tsc" --noEmit --strict --module nodenext --skipLibCheck "$folder/check.ts"
}

is_dashboard < "$dashboard"
# tests the check: it must refuse a misspelt field and a field of another type
for mistake in 's/"gridPos"/"gridPosition"/' 's/"unit": "s"/"unit": 1/' 's/"title": "Stagecoach"/"title": null/'; do
    if sed "$mistake" "$dashboard" | is_dashboard > /dev/null; then
        echo "a dashboard with $mistake passes: the check is broken" >&2
        exit 1
    fi
done
echo "the dashboard is what Grafana's schema says"
