#!/bin/sh
# publish in a CI job: logs in, signs with $SIGNING_KEY (else keyless), leaves no secret behind.
# Arguments go to `publish`.
set -eu
umask 077
secrets=$(mktemp -d)
trap 'rm -rf "$secrets"' EXIT
# What `docker login` would write; a runner that only publishes has no Docker client.
auth=$(printf '%s:%s' "$REGISTRY_USER" "$REGISTRY_PASSWORD" | base64 | tr -d '\n')
printf '{"auths": {"%s": {"auth": "%s"}}}' "$REGISTRY" "$auth" >"$secrets/config.json"
export DOCKER_CONFIG="$secrets"
if [ -n "${SIGNING_KEY:-}" ]; then
  printf '%s\n' "$SIGNING_KEY" >"$secrets/proof.key"
  set -- --key "$secrets/proof.key" "$@"
fi
.venv/bin/python build.py publish "$@"
