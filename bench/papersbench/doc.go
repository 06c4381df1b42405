// Package papersbench repeats the figures of the four papers, and draws them next to the papers'
// numbers.
//
//	figures (a registry) ── run ──▶ the other benchmarks (syncbench, e2ebench, storagebench, dsmbench, joinbench, relaybench, programsbench)
//	       │                        or a small run of this package
//	       │                            chunked, space   the AVL* paper's own chunks, and Starling's
//	       │                            moving           a join while the chain moves
//	       │                            cache            the space-gaming cache, by hits
//	       │                            trie             Ethereum's trie alone (gethtrie)
//	       ▼
//	  --out ID.json (report) ──▶ ID.svg (picture) ──▶ index.html (page)
//
// A figure whose report has the same commit and options is not run again.
package papersbench
