#!/bin/sh
# Merges all reports below folder $1 into folder $2.
set -eu
folder=$1
reports=$2
set --
for found in $(find "$folder" -name report.json | sort); do
  set -- "$@" --from "$(dirname "$found")"
done
if [ $# -eq 0 ]; then
  echo "no shard left a report below $folder" >&2
  exit 3
fi
.venv/bin/python build.py report "$@" --reports "$reports"
