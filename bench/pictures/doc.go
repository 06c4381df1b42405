// Package pictures draws output of runs as SVG, for light and dark pages.
//
//	docs/runs/join.txt, tree.txt ──▶ drawBenchmarks ──▶ docs/benchmarks.svg    bars of joins, commits and Byzantine peers
//	docs/runs/latency.txt ─────────▶ drawTimeline ────▶ docs/put-timeline.svg  the steps of a put
//
// It reads the tables that the benchmarks have printed, so a picture and the recorded output cannot
// differ. The pictures of the papers' figures are those of papersbench.
package pictures
