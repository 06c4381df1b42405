// Package dsm is what nodes of a sharded state have in common (RainBlock's DSM-Tree, section 4):
// the ranges of keys, which nodes serve them, and the messages by which they are asked and fed.
//
//	              ranges (12): a hint        ┌── replica ── [ , g)
//	             upper (14), witness (13)    │
//	validator ◄──────────────────────────────┼── replica ── [g, p)
//	          ───────────────────────────────►
//	             update (15), of each block  └── replica ── [p, )
//
// Ranges is the configuration: a value that is checked once, and routes what is wanted to who has
// it. Nothing of it is trusted: every answer is proved by hashes (docs/spec/dsm.md). Package
// dsm/ask decides whom to ask for what, package dsm/feed whom to send which update. All three are
// pure, and know neither the tree nor the network: a bag, an update and a commitment are bytes
// here.
package dsm
