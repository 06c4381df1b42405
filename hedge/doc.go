// Package hedge puts one question to several candidates, and asks further ones while others are
// slow. It is a pure state machine, events in and actions out, with a thin shell around it.
//
//	                      ┌── when the pace allows it
//	Add ──► queued ──Ask──► asked ──Answered──► waiting ──Prove──► proving ──Proved──► the first wins ──► Settled
//	           ▲             │ │ Failed          while an equal     │ Refuted          │
//	           └────Park─────┘ ▼                 answer is being    ▼                  └ up to Compare: what do
//	           ByRate only    over               proved            over                  the others answer?
//
// Each candidate is asked once; by rate, again after it was parked. Of equal answers, one is
// proved at a time; at each multiple of Policy.After another one is proved beside it, because a
// proof may depend on a slow peer. The first answer that is proved wins. After that the search
// either ends, or continues to listen for up to Policy.Compare while any candidate is worth
// waiting for, and examines every answer that differs from the winner.
//
// Everything that is a matter of judgement is in Policy: how many candidates are asked at once, and
// what allows the next one. pace.go holds the consequences.
//
// Machine has no clock, no network and no goroutine, and never depends on the order of a map: the
// same events give the same actions. Search runs a Machine, with one goroutine for each question
// and each proof. Searches for light blocks, headers, manifests and heights all use it.
package hedge
