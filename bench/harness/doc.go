// Package harness is what measurements side by side have in common: a process for each contestant, and what people see.
//
//	parent ── Start ──▶ child, the same program with a hidden command
//	          Ask   ──▶ runs until it has answered, then stands still (SIGSTOP): the others have the machine
//	          End   ──▶ closes what it has
//
//	Progress (progress.go) while it goes on · PrintAligned, Percentile for the result
package harness
