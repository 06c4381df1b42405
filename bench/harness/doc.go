// Package harness is the common code of the benchmarks: flags, a process for each contestant,
// medians with intervals, targets, progress and tables.
//
//	parent ── Start ──▶ child, the same program with a hidden command (internal/child)
//	          Ask   ──▶ runs until it has responded, then is stopped (SIGSTOP), so that the others have the machine
//	          Pause ──▶ is also stopped between requests, such as a server between two joins
//	          Watch ──▶ its memory meanwhile, anonymous and file-backed
//	          End   ──▶ closes its resources and exits
//
//	Flags before the run · Progress during it · PrintAligned, MedianInterval, PrintTargets for the result
package harness
