// Package hedge asks one question of several candidates, and asks further ones while others are
// slow. It is a pure state machine, events in and actions out, with a thin shell around it.
//
//	                      ┌── when the pace allows it
//	Add ──► queued ──Ask──► asked ──Answered──► waiting ──Prove──► proving ──Proved──► the first wins ──► Settled
//	           ▲             │ │ Failed          while an equal     │ Refuted          │
//	           └────Park─────┘ ▼                 answer is being    ▼                  └ up to Compare: wait for
//	           ByRate only    over               proved            over                  other answers
//
// Each candidate is asked once or, with ByRate, again after it was parked. Of equal answers, one is
// proved at a time; at each multiple of Policy.After another proof is started in parallel, because
// a proof may depend on a slow peer. The first answer that is proved, or needs no proof, wins.
// After that the search either ends, or continues to listen for up to Policy.Compare while any
// candidate is worth waiting for, and examines every answer that differs from the winner.
//
// Policy holds the tunable parameters: how many candidates are asked at once, and what allows the
// next one. pace.go implements them.
//
// Machine has no clock, no network and no goroutines, and never depends on map order: the same
// events give the same actions. Search runs a Machine, with one goroutine for each question and
// each proof. Searches for light blocks, headers, manifests, heights, blocks and pages of a range
// use it, and clients.
package hedge
