// Package relay sends proposals and parts of blocks to other validators over the transport instead
// of CometBFT's p2p, which is slower and limits its rate. CometBFT is not changed: its consensus
// reactor is wrapped.
//
//	consensus ─ Send ─► sender ─► link ── method 18 ══ transport ══► inbox ─► Receive ─► consensus
//	                      │         └─ refused, failed, late ─┐                  ▲
//	                      └─ votes and all else ──────────────┴─ p2p ────────────┘
//
// Nothing depends on it: what the relay does not deliver goes by p2p, and what comes twice is
// ignored. Nothing is believed either: a proposal is taken with the proposer's signature only, and
// a part only if it leads to the root of a proposal that consensus has or was handed. The messages
// are specified in docs/spec/relay.md.
package relay
