#!/bin/sh
# Reports, below folder $2, the cells of the plan $1 that have their verdict before any machine tries.
set -eu
plan=$1
folder=$2
mkdir -p "$folder"
.venv/bin/python ci/cells.py rest <"$plan" | while read -r cell; do
  .venv/bin/python build.py matrix --only "$cell" --reports "$folder/$cell" </dev/null
done
