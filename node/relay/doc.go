// Package relay pushes a validator's own votes and proposals to peers at once, where CometBFT's
// gossip would look for them some time later, and sends proposals and block parts to other
// validators over the transport instead of p2p, which is slower and limits its rate. CometBFT is
// not modified: its consensus reactor is wrapped.
//
//	consensus ─ Send ─► sender ─► link ── method 18 ══ transport ══► inbox ─► Receive ─► consensus
//	                      │         └─ refused, failed, late ─┐                  ▲
//	                      └─ votes and all else ──────────────┴─ p2p ────────────┘
//
// The transport is optional and untrusted. Messages that it does not deliver go over p2p, and
// duplicates are ignored. A proposal is accepted only with the proposer's signature, and a part
// only if it belongs to the root of a proposal that consensus has or was passed. docs/spec/relay.md
// specifies the messages.
package relay
