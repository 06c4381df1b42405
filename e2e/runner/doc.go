// Package runner starts, watches and ends the processes of a network on loopback.
//
//	Home ─── a folder that `starlingd init` made, configured for loopback, with its own ports; several homes share one Genesis
//	  │
//	Processes ── one process group per node, its output in a log file
//	    │            a process that ends unexpectedly ends Context, with its last log lines as the cause
//	    └─ Stop: SIGTERM, then SIGKILL, only to processes that were started here
//
// The package is black-box: it knows the files and ports of a node, but none of its code. The
// demonstration and the end-to-end tests are built on it.
package runner
