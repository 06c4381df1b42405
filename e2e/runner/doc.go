// Package runner starts, watches and ends the processes of a network on loopback.
//
//	Home ─── a folder that `starlingd init` made, edited for loopback, with ports of its own; many of them share one Genesis
//	  │
//	Processes ── one process group per node, its output in a log file
//	    │            a process that ends unasked ends Context, with its last log lines as the cause
//	    └─ Stop: SIGTERM, then SIGKILL, and only to what was started here
//
// It is black-box: it knows the files and ports of a node and nothing of its code. The
// demonstration and the end-to-end tests stand on it.
package runner
