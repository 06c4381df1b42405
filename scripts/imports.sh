#!/usr/bin/env bash
# Prints a Mermaid graph of the imports between our packages, without tests, networks and commands of e2e.
#
# Redundant arrows are omitted: if a imports b and b imports c, then a's import of c is not drawn.
set -euo pipefail
cd "${1:-$(dirname "$0")/..}"
echo 'graph TD'
go list -f '{{$p := .ImportPath}}{{range .Imports}}{{$p}} {{.}}{{"\n"}}{{end}}' ./... |
  awk -v module=github.com/starling-kv/starling/ '
    index($1, module) == 1 && index($2, module) == 1 && !/starling\/(e2e|networks|internal)\/|nodetest/ {
      gsub(module, "")
      edge[$1, $2]; reach[$1, $2]; names[$1]; names[$2]
    }
    END {
      for (k in names) for (i in names) if ((i, k) in reach) for (j in names) if ((k, j) in reach) { reach[i, j]; longer[i, j] }
      for (e in edge) if (!(e in longer)) { split(e, ends, SUBSEP); print "    " ends[1] " --> " ends[2] }
    }' | sort
