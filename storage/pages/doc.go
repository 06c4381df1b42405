// Package pages reads a tree from a state zone (package storage) that holds its leaves: single
// pages while the tree is used (Pages), all leaves when it is built (Interruptible), and again and
// again all pages to find damage (Scrub). Packages treestore and rangestore use it for a whole
// state and for a key range of one. It knows nothing of the chain, and writes nothing.
//
//	reader, Apply, Replay ──stub, key range──► cache ──miss──► state zone: newest state, then older ones that are kept
//	                                             ▲                   │ records
//	                                             └── verified page ◄─┘ avlstar.VerifyPage
package pages
