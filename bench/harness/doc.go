// Package harness is what the benchmarks share: a process for each contestant, medians with
// intervals, progress and tables.
//
//	parent ── Start ──▶ child, the same program with a hidden command
//	          Ask   ──▶ runs until it has answered, then stands still (SIGSTOP): the others have the machine
//	          Pause ──▶ stands still between requests as well, such as a server between two joins
//	          Watch ──▶ its memory meanwhile: anonymous and of files apart
//	          End   ──▶ closes what it has
//
//	Progress (progress.go) during the run · PrintAligned, MedianInterval for the result
package harness
