#!/usr/bin/env bash
# Prints TRUST_HEIGHT and TRUST_HASH of a node's newest header, once it has a snapshot: trusted-header.sh http://127.0.0.1:26657
#
# To join a network that is not your own, get these values from a trusted source, not from a peer.
set -euo pipefail
rpc=${1:?address of an RPC server}
first_snapshot=${2:-20} # height; the trusted header must be above it
for ((try = 0; try < 180; try++)); do
  status=$(curl -sf --max-time 5 "$rpc/status" | tr -d ' \n' || true)
  height=$(sed -nE 's/.*"latest_block_height":"([0-9]+)".*/\1/p' <<<"$status")
  if [ "${height:-0}" -gt $((first_snapshot + 1)) ]; then
    echo "TRUST_HEIGHT=$height TRUST_HASH=$(sed -nE 's/.*"latest_block_hash":"([0-9A-F]+)".*/\1/p' <<<"$status")"
    exit 0
  fi
  sleep 1
done
echo "$rpc has no snapshot yet (height ${height:-unknown} after three minutes): is the network up?" >&2
exit 1
